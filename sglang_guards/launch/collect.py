"""From a resolved ServerArgs to the facts of a launch. Everything that fails is a missing fact, never an exception."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_guards import sglang_compat
from sglang_guards.launch.checkpoint import TEXT_KEYS, model_facts
from sglang_guards.launch.config_defaults import class_defaults, filled
from sglang_guards.launch.facts import Fact

if TYPE_CHECKING:
    from sglang_guards.launch.gpus import Gpu

logger = logging.getLogger(__name__)

#: Paths that resolve nothing: SGLang returns early and no model exists.
DUMMY_PATHS = frozenset({"none", "dummy"})


def collect(
    view: Any,
    *,
    raw: Any = None,
    typed: Mapping[str, str] | None = None,
    given: Iterable[str] = (),
    gpu: Gpu | None = None,
    model_config: Mapping[str, Any] | None = None,
    problems: list[str] | None = None,
) -> dict[str, Fact]:
    """All collected facts of a launch (see `launch` for the names), JSON-able throughout.

    `view` is read for resolved server args, `raw` (default: the record behind it) for what was asked. `given` names
    the args that the user set; without it they are told from the raw record's defaults where it still has them.
    `gpu` is an assumed GPU; without it this machine is asked. `model_config` replaces the checkpoint's config.
    What could not be read is a line in `problems`.
    """
    notes: list[str] = problems if problems is not None else []
    facts = _try(notes, "server args", lambda: _args(view, raw, {*(typed or {}), *given})) or {}
    target = _try(notes, "model config", lambda: _target(view, facts, model_config)) or {}
    facts |= _prefixed("model", target)
    facts |= _try(notes, "draft model config", lambda: _draft(facts, target)) or {}
    facts |= _try(notes, "model registry", lambda: _owners(facts)) or {}
    facts |= _try(notes, "GPU", lambda: _gpu(facts, gpu)) or {}
    facts |= _try(notes, "LoRA adapters", lambda: _lora(facts)) or {}
    return facts


def _owners(facts: Mapping[str, Fact]) -> dict[str, Fact]:
    """Classes of plugins in the place of SGLang's own, where the plugins of this process have been loaded."""
    found = {}
    for model in ("model", "draft_model"):
        architecture = facts.get(f"{model}.architecture")
        owner = sglang_compat.foreign_model_class(str(architecture.value)) if architecture else None
        if owner is not None:
            found[f"{model}.implementation"] = Fact(owner, "machine", "ModelRegistry")
    return found


def _try(notes: list[str], what: str, read: Callable[[], dict[str, Fact]]) -> dict[str, Fact] | None:
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a missing fact skips rules; it must not stop a server
        notes.append(f"{what} could not be read: {type(error).__name__}: {error}")
        return None


def _prefixed(prefix: str, values: Mapping[str, Fact]) -> dict[str, Fact]:
    return {f"{prefix}.{name}": fact for name, fact in values.items()}


#: The number that SGLang draws anew for an adapter at every start: two reports of a launch would differ by it.
_DRAWN = re.compile(r"lora_id='?[0-9a-f]{32}'?, ")


def plain(value: Any) -> Any:
    """A JSON-able copy of a server arg's value; sets become sorted lists, unknown objects their text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (set, frozenset)):
        return sorted(str(v) for v in value)
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "value") and not callable(value.value):  # an enum
        return plain(value.value)
    return _DRAWN.sub("", str(value))


def _args(view: Any, raw: Any, given: set[str]) -> dict[str, Fact]:
    raw_record = sglang_compat.record(raw if raw is not None else view)
    defaults = sglang_compat.defaults(raw_record)
    facts: dict[str, Fact] = {}
    for name in sglang_compat.fields(raw_record):
        try:
            value = plain(getattr(view, name))
        except Exception:  # noqa: BLE001 - one odd field does not cost the others
            continue
        if name in given:
            before = plain(getattr(raw_record, name, None))
            facts[f"args.{name}"] = Fact(value, "given" if before == value else "resolved")
        elif value == plain(defaults.get(name)):
            facts[f"args.{name}"] = Fact(value, "default")
        else:
            facts[f"args.{name}"] = Fact(value, "resolved")
    return facts


def _target(view: Any, args: Mapping[str, Fact], model_config: Mapping[str, Any] | None) -> dict[str, Fact]:
    path = str(args["args.model_path"].value)
    if path.lower() in DUMMY_PATHS:
        return {}
    config, shipped, quantization, dtype = model_config, None, None, None
    if config is None:
        ours = sglang_compat.model_config(view)
        shipped, loaded = _as_shipped(path, args), ours.hf_config.to_dict()
        config = filled(shipped, loaded) if shipped else loaded
        quantization = getattr(ours, "quantization", None)
        dtype = str(getattr(ours, "dtype", "")).removeprefix("torch.") or None
    given = args.get("args.quantization")
    quantization = quantization or (given.value if given else None)
    facts = _model(config, shipped, quantization, _quant_file(path))
    return facts | ({"dtype": Fact(dtype, "config")} if dtype else {})


def _model(
    config: Mapping[str, Any],
    shipped: Mapping[str, Any] | None,
    quantization: str | None,
    quant_file: Mapping[str, Any] | None,
) -> dict[str, Fact]:
    """A model's facts; those that only the config class knows come from there, not from the checkpoint."""
    values = model_facts(config, quantization=quantization, quant_file=quant_file)
    own = (
        values if shipped is None else model_facts(shipped, quantization=quantization, quant_file=quant_file)
    )
    return {
        name: Fact(plain(value), "config")
        if name == "config" or own.get(name) == value
        else Fact(plain(value), "default", "config class")
        for name, value in values.items()
    }


def _as_shipped(path: str, args: Mapping[str, Fact]) -> dict[str, Any] | None:
    """The checkpoint's own config.json: SGLang's config classes add defaults, such as 512 experts to a dense Qwen3.5.

    None where it is not at hand, names no architecture, or the operator overrides parts of it.
    """
    override = args.get("args.json_model_override_args")
    if override is not None and override.value not in (None, "", "{}"):
        return None
    found = cached_config(path)
    return found if found and found.get("architectures") else None


def _quant_file(path: str) -> dict[str, Any] | None:
    file = Path(path) / "hf_quant_config.json"
    return _json(file) if file.is_file() else None


def _json(file: Path) -> dict[str, Any] | None:
    loaded = json.loads(file.read_text(encoding="utf-8"))
    return loaded if isinstance(loaded, dict) else None


#: Speculative algorithms that load no draft model.
_NO_DRAFT = frozenset({"", "none", "ngram"})


def _draft(args: Mapping[str, Fact], target: Mapping[str, Fact]) -> dict[str, Fact]:
    algorithm = _value(args, "speculative_algorithm")
    if str(algorithm or "").lower() in _NO_DRAFT:
        return {"draft_model.exists": Fact(False, "resolved")}
    facts = {"draft_model.exists": Fact(True, "resolved")}
    path = _value(args, "speculative_draft_model_path")
    same = path in (None, _value(args, "model_path"))
    facts["draft_model.built_in"] = Fact(same, "resolved")
    if same:
        return facts | _prefixed("draft_model", target)
    config = cached_config(str(path))
    if config is None:
        return facts
    quantization = _value(args, "speculative_draft_model_quantization")
    whole = filled(config, _as_loaded(config))
    return facts | _prefixed("draft_model", _model(whole, config, quantization, _quant_file(str(path))))


def _as_loaded(config: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of a config's class, at the place where the config has its text part."""
    defaults = class_defaults(config)
    key = next((key for key in TEXT_KEYS if isinstance(config.get(key), Mapping) and config[key]), None)
    return {key: defaults} if key else defaults


def cached_config(path_or_repo: str, name: str = "config.json") -> dict[str, Any] | None:
    """A checkpoint's JSON file from a local folder or from the hub's cache on this machine; never the network."""
    local = Path(path_or_repo) / name
    if local.is_file():
        return _json(local)
    if Path(path_or_repo).is_absolute():
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(path_or_repo, name)
    except ValueError:  # HFValidationError: no name of a repository
        return None
    return _json(Path(found)) if isinstance(found, str) else None


def _value(args: Mapping[str, Fact], name: str) -> Any:
    fact = args.get(f"args.{name}")
    return fact.value if fact is not None else None


_DEVICES = ("cuda", "xpu", "musa", "npu", "hpu", "mps", "cpu")


def _gpu(args: Mapping[str, Fact], gpu: Gpu | None) -> dict[str, Fact]:
    if gpu is not None:
        values: dict[str, Any] = {
            "platform": gpu.platform,
            "name": gpu.name,
            "sm": gpu.sm,
            "count": gpu.count,
            "memory_gib": gpu.memory_gib,
        }
        device = _value(args, "device")
        if device in _DEVICES and device != "cuda":  # the launch leaves the GPUs alone
            return {"gpu.platform": Fact(device, "given")}
        return {f"gpu.{k}": Fact(v, "assumed") for k, v in values.items() if v is not None}
    device = _value(args, "device")
    platform = sglang_compat.platform()
    if device not in (None, "cuda"):  # ROCm's device is "cuda" too
        if device not in _DEVICES:  # a vendor's own platform may bring its own kernels
            raise ValueError(f"device {device!r} is not one of {', '.join(_DEVICES)}")
        platform = str(device)
    values = {"platform": platform}
    if platform in ("cuda", "hip"):
        import torch

        properties = torch.cuda.get_device_properties(0)
        values |= {
            "name": properties.name,
            "count": torch.cuda.device_count(),
            "memory_gib": round(properties.total_memory / 2**30, 1),
        }
        if platform == "cuda":
            major, minor = torch.cuda.get_device_capability(0)
            values["sm"] = major * 10 + minor
    return {f"gpu.{k}": Fact(v, "machine") for k, v in values.items()}


def _lora(args: Mapping[str, Fact]) -> dict[str, Fact]:
    paths = _value(args, "lora_paths")
    enabled = bool(_value(args, "enable_lora") or paths)
    facts = {"lora.enabled": Fact(enabled, "resolved")}
    if not enabled:
        return facts
    named = _value(args, "lora_target_modules")
    modules = {str(m) for m in named} if named else set()
    for adapter in _adapter_paths(paths):
        config = cached_config(adapter, "adapter_config.json")
        if config is None:
            if not modules:  # an adapter that cannot be read may target anything
                return facts
            continue
        targets = config.get("target_modules")
        modules |= {targets} if isinstance(targets, str) else {str(m) for m in targets or ()}
    if not modules:
        return facts
    facts["lora.target_modules"] = Fact(sorted(map(_module, modules)), "config" if paths else "given")
    return facts


def _module(name: str) -> str:
    """One adapter target as SGLang groups it: gate and up are one module, ``all-linear`` is all."""
    last = name.rsplit(".", 1)[-1]
    if last in ("all", "all-linear"):
        return "all"
    return "gate_up_proj" if last in ("gate_proj", "up_proj", "gate_up_proj", "w1", "w3") else last


def _adapter_paths(paths: Any) -> list[str]:
    """Folders of --lora-paths in all its spellings: ``name=path``, ``path``, a mapping, or objects as text."""
    if isinstance(paths, Mapping):
        return [_path_of(v) for v in paths.values()]
    return [_path_of(p) for p in paths or ()]


def _path_of(entry: Any) -> str:
    if isinstance(entry, Mapping):
        return str(entry.get("lora_path") or entry.get("path") or "")
    text = str(entry)
    if named := re.search(
        r"\blora_path='?([^',)]+)", text
    ):  # LoRARef(lora_id=…, lora_name=…, lora_path=…, …)
        return named[1]
    return text.split("=", 1)[1] if "=" in text else text
