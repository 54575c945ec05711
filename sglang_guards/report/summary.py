"""The head of the text report: the launch in a few rows (label, value, where it came from)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sglang_guards import flags
from sglang_guards.report.model import Report

_FROM = {"given": "given", "config": "config.json", "assumed": "--gpu", "machine": "this machine"}


def summary_rows(report: Report) -> list[tuple[str, str, str]]:
    """Rows for what is known; a launch that could not be resolved has few."""
    facts = _Facts(report.facts, report.argv)
    makers: tuple[tuple[str, Callable[[_Facts], tuple[str, str]]], ...] = (
        ("model", _model),
        ("experts", _experts),
        ("parallel", _parallel),
        ("spec", _spec),
        ("lora", _lora),
        ("gpu", _gpu),
        ("memory", _memory),
        ("build", _build),
    )
    rows = []
    for label, make in makers:
        value, origin = make(facts)
        if value:
            rows.append((label, value, origin))
    return rows


class _Facts:
    def __init__(self, facts: Mapping[str, Mapping[str, Any]], argv: Sequence[str]) -> None:
        self._facts = facts
        self._argv = argv

    def __call__(self, name: str, default: Any = None) -> Any:
        return self._facts.get(name, {}).get("value", default)

    def typed(self, start: str) -> str | None:
        """The value typed for the first flag that begins so."""
        return next((flag.value for flag in flags.typed(self._argv) if flag.name.startswith(start)), None)

    def origin(self, *names: str) -> str:
        """How the first fact that is there was come by."""
        for name in names:
            if name in self._facts:
                return _FROM.get(str(self._facts[name].get("from")), str(self._facts[name].get("from")))
        return ""


def _model(facts: _Facts) -> tuple[str, str]:
    path = str(facts("args.model_path") or "").rstrip("/")
    parts = [path.rsplit("/", 1)[-1], str(facts("model.architecture") or "")]
    quant, block = facts("model.quant"), facts("model.quant_block")
    if quant:
        parts.append(
            f"{quant} {'×'.join(map(str, block))}" if isinstance(block, (list, tuple)) and block else quant
        )
    elif facts("model.dtype"):
        parts.append(str(facts("model.dtype")))
    return " · ".join(p for p in parts if p), facts.origin("model.architecture", "args.model_path")


def _experts(facts: _Facts) -> tuple[str, str]:
    experts, top_k = facts("model.num_experts"), facts("model.top_k")
    if not experts:
        return "", ""
    return f"{experts}" + (f", top-{top_k}" if top_k else ""), facts.origin("model.num_experts")


def _parallel(facts: _Facts) -> tuple[str, str]:
    if facts("args.model_path") is None:
        return "", ""
    sizes = [
        f"{label} {facts(f'args.{field}')}"
        for label, field in (("TP", "tp_size"), ("PP", "pp_size"), ("DP", "dp_size"), ("EP", "ep_size"))
        if facts(f"args.{field}", 1) not in (None, 1) or (label == "TP" and facts("args.tp_size") is not None)
    ]
    nodes = facts("args.nnodes", 1)
    sizes.append("one node" if nodes == 1 else f"{nodes} nodes")
    return " · ".join(sizes), facts.origin(
        "args.tp_size", "args.ep_size", "args.dp_size", "args.nnodes"
    ) or "default"


def _spec(facts: _Facts) -> tuple[str, str]:
    algorithm = facts("args.speculative_algorithm")
    if not algorithm:
        return "", ""
    typed = facts.typed("--speculative-algo")
    parts = [str(algorithm) if typed in (None, algorithm) else f"{typed} ({algorithm})"]
    for field, label in (
        ("num_steps", "{} steps"),
        ("eagle_topk", "top-k {}"),
        ("num_draft_tokens", "{} tokens"),
    ):
        value = facts(f"args.speculative_{field}")
        if value is not None:
            parts.append(label.format(value))
    return ", ".join(parts), facts.origin("args.speculative_algorithm")


def _lora(facts: _Facts) -> tuple[str, str]:
    if not facts("lora.enabled"):
        return "", ""
    modules = facts("lora.target_modules")
    names = ", ".join(modules) if modules else "unknown"
    return f"on, target modules: {names}", facts.origin("lora.target_modules", "lora.enabled")


def _memory(facts: _Facts) -> tuple[str, str]:
    weights, memory = facts("build.weights_bytes"), facts("gpu.memory_gib")
    if not weights or not memory:
        return "", ""
    text = f"weights {weights / 2**30:.1f} GiB of {memory:.1f} GiB per GPU"
    if facts("build.weights_final") is False:
        text += " before they are quantized or moved"
    tokens = facts("build.kv_tokens")
    return text + (f", KV cache about {tokens:,} tokens" if tokens else ""), "build"


def _build(facts: _Facts) -> tuple[str, str]:
    """Only what was not built has a row: what was, speaks by its findings."""
    reason = facts("build.reason")
    return (f"not built: {reason}", "") if reason and facts("build.status") == "not built" else ("", "")


def _gpu(facts: _Facts) -> tuple[str, str]:
    name = facts("gpu.name")
    if not name:
        return "", ""
    for word in ("NVIDIA ", "AMD Instinct ", "AMD ", " Blackwell Server Edition", " HBM3"):
        name = name.replace(word, "")
    sm = facts("gpu.sm")
    kind = f"SM{sm}" if sm else str(facts("gpu.platform"))
    return f"{facts('gpu.count')} × {name} ({kind})", facts.origin("gpu.name")
