"""The verdict table: what was requested of each flag of the landscape, and what this SGLang does with it.

Nothing here knows a model. A row follows from resolution (what was typed against what SGLang made of it), from the
derived runner facts, and, for a flag that was not set, from judging the launch as if it were.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from sglang_guards.flag_table.rows import flag, given, requested, resolved, row
from sglang_guards.flag_table.scheduling import (
    conservativeness,
    continuous_steps,
    graph_batch,
    memory,
    mixed_chunk,
    policy,
    prefill_graph,
    triton_fp32,
)
from sglang_guards.flag_table.serving import SERVING, side_effects
from sglang_guards.flag_table.source_lines import deciding, declared, model_line, runner_line, short
from sglang_guards.judge import judge
from sglang_guards.launch import measurements
from sglang_guards.launch.facts import Fact, Launch, MissingFact
from sglang_guards.report.model import Finding, FlagVerdict, Severity
from sglang_guards.rules import all_rules
from sglang_guards.settings import Settings

_SUM = "enable_fused_moe_sum_all_reduce"
_BACKEND = "flashinfer_allreduce_fusion_backend"
_SWITCH = "enable_flashinfer_allreduce_fusion"


def verdicts(launch: Launch) -> tuple[FlagVerdict, ...]:
    """One row per flag that this SGLang has, in the order of the table; never raises.

    Empty for a launch that was not resolved. A flag whose row cannot be told says so.
    """
    if launch.get("args.tp_size") is None:
        return ()
    made = []
    for name, make in _ROWS.items():
        try:
            found = make(launch)
        except MissingFact as missing:
            found = FlagVerdict(name, "–", "unknown", f"{missing.name} is not known")
        except Exception as error:  # noqa: BLE001 - a row must not cost the others
            found = FlagVerdict(name, "–", "unknown", f"could not be told: {type(error).__name__}: {error}")
        if found is not None:
            made.append(found)
    return side_effects(launch, made)


def _supposed(launch: Launch, args: Mapping[str, object], family: str) -> list[Finding]:
    """What the rules of a family say about this launch with some args set."""
    facts = dict(launch.facts) | {f"args.{name}": Fact(value, "given") for name, value in args.items()}
    trial = dataclasses.replace(launch, facts=facts)
    rules = [rule for rule in all_rules() if rule.id.startswith(family)]
    return list(judge(trial, Settings(), rules).findings)


def _unread(launch: Launch, args: Mapping[str, object], family: str) -> str:
    """What the rules of a family could not read in the source with some args set; empty where they read it all."""
    facts = dict(launch.facts) | {f"args.{name}": Fact(value, "given") for name, value in args.items()}
    trial = dataclasses.replace(launch, facts=facts)
    if trial.get("source.gate_found") is not True:
        return "the gate of the fused sum was not found"
    rules = [rule for rule in all_rules() if rule.id.startswith(family)]
    skipped = judge(trial, Settings(), rules).skipped
    asked = [one.missing.removeprefix("source.") for one in skipped if one.missing.startswith("source.")]
    return f"{asked[0]} could not be read" if asked else ""


def _worst(findings: list[Finding]) -> Finding | None:
    """The finding that says most about whether to set a flag."""
    telling = [f for f in findings if f.severity is not Severity.INFO]
    return min(telling, key=lambda f: f.severity.rank) if telling else None


def fused_sum(launch: Launch) -> FlagVerdict | None:
    """The fused MoE sum: which layers it acts on or would act on, or why it does not."""
    if f"args.{_SUM}" not in launch.facts:
        return None
    on = launch[f"args.{_SUM}"] is True
    findings = _supposed(launch, {_SUM: True}, "FMS")
    why, acts = _sum_effect(launch, findings)
    where = launch.where("source.gate_found") or declared(launch, _SUM)
    if acts and (unread := _unread(launch, {_SUM: True}, "FMS")):
        return row(
            launch, _SUM, "unknown" if on else "off", f"{'' if on else 'if set: '}{unread}; {why}", where
        )
    effect = ("active" if acts else "unknown" if acts is None else "ignored") if on else "off"
    return row(launch, _SUM, effect, why if on else f"if set: {why}", where)


def _sum_effect(launch: Launch, findings: list[Finding]) -> tuple[str, bool | None]:
    none = next((f for f in findings if f.id in ("FMS201", "FMS202")), None)
    if none is not None:
        return f"does nothing: {none.cause} ({none.id})", False
    layers = []
    for which in ("target", "draft"):
        reaches, top_k = launch.get(f"{which}.reaches_gate"), launch.get(f"{which}.top_k")
        if reaches is None or (reaches and top_k is None):
            if launch.get(f"{which}.exists") is not False:
                return f"whether the {which}'s experts reach it is not known", None
        elif reaches and top_k > 2:
            layers.append(f"{which} (Triton, top-{top_k})")
    text = f"acts on the experts of {' and '.join(layers)}" if layers else "acts on no layer"
    algorithm = launch.get("args.speculative_algorithm")
    if layers and algorithm and not any(f.severity is Severity.ERROR for f in findings):
        text += f"; right beside {_typed_algorithm(launch, str(algorithm))}"
    told = [f"{f.message} ({f.id})" for f in findings if f.severity is not Severity.INFO]
    refused = any(f.severity is Severity.ERROR for f in findings)
    return "; ".join([text, *told[:2]]) + ("" if not refused else "; the launch is refused"), bool(layers)


def _typed_algorithm(launch: Launch, resolved: str) -> str:
    """NEXTN where the operator typed NEXTN, which SGLang resolves to EAGLE."""
    typed = launch.typed.get("speculative_algorithm", "").replace("=", " ").split()
    return typed[-1] if len(typed) > 1 else resolved


def fusion(launch: Launch) -> FlagVerdict | None:
    """FlashInfer all-reduce fusion: by the operator, by SGLang's list, or why not."""
    field = _BACKEND if f"args.{_BACKEND}" in launch.facts else _SWITCH
    if f"args.{field}" not in launch.facts:
        return None
    name = _SWITCH if launch.given(_SWITCH) else field
    on = bool(launch[f"args.{field}"])
    source = launch.source
    where = short(source.list("fusion_auto_architectures").where or "") if source is not None else ""
    if on:
        worst = _worst(_supposed(launch, {}, "ARF"))
        chosen = given(launch, name)
        why = (
            "set by the operator"
            if chosen
            else "the architecture is on SGLang's list and its conditions hold"
        )
        if worst is None:
            return row(launch, name, "active" if chosen else "auto-enabled", why, where)
        effect = "ignored" if worst.id == "ARF201" else "active" if chosen else "auto-enabled"
        return row(launch, name, effect, f"{why}; {worst.message} ({worst.id})", _cited(worst) or where)
    if launch.get("args.enforce_disable_flashinfer_allreduce_fusion"):
        return row(launch, name, "off", "--enforce-disable-flashinfer-allreduce-fusion wins", where)
    findings = _supposed(launch, {field: "auto" if field == _BACKEND else True}, "ARF")
    worst = _worst(findings)
    if worst is not None:
        effect = "overridden" if given(launch, name) else "off"
        return row(launch, name, effect, f"if set: {worst.message} ({worst.id})", _cited(worst) or where)
    extended = [f for f in _supposed(launch, {}, "ARF301") if f.id == "ARF301"]
    if extended:
        return row(launch, name, "recommended", f"{extended[0].cause} (ARF301)", _cited(extended[0]) or where)
    if given(launch, name):
        return row(launch, name, "overridden", "SGLang switched it off in resolution", where)
    return row(launch, name, "off", "SGLang does not switch it on for this launch", where)


def _cited(finding: Finding) -> str:
    lines = (e.ref for e in finding.evidence if e.kind == "source" and ":" in e.ref and " " not in e.ref)
    return next((short(ref) for ref in lines), "")


def target_runner(launch: Launch) -> FlagVerdict | None:
    """The runner of the target's experts."""
    return _runner(launch, "moe_runner_backend", "target", "model")


def draft_runner(launch: Launch) -> FlagVerdict | None:
    """The runner of the draft's experts; no row where there is no draft."""
    field = "speculative_moe_runner_backend"
    if launch.get("draft_model.exists") is not True:
        return (
            row(launch, field, "ignored", "no draft model", declared(launch, field))
            if given(launch, field)
            else None
        )
    return _runner(launch, field, "draft", "draft_model")


def _runner(launch: Launch, field: str, which: str, model: str) -> FlagVerdict | None:
    if f"args.{field}" not in launch.facts:
        return None
    if launch.get(f"{model}.is_moe") is False:
        effect = "ignored" if given(launch, field) else "off"
        return row(launch, field, effect, f"the {which} has no experts", declared(launch, field))
    value = str(launch[f"args.{field}"])
    runner = launch.get(f"{which}.runner")
    where = runner_line(launch, launch.get(f"{model}.quant_kind"))
    reason = str(launch.get(f"{which}.runner_why") or "").strip()
    dispatched = runner is not None and runner == launch.get("args.moe_a2a_backend")
    why = f"its experts run on {runner}: {reason}" if runner else "which runner its experts get is not known"
    why = f"{value}; {runner} dispatches the tokens" if dispatched else why
    if which == "target" and runner == "triton" and _nobody_measured(launch):
        why += "; nobody measured other runners for this shape on this GPU (`sglang-guards bench` does)"
    if given(launch, field):
        if not resolved(launch, field):
            return row(launch, field, _as_typed(launch, which, value, runner), why, where)
        return row(
            launch, field, "overridden", f"SGLang made it {value}; {why}", deciding(launch, "runner_backend")
        )
    if which == "target" and value != "auto":
        return row(
            launch, field, "auto-enabled", f"SGLang chose {value}; {why}", deciding(launch, "runner_backend")
        )
    topic = deciding(launch, "draft_runner_backend") if which == "draft" else where
    effect = "unknown" if runner is None else "auto-enabled"
    return row(launch, field, effect, f"{value}; {why}", topic or where)


def _nobody_measured(launch: Launch) -> bool:
    """Whether RUN303 has nothing to compare with, though its GPU has other runners."""
    return launch.get("gpu.platform") == "cuda" and not measurements.runners_were_measured(launch)


def _as_typed(launch: Launch, which: str, value: str, runner: object) -> str:
    """Whether a runner that was typed is the one that runs. An all-to-all backend is no runner: it only dispatches."""
    own = launch.get("args.speculative_moe_a2a_backend") if which == "draft" else None
    dispatcher = own or launch.get("args.moe_a2a_backend")
    if runner is None:
        return "unknown"
    if value in (runner, "auto") or (dispatcher not in (None, "none") and runner == dispatcher):
        return "active"
    return "ignored"


def shared_experts(launch: Launch) -> FlagVerdict | None:
    """Shared experts as extra routed ones, or apart."""
    field = "disable_shared_experts_fusion"
    if f"args.{field}" not in launch.facts:
        return None
    if not launch["model.num_shared_experts"]:
        effect = "ignored" if given(launch, field) else "off"
        return row(launch, field, effect, "the model has no shared experts", declared(launch, field))
    if launch[f"args.{field}"]:
        if given(launch, field):
            return row(
                launch,
                field,
                "active",
                "shared experts run apart from the routed ones",
                declared(launch, field),
            )
        backend = launch.get("args.moe_runner_backend")
        why = f"SGLang set it: {backend} and some backends run shared experts apart"
        return row(launch, field, "auto-enabled", why, deciding(launch, "shared_experts"))
    built = launch.get("build.target.fused_shared_experts")
    if built is not None:
        why = f"{built} fused with the routed ones" if built else "SGLang's construction does not fuse them"
        return row(launch, field, "off", why, model_line(launch) or deciding(launch, "shared_experts"))
    why = "whether they are fused is decided while the model is built"
    return row(launch, field, "off", why, model_line(launch) or deciding(launch, "shared_experts"))


def dense_tp(launch: Launch) -> FlagVerdict | None:
    """TP of the dense layers of a MoE model."""
    field = "moe_dense_tp_size"
    if f"args.{field}" not in launch.facts:
        return None
    value, where = launch[f"args.{field}"], deciding(launch, "dense_tp")
    if not launch["model.first_k_dense"] and launch["model.is_moe"]:
        effect = "ignored" if given(launch, field) else "off"
        return row(launch, field, effect, "the config names no leading dense layers", where)
    if value is None:
        return row(launch, field, "off", f"dense layers are split over TP {launch['args.tp_size']}", where)
    effect = "active" if given(launch, field) else "auto-enabled"
    return row(launch, field, effect, f"dense layers are split over TP {value}", where)


def dp_attention(launch: Launch) -> FlagVerdict | None:
    """DP attention and what it takes away."""
    field = "enable_dp_attention"
    if f"args.{field}" not in launch.facts:
        return None
    size = int(launch.get("args.attn_dp_size") or 1)
    on = bool(launch[f"args.{field}"]) or size > 1
    where = deciding(launch, "dp_attention")
    if on:
        ways = size if size > 1 else launch["args.dp_size"]
        why = f"attention runs {ways} ways in parallel; all-reduce fusion is a no-op beside it"
        spelled = "; the flag is deprecated in favour of --attn-dp-size" if size > 1 else ""
        effect = "active" if given(launch, field) or given(launch, "attn_dp_size") else "auto-enabled"
        return row(launch, field, effect, why + spelled, where)
    if given(launch, field):
        why = f"SGLang switches it off at DP {launch['args.dp_size']}"
        return row(launch, field, "overridden", why, deciding(launch, "dp_attention_off"))
    tp = launch["args.tp_size"]
    why = f"if set: needs --dp above 1 that divides TP {tp}; all-reduce fusion is a no-op beside it"
    return row(launch, field, "off", why, where)


def a2a(launch: Launch) -> FlagVerdict | None:
    """The all-to-all backend of expert parallelism."""
    field = "moe_a2a_backend"
    if f"args.{field}" not in launch.facts:
        return None
    value, where = launch[f"args.{field}"], deciding(launch, "a2a")
    if value in (None, "none"):
        effect = "overridden" if given(launch, field) and resolved(launch, field) else "off"
        runner = launch.get("target.runner")
        runs = f"; the experts run on {runner}" if runner and launch.get("model.is_moe") else ""
        return row(launch, field, effect, f"tokens are gathered and reduced{runs}", where)
    if not launch["model.is_moe"]:
        return row(launch, field, "ignored", "the model has no experts", where)
    effect = "active" if given(launch, field) else "auto-enabled"
    why = f"{value} dispatches tokens over EP {launch['args.ep_size']}"
    return row(launch, field, effect, why, where)


def deterministic(launch: Launch) -> FlagVerdict | None:
    """Deterministic inference."""
    field = "enable_deterministic_inference"
    if f"args.{field}" not in launch.facts:
        return None
    where = deciding(launch, "deterministic")
    if not launch[f"args.{field}"]:
        return row(launch, field, "off", "outputs may depend on the batch", where)
    told = _worst(_supposed(launch, {}, "DET101") + _supposed(launch, {}, "DET102"))
    why = "attention and sampling are pinned to batch-invariant kernels"
    effect = "active" if given(launch, field) else "auto-enabled"
    return row(launch, field, effect, f"{why}; {told.message} ({told.id})" if told else why, where)


def speculation(launch: Launch) -> FlagVerdict | None:
    """The speculative algorithm after resolution."""
    field = "speculative_algorithm"
    value = launch.get(f"args.{field}")
    if not value:
        return None
    draft = "the checkpoint's own draft" if launch.get("draft_model.built_in") else "a draft model of its own"
    draft = draft if launch.get("draft_model.exists") else "no draft model"
    before = requested(launch, field)
    effect = "overridden" if before.upper() != str(value).upper() and given(launch, field) else "active"
    name = f"runs as {value}" if effect == "overridden" else str(value)
    return row(launch, field, effect, f"{name} with {draft}", deciding(launch, "speculative"))


_ROWS: Mapping[str, Callable[[Launch], FlagVerdict | None]] = {
    flag(_SUM): fused_sum,
    flag(_BACKEND): fusion,
    flag("moe_runner_backend"): target_runner,
    flag("speculative_moe_runner_backend"): draft_runner,
    flag("speculative_algorithm"): speculation,
    flag("moe_a2a_backend"): a2a,
    flag("disable_shared_experts_fusion"): shared_experts,
    flag("moe_dense_tp_size"): dense_tp,
    flag("enable_dp_attention"): dp_attention,
    flag("enable_mixed_chunk"): mixed_chunk,
    flag("num_continuous_decode_steps"): continuous_steps,
    flag("schedule_policy"): policy,
    flag("schedule_conservativeness"): conservativeness,
    flag("mem_fraction_static"): memory,
    flag("cuda_graph_max_bs"): graph_batch,
    flag("disable_piecewise_cuda_graph"): prefill_graph,
    flag("triton_attention_reduce_in_fp32"): triton_fp32,
    flag("enable_deterministic_inference"): deterministic,
    **SERVING,
}
