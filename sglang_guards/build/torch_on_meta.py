"""What torch and Triton must be told so that GPU code can be imported and constructed without a GPU.

`prepare_libraries` and `prepare_torch` run once in a process, before SGLang is imported; `on_meta` is entered for a
construction: what is asked for on the GPU is made on the meta device.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from sglang_guards.build import stand_ins

if TYPE_CHECKING:
    from sglang_guards.launch.gpus import Gpu

#: Imported before the stand-ins: they probe for kernel packages while they are imported, and remember the answer.
_PROBE_FOR_PACKAGES = ("tvm_ffi", "torchvision", "transformers", "transformers.models.llama.modeling_llama")


def prepare_libraries() -> None:
    """Import torch and the libraries that must not meet a stand-in. Missing ones are SGLang's trouble, not ours."""
    import torch  # noqa: F401

    for name in _PROBE_FOR_PACKAGES:
        with contextlib.suppress(Exception):
            importlib.import_module(name)


def prepare_torch(gpu: Gpu) -> None:
    """Streams, events and fake kernels without a GPU, and the Triton target of the simulated one."""
    import torch

    cuda: Any = torch.cuda
    cuda.Stream = stand_ins.class_of("torch.cuda.Stream")
    cuda.Event = stand_ins.class_of("torch.cuda.Event")
    cuda.current_stream = lambda device=None: stand_ins.value_of("torch.cuda.current_stream()")
    cuda.default_stream = cuda.current_stream
    cuda.stream = lambda stream: contextlib.nullcontext()
    for name in ("synchronize", "empty_cache", "set_device", "set_stream", "reset_peak_memory_stats"):
        setattr(cuda, name, lambda *args, **kwargs: None)
    for name in ("memory_allocated", "memory_reserved", "max_memory_allocated"):
        setattr(cuda, name, lambda *args, **kwargs: 0)
    torch.library.register_fake = _tolerant(torch.library.register_fake)
    _set_triton_target(gpu)


def _tolerant(original: Callable[..., Any]) -> Callable[..., Any]:
    """Model files describe operators of sgl_kernel to torch; those operators are not here, and nothing is lost."""

    def register_fake(op: Any, *args: Any, **kwargs: Any) -> Any:
        if args and callable(args[0]):
            return _register(original, op, args[0], *args[1:], **kwargs)
        return lambda function: _register(original, op, function, *args, **kwargs)

    return register_fake


def _register(original: Callable[..., Any], op: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
    try:
        return original(op, function, *args, **kwargs)
    except RuntimeError as error:
        if "does not exist" in str(error):
            return function
        raise


#: Bytes of shared memory that one block may take, by compute capability (CUDA's table of technical specifications).
_SHARED_MEMORY = {
    80: 166912,
    86: 101376,
    89: 101376,
    90: 232448,
    100: 232448,
    103: 232448,
    120: 101376,
    121: 101376,
}


class _Properties(dict[str, int]):
    """What is known of the device; the rest is a stand-in."""

    def __missing__(self, key: str) -> Any:
        return stand_ins.value_of(f"the GPU's {key}")


def _set_triton_target(gpu: Gpu) -> None:
    try:
        from triton.backends.compiler import GPUTarget
        from triton.runtime.driver import driver
    except ImportError:
        return
    target = GPUTarget(
        "hip" if gpu.platform == "hip" else "cuda",
        gpu.arch if gpu.platform == "hip" else int(gpu.sm or 0),
        64 if gpu.platform == "hip" else 32,
    )

    properties = {"multiprocessor_count": gpu.units, "warpSize": target.warp_size}
    if gpu.sm in _SHARED_MEMORY:
        properties["max_shared_mem"] = _SHARED_MEMORY[gpu.sm]
    utils: Any = stand_ins.value_of("triton.runtime.driver.active.utils")
    utils.get_device_properties = lambda device=0: _Properties(properties)

    class Driver(stand_ins.StandIn):
        """Knows its target; everything else about the device is not here."""

        _guards_name = "triton.runtime.driver.active"

        def get_current_target(self) -> Any:
            return target

        def get_current_device(self) -> int:
            return 0

    active: Any = Driver()
    active.utils = utils
    driver.set_active(active)


#: Programs that compile kernels.
_COMPILERS = frozenset({"ninja", "nvcc", "hipcc", "cc", "c++", "gcc", "g++", "clang", "clang++"})


def without_compilers() -> None:
    """Kernels that are compiled when they are first used end the step in place of a minute of ninja."""
    import os
    import subprocess

    original = subprocess.Popen.__init__

    def init(self: Any, args: Any, *more: Any, **kwargs: Any) -> None:
        words = (
            args.split()
            if isinstance(args, str)
            else list(args)
            if isinstance(args, (list, tuple))
            else [args]
        )
        if words and os.path.basename(str(words[0])) in _COMPILERS:
            stand_ins.refuse("a compiled kernel", "the code")
        original(self, args, *more, **kwargs)

    subprocess.Popen.__init__ = init  # type: ignore[method-assign]


def _on_meta(device: Any) -> Any:
    import torch

    if isinstance(device, int):
        return torch.device("meta")
    if isinstance(device, str):
        device = torch.device(device)
    return torch.device("meta") if device.type in ("cuda", "meta") else device


@contextlib.contextmanager
def on_meta() -> Iterator[None]:
    """Inside, tensors are made on the meta device unless the CPU is named."""
    import torch
    from torch.overrides import TorchFunctionMode

    class OnMeta(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = dict(kwargs or {})
            if kwargs.get("device") is not None:
                kwargs["device"] = _on_meta(kwargs["device"])
            kwargs.pop("pin_memory", None)  # nothing that is made here is copied to a GPU
            name = getattr(func, "__name__", "")
            if name == "to" and len(args) > 1 and isinstance(args[1], (str, torch.device)):
                args = (args[0], _on_meta(args[1]), *args[2:])
            if name == "cuda" and args:
                return args[0].to("meta")
            if name == "pin_memory" and args:
                return args[0]
            return func(*args, **kwargs)

    with torch.device("meta"), OnMeta():
        yield
