"""Let a process that imported SGLang without a GPU take one machine's GPUs for granted.

SGLang's modules bind CUDA-only packages at import when they see a GPU, so the order is: `hide` before SGLang is
imported, `warm_up` to import what resolution needs, then `strike` once in a forked process. Only torch is patched;
SGLang's own probes read torch, `nvidia-smi` and `rocminfo`, and remember what they read.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

from sglang_guards.launch.gpus import Gpu

#: What a GPU build of torch says; resolution only tests that it is set, or that it is at least 12.8.
CUDA_VERSION = "13.0"
ROCM_VERSION = "7.0.0"
_MEMORY = "SGLANG_GUARDS_POSE_MIB"
_NVIDIA_SMI = f'#!/bin/sh\n[ -n "${_MEMORY}" ] || exit 9\necho "${_MEMORY}"\n'
_ROCMINFO = (
    f'#!/bin/sh\n[ -n "${_MEMORY}" ] || exit 9\n'
    f'echo "  Name: gfx"\necho "  Pool 1"\necho "  Size: $(({_MEMORY} * 1024))(0x0) KB"\n'
)
#: Modules that resolution imports, imported before the pose. Missing ones belong to other releases.
_WARM_UP = (
    "sglang.srt.layers.quantization",
    "sglang.srt.model_loader",
    "sglang.srt.server_args",
    "sglang.srt.lora.lora_registry",
    "sglang.cli.serve",
)


def write_tools(folder: Path) -> None:
    """Stand-ins for the GPU tools that SGLang calls; first in PATH they also hide the real ones."""
    for name, body in (
        ("nvidia-smi", _NVIDIA_SMI),
        ("rocminfo", _ROCMINFO),
        ("rocm-smi", "#!/bin/sh\nexit 9\n"),
    ):
        tool = folder / name
        tool.write_text(body, encoding="ascii")
        tool.chmod(0o755)


def hide() -> None:
    """Make this process a machine without GPUs, before SGLang is imported (torch may be)."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    os.environ["HIP_VISIBLE_DEVICES"] = ""
    sys.modules["pynvml"] = None  # type: ignore[assignment]  # it would find the real GPUs
    import torch

    torch.version.hip = None
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0
    xpu = getattr(torch, "xpu", None)
    if xpu is not None:
        xpu.is_available = lambda: False


def warm_up() -> None:
    """Import what resolution imports; raises ImportError only when `sglang.srt.server_args` itself cannot be."""
    for name in _WARM_UP:
        try:
            importlib.import_module(name)
        except Exception:  # of another release, or wants a package that resolution does not
            if name == "sglang.srt.server_args":
                raise


def strike(gpu: Gpu) -> None:
    """Take the pose. There is no way back: use one process for each pose."""
    import torch

    capability = (gpu.sm // 10, gpu.sm % 10) if gpu.sm is not None else _gfx_capability(gpu.arch)
    memory = int(gpu.memory_gib * 2**30)
    properties = SimpleNamespace(
        name=gpu.name,
        major=capability[0],
        minor=capability[1],
        total_memory=memory,
        multi_processor_count=gpu.units,
        warp_size=64 if gpu.platform == "hip" else 32,
        gcnArchName=f"{gpu.arch}:sramecc+:xnack-" if gpu.platform == "hip" else "",
    )
    torch.version.cuda = CUDA_VERSION if gpu.platform == "cuda" else None
    torch.version.hip = ROCM_VERSION if gpu.platform == "hip" else None
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: gpu.count
    cuda.current_device = lambda: 0
    cuda.get_device_capability = lambda device=None: capability
    cuda.get_device_name = lambda device=None: gpu.name
    cuda.get_device_properties = lambda device=None: properties
    cuda.mem_get_info = lambda device=None: (memory, memory)
    tell_tools(gpu)
    if gpu.platform == "cuda":
        _pretend_installed("flashinfer")
    else:
        sys.meta_path.append(_AbsentFinder(("aiter",)))
    _register_gpu_quantizations()
    forget_probes()


def tell_tools(gpu: Gpu) -> None:
    """What the stand-in tools answer; for a process whose environment was replaced after the pose."""
    os.environ[_MEMORY] = str(int(gpu.memory_gib * 2**30) >> 20)


def _gfx_capability(arch: str) -> tuple[int, int]:
    """What torch reports for a gfx name: gfx942 is (9, 4), gfx1201 is (12, 0)."""
    digits = "".join(c for c in arch.removeprefix("gfx") if c.isdigit())
    return (
        (int(digits[:-2] or 9), int(digits[-2]))
        if len(digits) > 3
        else (9, int(digits[1]) if len(digits) > 1 else 4)
    )


def _pretend_installed(wanted: str) -> None:
    """SGLang asks only whether the package can be found; the target machine has it with SGLang."""
    real = importlib.util.find_spec

    def find_spec(name: str, package: str | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name == wanted else real(name, package)

    importlib.util.find_spec = find_spec


class _Absent(ModuleType):
    """A package of the target machine that is not here: its names can be bound, but not used."""

    __path__: list[str] = []  # noqa: RUF012  (what makes it a package)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def unusable(*args: Any, **kwargs: Any) -> NoReturn:
            raise ImportError(f"{self.__name__}.{name} is needed here and is not installed")

        return unusable


class _AbsentFinder(MetaPathFinder, Loader):
    """Last in line, so that an installed package wins. ROCm's modules bind kernels of `aiter` at import."""

    def __init__(self, packages: tuple[str, ...]) -> None:
        self._packages = packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] in self._packages else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


def _register_gpu_quantizations() -> None:
    """`mxfp4` is registered at import, on GPU machines only."""
    module: Any = sys.modules.get("sglang.srt.layers.quantization")
    config = getattr(module, "Mxfp4Config", None)
    for table in ("BASE_QUANTIZATION_METHODS", "QUANTIZATION_METHODS"):
        if config is not None and hasattr(module, table):
            getattr(module, table).setdefault("mxfp4", config)


def forget_probes() -> None:
    """Drop what SGLang's memoised probes (`is_cuda`, `is_sm100_supported`, …) found before the pose."""
    for name, module in list(sys.modules.items()):
        if name.startswith("sglang.") and module is not None:
            for value in list(vars(module).values()):
                if type(value).__name__ == "_lru_cache_wrapper":
                    value.cache_clear()
