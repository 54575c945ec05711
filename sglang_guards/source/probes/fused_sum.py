"""What this SGLang does with --enable-fused-moe-sum-all-reduce: the gate's conditions and the combine."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from sglang_guards.source.probes.args_resolution import field_declared
from sglang_guards.source.probes.fused_sum_gate import (
    CACHE,
    FLAG,
    PLATFORMS,
    Gate,
    batch_facts,
    gate,
    mentions,
)
from sglang_guards.source.syntax.evaluate import Path, World, paths, terminal_name, truth
from sglang_guards.source.syntax.prune import pruned
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Answer, Source, probe

# -- the flag and its gate ---------------------------------------------------------------------------------


@probe("flag_exists", "ServerArgs has the field enable_fused_moe_sum_all_reduce.")
def flag_exists(source: Source) -> Answer:
    return field_declared(source, FLAG)


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
    if not any(isinstance(node, ast.Name) and node.id == CACHE for node in ast.walk(found.code.node)):
        raise Unknown(f"{found.name} has no {CACHE}")
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
        if _hands_on(call, {found.variable}, CACHE):
            return _reads_in_helper(
                source, found, call, World(facts, dict(path.seen)), {found.variable}, CACHE
            )
    return [_data_reads(live, CACHE)]


def _arguments(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def _data_reads(live: Sequence[ast.AST], name: str) -> list[ast.AST]:
    """Places that read a tensor's data, told by the operation; Unknown where it is handed to something else."""
    named = {id(node): node for node in live if isinstance(node, ast.Name) and node.id == name}
    reads: list[ast.AST] = []
    for node in live:
        if isinstance(node, ast.Attribute) and id(node.value) in named:
            named.pop(
                id(node.value)
            )  # `cache.view(…)`, `cache.sum(…)`: read where the result is, or only its shape
            if node.attr not in (*_SHAPE, *_VIEWS):
                reads.append(node.value)
        elif isinstance(node, ast.Call) and _sums(node):
            reads += [n for argument in _arguments(node) for n in _tensors(argument, name)]
    seen = {id(node) for node in reads}
    if loose := [node for key, node in named.items() if key not in seen and isinstance(node.ctx, ast.Load)]:
        raise Unknown(f"line {loose[0].lineno}: what is done with {name} here is not known")
    return reads


_SHAPE = ("shape", "dtype", "device", "ndim")
_VIEWS = ("view", "reshape", "size", "stride", "data_ptr", "numel", "dim")


def _tensors(argument: ast.expr, name: str) -> list[ast.AST]:
    """The tensor in `cache`, `cache[:, 0]`, `cache.view(…)` and `cache[: n].view(…)`."""
    while True:
        if isinstance(argument, ast.Subscript):
            argument = argument.value
        elif isinstance(argument, ast.Call) and isinstance(argument.func, ast.Attribute):
            if argument.func.attr not in _VIEWS:
                return []
            argument = argument.func.value
        else:
            return [argument] if isinstance(argument, ast.Name) and argument.id == name else []


def _sums(call: ast.Call) -> bool:
    """Whether a call is one of the operations that are known to read their tensors."""
    name, root = terminal_name(call) or "", call.func
    while isinstance(root, ast.Attribute):
        root = root.value
    return name.startswith("moe_sum") or (isinstance(root, ast.Name) and root.id in ("torch", "vllm_ops"))


def _reads_in_helper(
    source: Source, found: Gate, call: ast.Call, world: World, gates: set[str], cache: str, depth: int = 0
) -> list[list[ast.AST]]:
    """The combine as a function of its own: follow it with the arguments of the call."""
    name = terminal_name(call) or ""
    if depth > 3 or not isinstance(call.func, ast.Name):
        raise Unknown(f"{name or 'the combine'} cannot be followed")
    helper = source.function(found.code.rel, name).node
    packed = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    if not isinstance(helper, ast.FunctionDef) or packed:
        raise Unknown(f"{name} cannot be followed")
    given = dict(zip((a.arg for a in helper.args.args), call.args, strict=False))
    given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
    buffers = [p for p, value in given.items() if isinstance(value, ast.Name) and value.id == cache]
    if len(buffers) > 1:
        raise Unknown(f"{name} is given the unfused buffer twice")
    buffer = buffers[0] if buffers else CACHE
    bound = {parameter: world.value(value) for parameter, value in _with_defaults(helper, given).items()}
    facts = {name: value for name, value in world.pinned.items() if name not in bound}
    inside = {p for p, value in given.items() if any(mentions(value, one) for one in gates)}
    ways: list[list[ast.AST]] = []
    for inner in paths(pruned(helper.body, {*inside, buffer}), World(facts, bound)):
        if isinstance(inner.end, ast.Raise):
            continue
        after = World(facts, dict(inner.seen))
        reads: list[list[ast.AST]] = [[]]
        for step in inner.steps:
            if isinstance(step.node, ast.Delete):
                continue
            calls = [node for node in step.live if isinstance(node, ast.Call)]
            deeper = next((c for c in calls if _hands_on(c, inside, buffer)), None)
            more = (
                [_data_reads(step.live, buffer)]
                if deeper is None
                else _reads_in_helper(source, found, deeper, after, inside, buffer, depth + 1)
            )
            reads = [[*so_far, *also] for so_far in reads for also in more]
        ways += reads
    return ways


def _with_defaults(helper: ast.FunctionDef, given: Mapping[str, ast.expr]) -> Mapping[str, ast.expr]:
    """The arguments of a call, and the defaults of those that it leaves out."""
    names = [argument.arg for argument in helper.args.args]
    late = dict(zip(names[len(names) - len(helper.args.defaults) :], helper.args.defaults, strict=True))
    keyword_only = zip(helper.args.kwonlyargs, helper.args.kw_defaults, strict=True)
    late |= {argument.arg: value for argument, value in keyword_only if value is not None}
    return {**late, **given}


def _hands_on(call: ast.Call, gates: set[str], buffer: str) -> bool:
    """Whether a call hands on the buffer itself, or the decision, to a function that is none of the known sums."""
    if _sums(call):
        return False
    given = _arguments(call)
    return any(isinstance(a, ast.Name) and a.id in {*gates, buffer} for a in given)


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
    made: list[ast.AST | None] = []
    for path in found.paths(batch_facts(), whole=True):
        world = World(batch_facts(), {**path.seen, found.variable: True})
        made_anew = [step for step in path.steps if _targets_cache(step.node) and not _narrows(step.node)]
        assigned = [step.node for step in made_anew]
        if len(assigned) != 1:
            raise Unknown(f"{CACHE} is not made in one place")
        made.append(_allocation(assigned[0], world))
    first = next((node for node in made if node is not None), None)
    if first is None:
        return Answer(True, found.where(), f"{CACHE} is not allocated")
    if None not in made:
        return Answer(False, found.code.where(first), f"{CACHE} is allocated all the same")
    return Answer(None, found.where(), f"{CACHE} is sometimes allocated")


def _allocation(node: ast.stmt, world: World) -> ast.AST | None:
    """The call that allocates, None where nothing is allocated; Unknown where something else makes the buffer."""
    value = node.value if isinstance(node, ast.Assign) else None
    while isinstance(value, ast.IfExp) and (test := truth(world.value(value.test))) is not None:
        value = value.body if test else value.orelse
    if isinstance(value, ast.Constant) and value.value is None:
        return None
    calls = [n for n in ast.walk(value) if isinstance(n, ast.Call)] if value is not None else []
    if not any((terminal_name(c) or "").startswith(("empty", "zeros", "new_empty", "view")) for c in calls):
        raise Unknown(f"how {CACHE} is made is not known")
    return calls[0]


def _narrows(node: ast.stmt) -> bool:
    """`cache = cache[:n]` takes a part of what is there."""
    value = node.value if isinstance(node, ast.Assign) else None
    return isinstance(value, ast.Subscript) and isinstance(value.value, ast.Name) and value.value.id == CACHE


def _targets_cache(node: ast.stmt) -> bool:
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)):
        return False
    names = [n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    return any(n.id == CACHE for n in names)
