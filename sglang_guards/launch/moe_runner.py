"""Which MoE runner an expert layer gets: resolved backend × quantization × a2a backend × platform.

Pure functions over plain values. The table follows each quantization method's `create_moe_runner`; where releases
differ, a source probe decides (names in `runner_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

#: A question to the installed source: name of a probe -> True, False or None.
Ask = Callable[[str], bool | None]


@dataclass(frozen=True)
class Runner:
    """The runner of a kind of layer, the deciding fact in one clause, and whether its weights are int4/int8-only.

    `name` None means that it cannot be told; `why` then says what was missing.
    """

    name: str | None
    why: str
    weight_only: bool = False


@dataclass(frozen=True)
class Query:
    """What decides the runner. `backend` and `a2a` are SGLang's resolved strings, `kind` as in model_facts.quant_kind.

    `width` is the experts' intermediate size on one rank (AITER takes multiples of 128 only), None when unknown.
    """

    backend: str
    kind: str | None
    a2a: str
    platform: str
    sm: int | None
    aiter: bool
    width: int | None
    config: Mapping[str, Any]
    #: Weights that share a scale, of compressed-tensors' int4.
    group: int | None = None


#: a2a backends that hand the Triton runner the plain token layout. megamoe and customized may fall back to it.
_PLAIN_A2A = frozenset({"none", ""})
_MAYBE_PLAIN_A2A = frozenset({"megamoe", "flashinfer_megamoe", "customized"})
#: Methods that build a Triton runner whatever --moe-runner-backend says.
_ALWAYS_TRITON = frozenset({"w8a8_fp8", "w8a8_int8", "blockwise_int8", "ct_int8", "bitsandbytes"})
#: Methods with kernels of their own.
_OWN_KERNEL = {
    "gguf": "gguf",
    "w4afp8": "w4afp8",
    "quark_mxfp4": "aiter",
    "humming": "humming",
    "expert_pack": "expert_pack",
    "ct_w4a8": "ct_w4a8",
}
NVFP4_KINDS = frozenset({"modelopt_fp4", "ct_nvfp4", "nvfp4", "nvfp4_online"})
_MARLIN = frozenset({"gptq_marlin", "awq_marlin", "gptq", "awq", "auto_round"})
_TRTLLM = frozenset({"flashinfer_trtllm", "flashinfer_trtllm_routed"})
_NO_TRITON_DEVICE = frozenset({"cpu", "npu", "mps"})


def runner_of(query: Query, ask: Ask) -> Runner:
    """The runner of one kind of layer. Never raises; `name` None is an answer."""
    if query.platform in _NO_TRITON_DEVICE:
        return Runner(query.platform, f"on {query.platform} the experts run outside the Triton runner")
    if query.a2a not in _PLAIN_A2A and query.a2a not in _MAYBE_PLAIN_A2A:
        return Runner(
            query.a2a,
            f"--moe-a2a-backend {query.a2a} dispatches tokens in a layout that the Triton runner cannot take",
        )
    made = _by_kind(query, ask)
    if query.a2a in _MAYBE_PLAIN_A2A and made.name in ("triton", None):
        return Runner(None, f"whether --moe-a2a-backend {query.a2a} leaves a layer on Triton")
    return made


def _by_kind(query: Query, ask: Ask) -> Runner:
    kind, backend = query.kind, query.backend
    if kind is None:
        return Runner(None, "the layout of this quantization")
    if has_fp4_experts(query.config) and kind in ("fp8", "mxfp4"):
        return _explicit(backend) or Runner(None, "the runner of FP4 experts in an FP8 checkpoint")
    if kind in _ALWAYS_TRITON:
        return Runner("triton", f"{kind} experts always run on Triton")
    if kind == "moe_wna16":
        return Runner(
            "triton", "moe_wna16 experts run on the int4/int8 weight-only Triton path", weight_only=True
        )
    if kind in _MARLIN:
        if query.platform == "hip":
            return Runner("triton", f"{kind} experts run weight-only on ROCm", weight_only=True)
        return Runner("marlin", f"{kind} experts run on Marlin", weight_only=True)
    if kind in _OWN_KERNEL:
        return Runner(_OWN_KERNEL[kind], f"{kind} experts have their own kernel")
    if kind in NVFP4_KINDS:
        return _fp4(query)
    if kind in _TABLE:
        return _TABLE[kind](query, ask)
    return Runner(None, f"the runner of quantization {kind}")


def has_fp4_experts(config: Mapping[str, Any]) -> bool:
    return "fp4" in str(config.get("expert_dtype") or config.get("moe_expert_dtype") or "").lower()


def _explicit(backend: str) -> Runner | None:
    if backend in ("auto", "triton"):
        return None
    return Runner(backend, f"--moe-runner-backend resolves to {backend}")


def _triton(why: str) -> Runner:
    return Runner("triton", why)


def _default(query: Query) -> Runner:
    asked = "auto" if query.backend == "auto" else f"--moe-runner-backend {query.backend}"
    return _triton(f"{asked} gives {query.kind} experts the Triton runner on {query.platform}")


def _aiter(query: Query) -> Runner | None:
    """AITER on ROCm: asked for, or SGLANG_USE_AITER with auto."""
    if query.backend == "aiter":
        return Runner("aiter", "--moe-runner-backend aiter")
    if query.platform == "hip" and query.aiter and query.backend == "auto":
        return Runner("aiter", "SGLANG_USE_AITER=1 gives auto the AITER runner")
    return None


def _unquantized(query: Query, ask: Ask) -> Runner:
    backend = query.backend
    if backend in _TRTLLM or backend == "flashinfer_cutlass":
        return Runner(backend, f"--moe-runner-backend resolves to {backend}")
    if backend == "triton_kernel":
        return Runner("triton_kernel", "--moe-runner-backend resolves to triton_kernel")
    if backend == "deep_gemm":
        known = ask("unquant_deep_gemm")
        if known is None:
            return Runner(None, "whether unquantized experts can use DeepGEMM in this SGLang")
        if known:
            return Runner("deep_gemm", "--moe-runner-backend resolves to deep_gemm")
    if backend.startswith(("lora_", "experimental_", "hpc_ops", "flashinfer_megamoe")):
        return Runner(None, f"the runner of unquantized experts under {backend}")
    made = _aiter(query)
    if made is None:
        return _default(query)
    if backend == "auto" and (query.width is None or query.width % 128):
        return Runner(None, f"whether AITER takes experts of width {query.width} (it takes multiples of 128)")
    return made


def _fp8(query: Query, ask: Ask) -> Runner:
    backend = query.backend
    if made := _aiter(query):
        if backend == "auto" and ask("fp8_auto_may_be_aiter") is not True:
            return Runner(None, "which runner AITER's FP8 experts get in this SGLang")
        return made
    if backend in ("flashinfer_cutlass", "flashinfer_cutedsl"):
        falls_back = ask("fp8_cutlass_falls_back_to_triton")
        if falls_back is None:
            return Runner(None, f"what FP8 experts do under {backend} in this SGLang")
        if falls_back:
            return _triton(f"FP8 experts have no {backend} path, so this SGLang runs them on Triton")
        return Runner(backend, f"FP8 experts have no runner under {backend} in this SGLang")
    if backend in ("auto", "triton"):
        return _default(query)
    return Runner(backend, f"--moe-runner-backend resolves to {backend}")


def _modelopt_fp8(query: Query, ask: Ask) -> Runner:
    if query.backend in _TRTLLM or query.backend == "flashinfer_cutlass":
        return Runner(query.backend, f"--moe-runner-backend resolves to {query.backend}")
    return _default(query)


def _ct_fp8(query: Query, ask: Ask) -> Runner:
    if query.backend in _TRTLLM:
        return Runner(query.backend, f"--moe-runner-backend resolves to {query.backend}")
    if made := _aiter(query):
        return (
            Runner(None, "whether AITER takes these compressed-tensors experts")
            if query.backend == "auto"
            else made
        )
    return (
        _default(query)
        if query.backend in ("auto", "triton")
        else Runner(None, f"CT FP8 under {query.backend}")
    )


def _ct_wna16(query: Query, ask: Ask) -> Runner:
    if query.platform == "hip" or query.backend == "triton":
        return Runner("triton", "compressed-tensors WNA16 experts run weight-only", weight_only=True)
    if query.backend == "flashinfer_trtllm" and query.group == 32:
        return Runner(
            query.backend, "FlashInfer's TRT-LLM kernel takes int4 in groups of 32", weight_only=True
        )
    return Runner("marlin", "compressed-tensors WNA16 experts run on Marlin", weight_only=True)


def _quark_fp8(query: Query, ask: Ask) -> Runner:
    if _aiter(query) is None:
        return _default(query)
    known = ask("quark_fp8_aiter")
    if known is None:
        return Runner(None, "whether Quark FP8 experts can use AITER in this SGLang")
    return Runner(None, "whether AITER takes these Quark FP8 experts") if known else _default(query)


def _mxfp4(query: Query, ask: Ask) -> Runner:
    if query.backend == "triton":
        return _triton("--moe-runner-backend triton dequantizes MXFP4 experts to bf16 for Triton")
    if made := _aiter(query):
        return made
    if query.backend == "auto":
        return Runner(None, "the runner of MXFP4 experts under auto")
    return Runner(query.backend, f"--moe-runner-backend resolves to {query.backend}")


def _mxfp8(query: Query, ask: Ask) -> Runner:
    return _explicit(query.backend) or Runner(None, "the runner of MXFP8 experts")


def _fp4(query: Query) -> Runner:
    if query.backend not in ("auto", "triton"):
        return Runner(query.backend, f"--moe-runner-backend resolves to {query.backend}")
    name = "marlin" if query.sm is not None and query.sm < 100 else "flashinfer_trtllm"
    return Runner(name, f"{query.kind} experts never run on Triton")


_TABLE: Mapping[str, Callable[[Query, Ask], Runner]] = {
    "unquantized": _unquantized,
    "fp8": _fp8,
    "modelopt_fp8": _modelopt_fp8,
    "ct_fp8": _ct_fp8,
    "ct_wna16": _ct_wna16,
    "quark_fp8": _quark_fp8,
    "mxfp4": _mxfp4,
    "mxfp8": _mxfp8,
}
