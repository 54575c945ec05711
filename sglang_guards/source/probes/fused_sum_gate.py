"""The gate of --enable-fused-moe-sum-all-reduce: the statement that decides whether the sum is fused."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sglang_guards.source.syntax.evaluate import UNKNOWN, Path, World, paths, truth
from sglang_guards.source.syntax.nodes import statements
from sglang_guards.source.syntax.prune import pruned
from sglang_guards.source.syntax.slicing import Unknown, enclosing
from sglang_guards.source.tree import Code, Source

FLAG = "enable_fused_moe_sum_all_reduce"
HANDLER = "_handle_fused_moe_sum_all_reduce"
CACHE = "intermediate_cache3"
_MOE = "sglang/srt/layers/moe"
_FOLDERS = (f"{_MOE}/moe_runner/triton_utils", f"{_MOE}/fused_moe_triton")
SEQUENCE_FILES = tuple(f"{folder}/fused_moe.py" for folder in _FOLDERS)
KERNEL_FILES = tuple(
    f"{folder}/fused_moe_triton_kernels.py" for folder in ("sglang/kernels/ops/moe", *_FOLDERS)
)
RUNNER_FILES = (f"{_MOE}/moe_runner/triton.py",)
LORA_RUNNER_FILES = ("sglang/srt/lora/lora_moe_runners.py",)
PAGED_EXPERTS = f"{_MOE}/paged_experts"

PLATFORMS = ("cuda", "hip", "xpu", "musa", "other")
_ON = {"cuda": ("cuda",), "hip": ("hip", "rocm"), "xpu": ("xpu",), "musa": ("musa",), "other": ()}


def _platform(name: str) -> dict[str, object]:
    """Platform names as SGLang spells them. Whether AITER is used on ROCm stays unknown."""
    kinds = ("cuda", "hip", "rocm", "xpu", "musa", "npu", "cpu", "hpu", "mps")
    facts: dict[str, object] = {f"{dash}is_{kind}": kind in _ON[name] for kind in kinds for dash in ("", "_")}
    facts.update(dict.fromkeys(("is_cuda_alike", "_is_cuda_alike"), name in ("cuda", "hip")))
    if name != "hip":
        facts.update(_use_aiter=False, use_aiter=False)
    return facts


def batch_facts(platform: str = "cuda", **changed: object) -> dict[str, object]:
    """A batch for which the fused sum is meant: top-8, nothing special. `changed` departs from it."""
    top_k = changed.pop("top_k", 8)
    facts: dict[str, object] = {
        FLAG: True,
        "no_combine": False,
        "defer_sum": False,
        "use_int8_w8a16": False,
        "use_int4_w4a16": False,
        "hooks": None,
        "after_gate_up": None,
        "after_down": None,
        "filter_expert": False,
        "enable_deterministic_inference": False,
        "rl_on_policy_target": None,
        "is_batch_invariant_mode_enabled": False,
        **dict.fromkeys(("topk", "top_k", "num_topk", "router_topk"), top_k),
        **{f"{name}.shape[{axis}]": top_k for name in ("topk_ids", "curr_topk_ids") for axis in (1, -1)},
    }
    return {**facts, **_platform(platform), **changed}


@dataclass(frozen=True)
class Gate:
    """The function that decides whether the sum is fused, brought down to what matters for the decision."""

    code: Code
    name: str
    statement: ast.stmt
    variable: str
    decision: Sequence[ast.stmt]
    body: Sequence[ast.stmt]
    after: Sequence[ast.stmt]
    parameters: frozenset[str]

    def where(self) -> str:
        return self.code.where(self.statement)

    def paths(self, facts: Mapping[str, object], whole: bool = False) -> list[Path]:
        """Ways through the function; without `whole` the branches that lie before the gate are left out."""
        body = self.body if whole else self.after
        return [path for path in paths(body, World(facts)) if not isinstance(path.end, ast.Raise)]

    def value(self, facts: Mapping[str, object]) -> bool | None:
        """Whether the sum is fused under these facts, None where that cannot be told."""
        ways = [
            way
            for way in paths(self.decision, World(facts), watch=False)
            if not isinstance(way.end, ast.Raise)
        ]
        values = {truth(way.seen.get(self.variable, UNKNOWN)) for way in ways}
        return values.pop() if len(values) == 1 else None


def gate(source: Source) -> Gate:
    """The one function that reads the flag and keeps the decision in a variable; Unknown where it differs."""
    if "gate" not in source.memo:
        try:
            source.memo["gate"] = _find_gate(source)
        except (Unknown, SyntaxError) as why:
            source.memo["gate"] = why
    found = source.memo["gate"]
    if isinstance(found, Exception):
        raise found
    assert isinstance(found, Gate)
    return found


def _find_gate(source: Source) -> Gate:
    rel = source.need(*SEQUENCE_FILES)
    text = source.text(rel) or ""
    reads = [read.end() for read in re.finditer(rf"^[^#\n]*?\b{FLAG}\b", text, re.MULTILINE)]
    if not reads:
        raise Unknown(f"{rel} does not read {FLAG}")
    holders = {enclosing(text, at) for at in reads}
    name = holders.pop()
    if holders or name is None:
        raise Unknown(f"{FLAG} is read in more than one place of {rel}")
    code = source.function(rel, name)
    assert isinstance(code.node, (ast.FunctionDef, ast.AsyncFunctionDef))
    readers = [
        node
        for node in statements(code.node.body)
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and node.value is not None
        and mentions(node.value, FLAG)
    ]
    targets = [
        t for node in readers for t in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    if len(targets) != 1 or not isinstance(targets[0], ast.Name):
        raise Unknown(f"{name} does not keep the decision in one variable")
    variable, arguments = targets[0].id, code.node.args
    gemm = [node for node in source.naming(code, "fuse_sum_all_reduce=") if _hands_over(node, variable)]
    if len(gemm) != 1:
        raise Unknown(f"{name} does not hand the decision to one GEMM")
    decision = pruned(code.node.body, {variable}, decide_only=True)
    decision = [node for node in decision if node.lineno < gemm[0].lineno]
    body = pruned(code.node.body, {variable, CACHE})
    after = _from_line(body, readers[0].lineno)
    parameters = frozenset(a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs))
    return Gate(code, name, readers[0], variable, decision, body, after, parameters)


def _hands_over(node: ast.stmt, variable: str) -> bool:
    """Whether a statement is the second GEMM: it is told by the variable, and by nothing else, whether to fuse."""
    keywords = [k for call in ast.walk(node) if isinstance(call, ast.Call) for k in call.keywords]
    return any(
        k.arg == "fuse_sum_all_reduce" and isinstance(k.value, ast.Name) and k.value.id == variable
        for k in keywords
    )


def _from_line(body: Sequence[ast.stmt], line: int) -> list[ast.stmt]:
    """The body without branches that end before the line: what they decide is no part of the question."""
    kept: list[ast.stmt] = []
    for node in body:
        if isinstance(node, (ast.For, ast.While, ast.With)):
            node = copy.copy(node)
            node.body = _from_line(node.body, line)
        if not (isinstance(node, ast.If) and (node.end_lineno or 0) < line):
            kept.append(node)
    return kept


def mentions(node: ast.AST, name: str) -> bool:
    return any(
        (isinstance(n, ast.Name) and n.id == name)
        or (isinstance(n, ast.Attribute) and n.attr == name)
        or (isinstance(n, ast.Constant) and n.value == name)
        for n in ast.walk(node)
    )
