"""What the Triton kernel does when FUSE_SUM_ALL_REDUCE is set, and which callers reach the gate."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from types import MappingProxyType

from sglang_guards.source.probes.fused_sum_gate import (
    FLAG,
    HANDLER,
    KERNEL_FILES,
    LORA_RUNNER_FILES,
    PAGED_EXPERTS,
    RUNNER_FILES,
    gate,
)
from sglang_guards.source.syntax.evaluate import Path, World, paths, pruned, terminal_name, truth
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Answer, Code, Source, probe

#: Constexprs and arguments of the kernel as the down projection passes them when the sum is fused.
_DOWN_PROJECTION: dict[str, object] = {
    "FUSE_SUM_ALL_REDUCE": True,
    "FUSE_ADD_TO_OUTPUT": False,
    "FUSE_SWIGLU": False,
    "MASK_OUTPUT": False,
    "LORA_PRESERVE_BASE": False,
    "A_OUTPUT_SLICES": 1,
    "c_sorted": False,
    "filter_expert": True,
}


def kernel(source: Source) -> Code:
    if source.ask("flag_exists").value is False:
        raise Unknown("the flag does not exist")
    return source.function(KERNEL_FILES, "fused_moe_kernel")


def branch_of_filtered_experts(code: Code, changed: Mapping[str, object] = MappingProxyType({})) -> ast.If:
    """The outermost `if` that is taken for expert -1 and not for expert 0."""
    assert isinstance(code.node, ast.FunctionDef)
    expert_names = ("off_experts", "off_experts_i32", "off_expert", "expert_id")
    worlds = [
        World({**_DOWN_PROJECTION, **changed, **dict.fromkeys(expert_names, expert)}) for expert in (-1, 0)
    ]
    for node in code.node.body:
        if isinstance(node, ast.If):
            filtered, local = (truth(world.value(node.test)) for world in worlds)
            if filtered is True and local is False:
                return node
        for world in worlds:
            ways = [way for way in paths([node], world, watch=False) if way.end is None]
            if len(ways) == 1:
                world.seen.update(ways[0].seen)
    raise Unknown("no branch for filtered experts (-1) was found in the kernel")


@probe("zero_store_guarded", "With the fused sum, the branch of filtered experts stores no zeros.")
def zero_store_guarded(source: Source) -> Answer:
    code = kernel(source)
    branch = branch_of_filtered_experts(code)
    found = paths(branch.body, World(_DOWN_PROJECTION))
    stores = [_stores(path) for path in found]
    storing = [calls[0] for calls in stores if calls]
    if storing and len(storing) == len(stores):
        return Answer(
            False, code.where(_guard(branch, storing[0])), "zeros are stored although the sum is fused"
        )
    if storing:
        return Answer(None, code.where(branch), "whether zeros are stored depends on an unknown condition")
    if any(path.end is None for path in found):
        return Answer(None, code.where(branch), "the branch of filtered experts goes on to the product")
    return Answer(True, code.where(branch), "nothing is stored for filtered experts when the sum is fused")


def _stores(path: Path) -> list[ast.Call]:
    calls = [node for step in path.steps for node in step.live if isinstance(node, ast.Call)]
    return [c for c in calls if (terminal_name(c) or "").startswith(("write_zeros", "store", "atomic_"))]


def _guard(branch: ast.If, store: ast.Call) -> ast.AST:
    """The `if` right around the store, which is the line to read."""
    around = [n for n in ast.walk(branch) if isinstance(n, ast.If) and any(store is m for m in ast.walk(n))]
    return max(around, key=lambda node: node.lineno)


def _fused_adds(source: Source) -> tuple[Code, list[ast.Call]]:
    code = kernel(source)
    if isinstance(known := source.memo.get("fused_adds"), list):
        return code, known
    assert isinstance(code.node, ast.FunctionDef)
    adds: dict[int, ast.Call] = {}
    lines = {node.lineno for node in source.naming(code, "atomic_add")}
    holding = [n for n in code.node.body if any(n.lineno <= line <= (n.end_lineno or 0) for line in lines)]
    body = pruned(holding, {"atomic_add"})
    for path in paths(body, World(_DOWN_PROJECTION)):
        for step in path.steps:
            adds.update(
                {id(n): n for n in step.live if isinstance(n, ast.Call) and terminal_name(n) == "atomic_add"}
            )
    source.memo["fused_adds"] = list(adds.values())
    return code, list(adds.values())


@probe("fused_add_found", "The kernel adds to the output atomically when FUSE_SUM_ALL_REDUCE is set.")
def fused_add_found(source: Source) -> Answer:
    code, adds = _fused_adds(source)
    return Answer(bool(adds), code.where(adds[0] if adds else None), f"{len(adds)} atomic add")


@probe(
    "fused_add_relaxed", "The fused atomic add asks for relaxed memory order; Triton's default is acq_rel."
)
def fused_add_relaxed(source: Source) -> Answer:
    code, adds = _fused_adds(source)
    if not adds:
        raise Unknown("no atomic add under FUSE_SUM_ALL_REDUCE")
    for add in adds:
        order = next(
            (k.value for k in add.keywords if k.arg == "sem"), add.args[3] if len(add.args) > 3 else None
        )
        if order is not None and not isinstance(order, ast.Constant):
            return Answer(None, code.where(add), f"memory order is {ast.unparse(order)}")
        given = order.value if isinstance(order, ast.Constant) else None
        if given != "relaxed":
            return Answer(
                False, code.where(add), f"memory order is {given if given else 'acq_rel, the default'!s}"
            )
    return Answer(True, code.where(adds[0]), "memory order is relaxed")


# -- who comes by the gate ---------------------------------------------------------------------------------


def _calls(source: Source, code: Code, name: str) -> list[ast.Call]:
    nodes = [node for statement in source.naming(code, name) for node in ast.walk(statement)]
    return [n for n in nodes if isinstance(n, ast.Call) and terminal_name(n) == name]


def _through_gate(source: Source, code: Code) -> Answer:
    """Whether a runner calls the function that holds the gate, or the GEMMs by itself without the flag."""
    holder = gate(source)
    if calls := _calls(source, code, holder.name):
        return Answer(True, code.where(calls[0]), f"calls {holder.name}, which holds the gate")
    gemms = _calls(source, code, "invoke_fused_moe_kernel")
    if gemms and not any(k.arg == "fuse_sum_all_reduce" for call in gemms for k in call.keywords):
        return Answer(False, code.where(gemms[0]), "calls the GEMMs itself and never passes the flag")
    raise Unknown("the runner calls neither the gate's function nor the GEMMs")


@probe("runner_core_through_gate", "TritonRunnerCore.run goes through the function that holds the gate.")
def runner_core_through_gate(source: Source) -> Answer:
    return _through_gate(source, source.function(RUNNER_FILES, "TritonRunnerCore.run"))


@probe("lora_runner_through_gate", "The Triton LoRA runner goes through the function that holds the gate.")
def lora_runner_through_gate(source: Source) -> Answer:
    holder = gate(source)
    if own := source.maybe(LORA_RUNNER_FILES, "TritonRunnerCoreWithLoRA.run"):
        return _through_gate(source, own)
    core = source.function(RUNNER_FILES, "TritonRunnerCore.run")
    for call in _calls(source, core, holder.name):
        if any(keyword.arg == "hooks" for keyword in call.keywords) and "hooks" in holder.parameters:
            return Answer(True, core.where(call), f"LoRA hooks are handed to {holder.name}")
    raise Unknown("no way from the LoRA runner to the gate was found")


# -- validation that is there already ----------------------------------------------------------------------


@probe("paged_experts_exists", "This tree has paged experts.")
def paged_experts_exists(source: Source) -> Answer:
    return Answer(source.exists(PAGED_EXPERTS), PAGED_EXPERTS if source.exists(PAGED_EXPERTS) else None)


@probe("paged_experts_rejects_flag", "Paged experts refuse the flag when a layer is built.")
def paged_experts_rejects_flag(source: Source) -> Answer:
    if not source.exists(PAGED_EXPERTS):
        return Answer(False, None, "there are no paged experts")
    for rel in source.files(PAGED_EXPERTS, "*.py"):
        if found := source.statement(rel, rf"^ +if .*\b{FLAG}:$"):
            assert isinstance(found.node, ast.If)
            refuses = any(isinstance(n, ast.Raise) or "append" in ast.unparse(n) for n in found.node.body)
            return Answer(True if refuses else None, found.where(), "the flag is refused here")
    return Answer(False, PAGED_EXPERTS, f"{FLAG} is not looked at")


@probe("validator_present", f"A {HANDLER} (ours or upstream's) is in this tree.")
def validator_present(source: Source) -> Answer:
    files = ("sglang/srt/server_args.py", *source.files("sglang/srt/arg_groups", "*.py"))
    source.need(files[0])
    for rel in files:
        if line := source.line(rel, rf"^ *def {HANDLER}\b"):
            return Answer(True, f"{rel}:{line}", "defined here")
    return Answer(False, None, f"no {HANDLER}")
