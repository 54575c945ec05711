"""FlashInfer all-reduce fusion: its flags, when SGLang switches it on by itself, and where it can run."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_guards.source.probes.allreduce_fusion_backend import resolve_backend
from sglang_guards.source.probes.args_resolution import OVERRIDES, SERVER_ARGS, field_declared
from sglang_guards.source.syntax.evaluate import World, paths, truth
from sglang_guards.source.syntax.nodes import statements
from sglang_guards.source.syntax.shape import plain
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Answer, Code, Items, Source, decided, probe

PASS = "_flashinfer_allreduce_fusion_auto_enable"
ARCHS = "_FLASHINFER_ALLREDUCE_FUSION_ARCHS"
LAYER_BOUNDARY = "sglang/srt/layers/layer_boundary"
COMM_FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"
COMMUNICATOR = "sglang/srt/layers/communicator.py"
ADD_NORM = f"{LAYER_BOUNDARY}/residual/add_norm.py"

#: SGLang's names for GPU generations; which are true is set per question.
_SM90 = ("is_sm90", "is_sm90_supported", "_is_sm90_supported")
_SM100 = ("is_sm100", "is_sm100_supported", "_is_sm100_supported", "is_blackwell", "is_blackwell_supported")


def _gpu(name: str) -> dict[str, Any]:
    return {**dict.fromkeys(_SM90, name == "sm90"), **dict.fromkeys(_SM100, name == "sm100")}


# -- flags -------------------------------------------------------------------------------------------------


@probe(
    "fusion_flag_exists",
    "ServerArgs has enable_flashinfer_allreduce_fusion (an alias where the backend exists).",
)
def fusion_flag_exists(source: Source) -> Answer:
    return field_declared(source, "enable_flashinfer_allreduce_fusion")


@probe("fusion_backend_flag_exists", "The fusion is switched by flashinfer_allreduce_fusion_backend.")
def fusion_backend_flag_exists(source: Source) -> Answer:
    return field_declared(source, "flashinfer_allreduce_fusion_backend")


@probe("fusion_enforce_disable_exists", "ServerArgs has enforce_disable_flashinfer_allreduce_fusion.")
def fusion_enforce_disable_exists(source: Source) -> Answer:
    return field_declared(source, "enforce_disable_flashinfer_allreduce_fusion")


# -- the automatic switch ----------------------------------------------------------------------------------


def _switch(source: Source) -> tuple[Code, ast.stmt]:
    """The `if` that switches the fusion on: in a pass of its own, or at the end of a ServerArgs method."""
    if own := source.maybe(OVERRIDES, PASS):
        found = [
            node
            for node in statements(_body(own))
            if isinstance(node, ast.If) and "model_arch" in _names(node.test)
        ]
        tests = [node for node in found if "flashinfer_allreduce_fusion_backend" in _names(node.test)]
        if len(tests) == 1 and _sets_fusion(tests[0].body) and not _sets_fusion(tests[0].orelse):
            return own, tests[0]
        raise Unknown(f"{PASS} has another shape")
    pattern = (
        r"^ +if \(\n +(?:not self\.enable_flashinfer_allreduce_fusion"
        r"|self\.flashinfer_allreduce_fusion_backend is None)\n +and model_arch\b"
    )
    found_here = source.statement(source.need(SERVER_ARGS), pattern)
    if found_here is None or not _sets_fusion(getattr(found_here.node, "body", [])):
        raise Unknown("the automatic switch of the fusion was not found")
    return found_here, found_here.node


def _sets_fusion(body: Sequence[ast.stmt]) -> bool:
    """Whether statements write the field, by assignment or in a dictionary that is returned."""
    texts = [
        ast.unparse(node) for node in statements(body) if isinstance(node, (ast.Assign, ast.Return, ast.Expr))
    ]
    return any("flashinfer_allreduce_fusion" in text for text in texts)


def _body(code: Code) -> list[ast.stmt]:
    assert isinstance(code.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    return code.node.body


def _names(node: ast.AST) -> set[str]:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)}


def _strings(node: ast.AST) -> tuple[str, ...]:
    return tuple(
        sorted(n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    )


@probe("fusion_auto_architectures", "Architectures for which the fusion is switched on automatically.")
def fusion_auto_architectures(source: Source) -> Items:
    try:
        if constant := _constant(source, OVERRIDES, ARCHS):
            return Items(_strings(constant.node), constant.where())
        code, switch = _switch(source)
    except (Unknown, SyntaxError):
        return Items(None)
    assert isinstance(switch, ast.If)
    for node in ast.walk(switch.test):
        if (
            isinstance(node, ast.Compare)
            and "model_arch" in _names(node.left)
            and isinstance(node.ops[0], ast.In)
        ):
            names = _strings(node.comparators[0])
            if isinstance(node.comparators[0], (ast.List, ast.Tuple, ast.Set)) and names:
                return Items(names, code.where(node))
    return Items(None)


def _constant(source: Source, rel: str, name: str, depth: int = 0) -> Code | None:
    """The list of strings that a module-level name stands for, through imports of SGLang's own modules."""
    found = source.statement(rel, rf"^{name}\b")
    if found is not None:
        value = getattr(found.node, "value", None)
        literal = value.args[0] if isinstance(value, ast.Call) and len(value.args) == 1 else value
        items = literal.elts if isinstance(literal, (ast.List, ast.Tuple, ast.Set)) else [ast.Pass()]
        return found if all(isinstance(item, ast.Constant) for item in items) else None
    imported = re.search(
        rf"^from (sglang[\w.]*) import [^\n]*?\b(?:(\w+) as {name}|{name})\b",
        source.text(rel) or "",
        re.MULTILINE,
    )
    if imported is None or depth > 3:
        return None
    return _constant(source, imported[1].replace(".", "/") + ".py", imported[2] or name, depth + 1)


def _facts(source: Source, **changed: Any) -> dict[str, Any]:
    """A launch that is switched on: a listed architecture, TP 8 on one node of SM90."""
    listed = source.list("fusion_auto_architectures").values or ("DeepseekV3ForCausalLM",)
    facts: dict[str, Any] = {
        "model_arch": listed[0],
        ARCHS: listed,
        "flashinfer_allreduce_fusion_backend": None,
        "enable_flashinfer_allreduce_fusion": False,
        "model_type": None,
        "tp_size": 8,
        "nnodes": 1,
        "pp_size": 1,
        "ep_size": 1,
        "attn_cp_size": 1,
        "enable_dp_attention": False,
        "attn_dp_enabled_of": False,
        "is_h20_device": False,
        "moe_a2a_backend": "none",
        "disable_custom_all_reduce": False,
        "enable_deterministic_inference": False,
        "rl_on_policy_target": None,
        "speculative_algorithm": None,
        "is_mimo": False,
        **_gpu("sm90"),
    }
    return {**facts, **changed}


def _switched_on(source: Source, facts: Mapping[str, Any]) -> bool | None:
    code, switch = _switch(source)
    assert isinstance(switch, ast.If)
    world = World(facts)
    if isinstance(code.node, ast.FunctionDef):
        before = [
            node for node in code.node.body if isinstance(node, ast.Assign) and node.lineno < switch.lineno
        ]
        for way in paths(before, world, watch=False):
            world.seen.update(way.seen)
    return truth(world.value(switch.test))


def _checks(source: Source, what: str, **bad: Any) -> Answer:
    """True where the switch stays off in a launch that differs from the good one as given."""
    code, switch = _switch(source)
    good, off = _switched_on(source, _facts(source)), _switched_on(source, _facts(source, **bad))
    if good is not True or off is None:
        return Answer(None, code.where(switch), "the switch depends on an unknown condition")
    return Answer(not off, code.where(switch), f"the fusion is switched {'on' if off else 'off'} {what}")


_BAD: dict[str, tuple[str, dict[str, Any]]] = {
    "tp": ("without tensor parallelism", {"tp_size": 1}),
    "nodes": ("on several nodes of SM90", {"nnodes": 2}),
    "dp_attention": ("with DP attention", {"enable_dp_attention": True, "attn_dp_enabled_of": True}),
    "h20": ("on H20", {"is_h20_device": True}),
    "a2a": ("with an all-to-all backend", {"moe_a2a_backend": "deepep"}),
    "pp": ("with pipeline parallelism", {"pp_size": 2}),
    "ep": ("with expert parallelism below TP", {"ep_size": 4}),
    "deterministic": (
        "under deterministic inference",
        {"enable_deterministic_inference": True, "rl_on_policy_target": "fsdp"},
    ),
}


def _register_check(name: str, what: str, bad: dict[str, Any]) -> None:
    doc = f"The automatic switch itself leaves the fusion off {what}."
    probe(f"fusion_auto_checks_{name}", doc)(lambda source: _checks(source, what, **bad))


for _name, (_what, _bad) in _BAD.items():
    _register_check(_name, _what, _bad)


@probe("fusion_multi_node_sm100", "The fusion is switched on automatically on several nodes of SM100.")
def fusion_multi_node_sm100(source: Source) -> Answer:
    code, switch = _switch(source)
    value = _switched_on(source, _facts(source, nnodes=2, **_gpu("sm100")))
    if _switched_on(source, _facts(source)) is not True:
        raise Unknown("the switch depends on an unknown condition")
    return Answer(value, code.where(switch), "with nnodes 2 on SM100")


@probe("fusion_off_when_deterministic", "Deterministic inference switches the fusion off afterwards.")
def fusion_off_when_deterministic(source: Source) -> Answer:
    if own := source.maybe(OVERRIDES, "_deterministic_allreduce_fusion_disable"):
        facts = {"enable_deterministic_inference": True, "flashinfer_allreduce_fusion_backend": "auto"}
        ends = [way.end for way in paths(_body(own), World(facts))]
        returned = [end.value for end in ends if isinstance(end, ast.Return)]
        sets = [
            isinstance(value, ast.Dict) and "flashinfer_allreduce_fusion_backend" in _strings(value)
            for value in returned
        ]
        return Answer(True if sets and all(sets) else None, own.where(), "set to None by this pass")
    if re.search(
        r"deterministic\w*\b[^\n]*\n(?:.*\n){0,12}?.*allreduce_fusion", source.text(OVERRIDES) or ""
    ):
        raise Unknown("a pass over deterministic inference and the fusion has another name")
    method = source.function(SERVER_ARGS, "ServerArgs._handle_deterministic_inference")
    for node in statements(_body(method)):
        if isinstance(node, ast.Assign) and "flashinfer_allreduce_fusion" in ast.unparse(node.targets[0]):
            off = isinstance(node.value, ast.Constant) and not node.value.value
            return Answer(True if off else None, method.where(node), "switched off here")
    plain(method.node)
    seen = [
        n
        for n in statements(_body(method))
        if isinstance(n, ast.If) and "enable_deterministic" in ast.unparse(n.test)
    ]
    if source.text(OVERRIDES) is not None:
        raise Unknown("what switches the fusion off may be among the passes")
    if not seen or "flashinfer_allreduce" in ast.unparse(method.node):
        raise Unknown("_handle_deterministic_inference has another shape")
    return Answer(False, method.where(seen[0]), "the fusion is not looked at")


# -- hardware ----------------------------------------------------------------------------------------------


@probe(
    "fusion_rejects_gpu",
    "A fusion requested on a GPU other than SM90 and SM10x is refused when the workers start.",
)
def fusion_rejects_gpu(source: Source) -> Answer:
    source.need(COMM_FUSION)
    code = source.maybe(COMM_FUSION, "_resolve_backend")
    if code is None:
        if source.ask("fusion_backend_flag_exists").value is not False:
            raise Unknown("where the backend of the fusion is resolved was not found")
        return Answer(False, None, "no backend to choose: the fusion is never taken on other GPUs")
    resolved = resolve_backend(source, "auto", 120, multi_node=False)
    if resolved is None:
        raise Unknown("_resolve_backend depends on an unknown condition")
    return Answer(resolved.name is None, resolved.where, "_resolve_backend on SM120")


@probe("fusion_checks_nvlink_clique", "Several nodes must be confirmed to share one NVLink clique.")
def fusion_checks_nvlink_clique(source: Source) -> Answer:
    text = source.text(source.need(COMM_FUSION)) or ""
    line = source.line(COMM_FUSION, r"^[^#\n]*is_one_nvlink_clique\(")
    if line is None and ("clique" in text):
        raise Unknown("how cliques are confirmed has another shape")
    manager = source.line(COMM_FUSION, r"^class FlashInferWorkspaceManager\b")
    return decided(
        f"{COMM_FUSION}:{line}" if line else None, None if line or not manager else f"{COMM_FUSION}:{manager}"
    )


@probe(
    "fusion_passes_group",
    "The workspace is made for the group that the kernel reduces over, not for the world.",
)
def fusion_passes_group(source: Source) -> Answer:
    manager = source.function(COMM_FUSION, "FlashInferWorkspaceManager.initialize")
    given = [
        k.value
        for n in ast.walk(manager.node)
        if isinstance(n, ast.Call)
        for k in n.keywords
        if k.arg == "group"
    ]
    for node in ast.walk(manager.node):
        if isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Subscript) and isinstance(t.slice, ast.Constant) and t.slice.value == "group"
            for t in node.targets
        ):
            given.append(node.value)
    handed = next((value for value in given if "device_group" in _names(value)), None)
    if handed is not None:
        return Answer(True, manager.where(handed), "the group is handed over")
    plain(manager.node)
    sizes: list[ast.AST] = [
        n for n in ast.walk(manager.node) if isinstance(n, ast.Name) and n.id == "max_token_num"
    ]
    sizes += [
        n
        for n in ast.walk(manager.node)
        if isinstance(n, ast.keyword) and n.arg in ("max_token_num", "hidden_dim", "tp_rank")
    ]
    others = [value for value in given if not (isinstance(value, ast.Name) and value.id == "group")]
    if others or not sizes or "group" in _strings(manager.node):
        raise Unknown("how the workspace is made has another shape")
    return Answer(False, manager.where(sizes[0]), "made for the world")


@probe("fusion_noop_under_dp_attention", "With DP attention the fused kernel is never taken.")
def fusion_noop_under_dp_attention(source: Source) -> Answer:
    files, names = (
        (COMMUNICATOR, ADD_NORM),
        ("apply_flashinfer_allreduce_fusion", "flashinfer_ar_fusion_applies"),
    )
    code = next((found for name in names if (found := source.maybe(files, name))), None)
    if code is None:
        raise Unknown("the condition for the fused kernel was not found")
    ends = [way.end for way in paths(_body(code), World({"is_dp_attention_enabled": True}))]
    if len(ends) != 1 or not isinstance(ends[0], ast.Return) or ends[0].value is None:
        raise Unknown("the condition for the fused kernel has another shape")
    value = truth(World({"is_dp_attention_enabled": True}).value(ends[0].value))
    return Answer(None if value is None else not value, code.where(ends[0]), "is_dp_attention_enabled()")
