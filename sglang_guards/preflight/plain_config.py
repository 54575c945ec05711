"""Configs of model types that the installed transformers does not know, from the JSON's own fields.

The class that a checkpoint brings for such a type is code, and code of a checkpoint is never run. A plain config object
has the fields that the JSON has and no defaults: what SGLang asks beyond them stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

#: What transformers says of a model type that it has no class for.
_UNKNOWN_TYPE = re.compile(r"model type `([^`]+)` but Transformers does not recognize this architecture")
#: Keys whose value is a config of a part of the model.
_PART = re.compile(r"(^|_)config$")
#: Nested settings that are plain tables, although their key ends so.
_TABLES = frozenset(
    {
        "quantization_config",
        "compression_config",
        "generation_config",
        "adapter_config",
        "ffn_config",
        "attn_config",
    }
)


_ROPE = ("rope_theta", "rope_scaling", "rope_parameters")


def unknown_type(error: BaseException) -> str | None:
    """The model type that transformers did not know, when that is what an error says."""
    seen: BaseException | None = error
    while seen is not None:
        found = _UNKNOWN_TYPE.search(str(seen))
        if found:
            return found[1]
        seen = seen.__cause__ or seen.__context__
    return None


def note(model_type: str) -> str:
    """What the report says of a launch that was judged so."""
    return (
        f"the installed transformers does not know model type {model_type}: judged from the fields of config.json "
        "alone, without the defaults of its config class"
    )


def accept(model_type: str) -> None:
    """From now on transformers makes plain config objects for this model type."""
    from transformers import AutoConfig

    AutoConfig.register(model_type, plain_class(model_type), exist_ok=True)


def plain_class(model_type: str) -> Any:
    """A config class that takes every field as it stands; parts of the model become config objects too."""
    from transformers import PretrainedConfig

    base: Any = PretrainedConfig

    def __init__(self: Any, **fields: Any) -> None:  # noqa: N807 - of the class made below
        parts = {key: fields.pop(key) for key in [k for k, v in fields.items() if _is_part(k, v)]}
        # Transformers 5 rewrites rope settings with fields that only its own classes are sure to have.
        base.__init__(self, **{k: v for k, v in fields.items() if k not in _ROPE})
        for key, value in fields.items():
            if key in _ROPE or not hasattr(self, key):
                setattr(self, key, value)
        for key, value in parts.items():
            setattr(self, key, _part(value))
        _add_rope(self, fields)

    return type("PlainConfig", (base,), {"model_type": model_type, "__init__": __init__})


def _is_part(key: str, value: Any) -> bool:
    return isinstance(value, Mapping) and bool(_PART.search(key)) and key not in _TABLES


def _part(value: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    kind = str(value.get("model_type") or "part")
    rest = {k: v for k, v in value.items() if k != "model_type"}
    try:
        return AutoConfig.for_model(kind, **rest)
    except Exception:  # unknown too, or it does not take these fields
        return plain_class(kind)(**rest)


def _add_rope(config: Any, fields: Mapping[str, Any]) -> None:
    """Transformers 5 keeps both rope settings in one table, and SGLang reads it; older ones keep the fields."""
    import transformers

    if int(transformers.__version__.partition(".")[0]) < 5 or fields.get("rope_parameters"):
        return
    scaling = fields.get("rope_scaling")
    table = dict(scaling) if isinstance(scaling, Mapping) else {"rope_type": "default"}
    if "rope_theta" in fields:
        table.setdefault("rope_theta", fields["rope_theta"])
        config.rope_parameters = table
