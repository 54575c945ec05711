"""FlashInfer all-reduce fusion of one launch: asked for by whom, on which GPU, with which backend and which model."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from sglang_guards.launch import parallel
from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.source import distribution
from sglang_guards.source.models import fusion_contract
from sglang_guards.source.models.contract import Contract
from sglang_guards.source.probes.allreduce_fusion_backend import Backend, resolve_backend

#: The server arg that counts: a backend from 0.5.14, a switch before (and an alias of backend «auto» later).
BACKEND = "flashinfer_allreduce_fusion_backend"
SWITCH = "enable_flashinfer_allreduce_fusion"
ENFORCE_OFF = "enforce_disable_flashinfer_allreduce_fusion"


def field(launch: Launch) -> str:
    """The server arg that decides in this SGLang."""
    return BACKEND if f"args.{BACKEND}" in launch.facts else SWITCH


def asked(launch: Launch) -> str | None:
    """The backend asked for after resolution (auto, trtllm, mnnvl, cutedsl), None when fusion is off."""
    if launch.get(f"args.{BACKEND}"):
        return str(launch[f"args.{BACKEND}"])
    return "auto" if launch.get(f"args.{SWITCH}") else None


def is_on(launch: Launch) -> bool:
    """Whether fusion is on after resolution, by the operator or by SGLang itself. A cheap test for `applies`."""
    return asked(launch) is not None


def is_explicit(launch: Launch) -> bool:
    """Whether the operator asked for it."""
    return launch.given(BACKEND) or launch.given(SWITCH)


def generation(launch: Launch) -> int | None:
    """Major compute capability of a CUDA GPU (9, 10, 12), None elsewhere. Raises MissingFact without a GPU."""
    return int(launch["gpu.sm"]) // 10 if launch["gpu.platform"] == "cuda" else None


def has_kernel(launch: Launch) -> bool:
    """Whether the GPU is one that the fused kernel exists for: SM90 and SM10x."""
    return generation(launch) in (9, 10)


def is_active(launch: Launch) -> bool:
    """Whether the fused kernel can be taken at all: on, TP > 1, a GPU with a kernel, no data-parallel attention."""
    return (
        is_on(launch)
        and (launch["args.tp_size"] or 1) > 1
        and has_kernel(launch)
        and not parallel.dp_attention(launch)
    )


def backend(launch: Launch) -> Backend:
    """The backend that the request becomes on this GPU. Raises MissingFact where the source does not tell."""
    wanted = asked(launch)
    if launch.source is None or wanted is None:
        raise MissingFact("fusion.backend")
    several = (launch["args.nnodes"] or 1) > 1
    found = resolve_backend(launch.source, wanted, int(launch["gpu.sm"]), multi_node=several)
    if found is None:
        raise MissingFact("fusion.backend")
    return found


def contract(launch: Launch) -> Contract:
    """How far the launched architecture keeps the contract. Raises MissingFact without a source or a model."""
    if launch.source is None:
        raise MissingFact("fusion.contract")
    return fusion_contract.contract(launch.source, launch["model.architecture"], launch.get("model.config"))


def defers(launch: Launch) -> bool:
    """Whether layers leave the sum of their MLP or MoE to the next one. Raises MissingFact where it is not known."""
    found = contract(launch)
    if found.defers is None:
        raise MissingFact("fusion.contract")
    return found.defers


def is_h20(name: str) -> bool:
    return "H20" in name and "H200" not in name


def without_nvswitch(name: str) -> bool:
    """Whether a GPU's name says that it comes without NVSwitch: PCIe cards and NVL pairs."""
    words = name.upper().replace("-", " ").split()
    return "PCIE" in words or "NVL" in words


def mismatched_flashinfer(launch: Launch) -> str:
    """FlashInfer's packages with their versions when these differ, empty when they agree or are not installed."""
    names = ("flashinfer-python", "flashinfer-jit-cache", "flashinfer-cubin")
    found = {name: launch.get(f"packages.{name}") for name in names}
    installed = {name: str(version) for name, version in found.items() if version}
    if len({version.partition("+")[0] for version in installed.values()}) <= 1:
        return ""
    return ", ".join(f"{name} {version}" for name, version in installed.items())


def flashinfer_version(launch: Launch) -> Version:
    """The installed FlashInfer, or the one that this SGLang pins. Raises MissingFact when neither is known."""
    found = launch.get("packages.flashinfer-python") or _pinned(launch)
    try:
        return Version(str(found))
    except InvalidVersion:
        raise MissingFact("packages.flashinfer-python") from None


def _pinned(launch: Launch) -> str | None:
    if launch.source is None:
        return None
    owner = distribution.owner(launch.source.root)
    return None if owner is None else owner.pin("flashinfer-python")
