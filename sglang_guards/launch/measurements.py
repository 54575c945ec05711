"""What was measured about the fused sum for a launch's shape, and where: the source of every figure that rules print.

A profile that `sglang-guards bench` made on this machine comes first, then the results that ship with the package.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.launch.parallel import experts_tp_of
from sglang_guards.launch.profile import DECODE, PREFILL, Profile, load_profile, mean_gain, shipped_results
from sglang_guards.source.fingerprint import fingerprint as fingerprint_of


@dataclass(frozen=True)
class Told:
    """One clause about speed with its device; `slower` is False only where a profile of this GPU shows no loss."""

    text: str
    slower: bool = True


#: Smallest gain in prefill that is worth a word.
WORTH = 1.03


@dataclass(frozen=True)
class Faster:
    """A runner that is faster in prefill than Triton without the fused sum, and one clause that says where."""

    runner: str
    text: str


def faster_runner(launch: Launch) -> Faster | None:
    """What is known to be faster in prefill for this shape: from a profile of this machine, else from the results that
    ship with the package for exactly this GPU and release; None where neither has it."""
    found = _runners(launch)
    return None if found is None else _fastest(*found)


def runners_were_measured(launch: Launch) -> bool:
    """Whether another runner was measured for this shape on this GPU and release."""
    found = _runners(launch)
    return found is not None and bool(found[0])


def _runners(launch: Launch) -> tuple[Mapping[str, Mapping[int, float]], str] | None:
    """Runner -> tokens -> its speed against Triton, and a clause that says where; None where nobody measured."""
    keys = shape_keys(launch)
    profile = _profile(launch, keys)
    if profile is not None:
        return (
            profile.runners,
            f"measured for this shape on this machine's {profile.device} ({profile.measured})",
        )
    results = shipped_results()
    device = str(results["device"])
    if launch.source is None or device.lower() != str(launch.get("gpu.name") or "").lower():
        return None
    release = results["runners"].get(launch.source.version, {})
    runners: Mapping[str, Mapping[str, float]] = next((release[key] for key in keys if key in release), {})
    measured = {name: {int(n): float(v) for n, v in by.items()} for name, by in runners.items()}
    return measured, f"measured for this shape on one {device} with SGLang {launch.source.version}"


def _fastest(runners: Mapping[str, Mapping[int, float]], where: str) -> Faster | None:
    gains = {name: gain for name, by in runners.items() if (gain := mean_gain(by, PREFILL)) is not None}
    name = max(gains, key=lambda runner: gains[runner], default=None)
    if name is None or gains[name] < WORTH:
        return None
    text = f"{where}: {name} runs the expert layers ×{gains[name]:.2f} as fast as triton at prefill sizes"
    decode = mean_gain(runners[name], DECODE)
    return Faster(name, text if decode is None else f"{text}, ×{decode:.2f} at decode sizes")


def shape_key(launch: Launch, *, with_shared: bool = False) -> str:
    """One rank's shape: experts, intermediate size per rank, hidden size, top-k and weights' kind.

    `with_shared` counts the shared experts among the routed ones, as SGLang does where it fuses them. Raises
    MissingFact when a size is not known.
    """
    ep = max(1, int(launch["args.ep_size"]))
    width = int(launch["model.moe_intermediate_size"]) // experts_tp_of(launch)
    kind = "fp8" if "fp8" in str(launch["model.quant_kind"]) else "bf16"
    shared = int(launch["model.num_shared_experts"]) if with_shared else 0
    experts, top_k = int(launch["model.num_experts"]) // ep + shared, int(launch["target.top_k"]) + shared
    return f"E{experts}-N{width}-H{launch['model.hidden_size']}-K{top_k}-{kind}"


def shape_keys(launch: Launch) -> tuple[str, ...]:
    """The keys under which this shape may have been measured; none when a size is not known.

    Whether shared experts are fused is decided while the model is built, so both shapes are looked for.
    """
    try:
        plain = shape_key(launch)
        fuses = launch.get("model.num_shared_experts") and not launch.get(
            "args.disable_shared_experts_fusion"
        )
        return (plain, shape_key(launch, with_shared=True)) if fuses else (plain,)
    except MissingFact:
        return ()


def told(launch: Launch) -> Told:
    """What is known about speed here; says so when nobody measured this shape or this GPU."""
    keys = shape_keys(launch)
    return _own(launch, keys) or _shipped(launch, keys)


def _own(launch: Launch, keys: tuple[str, ...]) -> Told | None:
    device = str(launch.get("gpu.name") or "")
    profile = _profile(launch, keys)
    if profile is None:
        return None
    tokens, ratio = profile.worst
    best = max(profile.ratios.values())
    text = f"measured for this shape on this machine's {device} ({profile.measured}): "
    text += f"{ratio:.2f} of the default's speed at {tokens} tokens, {best:.2f} at best"
    return Told(text, slower=ratio < 1)


def _profile(launch: Launch, keys: tuple[str, ...]) -> Profile | None:
    """The profile of this launch's GPU, installed source and shape."""
    device = str(launch.get("gpu.name") or "")
    if not keys or not device or launch.source is None:
        return None
    fingerprint = fingerprint_of(launch.source)
    return next(filter(None, (load_profile(device, fingerprint, key) for key in keys)), None)


def _shipped(launch: Launch, keys: tuple[str, ...]) -> Told:
    results = shipped_results()
    device = results["device"]
    ratios = next((results["shapes"][key] for key in keys if key in results["shapes"]), None)
    if ratios is None:
        low, high = results["span"]
        where = f"on one {device} with SGLang {results['sglang']}"
        text = f"over {results['count']} other shapes {where}, {low} to {high} of the default's speed"
        return Told(f"we did not measure this shape; {text}")
    tokens, ratio = min(ratios.items(), key=lambda item: item[1])
    text = f"measured for this shape on one {device} with SGLang {results['sglang']}: "
    text += f"{ratio} of the default's speed at {tokens} tokens"
    if device.lower().removeprefix("nvidia ") not in str(launch.get("gpu.name") or "").lower():
        text += f"; not measured on this GPU (SM{launch['gpu.sm']})"
    return Told(text)
