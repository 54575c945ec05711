"""What this SGLang does with --enable-fused-moe-sum-all-reduce: the gate's conditions and the combine."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from sglang_guards.source.probes.fused_sum_gate import (
    CACHE,
    FLAG,
    PLATFORMS,
    Gate,
    batch_facts,
    gate,
    mentions,
)
from sglang_guards.source.syntax.evaluate import Path, World, paths, pruned, terminal_name
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Answer, Source, probe

# -- the flag and its gate ---------------------------------------------------------------------------------


@probe("flag_exists", "ServerArgs has the field enable_fused_moe_sum_all_reduce.")
def flag_exists(source: Source) -> Answer:
    files = ("sglang/srt/server_args.py", *source.files("sglang/srt/arg_groups/fields", "*.py"))
    source.need(files[0])
    for rel in files:
        if line := source.line(rel, rf"^    {FLAG}\s*:"):
            return Answer(True, f"{rel}:{line}", "the field is declared here")
    return Answer(False, None, "no field of that name")


@probe("gate_found", "One statement decides whether the sum is fused, in a shape that can be evaluated.")
def gate_found(source: Source) -> Answer:
    if source.ask("flag_exists").value is False:
        return Answer(False, None, "the flag does not exist")
    found = gate(source)
    assert isinstance(found.statement, (ast.Assign, ast.AnnAssign))
    assert found.statement.value is not None
    value = found.value(batch_facts())
    if value is None:
        return Answer(None, found.where(), "a condition of the gate is unknown")
    return Answer(value, found.where(), ast.unparse(found.statement.value))


def _gate_off(source: Source, facts: Mapping[str, object], what: str) -> Answer:
    """True where the gate is off under facts that differ from the good case in one respect."""
    found = gate(source)
    value = found.value(facts)
    if value is None:
        return Answer(None, found.where(), f"whether the gate is off {what} depends on an unknown condition")
    return Answer(not value, found.where(), f"the gate is {'on' if value else 'off'} {what}")


@probe("gate_checks_top_k", "The gate is off for top-k 1 and 2, and on for 3.")
def gate_checks_top_k(source: Source) -> Answer:
    two, three = (_gate_off(source, batch_facts(top_k=k), f"at top-k {k}") for k in (2, 3))
    return two if three.value is False or two.value is None else Answer(None, three.where, three.detail)


@probe("gate_checks_no_combine", "The gate is off where the caller wants the experts' outputs uncombined.")
def gate_checks_no_combine(source: Source) -> Answer:
    return _gate_off(source, batch_facts(no_combine=True), "with no_combine")


@probe("gate_checks_weight_only", "The gate is off for int8 and for int4 weight-only quantization.")
def gate_checks_weight_only(source: Source) -> Answer:
    eight = _gate_off(source, batch_facts(use_int8_w8a16=True), "with int8_w8a16")
    return _gate_off(source, batch_facts(use_int4_w4a16=True), "with int4_w4a16") if eight.value else eight


@probe("gate_checks_defer_sum", "The gate is off where the caller sums the experts itself (defer_sum).")
def gate_checks_defer_sum(source: Source) -> Answer:
    return _gate_off(source, batch_facts(defer_sum=True), "with defer_sum")


@probe(
    "gate_checks_lora_hooks",
    "The gate or the combine considers LoRA hooks, so the down-projection delta survives.",
)
def gate_checks_lora_hooks(source: Source) -> Answer:
    with_hooks = batch_facts(hooks="hooks", after_gate_up="hook", after_down="hook")
    answer = _gate_off(source, with_hooks, "with LoRA hooks")
    if answer.value is not False:
        return answer
    reads = _reads(source, with_hooks)
    reading = [places[0] for places in reads if places]
    if not reading:
        return answer
    where = gate(source).code.where(reading[0])
    if len(reading) == len(reads) and not any(_reads(source, batch_facts())):
        return Answer(True, where, "the combine takes what the hooks added")
    return Answer(None, where, "the combine reads the hooks' buffer in a way that is not understood")


@probe(
    "gate_checks_experts_filtered", "The gate is off where some experts live on other ranks (filter_expert)."
)
def gate_checks_experts_filtered(source: Source) -> Answer:
    return _gate_off(source, batch_facts(filter_expert=True), "with filtered experts")


@probe("gate_checks_platform", "The gate is off on every platform whose combine would need it.")
def gate_checks_platform(source: Source) -> Answer:
    answers = [_gate_off(source, batch_facts(name), f"on {name.upper()}") for name in ("hip", "xpu", "other")]
    return next(
        (a for a in answers if a.value is False), next((a for a in answers if a.value is None), answers[0])
    )


@probe(
    "gate_checks_deterministic",
    "The gate is off under deterministic inference, rl_on_policy or batch invariance.",
)
def gate_checks_deterministic(source: Source) -> Answer:
    facts = batch_facts(
        enable_deterministic_inference=True, rl_on_policy_target="fsdp", is_batch_invariant_mode_enabled=True
    )
    return _gate_off(source, facts, "under deterministic inference")


# -- the combine -------------------------------------------------------------------------------------------


def _reads(source: Source, facts: Mapping[str, object]) -> list[list[ast.AST]]:
    """For each way through the sequence: the places that read the unfused buffer after the second GEMM."""
    found = gate(source)
    every: list[list[ast.AST]] = []
    for path in found.paths(facts):
        reads: list[list[ast.AST]] = [[]]
        second_gemm = False
        for step in path.steps:
            calls = [node for node in step.live if isinstance(node, ast.Call)]
            if any(keyword.arg == "fuse_sum_all_reduce" for call in calls for keyword in call.keywords):
                second_gemm = True
                if any(_is_cache(node) for node in step.live):
                    raise Unknown("the second GEMM writes the unfused buffer although the sum is fused")
            elif second_gemm:
                reads = [
                    [*so_far, *more]
                    for so_far in reads
                    for more in _step_reads(source, found, step.node, step.live, path, facts)
                ]
        if not second_gemm:
            raise Unknown("no GEMM with fuse_sum_all_reduce was found")
        every.extend(reads)
    return every


def _is_cache(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == CACHE and isinstance(node.ctx, ast.Load)


def _step_reads(
    source: Source,
    found: Gate,
    step: ast.stmt,
    live: Sequence[ast.AST],
    path: Path,
    facts: Mapping[str, object],
) -> list[list[ast.AST]]:
    calls = [node for node in live if isinstance(node, ast.Call)]
    if isinstance(step, ast.Delete) or any(terminal_name(call) == "after_down" for call in calls):
        return [[]]
    for call in calls:
        if isinstance(call.func, ast.Name) and any(mentions(a, found.variable) for a in _arguments(call)):
            return _reads_in_helper(source, found, call, path, facts)
    return [_data_reads(live, CACHE)]


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _data_reads(live: Sequence[ast.AST], name: str) -> list[ast.AST]:
    """Uses of a tensor other than of its shape, dtype or device."""
    harmless = {
        id(node.value)
        for node in live
        if isinstance(node, ast.Attribute) and node.attr in ("shape", "dtype", "device", "ndim")
    }
    # `cache.view(*cache.shape)` uses the tensor once for its data and once for its shape
    return [n for n in live if isinstance(n, ast.Name) and n.id == name and id(n) not in harmless]


def _reads_in_helper(
    source: Source, found: Gate, call: ast.Call, path: Path, facts: Mapping[str, object]
) -> list[list[ast.AST]]:
    """The combine as a function of its own: follow it with the arguments of the call."""
    name = terminal_name(call) or ""
    helper = source.function(found.code.rel, name).node
    if not isinstance(helper, ast.FunctionDef) or any(isinstance(a, ast.Starred) for a in call.args):
        raise Unknown(f"{name} cannot be followed")
    given = dict(zip((a.arg for a in helper.args.args), call.args, strict=False))
    given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
    buffers = [parameter for parameter, value in given.items() if _is_cache(value)]
    if len(buffers) > 1:
        raise Unknown(f"{name} is given the unfused buffer twice")
    buffer = buffers[0] if buffers else CACHE
    world = World(facts, dict(path.seen))
    bound = {parameter: world.value(value) for parameter, value in given.items()}
    gates = {parameter for parameter, value in given.items() if mentions(value, found.variable)}
    body = pruned(helper.body, {*gates, buffer})
    return [
        [
            node
            for step in inner.steps
            if not isinstance(step.node, ast.Delete)
            for node in _data_reads(step.live, buffer)
        ]
        for inner in paths(body, World(facts, bound))
        if not isinstance(inner.end, ast.Raise)
    ]


def _covers(source: Source, platform: str) -> Answer:
    found = gate(source)
    facts = batch_facts(platform)
    if found.value(facts) is False:
        return Answer(True, found.where(), f"the gate is off on {platform.upper()}")
    reads = _reads(source, {**facts, found.variable: True})
    reading = [places[0] for places in reads if places]
    if not reading:
        return Answer(True, found.where(), f"on {platform.upper()} the combine leaves the fused result alone")
    where = found.code.where(reading[0])
    if len(reading) < len(reads) or found.value(facts) is None:
        return Answer(None, where, f"on {platform.upper()} it depends on an unknown condition")
    return Answer(False, where, f"on {platform.upper()} the combine reads {CACHE}, which nobody wrote")


def _register_platform(platform: str) -> None:
    doc = f"With the flag, {platform.upper()} is right: the gate is off or the combine leaves the sum alone."
    probe(f"combine_covers_{platform}", doc)(lambda source: _covers(source, platform))


for _name in PLATFORMS:
    _register_platform(_name)


@probe("cache3_skipped_with_flag", "The unfused buffer is not allocated where the sum is fused.")
def cache3_skipped_with_flag(source: Source) -> Answer:
    found = gate(source)
    made: list[list[ast.AST]] = []
    for path in found.paths(batch_facts(), whole=True):
        assigned = [
            step for step in path.steps if isinstance(step.node, ast.Assign) and _targets_cache(step.node)
        ]
        made.append([n for step in assigned for n in step.live if isinstance(n, ast.Call)])
    first = [calls[0] for calls in made if calls]
    if len(first) == len(made):
        return Answer(False, found.code.where(first[0]), f"{CACHE} is allocated all the same")
    return Answer(
        None if first else True, found.where(), f"{CACHE} is {'sometimes ' if first else 'not '}allocated"
    )


def _targets_cache(node: ast.Assign) -> bool:
    return any(isinstance(t, ast.Name) and t.id == CACHE for t in node.targets)
