"""Runner arms: one shape through SGLang's own MoE layer, with each runner that the installed release has for it.

Every arm is a `FusedMoE` with the real quantization method, so that permutation, activation and combine are SGLang's.
The Triton arms take their `fused_experts` from the copies of cell.Arms (default, flag, patched), so that one table
answers both questions: which runner, and whether the flag.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

from sglang_guards.bench import cell, kernels, layer
from sglang_guards.bench.shapes import BLOCK

#: Runners that may serve experts of this kind on an NVIDIA GPU, besides Triton.
CANDIDATES: Mapping[str, tuple[str, ...]] = {
    "fp8": ("cutlass", "deep_gemm", "flashinfer_cutlass", "flashinfer_trtllm", "marlin", "hpc_ops"),
    "bf16": ("triton_kernel", "deep_gemm", "flashinfer_cutlass", "flashinfer_trtllm"),
    "fp16": ("triton_kernel", "flashinfer_cutlass"),
}
#: Runners whose kernels exist for some GPUs only: compute capability from, and below.
GPUS = {"flashinfer_trtllm": (100, 120), "hpc_ops": (90, 100)}


def offered() -> tuple[str, ...]:
    """The values of --moe-runner-backend in the installed release."""
    for module in ("sglang.srt.arg_groups.choices", "sglang.srt.server_args"):
        with suppress(ImportError, AttributeError):
            return tuple(importlib.import_module(module).MOE_RUNNER_BACKEND_CHOICES)
    return ()


def select(name: str) -> None:
    """Make `name` the runner of layers that are built or called from here on."""
    from sglang.srt.layers.moe import utils

    backend = utils.MoeRunnerBackend(name)
    if hasattr(utils, "MOE_RUNNER_BACKEND"):  # a module variable up to 0.5.15
        utils.MOE_RUNNER_BACKEND = backend
        return
    from sglang.srt.runtime_context import get_flags

    get_flags().moe.runner_backend = backend


def build(weights: layer.Weights, backend: str) -> Any:
    """SGLang's MoE layer for one runner with these weights, ready to be called."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    shape = weights.shape
    select(backend)
    quant = None
    if shape.dtype == "fp8":
        from sglang.srt.layers.quantization.fp8 import Fp8Config

        quant = Fp8Config(
            is_checkpoint_fp8_serialized=True, activation_scheme="dynamic", weight_block_size=[BLOCK, BLOCK]
        )
    with torch.device("cuda"):
        made = FusedMoE(
            num_experts=shape.experts,
            hidden_size=shape.hidden,
            intermediate_size=shape.inter,
            layer_id=0,
            top_k=shape.top_k,
            params_dtype=weights.dtype,
            quant_config=quant,
            prefix="model.layers.0.mlp.experts",
            inplace=False,
        )
        w1, s1 = weights.w1, weights.s1
        if getattr(made.quant_method, "load_up_proj_weight_first", False):
            w1 = _halves_swapped(w1)
            s1 = None if s1 is None else _halves_swapped(s1)
        values = {"w13_weight": w1, "w2_weight": weights.w2,
                  "w13_weight_scale_inv": s1, "w2_weight_scale_inv": weights.s2}  # fmt: skip
        for name, parameter in made.named_parameters():
            value = values.get(name)
            if value is not None:  # Triton kernels keep the transposed matrix
                same = parameter.shape == value.shape
                parameter.data.copy_(value if same else value.transpose(1, 2))
        with torch.no_grad():
            made.quant_method.process_weights_after_loading(made)
    return made


def _halves_swapped(matrix: Any) -> Any:
    import torch

    first, second = matrix.chunk(2, dim=1)
    return torch.cat((second, first), dim=1)


def used_runner(made: Any, asked: str) -> str:
    """The runner that a built layer really has; `asked` where it keeps none (its method calls the kernel itself)."""
    backend = getattr(getattr(made.quant_method, "runner", None), "runner_backend", None)
    return str(getattr(backend, "value", asked))


def reason_of(error: BaseException) -> str:
    """One line that says why an arm cannot run."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"[:300]


def _logits_of(batch: layer.Batch) -> Any:
    """Router logits whose top-k and softmax are the batch's routes: Triton kernels do both themselves."""
    logits = batch.logits.new_full(batch.logits.shape, -1e4)
    return logits.scatter_(1, batch.ids.long(), batch.route_weights.log())


def _sorted_routes(logits: Any, top_k: int) -> Any:
    """Top-k as SGLang makes it for Triton kernels; the sorting that others do inside is timed with it."""
    from sglang.srt.layers.moe import topk

    return topk.TritonKernelTopKOutput(*topk.routing(logits, top_k, sm_first=False))


class RunnerArms:
    """Layers of one shape by runner. `reasons` holds what cannot run and why; `calls` has the keys of cell.Arms
    (through SGLang's layer and its Triton runner) and each other runner."""

    def __init__(self, arms: cell.Arms, weights: layer.Weights, names: Iterable[str] | None = None) -> None:
        import torch

        self.arms, self.weights = arms, weights
        self.reasons: dict[str, str] = {}
        self.layers: dict[str, Any] = {}
        self.sequence: Any = importlib.import_module(kernels.names(arms.tree)[0])
        known = offered()
        major, minor = torch.cuda.get_device_capability(0)
        sm = major * 10 + minor
        kind = weights.shape.dtype
        wanted = list(names) if names is not None else list(CANDIDATES[kind])
        for name in ["triton", *wanted]:
            low, high = GPUS.get(name, (0, 999))
            if name not in known:
                self.reasons[name] = "this release has no such runner"
                continue
            if not low <= sm < high:
                self.reasons[name] = f"its kernels are for SM{low} to below SM{high}, this GPU is SM{sm}"
                continue
            try:
                made = build(weights, name)
                if (used := used_runner(made, name)) != name:
                    self.reasons[name] = f"SGLang runs these experts on {used} instead"
                    continue
                self.layers[name] = made
                self._check(name)
            except torch.cuda.OutOfMemoryError:
                raise
            except Exception as error:  # what a runner raises is the answer for that runner
                self.layers.pop(name, None)
                self.reasons[name] = reason_of(error)
        if "triton" not in self.layers:
            raise ValueError(f"SGLang's own Triton layer: {self.reasons['triton']}")

    def _check(self, name: str) -> None:
        import torch

        batch = layer.Batch(self.weights, 16)
        got = self._runner_call(name, batch)()
        torch.cuda.synchronize()
        rows = torch.arange(8, device=got.device)
        error = layer.relative(got[rows], batch.reference(rows))
        if not error < cell.TOLERANCE[self.weights.shape.dtype]:
            raise ValueError(f"its result is wrong here (relative error {error:.2g} at 16 tokens)")

    def calls(self, batch: layer.Batch) -> dict[str, Callable[[], Any]]:
        """Every arm that can run, as a call on this batch."""
        key = self.weights.shape.key
        out = {
            name: self._triton_call(module, batch)
            for name, module in self.arms.modules.items()
            if name not in self.arms.only or key in self.arms.only[name]
        }
        return out | {name: self._runner_call(name, batch) for name in self.layers if name != "triton"}

    def _runner_call(self, name: str, batch: layer.Batch) -> Callable[[], Any]:
        import torch
        from sglang.srt.layers.moe.topk import StandardTopKOutput

        made = self.layers[name]
        logits = _logits_of(batch) if name == "triton_kernel" else None

        def call() -> Any:
            select(name)
            # A view: some runners free the storage of the tensor that they are given.
            hidden = batch.hidden[:]
            with torch.no_grad():
                if logits is not None:
                    return made(hidden, _sorted_routes(logits, batch.ids.shape[1]))
                return made(hidden, StandardTopKOutput(batch.route_weights, batch.ids, batch.logits))

        return call

    def _triton_call(self, module: Any, batch: layer.Batch) -> Callable[[], Any]:
        through_layer = self._runner_call("triton", batch)

        def call() -> Any:
            real = self.sequence.fused_experts
            self.sequence.fused_experts = module.fused_experts  # the runner looks it up at each call
            try:
                return through_layer()
            finally:
                self.sequence.fused_experts = real

        return call
