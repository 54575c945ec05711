"""What the rules about reported combinations (RUN, QNT, SPC, PAR, DET, FLG) share."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence

TRTLLM = frozenset({"flashinfer_trtllm", "flashinfer_trtllm_routed"})
TRUE = frozenset({"1", "true", "yes", "on", "y", "t"})
NO_A2A = frozenset({None, "", "none"})
#: Architectures whose built-in draft is the DeepSeek NextN layer.
NEXTN_FAMILY = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})


def issue(number: int) -> Evidence:
    """A thread of SGLang's tracker (the address redirects where the number is a pull request)."""
    return Evidence("report", f"https://github.com/sgl-project/sglang/issues/{number}")


def flashinfer_issue(number: int) -> Evidence:
    """A thread of FlashInfer's tracker."""
    return Evidence("report", f"https://github.com/flashinfer-ai/flashinfer/issues/{number}")


def vllm_issue(number: int) -> Evidence:
    """A thread of vLLM's tracker: the same kernels, reported there."""
    return Evidence("report", f"https://github.com/vllm-project/vllm/issues/{number}")


def line(launch: Launch, probe: str) -> Evidence:
    """The line of the installed source that decided."""
    return Evidence("source", launch.where(f"source.{probe}"))


def reported_in(launch: Launch, first: str, last: str) -> bool:
    """Whether this SGLang is one of the releases from `first` to `last`.

    Only for hazards that neither the source nor the arguments decide, so that nothing but reports tell where they
    are. Development builds and forks cannot be placed and count as outside. Can go with the rule that uses it, once
    a probe is found.
    """
    if launch.source is None:
        return False
    try:
        version = Version(launch.source.version)
    except InvalidVersion:
        return False
    return Version(first) <= version <= Version(last) and not (version.is_devrelease or version.local)


def env_on(launch: Launch, name: str) -> bool:
    """Whether an environment switch of the launch is set to a true value."""
    return launch.env.get(name, "").strip().lower() in TRUE


def major(launch: Launch) -> int:
    """The major compute capability (9 for SM90), 0 on other platforms. Raises MissingFact without a GPU."""
    return int(launch["gpu.sm"]) // 10 if launch["gpu.platform"] == "cuda" else 0


def speculates(launch: Launch) -> bool:
    """Whether an EAGLE-style draft is asked for (NEXTN is EAGLE after resolution)."""
    return str(launch.get("args.speculative_algorithm") or "").upper() in ("EAGLE", "NEXTN", "EAGLE3")


def is_moe(launch: Launch) -> bool:
    """Whether the target is known to have MoE layers; a cheap test for `applies`."""
    return launch.get("model.is_moe") is True


def has_lora(launch: Launch) -> bool:
    """Whether adapters are on; a cheap test for `applies`."""
    return launch.get("lora.enabled") is True


def typed(launch: Launch, *fields: str) -> tuple[str, ...]:
    """The flags as the operator typed them, in order."""
    return tuple(launch.flag(field) for field in fields)
