"""Which runner an experts' quantization method makes, found by following its create_moe_runner."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from sglang_guards.source.probes.args_resolution import OVERRIDES, SERVER_ARGS
from sglang_guards.source.probes.fused_sum_kernel import branch_of_filtered_experts, kernel
from sglang_guards.source.syntax.evaluate import (
    UNKNOWN,
    Choice,
    Enum,
    Step,
    World,
    paths,
    terminal_name,
    truth,
)
from sglang_guards.source.syntax.shape import guards, keywords, names_in, plain
from sglang_guards.source.syntax.slicing import Unknown, parse_at
from sglang_guards.source.tree import Answer, Code, Source, probe

_QUANT = "sglang/srt/layers/quantization"
FP8 = f"{_QUANT}/fp8.py"
UNQUANT = f"{_QUANT}/unquant.py"
MXFP4 = f"{_QUANT}/mxfp4.py"
MODELOPT = f"{_QUANT}/modelopt_quant.py"
QUARK_FP8 = f"{_QUANT}/quark/schemes/quark_w8a8_fp8_moe.py"
COMPRESSED_TENSORS = f"{_QUANT}/compressed_tensors/compressed_tensors.py"
SPECULATIVE_HOOK = "sglang/srt/arg_groups/speculative_hook.py"
QWEN2_MOE = "sglang/srt/models/qwen2_moe.py"


def facts_for(backend: str, platform: str = "cuda", **changed: Any) -> dict[str, Any]:
    """A layer without an all-to-all backend on SM90, or on ROCm with AITER."""
    hip = platform == "hip"
    facts: dict[str, Any] = {
        "MoeRunnerBackend": Enum(),
        "get_moe_runner_backend": Choice(backend),
        "get_moe_a2a_backend": Choice("none"),
        "supports_aiter": True,
        "is_deepgemm_moe_runner_backend_enabled": False,
        "get_device_capability": (9, 0),
        **{
            f"{dash}is_{kind}": kind == platform
            for kind in ("cuda", "hip", "npu", "xpu", "cpu")
            for dash in ("", "_")
        },
        "_use_aiter": hip,
        "_use_hip_int4": False,
        "is_fp4_expert": False,
        "is_weight_per_channel": True,
        "is_lora": False,
        **dict.fromkeys(("use_triton_kernels", "use_flashinfer_trtllm_moe", "use_flashinfer_cutlass"), False),
        **dict.fromkeys(("use_deep_gemm", "use_mega_moe", "_is_cutedsl_v1_deepep"), False),
        "_fi_kernel": None,
    }
    return {**facts, **changed}


def runner_made(source: Source, rel: str, qualname: str, facts: dict[str, Any]) -> tuple[str | None, str]:
    """Name of the runner that the method makes («none» where it makes none), None where it cannot be told."""
    made, where = runners_made(source, rel, qualname, facts)
    if not made:
        return "raises", where
    return (made.pop() if len(made) == 1 else None), where


def runners_made(
    source: Source, rel: str, qualname: str, facts: dict[str, Any]
) -> tuple[set[str | None], str]:
    """Names of the runners that the method may make, as `runner_made` has them; ways that raise are left out."""
    code = source.function(source.need(rel), f"{qualname}.create_moe_runner")
    assert isinstance(code.node, ast.FunctionDef)
    made: set[str | None] = set()
    where = code.where()
    for path in paths(code.node.body, World(facts)):
        if isinstance(path.end, ast.Raise):
            continue
        name: str | None = "none"
        for step in path.steps:
            call = step.node.value if isinstance(step.node, ast.Assign) else None
            if isinstance(call, ast.Call) and terminal_name(call) == "MoeRunner" and _is_runner(step.node):
                choice = World(facts, dict(path.seen)).value(call.args[0]) if call.args else UNKNOWN
                name = choice.name if isinstance(choice, Choice) else None
                where = code.where(step.node)
            elif _may_make_runner(step, facts):
                name = None
        made.add(name)
    return made, where


def _is_runner(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(t, ast.Attribute) and t.attr == "runner" for t in node.targets
    )


def _may_make_runner(step: Step, facts: Mapping[str, object]) -> bool:
    """Whether a statement could set `self.runner` in a way that is not followed."""
    if _is_runner(step.node):
        return True
    for node in step.live:
        if isinstance(node, ast.Call):
            name = terminal_name(node) or ""
            own = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self"
            handed = any(isinstance(a, ast.Name) and a.id == "self" for a in node.args)
            if name == "MoeRunner" or (
                (own or handed) and name not in (*facts, "super", "isinstance", "hasattr")
            ):
                return True
    return False


def _makes(source: Source, rel: str, qualname: str, facts: dict[str, Any], wanted: str) -> Answer:
    name, where = runner_made(source, rel, qualname, facts)
    if name in (None, "raises"):
        return Answer(None, where, "the runner depends on an unknown condition")
    return Answer(name == wanted, where, f"the runner is {name}")


@probe(
    "fp8_cutlass_falls_back_to_triton",
    "FP8 experts run on Triton under flashinfer_cutlass and flashinfer_cutedsl.",
)
def fp8_cutlass_falls_back_to_triton(source: Source) -> Answer:
    return _makes(source, FP8, "Fp8MoEMethod", facts_for("flashinfer_cutlass"), "triton")


@probe("fp8_auto_may_be_aiter", "On ROCm with AITER, FP8 experts under auto run on AITER.")
def fp8_auto_may_be_aiter(source: Source) -> Answer:
    return _makes(source, FP8, "Fp8MoEMethod", facts_for("auto", "hip"), "aiter")


@probe("unquant_deep_gemm", "Unquantized experts run on DeepGEMM where it is asked for.")
def unquant_deep_gemm(source: Source) -> Answer:
    facts = facts_for("deep_gemm", use_deep_gemm=True)
    return _makes(source, UNQUANT, "UnquantizedFusedMoEMethod", facts, "deep_gemm")


@probe("mxfp4_marlin", "MXFP4 experts run on Marlin where it is asked for.")
def mxfp4_marlin(source: Source) -> Answer:
    return _makes(source, MXFP4, "Mxfp4MoEMethod", facts_for("marlin"), "marlin")


@probe("mxfp4_deep_gemm", "MXFP4 experts run on DeepGEMM where it is asked for.")
def mxfp4_deep_gemm(source: Source) -> Answer:
    return _makes(source, MXFP4, "Mxfp4MoEMethod", facts_for("deep_gemm"), "deep_gemm")


@probe("modelopt_fp4_marlin", "NVFP4 experts (modelopt) run on Marlin under auto on SM80 to SM90.")
def modelopt_fp4_marlin(source: Source) -> Answer:
    return _makes(source, MODELOPT, "ModelOptNvFp4FusedMoEMethod", facts_for("auto"), "marlin")


@probe("quark_fp8_aiter", "On ROCm with AITER, Quark FP8 experts with per-channel scales run on AITER.")
def quark_fp8_aiter(source: Source) -> Answer:
    return _makes(source, QUARK_FP8, "QuarkW8A8FP8MoE", facts_for("auto", "hip"), "aiter")


# -- compressed-tensors WNA16 ------------------------------------------------------------------------------


def _ct_wna16(source: Source, backend: str, **changed: Any) -> Answer:
    """Whether the Triton scheme is taken for int4 weight-only experts in groups, on CUDA."""
    facts = facts_for(backend, **{"is_sm100": False, **changed})
    facts.update(_is_wNa16_group_channel=True, _is_mxint4a16=False, _is_wna16_triton_moe_supported=True)
    rel = source.need(COMPRESSED_TENSORS)
    names = ("CompressedTensorsConfig.get_moe_scheme", "CompressedTensorsConfig._get_moe_scheme")
    code = next((found for name in names if (found := source.maybe(rel, name))), None)
    if code is None or not isinstance(code.node, ast.FunctionDef):
        return _ct_wna16_older(source)
    chosen = [_scheme(path.end) for path in paths(_from_wna16(code.node.body), World(facts))]
    names_found = {name for name, _ in chosen if name is not None}
    if len(names_found) != 1 or any(name is None for name, _ in chosen):
        return Answer(None, code.where(), "the scheme depends on an unknown condition")
    name = names_found.pop()
    return Answer("Triton" in name, code.where(chosen[0][1]), f"the scheme is {name}")


def _ct_wna16_older(source: Source) -> Answer:
    """Before get_moe_scheme the method itself is chosen; a tree without a Triton scheme has no such path."""
    text = source.text(COMPRESSED_TENSORS) or ""
    if "WNA16TritonMoE" in text:
        raise Unknown("the choice of the WNA16 scheme has another shape")
    return Answer(False, None, "there is no Triton scheme for WNA16")


def _from_wna16(body: Sequence[ast.stmt]) -> list[ast.stmt]:
    """The choice from the test for WNA16 on: what comes before sorts other checkpoints out."""
    for at, node in enumerate(body):
        if isinstance(node, ast.If) and "_is_wNa16_group_channel" in ast.unparse(node.test):
            return list(body[at:])
    raise Unknown("no test for WNA16 experts")


def _scheme(end: ast.stmt | None) -> tuple[str | None, ast.stmt | None]:
    if isinstance(end, ast.Return) and isinstance(end.value, ast.Call):
        return terminal_name(end.value), end
    return None, end


@probe(
    "ct_wna16_triton_on_cuda",
    "compressed-tensors WNA16 experts run on Triton on CUDA where that is asked for.",
)
def ct_wna16_triton_on_cuda(source: Source) -> Answer:
    return _ct_wna16(source, "triton")


@probe(
    "ct_wna16_auto_triton_sm100",
    "compressed-tensors WNA16 experts run on Triton under auto on SM100 and SM103.",
)
def ct_wna16_auto_triton_sm100(source: Source) -> Answer:
    return _ct_wna16(source, "auto", is_sm100=True, is_sm100_supported=True, get_device_capability=(10, 0))


# -- draft and top-k ---------------------------------------------------------------------------------------


@probe(
    "draft_runner_inherits_target", "A draft runs on the target's runner by default, flashinfer_trtllm too."
)
def draft_runner_inherits_target(source: Source) -> Answer:
    name, target = "speculative_moe_runner_backend", "flashinfer_trtllm"
    facts = {name: None, "moe_runner_backend": target}
    code, body = _draft_default(source, name)
    found: set[object] = set()
    where = code.where()
    for path in paths(body, World(facts)):
        world = World(facts, dict(path.seen))
        for node in _values_given_to(name, path.end, [step.node for step in path.steps]):
            found.add(world.value(node))
            where = code.where(node)
    value = found.pop() if len(found) == 1 else UNKNOWN
    if value is UNKNOWN:
        raise Unknown("the draft's default depends on an unknown condition")
    return Answer(value == target, where, f"a target on {target} gives the draft {value}")


def _draft_default(source: Source, name: str) -> tuple[Code, list[ast.stmt]]:
    if own := source.maybe(OVERRIDES, "_speculative_moe_runner_default"):
        assert isinstance(own.node, ast.FunctionDef)
        return own, own.node.body
    for rel in (SPECULATIVE_HOOK, SERVER_ARGS):
        if found := source.statement(rel, rf"^ +if \w+\.{name} is None:$"):
            return found, [found.node]
    raise Unknown("no default for the draft's runner was found")


def _values_given_to(name: str, end: ast.stmt | None, nodes: Sequence[ast.stmt]) -> list[ast.expr]:
    """Values written to the field: assigned to it, or returned for it in a dictionary."""
    found = [
        node.value
        for node in nodes
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Attribute) and t.attr == name for t in node.targets)
    ]
    if isinstance(end, ast.Return) and isinstance(end.value, ast.Dict):
        pairs = zip(end.value.keys, end.value.values, strict=True)
        found += [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == name]
    return found


def _cuda_fusion_asked(source: Source, model: str) -> Answer:
    """Whether a model asks Qwen2MoeSparseMoeBlock for fused shared experts on CUDA."""
    rel = source.need(f"sglang/srt/models/{model}.py")
    block = source.ask("qwen2_moe_fuses_shared_experts")
    if block.value is not True:
        return Answer(block.value, block.where, "whether the block fuses shared experts on CUDA")
    calls = calls_in_text(source, rel, "Qwen2MoeSparseMoeBlock")
    word = "enable_cuda_shared_expert_fusion"
    if line := next(
        (k.value.lineno for call in calls for k in call.keywords if k.arg == word and _is_true(k)), None
    ):
        return Answer(True, f"{rel}:{line}", word)
    if keywords(calls, word) is not False:
        raise Unknown("how the MoE block is made is not known")
    return Answer(False, f"{rel}:{calls[0].lineno}", f"no {word}")


def _is_true(keyword: ast.keyword) -> bool:
    return isinstance(keyword.value, ast.Constant) and keyword.value.value is True


def calls_in_text(source: Source, rel: str, name: str) -> list[ast.Call]:
    """Calls of a name in a file, whole statements parsed where they stand."""
    found = []
    text = source.text(rel) or ""
    for place in re.finditer(rf"\b(?<!class ){name}\(", text):
        start = text.rfind("\n", 0, place.start()) + 1
        if text[start : place.start()].lstrip().startswith(("#", "class ")):
            continue
        line = text.count("\n", 0, start) + 1
        indent = len(text[start:]) - len(text[start:].lstrip(" "))
        node = parse_at(text, start, indent)
        found += [
            n
            for n in ast.walk(node)
            if isinstance(n, ast.Call) and terminal_name(n) == name and n.lineno >= line
        ]
    return found


@probe(
    "qwen2_moe_fuses_shared_experts",
    "Qwen2's MoE block can fuse shared experts on CUDA, if its model asks for it.",
)
def qwen2_moe_fuses_shared_experts(source: Source) -> Answer:
    code = source.function(QWEN2_MOE, "Qwen2MoeSparseMoeBlock.__init__")
    asked = {"support_shared_expert_fusion": True, "enable_cuda_shared_expert_fusion": True}
    facts = {**facts_for("auto"), **asked, "can_fuse_shared_expert": True, "num_shared_experts": 1}
    for statement in source.naming(code, "self.enable_shared_expert_fusion ="):
        if not isinstance(statement, ast.Assign) or isinstance(statement.value, ast.Constant):
            continue
        around = guards(code.node, statement)
        values = {truth(World(facts).value(test)) is taken for test, taken in around}
        unknown = any(truth(World(facts).value(test)) is None for test, _ in around)
        where = next((n for n in ast.walk(code.node) if around and n is around[-1][0]), statement)
        value = None if unknown and False not in values else False not in values
        return Answer(None if unknown else value, code.where(where), "with what the model asks for on CUDA")
    plain(code.node)
    if "fus" in ast.unparse(code.node) or "shared_expert" not in names_in(code.node):
        raise Unknown("how the block treats its shared expert is not known")
    return Answer(False, code.where(), "shared experts are not fused")


@probe("qwen3_5_fuses_shared_experts_on_cuda", "Qwen3.5-MoE counts its shared expert in top-k on CUDA.")
def qwen3_5_fuses_shared_experts_on_cuda(source: Source) -> Answer:
    return _cuda_fusion_asked(source, "qwen3_5")


@probe("qwen3_next_fuses_shared_experts_on_cuda", "Qwen3-Next counts its shared expert in top-k on CUDA.")
def qwen3_next_fuses_shared_experts_on_cuda(source: Source) -> Answer:
    return _cuda_fusion_asked(source, "qwen3_next")


@probe(
    "filter_expert_unconditional",
    "The kernel leaves filtered experts (-1) out without being told (filter_expert).",
)
def filter_expert_unconditional(source: Source) -> Answer:
    code = kernel(source)
    try:
        branch = branch_of_filtered_experts(code, {"filter_expert": False})
    except Unknown:
        told = branch_of_filtered_experts(code)
        return Answer(False, code.where(told), "only with filter_expert")
    return Answer(True, code.where(branch), "whatever filter_expert says")
