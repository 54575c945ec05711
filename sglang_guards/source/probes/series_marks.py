"""Marks of patches of the series that no rule asks about: which of them does this tree carry?"""

from __future__ import annotations

import ast

from sglang_guards.source.probes.fused_sum_gate import KERNEL_FILES
from sglang_guards.source.tree import Answer, Source, probe

#: An entry class that no release lists by itself.
_WRAPPER = "DotsVLMForCausalLM"
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
