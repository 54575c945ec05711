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
from sglang_guards.source.syntax.evaluate import Path, World, paths, terminal_name, truth
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
    stores = [_stores(source, code, path) for path in found]
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


#: What a kernel calls without writing to memory, beside Triton's own functions.
_HARMLESS = frozenset({"min", "max", "range", "int", "float", "len", "abs", "static_range"})


def _stores(source: Source, code: Code, path: Path, depth: int = 0) -> list[ast.Call]:
    """Calls on a path that write to memory, through helpers of the same file too; Unknown where one may."""
    found: list[ast.Call] = []
    for step in path.steps:
        for call in (node for node in step.live if isinstance(node, ast.Call)):
            name = terminal_name(call) or ""
            if name.startswith(("store", "atomic_")):
                found.append(call)
            elif isinstance(call.func, ast.Name) and name not in _HARMLESS:
                if _helper_stores(source, code, call, World(_DOWN_PROJECTION, dict(path.seen)), depth):
                    found.append(call)
            elif isinstance(step.node, ast.Expr) and not _of_triton(call.func):
                raise Unknown(f"line {call.lineno}: whether {ast.unparse(call.func)} stores is not known")
    return found


def _of_triton(func: ast.expr) -> bool:
    while isinstance(func, ast.Attribute):
        func = func.value
    return isinstance(func, ast.Name) and func.id in ("tl", "triton", "libdevice")


def _helper_stores(source: Source, code: Code, call: ast.Call, world: World, depth: int) -> bool:
    """Whether a function of the same file stores when it is called so."""
    name = terminal_name(call) or ""
    helper = source.function(code.rel, name).node
    packed = any(isinstance(a, ast.Starred) for a in call.args) or any(k.arg is None for k in call.keywords)
    if depth > 2 or packed or not isinstance(helper, ast.FunctionDef):
        raise Unknown(f"{name} cannot be followed")
    given = dict(zip((a.arg for a in helper.args.args), call.args, strict=False))
    given.update({keyword.arg: keyword.value for keyword in call.keywords if keyword.arg})
    bound = {parameter: world.value(value) for parameter, value in given.items()}
    every = paths(helper.body, World(world.pinned, bound))
    stores = {bool(_stores(source, Code(code.rel, helper), path, depth + 1)) for path in every}
    if len(stores) != 1:
        raise Unknown(f"whether {name} stores depends on an unknown condition")
    return stores.pop()


def _guard(branch: ast.If, store: ast.Call) -> ast.AST:
    """The `if` right around the store, which is the line to read."""
    around = [n for n in ast.walk(branch) if isinstance(n, ast.If) and any(store is m for m in ast.walk(n))]
    return max(around, key=lambda node: node.lineno)


def _fused_adds(source: Source) -> tuple[Code, list[ast.Call]]:
    """The atomic adds that are reached when the sum is fused; none where plain stores are reached instead."""
    code = kernel(source)
    if isinstance(known := source.memo.get("fused_adds"), list):
        return code, known
    assert isinstance(code.node, ast.FunctionDef)
    branch = branch_of_filtered_experts(code, {"filter_expert": True})
    lines = {n.lineno for word in ("atomic_add", "FUSE_SUM_ALL_REDUCE") for n in source.naming(code, word)}
    holding = [
        node
        for node in code.node.body
        if node is not branch and any(node.lineno <= line <= (node.end_lineno or 0) for line in lines)
    ]
    adds: dict[int, ast.Call] = {}
    for path in paths(holding, World(_DOWN_PROJECTION)):
        stores = _stores(source, code, path)
        if not stores:
            raise Unknown("how the kernel writes the fused sum was not found")
        if any(isinstance(call.func, ast.Name) for call in stores):
            raise Unknown("the kernel writes the fused sum through a helper")
        adds.update({id(call): call for call in stores if terminal_name(call) == "atomic_add"})
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
    if source.exists(PAGED_EXPERTS):
        return Answer(True, PAGED_EXPERTS)
    flags = source.flags()
    if flags is None or any("paged_expert" in name for name in flags):
        raise Unknown("where the paged experts are was not found")
    return Answer(False, None, "no flag for paged experts")


@probe("paged_experts_rejects_flag", "Paged experts refuse the flag when a layer is built.")
def paged_experts_rejects_flag(source: Source) -> Answer:
    if source.ask("paged_experts_exists").value is False:
        return Answer(False, None, "there are no paged experts")
    for rel in source.files(PAGED_EXPERTS, "*.py"):
        if found := source.statement(rel, rf"^ +if .*\b{FLAG}:$"):
            assert isinstance(found.node, ast.If)
            refuses = any(isinstance(n, ast.Raise) or "append" in ast.unparse(n) for n in found.node.body)
            refuses = refuses and not isinstance(found.node.test, (ast.NamedExpr, ast.UnaryOp))
            return Answer(True if refuses else None, found.where(), "the flag is refused here")
    files = source.files(PAGED_EXPERTS, "*.py")
    if not files or any(FLAG in (source.text(rel) or "") for rel in files):
        raise Unknown(f"what paged experts do about {FLAG} is not known")
    return Answer(False, PAGED_EXPERTS, f"{FLAG} is not looked at")


@probe("validator_present", f"A {HANDLER} (ours or upstream's) is in this tree.")
def validator_present(source: Source) -> Answer:
    files = ("sglang/srt/server_args.py", *source.files("sglang/srt/arg_groups", "*.py"))
    source.need(files[0])
    for rel in files:
        if line := source.line(rel, rf"^ *def {HANDLER}\b"):
            return Answer(True, f"{rel}:{line}", "defined here")
    return Answer(False, None, f"no {HANDLER}")
