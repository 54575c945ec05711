"""SGLang's own `load_weights` over tensors that have a name, a dtype and a shape, and no data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from sglang_guards.build import blame
from sglang_guards.build.headers import Tensors
from sglang_guards.build.model import Refusal

#: safetensors' name of a dtype -> torch's.
_DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "I64": "int64", "I32": "int32", "I16": "int16",
    "I8": "int8", "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "BOOL": "bool",
}  # fmt: skip
#: Names of parameters that only a checkpoint can fill; scales and biases have defaults.
_FILLED = (
    "weight",
    "qweight",
    "weight_packed",
    "w13_weight",
    "w2_weight",
    "w13_weight_packed",
    "w2_weight_packed",
)


class OutOfTime(Exception):
    """The checkpoint has more tensors than the time allows."""


def load(model: Any, tensors: Tensors, seconds: float) -> list[str]:
    """Names of parameters that nothing wrote. Raises what SGLang raises."""
    import torch
    from torch.overrides import TorchFunctionMode

    written: set[int] = set()

    class Writes(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(func, "__name__", "")
            if name in ("copy_", "fill_", "__setitem__", "zero_", "set_") and args:
                written.add(args[0].untyped_storage()._cdata)
            return func(*args, **(kwargs or {}))

    with torch.no_grad(), Writes():
        model.load_weights(_tensors(tensors, time.monotonic() + seconds))
    return sorted(
        name
        for name, parameter in model.named_parameters()
        if name.rpartition(".")[2] in _FILLED and parameter.untyped_storage()._cdata not in written
    )


def _tensors(tensors: Tensors, deadline: float) -> Iterator[tuple[str, Any]]:
    import torch

    for name, (dtype, shape) in tensors.items():
        if time.monotonic() > deadline:
            raise OutOfTime
        kind = getattr(torch, _DTYPES.get(dtype, ""), None)
        if kind is None:
            raise OutOfTime(f"dtype {dtype} of {name} is not known here")
        yield name, torch.empty(shape, dtype=kind, device="meta")


def refusal(error: BaseException) -> Refusal | None:
    """SGLang's own no, or what its loader dies of: a tensor that the model has no parameter for, or another shape."""
    no = blame.refusal(error, "weights")
    if no is not None or not blame.in_sglang(error):
        return no
    if isinstance(error, KeyError) and error.args and "." in str(error.args[0]):
        text = f"the checkpoint has a tensor for which this model has no parameter: {error.args[0]}"
        return Refusal("KeyError", text, blame.where(error), when="weights")
    text = blame.words(error)
    if isinstance(error, RuntimeError) and ("size of tensor" in text or "shape" in text):
        return Refusal("RuntimeError", text, blame.where(error), when="weights")
    return None
