"""Probe of the Triton experts' FP8 scale: which rows of the down projection's input it looks at."""

from __future__ import annotations

import ast

from sglang_guards.source.probes.launch_faults import FUSED_MOE
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import names_in
from sglang_guards.source.tree import Answer, Code, Source, Unknown, probe

KERNELS = (
    "sglang/kernels/ops/moe/fused_moe_triton_kernels.py",
    "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_kernels.py",
    "sglang/srt/layers/moe/fused_moe_triton/fused_moe_triton_kernels.py",
)
_INPUT = "intermediate_cache2"
#: What tells an activation or a scale which rows are routed to this rank.
_ROUTES = frozenset({"expert_ids", "sorted_token_ids", "topk_ids", "row_filter"})


@probe(
    "fp8_scale_reads_unwritten_rows",
    "Per-tensor dynamic FP8 takes the scale of the down projection's input over rows that nothing wrote.",
)
def fp8_scale_reads_unwritten_rows(source: Source) -> Answer:
    code = _sequence(source)
    if any(isinstance(node, ast.Match) for node in walk(code.node)):
        raise Unknown("which values are for block-quantized weights is not read from a match statement")
    made = [node for node in _assigned(code, _INPUT) if isinstance(node, ast.Call)]
    makers = {ast.unparse(call.func) for call in made}
    if "torch.zeros" in makers or any(_cleared(node) for node in walk(code.node)):
        return Answer(False, code.where(), "the rows are cleared")
    if "torch.empty" not in makers:
        raise Unknown("where the down projection's input comes from was not found")
    scale = _scale_of_second_gemm(code)
    for value in _assigned(code, scale):
        if _routed(value):
            return Answer(False, code.where(value), "the scale is taken over routed rows")
        if ast.unparse(value) != "a2_scale":
            raise Unknown(f"how {scale} is made is not known")
    if not _skips_filtered_rows(code):
        raise Unknown("who writes the rows of filtered experts was not found")
    return Answer(True, _whole_tensor(source), "the activation skips the rows of experts that live elsewhere")


def _sequence(source: Source) -> Code:
    for name in ("_fused_moe_kernel_sequence", "fused_experts_impl"):
        code = source.maybe(FUSED_MOE, name)
        if code is not None and any(True for _ in _assigned(code, _INPUT)):
            return code
    raise Unknown("the experts' kernels are called elsewhere")


def _scale_of_second_gemm(code: Code) -> str:
    """The variable that the GEMM over the input gets as the scale of the input; a patched tree may give another."""
    for node in walk(code.node):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("invoke_fused_moe_kernel"):
            given = [ast.unparse(argument) for argument in node.args[:5]]
            if len(given) == 5 and given[0] == _INPUT:
                return given[4]
    raise Unknown("the down projection's GEMM was not found")


def _assigned(code: Code, name: str) -> list[ast.expr]:
    """Values that are assigned to a name, also as one of several, other than for block-quantized weights."""
    found = []
    per_block = _under_blocks(code)
    for node in walk(code.node):
        if isinstance(node, ast.Assign) and node not in per_block:
            for target in node.targets:
                parts = target.elts if isinstance(target, ast.Tuple) else [target]
                if any(isinstance(part, ast.Name) and part.id == name for part in parts):
                    found.append(node.value)
    return found


def _under_blocks(code: Code) -> set[ast.AST]:
    """Everything that runs only for block-quantized weights."""
    found: set[ast.AST] = set()
    for node in walk(code.node):
        if isinstance(node, ast.If) and any(
            isinstance(test, ast.Compare)
            and isinstance(test.left, ast.Name)
            and test.left.id == "block_shape"
            and isinstance(test.ops[0], ast.IsNot)
            for test in walk(node.test)
        ):
            found |= {inner for statement in node.body for inner in walk(statement)}
    return found


def _cleared(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("zero_", "fill_")
        and isinstance(node.func.value, ast.Name)
        and node.func.value.id == _INPUT
    )


def _routed(value: ast.expr) -> bool:
    names = set(names_in(value))
    return isinstance(value, ast.Call) and _INPUT in names and bool(names & _ROUTES)


def _skips_filtered_rows(code: Code) -> bool:
    """Whether an activation writes its output only for the rows routed to this rank."""
    for node in walk(code.node):
        if isinstance(node, ast.Call) and "and_mul" in ast.unparse(node.func):
            names = set(names_in(node))
            if _INPUT in names and names & _ROUTES:
                return True
    return False


def _whole_tensor(source: Source) -> str:
    """Where the kernel's caller quantizes the whole tensor with one scale."""
    code = source.function(KERNELS, "invoke_fused_moe_kernel")
    for node in walk(code.node):
        if isinstance(node, ast.Call) and "scaled_fp8_quant" in ast.unparse(node.func):
            names = set(names_in(node))
            if "A" in names and not names & _ROUTES:
                return code.where(node)
    raise Unknown("how the input is quantized was not found")
