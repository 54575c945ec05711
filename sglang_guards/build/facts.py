"""What a build tells the rules: facts named ``build.*``, SGLang's own answers where the tables only reckon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_guards.build.model import BUILT, NOT_BUILT, BuildResult, RankBuild
from sglang_guards.launch.facts import Fact

_ORIGIN = "built"


def facts(result: BuildResult) -> dict[str, Fact]:
    """``build.status``, ``build.reason``, and of what was built: ``build.ranks``, ``build.<model>.*``, memory.

    Without any rank that was built or refused, ``build.ranks`` is missing, so that its rules are skipped.
    """
    known: dict[str, Any] = {"build.status": result.status, "build.reason": result.why}
    spoken = [one for one in result.ranks if one.status != NOT_BUILT]
    if spoken:
        known["build.ranks"] = [one.to_dict() for one in spoken]
        known |= _memory(result.of("target"))
    for model in ("target", "draft"):
        known |= _layers(model, [one for one in result.of(model) if one.model_class])
    return {name: Fact(value, _ORIGIN) for name, value in known.items()}


def _memory(ranks: Sequence[RankBuild]) -> dict[str, Any]:
    """The rank with the most weights, and the one with the fewest tokens: both decide for all."""
    known: dict[str, Any] = {}
    weights = [one.weights_bytes for one in ranks if one.weights_bytes is not None]
    if weights:
        known["build.weights_bytes"] = max(weights)
        known["build.weights_final"] = all(one.weights_final for one in ranks)
    tokens = [one.kv_tokens for one in ranks if one.kv_tokens is not None]
    if tokens and all(one.status == BUILT for one in ranks):
        known["build.kv_tokens"] = min(tokens)
    context = next((one.context_length for one in ranks if one.context_length), None)
    if context:
        known["build.context_length"] = context
    return known


def _layers(model: str, ranks: Sequence[RankBuild]) -> dict[str, Any]:
    """Runner and method of the MoE layers where all of them agree; `moe` says whether there are any at all."""
    if not ranks:
        return {}
    layers = [layer for one in ranks for layer in one.layers]
    known: dict[str, Any] = {f"build.{model}.moe": bool(layers)}
    runners, methods = {one.runner for one in layers}, {one.method for one in layers}
    if len(runners) == 1 and "" not in runners and all(one.runner_certain for one in layers):
        known[f"build.{model}.runner"] = next(iter(runners))
    if len(methods) == 1:
        known[f"build.{model}.method"] = next(iter(methods))
    fused = {one.fused_shared_experts for one in layers}
    if len(fused) == 1 and None not in fused:
        known[f"build.{model}.fused_shared_experts"] = next(iter(fused))
    return known
