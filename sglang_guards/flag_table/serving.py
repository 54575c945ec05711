"""Rows of the verdict table about attention, KV cache, overlap, expert placement and disaggregation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from sglang_guards.flag_table.rows import flag, given, requested, resolved, row
from sglang_guards.flag_table.source_lines import declared, short
from sglang_guards.judge import judge
from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Finding, FlagVerdict
from sglang_guards.rules import all_rules
from sglang_guards.settings import Settings

_NO_A2A = frozenset({None, "", "none"})
Row = Callable[[Launch], FlagVerdict | None]


def _found(launch: Launch, *ids: str) -> Finding | None:
    """What one of these rules says about the launch."""
    rules = [rule for rule in all_rules() if rule.id in ids]
    findings = judge(launch, Settings(), rules).findings
    return findings[0] if findings else None


def _said(why: str, finding: Finding | None) -> str:
    return f"{why}; {finding.message} ({finding.id})" if finding is not None else why


def _as_resolved(launch: Launch, field: str) -> str:
    """active as typed, overridden, auto-enabled, or off."""
    if given(launch, field):
        return "overridden" if _changed(launch, field) else "active"
    return "auto-enabled" if launch.get(f"args.{field}") else "off"


def _changed(launch: Launch, field: str) -> bool:
    typed = launch.facts.get(f"typed.{field}")
    if typed is None:
        return resolved(launch, field)
    return str(typed.value) not in ("auto", str(launch.get(f"args.{field}")))


def _attention(field: str) -> Row:
    def make(launch: Launch) -> FlagVerdict | None:
        """The attention backend of one phase, or of both."""
        value = launch.get(f"args.{field}")
        if f"args.{field}" not in launch.facts or (value is None and not given(launch, field)):
            return None
        split = [launch.get(f"args.{phase}_attention_backend") for phase in ("prefill", "decode")]
        if field == "attention_backend" and all(split):
            why = f"prefill runs on {split[0]}, decode on {split[1]}"
        elif field == "attention_backend":
            phases = [phase for phase, own in zip(("prefill", "decode"), split, strict=True) if not own]
            why = (
                f"{' and '.join(phases)} run on {value}"
                if len(phases) > 1
                else f"{phases[0]} runs on {value}"
            )
        else:
            why = f"{field.split('_', 1)[0]} runs on {value}"
        told = _found(launch, "ATT101", "ATT102", "ATT104", "ATT105")
        return row(launch, field, _as_resolved(launch, field), _said(why, told), declared(launch, field))

    return make


def draft_attention(launch: Launch) -> FlagVerdict | None:
    """The attention backend of a draft model."""
    field = "speculative_draft_attention_backend"
    if f"args.{field}" not in launch.facts:
        return None
    where = declared(launch, field)
    if launch.get("draft_model.exists") is not True:
        return row(launch, field, "ignored", "no draft model", where) if given(launch, field) else None
    value = launch[f"args.{field}"]
    why = f"the draft runs on {value}" if value else "the draft takes the target's attention backend"
    effect = "active" if value and given(launch, field) else "auto-enabled" if value else "off"
    return row(launch, field, effect, _said(why, _found(launch, "ATT103")), where)


def two_batch(launch: Launch) -> FlagVerdict | None:
    """Two-batch overlap."""
    return _overlap(launch, "enable_two_batch_overlap", "tbo_strategy_exists", "PAR110")


def single_batch(launch: Launch) -> FlagVerdict | None:
    """Single-batch overlap."""
    return _overlap(launch, "enable_single_batch_overlap", None, "PAR111")


def _overlap(launch: Launch, field: str, probe: str | None, rule_id: str) -> FlagVerdict | None:
    on = launch.get(f"args.{field}")
    if f"args.{field}" not in launch.facts or not (on or given(launch, field)):
        return None
    where = declared(launch, field)
    if not on:
        return row(launch, field, "overridden", "SGLang switches it off for this launch", where)
    told = _found(launch, rule_id)
    if told is not None:
        return row(launch, field, "active", f"{told.message} ({told.id})", where)
    if probe is None:
        a2a = launch.get("args.moe_a2a_backend")
        why = (
            "no all-to-all backend is set" if a2a in _NO_A2A else f"overlaps {a2a}'s combine with other work"
        )
        return row(launch, field, "active", why, where)
    try:
        runs = launch.answer("model_runs_tbo", architecture=str(launch["model.architecture"]))
    except MissingFact:
        return row(launch, field, "unknown", "whether this model splits its batches is not known", where)
    if not runs.value:
        return row(launch, field, "ignored", "this model never splits its batches", where)
    return row(launch, field, "active", "batches that can be split run as two", short(runs.where) or where)


def eplb(launch: Launch) -> FlagVerdict | None:
    """Experts that move to where the load is."""
    field = "enable_eplb"
    on = launch.get(f"args.{field}")
    if f"args.{field}" not in launch.facts or not (on or given(launch, field)):
        return None
    if not on:
        return row(launch, field, "overridden", "SGLang switches it off", declared(launch, field))
    why = f"experts move over EP {launch['args.ep_size']}"
    told = _found(launch, "PAR108", "PAR109")
    return row(launch, field, "active", _said(why, told), declared(launch, field))


def disaggregation(launch: Launch) -> FlagVerdict | None:
    """Prefill and decode on nodes of their own."""
    field = "disaggregation_mode"
    value = launch.get(f"args.{field}")
    if value in (None, "null", "none"):
        return None
    told = _found(launch, "SPC107")
    why = f"this node serves {value} only"
    return row(launch, field, _as_resolved(launch, field), _said(why, told), declared(launch, field))


def _plain(field: str, say: Callable[[Launch, object], str]) -> Row:
    def make(launch: Launch) -> FlagVerdict | None:
        """A value as it is after resolution."""
        if f"args.{field}" not in launch.facts:
            return None
        value = launch[f"args.{field}"]
        if value is None and not given(launch, field):
            return None
        if value == "auto" and not given(launch, field):
            return row(launch, field, "off", say(launch, value), declared(launch, field))
        effect = _as_resolved(launch, field)
        why = say(launch, value)
        if effect == "overridden":
            why = f"SGLang made it {value}; {why}"
        return row(launch, field, effect, why, declared(launch, field))

    return make


def _kv_dtype(launch: Launch, value: object) -> str:
    return "the KV cache has the model's dtype" if value == "auto" else f"the KV cache is {value}"


def _page(launch: Launch, value: object) -> str:
    return f"the KV cache is handed out in pages of {value} tokens"


def _quantization(launch: Launch, value: object) -> str:
    kind = launch.get("model.quant_kind")
    block = launch.get("model.quant_block")
    name = f"{kind} {block[0]}×{block[1]}" if isinstance(block, list) and len(block) == 2 else str(kind)
    return f"weights run as {name}" if kind else f"weights run as {value}"


SERVING: Mapping[str, Row] = {
    flag("attention_backend"): _attention("attention_backend"),
    flag("prefill_attention_backend"): _attention("prefill_attention_backend"),
    flag("decode_attention_backend"): _attention("decode_attention_backend"),
    flag("speculative_draft_attention_backend"): draft_attention,
    flag("enable_two_batch_overlap"): two_batch,
    flag("enable_single_batch_overlap"): single_batch,
    flag("enable_eplb"): eplb,
    flag("disaggregation_mode"): disaggregation,
    flag("kv_cache_dtype"): _plain("kv_cache_dtype", _kv_dtype),
    flag("page_size"): _plain("page_size", _page),
    flag("quantization"): _plain("quantization", _quantization),
}


def side_effects(launch: Launch, rows: Sequence[FlagVerdict]) -> tuple[FlagVerdict, ...]:
    """The table with what each typed flag changed beside itself, as resolving without it shows."""
    made = list(rows)
    for name, fact in launch.facts.items():
        field = name.removeprefix("without.")
        if field == name or not isinstance(fact.value, Mapping):
            continue
        told = [
            f"{flag(other)} would be {_shown(before)} without it, and is {_shown(launch.get(f'args.{other}'))}"
            for other, before in sorted(fact.value.items())
        ]
        text = "; ".join(told)
        place = next((i for i, one in enumerate(made) if one.flag == flag(field)), None)
        if place is None:
            where = declared(launch, field)
            made.append(FlagVerdict(flag(field), requested(launch, field), "active", text, where))
        else:
            made[place] = dataclasses.replace(made[place], why=f"{made[place].why}; {text}")
    return tuple(made)


def _shown(value: object) -> str:
    return "unset" if value is None else "on" if value is True else "off" if value is False else str(value)
