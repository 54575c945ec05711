"""Small MoE problems in every quantization that reaches SGLang's Triton runner, run through SGLang's own entry points.

`run` places the output inside a larger buffer of a sentinel value, so that a store out of bounds is seen, and reports
whether SGLang asked for the fused sum in any kernel launch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

EXPERTS, INTER, HIDDEN = 8, 128, 256
GUARD = 7.0
#: How experts may be quantized -> the name that `model_facts.quant_kind` has for a checkpoint like that.
KINDS = {
    "bf16": "unquantized",
    "fp16": "unquantized",
    "fp8_block": "fp8",
    "fp8_tensor": "fp8",
    "fp8_channel": "ct_fp8",
    "int8": "w8a8_int8",
    "int8_weight_only": "moe_wna16",
    "int4_weight_only": "moe_wna16",
}


@dataclass(frozen=True)
class Experts:
    """Both weight matrices, their scales and the keyword arguments that `fused_experts` takes for them."""

    w1: Any
    w2: Any
    dtype: Any
    options: dict[str, Any]


@functools.cache
def experts(kind: str) -> Experts:
    """Random experts of one kind, equal in every process."""
    import torch

    generator = torch.Generator(device="cuda").manual_seed(5)
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16

    def make(rows: int, columns: int) -> tuple[Any, Any]:
        full = torch.randn(EXPERTS, rows, columns, device="cuda", generator=generator) / columns**0.5
        if kind in ("bf16", "fp16"):
            return full.to(dtype), None
        if kind == "fp8_block":
            blocks = full.unflatten(1, (rows // 128, 128)).unflatten(3, (columns // 128, 128))
            scale = blocks.abs().amax(dim=(2, 4)) / 448
            return (blocks / scale[:, :, None, :, None]).flatten(3, 4).flatten(1, 2).to(
                torch.float8_e4m3fn
            ), scale
        if kind == "fp8_tensor":
            scale = full.abs().amax(dim=(1, 2)) / 448
            return (full / scale[:, None, None]).to(torch.float8_e4m3fn), scale
        if kind == "fp8_channel":
            scale = full.abs().amax(dim=2, keepdim=True) / 448
            return (full / scale).to(torch.float8_e4m3fn), scale
        if kind in ("int8", "int8_weight_only"):
            scale = full.abs().amax(dim=2, keepdim=True) / 127
            values = (full / scale).round().to(torch.int8)
            return values, scale if kind == "int8" else scale.squeeze(2)
        groups = full.unflatten(2, (columns // 64, 64))
        scale = groups.abs().amax(dim=3) / 7
        nibbles = ((groups / scale[..., None]).round() + 8).clamp(0, 15).flatten(2).to(torch.uint8)
        return nibbles[..., 0::2] | (nibbles[..., 1::2] << 4), scale.to(dtype)

    (w1, s1), (w2, s2) = make(2 * INTER, HIDDEN), make(HIDDEN, INTER)
    options: dict[str, Any] = {"w1_scale": s1, "w2_scale": s2}
    by_kind: dict[str, dict[str, Any]] = {
        "fp8_block": {"use_fp8_w8a8": True, "block_shape": [128, 128]},
        "fp8_tensor": {"use_fp8_w8a8": True},
        "fp8_channel": {"use_fp8_w8a8": True, "per_channel_quant": True},
        "int8": {"use_int8_w8a8": True, "per_channel_quant": True},
        "int8_weight_only": {"use_int8_w8a16": True},
        "int4_weight_only": {"use_int4_w4a16": True, "block_shape": [0, 64]},
    }
    return Experts(w1, w2, dtype, options | by_kind.get(kind, {}))


def dequantized(made: Experts, kind: str) -> tuple[Any, Any]:
    """Both weight matrices in fp32, as the kernel reads them."""
    import torch

    out = []
    for matrix, scale in ((made.w1, made.options["w1_scale"]), (made.w2, made.options["w2_scale"])):
        if kind == "int4_weight_only":
            full = torch.stack((matrix & 15, matrix >> 4), dim=3).flatten(2).float() - 8
            full *= scale.float().repeat_interleave(64, 2)
        else:
            full = matrix.float()
            if kind == "fp8_block":
                full *= scale.repeat_interleave(128, 1).repeat_interleave(128, 2)
            elif scale is not None:
                full *= scale.float().reshape(EXPERTS, -1, 1)
        out.append(full)
    return out[0], out[1]


@dataclass(frozen=True)
class Problem:
    """What is run. `filtered`: half of the experts live elsewhere (id -1). `hook`: a LoRA hook adds 1 to each route."""

    kind: str
    tokens: int
    top_k: int
    filtered: bool = False
    hook: bool = False
    through_core: bool = False


@dataclass(frozen=True)
class Observed:
    """`out` of shape [tokens, hidden]; `guard_rows` overwritten behind it; `fused`: SGLang asked for the fused sum;
    `error` against fp32."""

    out: Any
    guard_rows: int
    fused: bool
    error: float


@functools.cache
def setup() -> None:
    """Server arguments for this process."""
    from sglang_guards.bench import process

    process.set_up()


def leave_behind() -> None:
    """Fill the free blocks of PyTorch's allocator with FP8 activations, as any layer of an FP8 model leaves them."""
    import torch

    kept = [
        (torch.randn(size, device="cuda") * 8).to(torch.float8_e4m3fn).clone()
        for size in (2**n for n in range(12, 24))
        for _ in range(3)
    ]
    torch.cuda.synchronize()
    del kept


def original() -> ModuleType:
    """SGLang's own sequence module, unchanged."""
    import importlib

    from sglang_guards.bench import kernels

    setup()
    return importlib.import_module(kernels.names(kernels.root())[0])


@contextmanager
def flag_set(module: ModuleType, value: bool) -> Iterator[None]:
    """The flag as this module sees it, for the block."""
    from sglang_guards.bench import kernels

    names = [n for n in ("get_global_server_args", "get_server_args", "get_exec") if hasattr(module, n)]
    before = {name: getattr(module, name) for name in names}
    kernels.set_flag(module, value)
    try:
        yield
    finally:
        for name, real in before.items():
            setattr(module, name, real)


@contextmanager
def _watched(module: ModuleType) -> Iterator[list[bool]]:
    """Collects `fuse_sum_all_reduce` of every kernel launch."""
    real: Callable[..., Any] = module.invoke_fused_moe_kernel
    seen: list[bool] = []

    def watch(*args: Any, **kwargs: Any) -> Any:
        seen.append(bool(kwargs.get("fuse_sum_all_reduce", False)))
        return real(*args, **kwargs)

    module.invoke_fused_moe_kernel = watch  # type: ignore[attr-defined]
    try:
        yield seen
    finally:
        module.invoke_fused_moe_kernel = real  # type: ignore[attr-defined]


def run(
    problem: Problem,
    flag: bool,
    module: ModuleType | None = None,
    seed: int = 3,
    *,
    used_memory: bool = False,
) -> Observed:
    """Run one problem in place, inside a guarded buffer, with the flag on or off; `used_memory` leaves something in
    the free memory first."""
    import torch

    module = module or original()
    setup()
    made = experts(problem.kind)
    generator = torch.Generator(device="cuda").manual_seed(seed)
    guard = problem.tokens * problem.top_k
    buffer = torch.full((problem.tokens + guard, HIDDEN), GUARD, device="cuda", dtype=made.dtype)
    hidden = buffer[: problem.tokens]
    hidden.copy_(torch.randn(problem.tokens, HIDDEN, device="cuda", generator=generator))
    scores = torch.rand(problem.tokens, EXPERTS, device="cuda", generator=generator)
    ids = scores.topk(problem.top_k, dim=1).indices.int()
    weights = torch.rand(problem.tokens, problem.top_k, device="cuda", generator=generator) + 0.1
    if problem.filtered:
        ids = torch.where(ids < EXPERTS // 2, ids, torch.full_like(ids, -1))
    reference = _reference(problem, made, hidden, weights, ids)
    if used_memory:
        leave_behind()
    with flag_set(module, flag), _watched(module) as seen:
        out = _call(module, problem, made, hidden, weights, ids, scores)
        torch.cuda.synchronize()
    touched = int((buffer[problem.tokens :] != GUARD).any(1).sum())
    shift = problem.top_k if problem.hook else 0  # a hook adds 1 to each route; it must not hide an error
    error = float((out.float() - shift - reference).norm() / reference.norm())
    return Observed(out.clone(), touched, any(seen), error)


def _reference(problem: Problem, made: Experts, hidden: Any, weights: Any, ids: Any) -> Any:
    """fp32 result of the local experts, without a hook."""
    import torch

    w1, w2 = dequantized(made, problem.kind)
    x, out = hidden.float(), torch.zeros_like(hidden, dtype=torch.float32)
    for expert in range(EXPERTS):
        gate, up = (x @ w1[expert].T).chunk(2, dim=1)
        share = (weights * (ids == expert)).sum(1, keepdim=True)
        out += share * ((torch.nn.functional.silu(gate) * up) @ w2[expert].T)
    return out


def _call(
    module: ModuleType, problem: Problem, made: Experts, hidden: Any, weights: Any, ids: Any, scores: Any
) -> Any:
    from sglang.srt.layers.moe import MoeRunnerConfig
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    local = EXPERTS // 2 if problem.filtered else EXPERTS
    config = MoeRunnerConfig(
        num_experts=EXPERTS, num_local_experts=local, top_k=problem.top_k, hidden_size=HIDDEN, inplace=True
    )
    if not (problem.through_core or problem.hook):
        topk = StandardTopKOutput(weights, ids, scores)
        return module.fused_experts(hidden, made.w1, made.w2, topk, config, **made.options)
    return _through_core(module, problem, made, config, hidden, weights, ids)


def _through_core(
    module: ModuleType, problem: Problem, made: Experts, config: Any, hidden: Any, weights: Any, ids: Any
) -> Any:
    """The way of LoRA and of dispatchers other than the standard one: prepare, then the whole sequence with hooks."""
    flags = ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16", "per_channel_quant")
    quant = {name: made.options.get(name, False) for name in flags}
    quant["block_shape"] = made.options.get("block_shape")
    prepared = module._prepare_fused_moe_run(hidden, made.w1, made.w2, ids, **quant)
    tile, down_tile, *rest = prepared
    tma = [part for part in rest if isinstance(part, bool)]
    sorting = [part for part in rest if not isinstance(part, bool)]

    def after_down(inside: Any, routes: Any, *_: Any) -> None:
        if routes is not None and routes.shape[-1]:
            routes += 1

    hooks = SimpleNamespace(after_gate_up=None, after_down=after_down) if problem.hook else None
    extra = dict.fromkeys(
        ("b1", "b2", "w1_zp", "w2_zp", "a1_scale", "a2_scale", "gemm1_alpha", "gemm1_limit")
    )
    return module._fused_moe_kernel_sequence(
        hidden, made.w1, made.w2, weights, ids, *sorting, tile, down_tile, *tma,
        **quant, **extra, w1_scale=made.options["w1_scale"], w2_scale=made.options["w2_scale"],
        activation="silu", is_gated=True, no_combine=False, inplace=True, apply_router_weight_on_input=False,
        routed_scaling_factor=None, filter_expert=problem.filtered, hooks=hooks,
    )  # fmt: skip
