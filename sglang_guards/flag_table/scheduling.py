"""Rows of the verdict table about scheduling, memory, CUDA graph and the Triton attention backend."""

from __future__ import annotations

import re

from sglang_guards.flag_table.rows import flag, given, requested, resolved, row
from sglang_guards.flag_table.source_lines import deciding, declared, short
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import FlagVerdict


def mixed_chunk(launch: Launch) -> FlagVerdict | None:
    """Prefill chunks and decode steps in one batch."""
    field = "enable_mixed_chunk"
    if f"args.{field}" not in launch.facts:
        return None
    algorithm = str(launch.get("args.speculative_algorithm") or "")
    where = deciding(launch, "mixed_chunk")
    if launch[f"args.{field}"]:
        return row(launch, field, "active", "prefill chunks and decode steps share batches", where)
    if not algorithm:
        effect = "overridden" if given(launch, field) else "off"
        return row(launch, field, effect, "prefill and decode run apart", where)
    spec = deciding(launch, "mixed_chunk_spec", "mixed_chunk")
    if given(launch, field):
        return row(launch, field, "overridden", f"SGLang switches it off because of {algorithm}", spec)
    allowed = _mixed_algorithms(launch)
    if algorithm in allowed:
        return row(
            launch,
            field,
            "off",
            f"if set: this SGLang keeps it beside {algorithm}",
            deciding(launch, "mixed_chunk_algorithms"),
        )
    return row(launch, field, "off", f"if set: SGLang switches it off because of {algorithm}", spec)


def _mixed_algorithms(launch: Launch) -> frozenset[str]:
    """Speculative algorithms that may run with mixed chunk; empty where this SGLang has no such list."""
    source = launch.source
    rel = "sglang/srt/speculative/spec_info.py"
    text = (source.text(rel) or "") if source is not None else ""
    body = re.search(r"def supports_mixed_chunk\(.*?(?=\n    def |\Z)", text, re.DOTALL)
    return frozenset(re.findall(r"SpeculativeAlgorithm\.(\w+)", body[0])) if body else frozenset()


def continuous_steps(launch: Launch) -> FlagVerdict | None:
    """Decode steps between two scheduling rounds: a flag that recent releases declare and do not read."""
    return _maybe_unread(
        launch, "num_continuous_decode_steps", "the scheduler runs this many decode steps per round"
    )


def triton_fp32(launch: Launch) -> FlagVerdict | None:
    """Reduction precision of the Triton attention backend."""
    field = "triton_attention_reduce_in_fp32"
    backends = {launch.get(f"args.{name}") for name in _ATTENTION}
    if f"args.{field}" in launch.facts and "triton" not in backends:
        backend = launch.get("args.attention_backend") or "not Triton"
        effect = "ignored" if given(launch, field) else "off"
        return row(launch, field, effect, f"attention runs on {backend}", declared(launch, field))
    where = deciding(launch, "triton_attention")
    return _maybe_unread(launch, field, f"read beside the Triton attention backend ({where})")


_ATTENTION = ("attention_backend", "decode_attention_backend", "prefill_attention_backend")


def _maybe_unread(launch: Launch, field: str, effect: str) -> FlagVerdict | None:
    if f"args.{field}" not in launch.facts:
        return None
    where = declared(launch, field)
    if not given(launch, field):
        folder = _WHERE_READ[field]
        if _mentioned(launch, folder, field):
            return row(launch, field, "off", f"if set: {effect}", where)
        return row(launch, field, "off", f"if set: nothing in {short(folder)}/ reads it", where)
    read = launch.source.ask(f"{field}_read") if launch.source is not None else None
    if read is None or read.value is None:
        return row(launch, field, "unknown", "whether anything reads it is not known", where)
    if read.value is False:
        return row(launch, field, "ignored", "no code of this SGLang reads it; it is only declared", where)
    place = short(read.where or "")
    if "double_sparsity" in place:
        return row(launch, field, "ignored", "only double-sparsity attention reads it", place)
    return row(launch, field, "active", effect, place)


#: Where a reader of a flag would be. The probe that reads the whole tree is asked only when the flag is set.
_WHERE_READ = {
    "num_continuous_decode_steps": "sglang/srt/managers",
    "triton_attention_reduce_in_fp32": "sglang/srt/layers/attention",
}


def _mentioned(launch: Launch, folder: str, word: str) -> bool:
    """Whether a file of a folder holds the word, double-sparsity attention aside; the texts are not kept."""
    source, needle = launch.source, word.encode()
    if source is None:
        return False
    for rel in source.files(folder, "**/*.py"):
        if "double_sparsity" not in rel and needle in source.path(rel).read_bytes():
            return True
    return False


def policy(launch: Launch) -> FlagVerdict | None:
    """The order in which waiting requests are served."""
    field = "schedule_policy"
    if f"args.{field}" not in launch.facts:
        return None
    value, source = str(launch[f"args.{field}"]), launch.source
    where = launch.where("source.schedule_policy_needs_radix_cache")
    aware = source.list("schedule_policies_cache_aware").values if source is not None else None
    if aware is None:
        return row(launch, field, "unknown", f"which policies look at the cache, {value} too", where)
    if value in aware:
        if launch["args.disable_radix_cache"]:
            return row(
                launch,
                field,
                "overridden",
                f"{value} needs the radix cache, which is off: fcfs is used",
                where,
            )
        kind = f"{value} orders requests by their cached prefix; the radix cache is on"
    else:
        kind = f"{value} does not look at the cache"
    return row(launch, field, _as_asked(launch, field), kind, where)


def _as_asked(launch: Launch, field: str) -> str:
    if given(launch, field):
        return "overridden" if resolved(launch, field) else "active"
    return "auto-enabled" if resolved(launch, field) else "active"


def conservativeness(launch: Launch) -> FlagVerdict | None:
    """How much room is kept for running requests."""
    field = "schedule_conservativeness"
    if f"args.{field}" not in launch.facts:
        return None
    value, where = launch[f"args.{field}"], deciding(launch, "conservativeness")
    why = f"{value:g} scales the share of new tokens that is kept free; below 1 admits more and retracts more"
    if resolved(launch, field):
        effect = "overridden" if given(launch, field) else "auto-enabled"
        where = deciding(launch, "conservativeness_dp")
        return row(launch, field, effect, f"DP attention multiplies it by 0.3: {value:g}", where)
    return row(launch, field, "active", why, where)


def memory(launch: Launch) -> FlagVerdict | None:
    """The share of GPU memory for weights and KV cache."""
    field = "mem_fraction_static"
    if f"args.{field}" not in launch.facts:
        return None
    value, where = launch[f"args.{field}"], deciding(launch, "memory")
    if value is None:
        return row(launch, field, "unknown", "SGLang decides it later, from free memory", where)
    if given(launch, field):
        if resolved(launch, field):
            return row(launch, field, "overridden", f"SGLang made it {value:g}", where)
        return row(launch, field, "active", f"{value:g} of the memory for weights and KV cache", where)
    gpu = launch.get("gpu.memory_gib")
    memory_size = f"{gpu:g} GiB, " if isinstance(gpu, (int, float)) else ""
    speculative = ", speculation" if launch.get("args.speculative_algorithm") else ""
    why = f"{value:g}, from {memory_size}the chunk size, the CUDA graphs{speculative}"
    return row(launch, field, "auto-enabled", why, where)


#: Spellings of the decode graph's largest batch, newest first.
_GRAPH_FIELDS = ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")


def graph_batch(launch: Launch) -> FlagVerdict | None:
    """The largest batch that decodes in a CUDA graph; the flag is renamed per phase from 0.5.14 on."""
    known = [name for name in _GRAPH_FIELDS if f"args.{name}" in launch.facts]
    if not known:
        return None
    field = next((name for name in known if given(launch, name)), known[0])
    config = str(launch.get("args.cuda_graph_config") or "")
    phase = re.search(r"decode['\"]?[=:] ?\w*[({](.*?)(?:prefill|$)", config, re.DOTALL)
    backend = re.search(r"backend['\"]?[=:] ?['\"]?(\w+)", phase[1]) if phase else None
    largest = re.search(r"max_bs['\"]?[=:] ?(\d+)", phase[1]) if phase else None
    value = int(largest[1]) if largest else launch[f"args.{field}"]
    where = deciding(launch, "graph_batch")
    if launch.get("args.disable_cuda_graph") or (backend and backend[1] == "disabled"):
        effect = "ignored" if given(launch, field) else "off"
        return row(launch, field, effect, "decode runs without CUDA graphs", where)
    if value is None:
        return row(launch, field, "unknown", "the resolved value is not known", where)
    if given(launch, field):
        same = str(value) == requested(launch, field)
        why = f"batches up to {value} decode in a graph"
        return row(launch, field, "active" if same else "overridden", why, where)
    gpu = launch.get("gpu.memory_gib")
    why = f"{value}, from {gpu:g} GiB and TP {launch['args.tp_size']}" if gpu else str(value)
    return row(launch, field, "auto-enabled", why, where)


def prefill_graph(launch: Launch) -> FlagVerdict | None:
    """The prefill CUDA graph (piecewise), on by default in part of the releases and switched off by much."""
    where = deciding(launch, "graph_prefill")
    old, new = "disable_piecewise_cuda_graph", "cuda_graph_backend_prefill"
    config = str(launch.get("args.cuda_graph_config") or "")
    phase = re.search(r"prefill['\"]?[=:] ?\w*[({]\W*backend['\"]?[=:] ?['\"]?(\w+)", config)
    if phase is not None or f"args.{new}" in launch.facts:
        backend = phase[1].lower() if phase is not None else str(launch.get(f"args.{new}"))
        asked_for = given(launch, new)
        if backend == "disabled":
            same = requested(launch, new) == "disabled"
            effect = ("active" if same else "overridden") if asked_for else "off"
            return row(launch, new, effect, f"prefill runs without a CUDA graph{_because(launch)}", where)
        effect = "active" if asked_for else "auto-enabled"
        return row(launch, new, effect, f"prefill is captured ({backend})", where)
    if f"args.{old}" not in launch.facts:
        return None
    if launch[f"args.{old}"]:
        effect = "active" if given(launch, old) else "auto-enabled"
        return row(launch, old, effect, f"prefill runs without the piecewise graph{_because(launch)}", where)
    if launch.get("args.disable_cuda_graph"):
        return row(launch, old, "off", "no CUDA graphs at all", where)
    return row(launch, old, "off", "prefill is captured piecewise", where)


def _because(launch: Launch) -> str:
    """The usual reason, where one of the arguments that rule a prefill graph out is on."""
    for field in ("enable_dp_attention", "enable_two_batch_overlap", "enable_deterministic_inference"):
        if launch.get(f"args.{field}"):
            return f"; {flag(field)} is one of the reasons that rule it out"
    if int(launch.get("args.attn_dp_size") or 1) > 1:
        return "; --attn-dp-size is one of the reasons that rule it out"
    return ""
