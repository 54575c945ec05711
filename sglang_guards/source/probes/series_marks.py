"""Marks of patches of the series that no rule asks about: which of them does this tree carry?"""

from __future__ import annotations

import ast

from sglang_guards.source.probes.fused_sum_gate import KERNEL_FILES, SEQUENCE_FILES
from sglang_guards.source.syntax.evaluate import terminal_name
from sglang_guards.source.tree import Answer, Source, Unknown, probe

#: An entry class that no release lists by itself.
_WRAPPER = "DotsVLMForCausalLM"
#: The function with both GEMMs: a sequence of its own from 0.5.11 on.
_SEQUENCES = ("_fused_moe_kernel_sequence", "fused_experts_impl")
_LISTS = ("sglang/srt/arg_groups/overrides.py", "sglang/srt/server_args.py")


@probe("fusion_lists_wrappers", "The all-reduce fusion is switched on for entry classes that wrap a decoder.")
def fusion_lists_wrappers(source: Source) -> Answer:
    source.need(*_LISTS)
    for rel in _LISTS:
        if line := source.line(rel, rf"^\s+\"{_WRAPPER}\",$"):
            return Answer(True, f"{rel}:{line}", f"{_WRAPPER} is listed")
    return Answer(False, None, f"{_WRAPPER} is not listed")


@probe("fused_sum_in_bands", "The kernel adds a fused sum that exceeds L2 in bands of columns.")
def fused_sum_in_bands(source: Source) -> Answer:
    code = source.function(KERNEL_FILES, "fused_moe_kernel")
    assert isinstance(code.node, ast.FunctionDef)
    names = {a.arg for a in (*code.node.args.args, *code.node.args.kwonlyargs)}
    return Answer("band" in names, code.where(), f"the kernel takes {'a' if 'band' in names else 'no'} band")


@probe(
    "fp8_scale_of_routed_rows",
    "The dynamic per-tensor FP8 scale of the down projection is taken over the rows that its GEMM reads.",
)
def fp8_scale_of_routed_rows(source: Source) -> Answer:
    found = [source.maybe(SEQUENCE_FILES, name) for name in _SEQUENCES]
    code = next((one for one in found if one), None)
    if code is None:
        raise Unknown("the function with both GEMMs was not found")
    scale = _scale_of_second_gemm(code.node)
    makers = [
        node
        for node in ast.walk(code.node)
        if isinstance(node, ast.Assign) and scale.id in {n for t in node.targets for n in _targets(t)}
    ]
    for node in makers:
        if isinstance(node.value, ast.Call) and terminal_name(node.value) == "fp8_scale_of_routed_rows":
            return Answer(True, code.where(node), "it is made from the routed rows")
    # 0.5.22 and 0.5.23 quantize by groups there, which is another kind of FP8
    others = [n for n in makers if not (isinstance(n.value, ast.Call) and _is_group_quant(n.value))]
    if others:
        return Answer(None, code.where(others[0]), f"{scale.id} is made in a way that is not known")
    return Answer(False, code.where(scale), "no scale is given: the quantization takes it over all rows")


def _scale_of_second_gemm(function: ast.stmt) -> ast.Name:
    """The scale of the input that the GEMM gets which reads `intermediate_cache2`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and terminal_name(node) == "invoke_fused_moe_kernel":
            given, scale = node.args[:1], node.args[4] if len(node.args) > 4 else None
            if [getattr(a, "id", None) for a in given] == ["intermediate_cache2"] and isinstance(
                scale, ast.Name
            ):
                return scale
    raise Unknown("the second GEMM was not found")


def _targets(node: ast.expr) -> list[str]:
    return [item.id for item in ast.walk(node) if isinstance(item, ast.Name)]


def _is_group_quant(call: ast.Call) -> bool:
    return (terminal_name(call) or "").startswith("per_token_group_quant")
