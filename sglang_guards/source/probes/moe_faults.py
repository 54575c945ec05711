"""Probes of the reported combinations around MoE runners and quantization: does this tree still go wrong?

Each answers with the line that decides it. True means that the hazard is there, False that it is not, None that the
code has another shape than the ones known.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sglang_guards.source.tree import Answer, Source, Unknown, probe

FP8 = "sglang/srt/layers/quantization/fp8.py"
QUARK_MXFP4 = "sglang/srt/layers/quantization/quark/schemes/quark_w4a4_mxfp4_moe.py"
MXFP4 = "sglang/srt/layers/quantization/mxfp4.py"
W4A8 = "sglang/srt/layers/moe/cutlass_w4a8_moe.py"
EP_KERNELS = ("sglang/kernels/ops/moe/ep_moe_kernels.py", "sglang/srt/layers/moe/ep_moe/kernels.py")
LORA_LAYERS = "sglang/srt/lora/layers.py"
LORA_RUNNERS = "sglang/srt/lora/lora_moe_runners.py"
LORA_POOL = "sglang/srt/lora/mem_pool.py"


def at(source: Source, rel: str, pattern: str) -> str | None:
    """`file:line` of the first line that matches, None where none does."""
    line = source.line(rel, pattern)
    return None if line is None else f"{rel}:{line}"


def names_in(node: ast.AST) -> Iterator[str]:
    """Every name and attribute below a node."""
    for item in ast.walk(node):
        if isinstance(item, ast.Name):
            yield item.id
        elif isinstance(item, ast.Attribute):
            yield item.attr


@probe(
    "expert_block_check",
    "Block-FP8 experts are refused where a rank's share of them is no multiple of the block.",
)
def expert_block_check(source: Source) -> Answer:
    where = at(source, source.need(FP8), r"^ +if intermediate_size_per_partition % block_n != 0:")
    return Answer(True if where else None, where)


@probe(
    "expert_block_padded_by_aiter",
    "AITER pads block-FP8 experts, so that it takes shares off the block size.",
)
def expert_block_padded_by_aiter(source: Source) -> Answer:
    where = at(source, source.need(FP8), r"^ +if not \(_use_aiter and padding_size == block_n == block_k\):")
    return Answer(where is not None, where)


@probe(
    "linear_block_check",
    "Block-FP8 linear layers are refused where a rank's share is no multiple of the block.",
)
def linear_block_check(source: Source) -> Answer:
    where = at(source, source.need(FP8), r"^ +if output_partition_size % block_n != 0:")
    return Answer(True if where else None, where)


@probe(
    "fp8_cutlass_without_runner",
    "FP8 experts get no runner for flashinfer_cutlass and die in the first forward.",
)
def fp8_cutlass_without_runner(source: Source) -> Answer:
    code = source.function(FP8, "Fp8MoEMethod.create_moe_runner")
    asked = {name for name in names_in(code.node) if name.startswith("is_")}
    if "is_triton" not in asked:
        raise Unknown("create_moe_runner of FP8 experts has another shape")
    return Answer("is_flashinfer_cutlass" not in asked, code.where())


@probe(
    "fp8_aiter_layout_for_any_runner", "FP8 experts are shuffled for AITER even where Triton will read them."
)
def fp8_aiter_layout_for_any_runner(source: Source) -> Answer:
    apply = source.function(FP8, "Fp8MoEMethod.apply")
    if "is_aiter" not in set(names_in(apply.node)):
        return Answer(False, apply.where(), "with SGLANG_USE_AITER AITER runs whatever runner is asked for")
    code = source.function(FP8, "Fp8MoEMethod.process_weights_after_loading_block_quant")
    for node in ast.walk(code.node):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "_use_aiter":
            shuffles = _shuffles_outside_runner_test(node.body)
            if shuffles is not None:
                return Answer(True, code.where(shuffles))
    return Answer(False, code.where())


def _shuffles_outside_runner_test(body: list[ast.stmt]) -> ast.stmt | None:
    """The statement that shuffles the experts without looking at the runner."""
    for node in body:
        if isinstance(node, ast.If) and any("aiter" in name for name in names_in(node.test)):
            continue
        if isinstance(node, ast.Assign) and "shuffle_weight" in set(names_in(node.value)):
            return node
    return None


@probe("mxfp8_experts_need_sm100", "MXFP8 experts raise on CUDA GPUs other than SM100.")
def mxfp8_experts_need_sm100(source: Source) -> Answer:
    where = at(source, source.need(FP8), r"MXFP8 MoE quantization requires SM100")
    return Answer(where is not None, where)


@probe(
    "fp4_experts_unknown_to_trtllm", "FP4 experts of an FP8 checkpoint have no method for flashinfer_trtllm."
)
def fp4_experts_unknown_to_trtllm(source: Source) -> Answer:
    code = source.function(FP8, "Fp8Config.get_quant_method")
    asked = set(names_in(code.node))
    if not {"is_fp4_experts", "is_flashinfer_mxfp4"} <= asked:
        return Answer(False, code.where(), "no FP4 experts under the fp8 method")
    return Answer(not {"is_flashinfer_trtllm", "is_flashinfer_trtllm_routed"} & asked, code.where())


@probe("quark_mxfp4_needs_aiter", "Quark MXFP4 experts get a runner for AITER only.")
def quark_mxfp4_needs_aiter(source: Source) -> Answer:
    rel = source.need(QUARK_MXFP4)
    heads = re.findall(r"^class (\w*MoE\w*)", source.text(rel) or "", re.MULTILINE)
    if not heads:
        raise Unknown("no Quark MXFP4 MoE scheme")
    code = source.function(rel, f"{heads[0]}.create_moe_runner")
    for node in ast.walk(code.node):
        if isinstance(node, ast.If) and "is_aiter" in set(names_in(node.test)) and node.orelse:
            makes = any("MoeRunner" in set(names_in(item)) for item in node.orelse)
            return Answer(not makes, code.where(node.orelse[0]))
    return Answer(False, code.where(), "the runner backend is not read")


@probe("mxfp4_has_triton_lora", "MXFP4 experts can hand their weights to the Triton LoRA runner.")
def mxfp4_has_triton_lora(source: Source) -> Answer:
    call = at(source, source.need(LORA_LAYERS), r"\.get_triton_quant_info\(")
    if call is None:
        raise Unknown("the LoRA layers do not ask for Triton weights")
    method = source.function(MXFP4, "Mxfp4MoEMethod")
    has = any(
        isinstance(n, ast.FunctionDef) and n.name == "get_triton_quant_info" for n in ast.walk(method.node)
    )
    return Answer(has, call)


@probe("lora_experts_know_ep", "The buffers of LoRA on experts are sized for the experts of one rank.")
def lora_experts_know_ep(source: Source) -> Answer:
    if source.first(LORA_RUNNERS) is None:
        raise Unknown("no LoRA on experts")
    where = at(source, source.need(LORA_POOL), r"\bmoe_ep_size\b")
    return Answer(where is not None, where or at(source, LORA_POOL, r"^[^#\n]*\bnum_experts\b"))


@probe(
    "virtual_experts_lose_up_half",
    "With virtual experts the up half of an expert reads the gate LoRA factor.",
)
def virtual_experts_lose_up_half(source: Source) -> Answer:
    rel = source.need(LORA_RUNNERS)
    calls = at(source, rel, r"lora_use_virtual_experts")
    if calls is None:
        raise Unknown("no virtual experts")
    return Answer(
        at(source, rel, r"a_output_slices\s*=") is None, at(source, rel, r"a_output_slices\s*=") or calls
    )


@probe(
    "w4afp8_deepep_call_incomplete",
    "The W4AFP8 + DeepEP combine calls its kernel without one of its arguments.",
)
def w4afp8_deepep_call_incomplete(source: Source) -> Answer:
    kernel = source.function(EP_KERNELS, "deepep_post_reorder_triton_kernel")
    caller = source.function(W4A8, "cutlass_w4a8_moe_deepep_normal")
    if not isinstance(kernel.node, ast.FunctionDef):
        raise Unknown("the kernel is no function")
    wanted = kernel.node.args.args[: len(kernel.node.args.args) - len(kernel.node.args.defaults)]
    for node in ast.walk(caller.node):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)):
            continue
        if "deepep_post_reorder_triton_kernel" in set(names_in(node.func)):
            named = {k.arg for k in node.keywords}
            missing = [a.arg for a in wanted[len(node.args) :] if a.arg not in named]
            return Answer(bool(missing), caller.where(node), ", ".join(missing))
    raise Unknown("the combine calls another kernel")


@probe("minimax_m2_names_routing", "MiniMax-M2 tells the TRT-LLM runner how its router scores experts.")
def minimax_m2_names_routing(source: Source) -> Answer:
    rel = source.need("sglang/srt/models/minimax_m2.py")
    where = at(source, rel, r"routing_method_type\s*=")
    return Answer(where is not None, where or at(source, rel, r"^class MiniMaxM2MoE\b"))
