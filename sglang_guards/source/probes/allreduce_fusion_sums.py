"""What the fused kernel sums over, and who completes the sum: the known defects of the fusion."""

from __future__ import annotations

import ast
import re

from sglang_guards.source.probes.allreduce_fusion import COMM_FUSION, COMMUNICATOR, LAYER_BOUNDARY
from sglang_guards.source.syntax.evaluate import World, paths, truth
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import names_in, plain, upright
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Answer, Source, decided, probe

EXIT = f"{LAYER_BOUNDARY}/exit.py"
BATCH = f"{LAYER_BOUNDARY}/residual/batch.py"
#: Expert parallelism inside tensor parallelism: EP 2 times MoE-TP 4, on one MoE-DP rank.
_HYBRID: dict[str, object] = {
    "moe_ep_size": 2,
    "moe_tp_size": 4,
    "get_moe_expert_parallel_world_size": 2,
    "get_moe_tensor_parallel_world_size": 4,
    "moe_dp_size": 1,
    "attn_tp_size": 8,
    "tp_size": 8,
    "can_merge_post_experts_all_reduce": True,
    "use_attn_tp_group": False,
    "is_enable_moe_cp_allgather": False,
    "is_dp_attention_enabled": False,
    "input_scattered": False,
    "scattered": False,
    "is_last_layer": False,
    "group": "group",
    "mlp_mode": "full",
    "SCATTERED": "scattered",
    "apply_flashinfer_allreduce_fusion": True,
}


@probe("fusion_layer_boundary", "Sums that are left to the next layer are tracked by layers/layer_boundary.")
def fusion_layer_boundary(source: Source) -> Answer:
    found = source.exists(LAYER_BOUNDARY)
    line = None if found else source.line(COMMUNICATOR, r"^class LayerCommunicator\b")
    return decided(LAYER_BOUNDARY if found else None, f"{COMMUNICATOR}:{line}" if line else None)


@probe(
    "fusion_hybrid_ep_reduces_moe_group", "With 1 < EP < TP the fused kernel reduces over the EP group only."
)
def fusion_hybrid_ep_reduces_moe_group(source: Source) -> Answer:
    if sizes := source.maybe(COMM_FUSION, "resolve_fusion_world_size"):
        assert isinstance(sizes.node, ast.FunctionDef)
        ends = [way.end for way in paths(sizes.node.body, World(_HYBRID))]
        if len(ends) != 1 or not isinstance(ends[0], ast.Return) or ends[0].value is None:
            raise Unknown("resolve_fusion_world_size has another shape")
        size = World(_HYBRID).value(ends[0].value)
        value = None if not isinstance(size, int) else size < 8
        return Answer(value, sizes.where(ends[0]), f"the kernel spans {size} of 8 ranks at EP 2")
    layer = source.function(COMMUNICATOR, "LayerCommunicator.prepare_attn")
    for statement in source.naming(layer, "use_attn_tp_group"):
        for call in walk(statement):
            for keyword in call.keywords if isinstance(call, ast.Call) else ():
                if keyword.arg == "use_attn_tp_group" and isinstance(keyword.value, ast.Constant):
                    return Answer(
                        not keyword.value.value, layer.where(keyword.value), ast.unparse(keyword.value)
                    )
    if source.naming(layer, "use_attn_tp_group"):
        raise Unknown("which group prepare_attn names is not known")
    if calls := source.naming(layer, "forward_with_allreduce_fusion"):
        return Answer(False, layer.where(calls[0]), "the kernel reduces over the whole TP group")
    raise Unknown("prepare_attn has another shape")


@probe(
    "fusion_hybrid_ep_guarded",
    "With 1 < EP < TP no sum is left to a kernel that would reduce over one group only.",
)
def fusion_hybrid_ep_guarded(source: Source) -> Answer:
    names = (
        (COMMUNICATOR, "LayerCommunicator.should_fuse_mlp_allreduce_with_next_layer"),
        (EXIT, "_sum_deferral_allowed"),
        (EXIT, "OutputBoundary._ffn_sum_can_move_to_next_layer"),
    )
    code = next((code for rel, name in names if (code := source.maybe(rel, name))), None)
    if code is None or not isinstance(code.node, ast.FunctionDef):
        raise Unknown("the place where a sum is left to the next layer was not found")
    # with MoE-DP the two groups cannot be merged into one: the only case that is left for the guard
    apart = {**_HYBRID, "moe_dp_size": 2, "can_merge_post_experts_all_reduce": False}
    results = []
    for facts in (apart, {**apart, "moe_ep_size": 1, "get_moe_expert_parallel_world_size": 1}):
        ways = paths(code.node.body, World(facts))
        values = {_returned(way.end, World(facts, dict(way.seen))) for way in ways}
        results.append(values.pop() if len(values) == 1 else None)
    if results[1] is False:
        raise Unknown("a sum is never left to the next layer")
    guard = next(
        (
            n
            for n in walk(code.node)
            if isinstance(n, ast.If) and re.search("moe_(ep_size|expert_parallel)", ast.unparse(n.test))
        ),
        None,
    )
    if results[0] is None:
        plain(code.node)
        if guard is not None or not any(isinstance(n, ast.BoolOp) for n in walk(code.node)):
            raise Unknown("whether EP is looked at depends on an unknown condition")
        if not {"apply_flashinfer_allreduce_fusion", "is_last_layer"} & names_in(code.node):
            raise Unknown("the place where a sum is left to the next layer has another shape")
    return Answer(
        results[0] is False, code.where(guard), "leaves no sum behind" if guard else "EP is not looked at"
    )


def _returned(end: ast.stmt | None, world: World) -> bool | None:
    return truth(world.value(end.value)) if isinstance(end, ast.Return) and end.value is not None else None


@probe(
    "fusion_pp_completes_sum",
    "A sum that is left to the next layer is completed before it leaves a pipeline stage.",
)
def fusion_pp_completes_sum(source: Source) -> Answer:
    if not source.exists(LAYER_BOUNDARY):
        layer = source.maybe(COMMUNICATOR, "LayerCommunicator.should_fuse_mlp_allreduce_with_next_layer")
        if layer is None:
            raise Unknown("neither communicator.py nor layer_boundary is in this tree")
        looks = source.naming(layer, "pp_")
        return Answer(
            None if looks else False, layer.where(looks[0] if looks else None), "stages are not looked at"
        )
    export = source.function(BATCH, "to_pp")
    for word in ("finish", "export"):
        for statement in source.naming(export, f".{word}("):
            return Answer(True, export.where(statement), f"to_pp completes what the output owes ({word})")
    return Answer(None, export.where(), "to_pp has another shape")


@probe(
    "fusion_guards_scattered_mlp",
    "A dense MLP on scattered tokens (--moe-dense-tp-size 1) never leaves a sum to the next layer.",
)
def fusion_guards_scattered_mlp(source: Source) -> Answer:
    if boundary := source.maybe(EXIT, "_sum_deferral_allowed") or source.maybe(
        EXIT, "OutputBoundary._ffn_sum_can_move_to_next_layer"
    ):
        return Answer(True, boundary.where(), "the layer boundary defers a sum only where there is one")
    code = source.maybe(COMMUNICATOR, "LayerCommunicator.should_fuse_mlp_allreduce_with_next_layer")
    if code is None:
        raise Unknown("the place where a sum is left to the next layer was not found")
    guard = next((n for n in walk(code.node) if isinstance(n, ast.Attribute) and n.attr == "SCATTERED"), None)
    upright(code.node, "SCATTERED")
    if guard is None:
        plain(code.node)
        if "input_scattered" not in names_in(code.node):
            raise Unknown("the place where a sum is left to the next layer has another shape")
    return Answer(
        guard is not None, code.where(guard), "asks for the SCATTERED mode" if guard else "no such test"
    )
