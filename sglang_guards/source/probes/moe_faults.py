"""Probes of the reported combinations around MoE runners and quantization: does this tree still go wrong?

Each answers with the line that decides it. True means that the hazard is there, False that it is not, None that the
code has another shape than the ones known.
"""

from __future__ import annotations

import ast
import re

from sglang_guards.source.probes.moe_runner import calls_in_text, facts_for, runner_made
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import guards, keywords, names_in, plain, resolved_names
from sglang_guards.source.tree import Answer, Code, Source, Unknown, decided, probe

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


def _ifs(node: ast.AST) -> list[ast.If]:
    return [n for n in ast.walk(node) if isinstance(n, ast.If)]


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
    code = source.function(FP8, "Fp8MoEMethod.create_weights")
    if not any("% block_n != 0" in ast.unparse(n.test) for n in _ifs(code.node)):
        code = source.function(FP8, "create_fp8_moe_weight_")  # from 0.5.17 in a function of its own
    checks = [
        n for n in _ifs(code.node) if ast.unparse(n.test) == "intermediate_size_per_partition % block_n != 0"
    ]
    if len(checks) != 1:
        raise Unknown("the check of the block size was not found")
    around = guards(code.node, checks[0])
    aiter = [test for test, taken in around if taken and ast.unparse(test).startswith("not (_use_aiter and ")]
    known = {"self", "block_quant", "quant_config", "weight_block_size"}
    others = [test for test, taken in around if test not in aiter and not (taken and names_in(test) <= known)]
    if others:
        raise Unknown("what decides whether the block size is checked is not known")
    return decided(code.where(aiter[0]) if aiter else None, None if aiter else code.where(checks[0]))


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
    name, where = runner_made(source, FP8, "Fp8MoEMethod", facts_for("flashinfer_cutlass"))
    if name in (None, "raises"):
        raise Unknown("the runner depends on an unknown condition")
    return Answer(name == "none", where, f"the runner is {name}")


@probe(
    "fp8_aiter_layout_for_any_runner", "FP8 experts are shuffled for AITER even where Triton will read them."
)
def fp8_aiter_layout_for_any_runner(source: Source) -> Answer:
    apply = source.function(FP8, "Fp8MoEMethod.apply")
    if "is_aiter" not in names_in(apply.node):
        if "maybe_apply_hip_fused_experts" not in names_in(apply.node):
            raise Unknown("how AITER is reached is not known")
        return Answer(False, apply.where(), "with SGLANG_USE_AITER AITER runs whatever runner is asked for")
    code = source.function(FP8, "Fp8MoEMethod.process_weights_after_loading_block_quant")
    any_runner, own_runner = None, None
    for node in ast.walk(code.node):
        if not isinstance(node, ast.Assign) or "shuffle_weight" not in names_in(node.value):
            continue
        deciding = set().union(*(resolved_names(code.node, test) for test, _ in guards(code.node, node)))
        if deciding & {"is_fp4_expert", "is_fp4_experts"}:
            continue  # FP4 experts are laid out for their own kernels
        if any("is_aiter" in name for name in deciding):
            own_runner = own_runner or code.where(node)
        elif "_use_aiter" in deciding:
            any_runner = any_runner or code.where(node)
    return Answer(True, any_runner) if any_runner else decided(None, own_runner)


@probe("mxfp8_experts_need_sm100", "MXFP8 experts raise on CUDA GPUs other than SM100.")
def mxfp8_experts_need_sm100(source: Source) -> Answer:
    return decided(at(source, source.need(FP8), r"MXFP8 MoE quantization requires SM100"), None)


@probe(
    "fp4_experts_unknown_to_trtllm", "FP4 experts of an FP8 checkpoint have no method for flashinfer_trtllm."
)
def fp4_experts_unknown_to_trtllm(source: Source) -> Answer:
    code = source.function(FP8, "Fp8Config.get_quant_method")
    asked = names_in(code.node)
    if "Fp8MoEMethod" not in asked:
        raise Unknown("which method FP8 experts get is decided elsewhere")
    if not any("fp4_experts" in name for name in asked):
        if "fp4_experts" in (source.text(FP8) or ""):
            raise Unknown("where FP4 experts get their method is not known")
        return Answer(False, code.where(), "no FP4 experts under the fp8 method")
    if known := {"is_flashinfer_trtllm", "is_flashinfer_trtllm_routed"} & asked:
        return Answer(False, code.where(), f"asks {sorted(known)[0]}")
    plain(code.node)
    if not {"is_marlin", "is_flashinfer_mxfp4"} <= asked:
        raise Unknown("the choice of the method of FP4 experts has another shape")
    return Answer(True, code.where(), "asks for is_marlin and is_flashinfer_mxfp4 only")


@probe("quark_mxfp4_needs_aiter", "Quark MXFP4 experts get a runner for AITER only.")
def quark_mxfp4_needs_aiter(source: Source) -> Answer:
    rel = source.need(QUARK_MXFP4)
    heads = re.findall(r"^class (\w*MoE\w*)", source.text(rel) or "", re.MULTILINE)
    if not heads:
        raise Unknown("no Quark MXFP4 MoE scheme")
    asked = {name: runner_made(source, rel, heads[0], facts_for(name, "hip")) for name in ("aiter", "triton")}
    names = {name: "none" if made == "raises" else made for name, (made, _) in asked.items()}
    if None in names.values():
        raise Unknown("the runner depends on an unknown condition")
    if names == {"aiter": "none", "triton": "none"}:
        plain(source.function(rel, f"{heads[0]}.create_moe_runner").node)
    return Answer(
        names == {"aiter": "aiter", "triton": "none"}, asked["triton"][1], f"the runners are {names}"
    )


@probe("mxfp4_has_triton_lora", "MXFP4 experts can hand their weights to the Triton LoRA runner.")
def mxfp4_has_triton_lora(source: Source) -> Answer:
    call = at(source, source.need(LORA_LAYERS), r"\.get_triton_quant_info\(")
    if call is None:
        raise Unknown("the LoRA layers do not ask for Triton weights")
    method = source.function(MXFP4, "Mxfp4MoEMethod")
    if not isinstance(method.node, ast.ClassDef):
        raise Unknown("Mxfp4MoEMethod is no class")
    named = {n.name for n in method.node.body if isinstance(n, ast.FunctionDef)}
    if "get_triton_quant_info" in named:
        return Answer(True, call)
    if [ast.unparse(base) for base in method.node.bases] != ["FusedMoEMethodBase"] or "apply" not in named:
        raise Unknown("Mxfp4MoEMethod inherits from a class that is not looked at")
    return Answer(False, call, "Mxfp4MoEMethod has no such method")


@probe("lora_experts_know_ep", "The buffers of LoRA on experts are sized for the experts of one rank.")
def lora_experts_know_ep(source: Source) -> Answer:
    if source.first(LORA_RUNNERS) is None:
        raise Unknown("no LoRA on experts")
    yes = at(source, source.need(LORA_POOL), r"\bmoe_ep_size\b")
    text = source.text(LORA_POOL) or ""
    other = re.search(r"ep_size|expert_parallel", text)
    return decided(yes, None if yes or other else at(source, LORA_POOL, r"^[^#\n]*\bnum_experts\b"))


@probe(
    "virtual_experts_lose_up_half",
    "With virtual experts the up half of an expert reads the gate LoRA factor.",
)
def virtual_experts_lose_up_half(source: Source) -> Answer:
    rel = source.need(LORA_RUNNERS)
    if at(source, rel, r"lora_use_virtual_experts") is None:
        raise Unknown("no virtual experts")
    name = "merged_experts_fused_moe_lora_add"
    calls = [
        c
        for c in calls_in_text(source, rel, name)
        if any("gate_up" in ast.unparse(k.value) for k in c.keywords)
    ]
    split = keywords(calls, "a_output_slices")
    if split is None:
        raise Unknown("how the LoRA factors of gate and up are added is not known")
    return Answer(
        not split, f"{rel}:{calls[0].lineno}", "a_output_slices is given" if split else "no a_output_slices"
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
        if "deepep_post_reorder_triton_kernel" in names_in(node.func):
            if any(k.arg is None for k in node.keywords) or any(
                isinstance(a, ast.Starred) for a in node.args
            ):
                raise Unknown("the arguments of the kernel are packed")
            named = {k.arg for k in node.keywords}
            missing = [a.arg for a in wanted[len(node.args) :] if a.arg not in named]
            return Answer(bool(missing), caller.where(node), ", ".join(missing))
    raise Unknown("the combine calls another kernel")


@probe("minimax_m2_names_routing", "MiniMax-M2 tells the TRT-LLM runner how its router scores experts.")
def minimax_m2_names_routing(source: Source) -> Answer:
    code = source.function("sglang/srt/models/minimax_m2.py", "MiniMaxM2MoE.__init__")
    made = [
        n
        for n in ast.walk(code.node)
        if isinstance(n, ast.Call)
        and isinstance(n.func, ast.Call)
        and "get_moe_impl_class" in names_in(n.func)
    ]
    named = keywords(made, "routing_method_type")
    if named is None:
        raise Unknown("how MiniMax-M2 makes its experts is not known")
    return Answer(named, code.where(made[0]))


@probe(
    "fp8_experts_fall_back_to_marlin",
    "FP8 experts have a way through Marlin on GPUs without FP8 (below SM89).",
)
def fp8_experts_fall_back_to_marlin(source: Source) -> Answer:
    dense, experts = source.function(FP8, "Fp8LinearMethod"), source.function(FP8, "Fp8MoEMethod")
    known = {"use_marlin", "can_auto_enable_marlin_fp8"}

    def marlin(code: Code) -> ast.AST | None:
        for node in walk(code.node):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
            if name in known or str(name).startswith("prepare_moe_fp8"):
                return node
        return None

    if (node := marlin(experts)) is not None:
        return Answer(True, experts.where(node))
    if marlin(dense) is None:
        raise Unknown("how GPUs without FP8 are served was not found")
    return Answer(False, experts.where(experts.node))


CUTLASS = "sglang/srt/layers/moe/cutlass_moe.py"


@probe(
    "cutlass_maps_cover_all_routes",
    "CUTLASS FP8 experts fill their routing maps for routes to other ranks' experts too.",
)
def cutlass_maps_cover_all_routes(source: Source) -> Answer:
    code = source.function(CUTLASS, "cutlass_fused_experts_fp8")
    fillers = {
        node.func.id: node
        for node in walk(code.node)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and "prepare_moe_input" in node.func.id
    }
    if len(fillers) != 1:
        raise Unknown("which function fills the routing maps was not found")
    name, call = next(iter(fillers.items()))
    if name == "cutlass_prepare_moe_input":
        return Answer(True, code.where(call), "a function of SGLang's own fills every entry")
    maps = {
        ast.unparse(node.targets[0])
        for node in walk(code.node)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and ast.unparse(node.value.func) == "torch.empty"
    }
    given = {ast.unparse(argument) for argument in call.args}
    if name == "prepare_moe_input" and "a_map" in maps & given:
        return Answer(False, code.where(call), "sgl_kernel fills maps that come from torch.empty")
    raise Unknown("how the routing maps are made was not found")
