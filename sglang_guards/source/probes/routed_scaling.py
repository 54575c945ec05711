"""Probes of the sum over experts: who multiplies by the routed scaling factor, and which experts are added."""

from __future__ import annotations

import ast

from sglang_guards.source.models.fusion_contract import graph_of
from sglang_guards.source.models.moe_blocks import blocks
from sglang_guards.source.probes.launch_faults import FUSED_MOE_LAYER
from sglang_guards.source.probes.moe_faults import EP_KERNELS
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import names_in, upright
from sglang_guards.source.tree import Answer, Code, Source, Unknown, probe

MARLIN_RUNNER = "sglang/srt/layers/moe/moe_runner/marlin.py"
MODELOPT = "sglang/srt/layers/quantization/modelopt_quant.py"
_NVFP4 = "ModelOptNvFp4FusedMoEMethod"
_FUSES = "should_fuse_routed_scaling_factor_in_topk"


@probe(
    "nvfp4_marlin_scales_twice",
    "NVFP4 experts on Marlin multiply by the routed scaling factor that the router has already applied.",
)
def nvfp4_marlin_scales_twice(source: Source) -> Answer:
    head = source.function(MODELOPT, _NVFP4)
    if (line := source.line(source.need(MODELOPT), r"\bMarlinMoeQuantInfo\(")) is None:
        if "arlin" in (source.text(MODELOPT) or ""):
            raise Unknown("how NVFP4 experts run on Marlin was not found")
        return Answer(False, head.where(), "NVFP4 experts never run on Marlin")
    runner = source.function(MARLIN_RUNNER, "fused_experts_none_to_marlin")
    passes = [
        node
        for node in walk(runner.node)
        if isinstance(node, ast.keyword)
        and node.arg == "routed_scaling_factor"
        and "routed_scaling_factor" in set(names_in(node.value))
    ]
    if not passes:
        raise Unknown("how Marlin gets the routed scaling factor was not found")
    if not isinstance(passes[0].value, ast.Attribute):
        return Answer(
            False, runner.where(passes[0].value), "the factor that Marlin gets depends on something"
        )
    fused = _nvfp4_clause(source)
    if fused is None:
        raise Unknown("where the router takes the routed scaling factor was not found")
    clause, where = fused
    if clause is None:
        return Answer(False, where, "the router leaves the factor alone")
    known = "marlin" in ast.unparse(clause).lower()
    return Answer(not known, where, f"{MODELOPT}:{line}")


def _nvfp4_clause(source: Source) -> tuple[ast.expr | None, str] | None:
    """The alternative of «the router scales» that names NVFP4's method, and its place."""
    helper = source.maybe(FUSED_MOE_LAYER, "_fuses_routed_scaling_factor_in_topk")
    if helper is not None:
        return _clause_of_function(helper)
    code = source.function(FUSED_MOE_LAYER, "FusedMoE.__init__")
    for node in walk(code.node):
        if not isinstance(node, ast.Assign) or not any(
            isinstance(t, ast.Attribute) and t.attr == _FUSES for t in node.targets
        ):
            continue
        whole = node.value
        parts = whole.values if isinstance(whole, ast.BoolOp) and isinstance(whole.op, ast.Or) else [whole]
        mine = [part for part in parts if _NVFP4 in names_in(part)]
        if not mine and not any(name.endswith("Method") for name in names_in(whole)):
            return None  # decided elsewhere
        return (mine[0], code.where(mine[0])) if mine else (None, code.where(node))
    return None


def _clause_of_function(code: Code) -> tuple[ast.expr | None, str] | None:
    for node in walk(code.node):
        if isinstance(node, ast.If) and _NVFP4 in set(names_in(node.test)):
            returned = [s.value for s in walk(node) if isinstance(s, ast.Return) and s.value is not None]
            if len(returned) == 1:
                both = ast.BoolOp(ast.And(), [node.test, returned[0]])
                return both, code.where(node)
            return None
        if isinstance(node, ast.Return) and node.value is not None and _NVFP4 in set(names_in(node.value)):
            whole = node.value
            parts = (
                whole.values if isinstance(whole, ast.BoolOp) and isinstance(whole.op, ast.Or) else [whole]
            )
            mine = [part for part in parts if _NVFP4 in set(names_in(part))]
            return mine[0], code.where(mine[0])
    return None


@probe(
    "router_scales_when_asked",
    "The architecture's router multiplies by the routed scaling factor when the experts' layer says so.",
)
def router_scales_when_asked(source: Source, architecture: str) -> Answer:
    graph = graph_of(source)
    found: dict[bool, str] = {}
    for block in blocks(source, architecture):
        for owner in graph.mro(block):
            init = graph.own(owner, "__init__")
            if init is None:
                continue
            for node in walk(init.node):
                if isinstance(node, ast.keyword) and node.arg == "apply_routed_scaling_factor_on_output":
                    asks = _FUSES in set(names_in(node.value))
                    found.setdefault(asks, init.where(node.value))
    if True in found:
        return Answer(True, found[True])
    if False in found:
        return Answer(False, found[False])
    return Answer(False, blocks(source, architecture)[0].rel, "the router scales nothing")


@probe(
    "deep_gemm_combine_drops_expert_zero",
    "Without an all-to-all backend, the combine after DeepGEMM leaves each rank's first expert out.",
)
def deep_gemm_combine_drops_expert_zero(source: Source) -> Answer:
    code = source.maybe(EP_KERNELS, "post_reorder_triton_kernel")
    if code is None:
        rel = source.need(*EP_KERNELS)
        line = source.line(rel, r"\bif \(?expert_id >= 0\b")
        other_way = source.line(rel, r"\bexpert_id > 0\b|\bnot \(+expert_id\b")
        if line is None or other_way is not None:
            raise Unknown("the combine has another name")
        return Answer(False, f"{rel}:{line}")
    for node in walk(code.node):
        if not isinstance(node, ast.If):
            continue
        compares = [n for n in walk(node.test) if isinstance(n, ast.Compare)]
        for compare in compares:
            if not (isinstance(compare.left, ast.Name) and compare.left.id == "expert_id"):
                continue
            zero = isinstance(compare.comparators[0], ast.Constant) and compare.comparators[0].value == 0
            upright(node.test, "expert_id")
            if zero and isinstance(compare.ops[0], (ast.Gt, ast.GtE)):
                return Answer(isinstance(compare.ops[0], ast.Gt), code.where(compare))
    raise Unknown("the combine picks its experts in another way")


@probe(
    "fused_shared_expert_is_quantized",
    "A shared expert of 16 bit is quantized when it is loaded into the routed experts' tensors.",
)
def fused_shared_expert_is_quantized(source: Source) -> Answer:
    rel = source.need(FUSED_MOE_LAYER)
    line = source.line(rel, r"^    def _maybe_load_\w*shared_expert_as_\w+\(")
    if line is not None:
        return Answer(True, f"{rel}:{line}")
    code = source.function(rel, "FusedMoE.weight_loader")
    return Answer(False, code.where())
