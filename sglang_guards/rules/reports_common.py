"""What the rules about reported combinations share: cheap tests of a launch."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from sglang_guards.launch.environment import env_bool
from sglang_guards.launch.facts import Launch
from sglang_guards.rules import unset

TRTLLM = frozenset({"flashinfer_trtllm", "flashinfer_trtllm_routed"})
NO_A2A = frozenset({None, "", "none"})
#: Architectures whose built-in draft is the DeepSeek NextN layer.
NEXTN_FAMILY = frozenset({"DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "GlmMoeDsaForCausalLM"})
#: Leave the runner to SGLang.
AUTO_RUNNER = unset("moe_runner_backend", then="SGLang then picks a runner that fits")


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
    return env_bool(launch.env, name, launch.source)


def major(launch: Launch) -> int:
    """The major compute capability (9 for SM90), 0 on other platforms. Raises MissingFact without a GPU."""
    return int(launch["gpu.sm"]) // 10 if launch["gpu.platform"] == "cuda" else 0


def runner_backend(launch: Launch) -> str:
    """The runner backend after resolution; auto where nothing was decided yet."""
    return str(launch["args.moe_runner_backend"] or "auto")


def ep_size(launch: Launch) -> int:
    """The expert-parallel size, at least 1."""
    return max(1, int(launch["args.ep_size"] or 1))


def speculates(launch: Launch) -> bool:
    """Whether an EAGLE-style draft is requested (NEXTN is EAGLE after resolution)."""
    return str(launch["args.speculative_algorithm"] or "").upper() in ("EAGLE", "NEXTN", "EAGLE3")


def is_moe(launch: Launch) -> bool:
    """Whether the target has MoE layers."""
    return launch["model.is_moe"] is True


def has_lora(launch: Launch) -> bool:
    """Whether adapters are on."""
    return launch["lora.enabled"] is True
