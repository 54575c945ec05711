"""One MoE layer on this GPU: inputs, an fp32 reference, and calls into SGLang's `fused_experts`."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sglang_guards.bench.shapes import BLOCK, MoeShape


class Weights:
    """Random expert weights of one shape, fp8 with block scales or 16 bit."""

    def __init__(self, shape: MoeShape, device: str = "cuda", seed: int = 0) -> None:
        import torch

        self.shape = shape
        self.torch = torch
        generator = torch.Generator(device=device).manual_seed(seed)
        self.dtype = torch.float16 if shape.dtype == "fp16" else torch.bfloat16

        def matrix(rows: int, columns: int) -> tuple[Any, Any]:
            full = torch.empty(
                shape.experts,
                rows,
                columns,
                device=device,
                dtype=torch.float8_e4m3fn if shape.dtype == "fp8" else self.dtype,
            )
            for expert in range(shape.experts):
                values = torch.randn(rows, columns, device=device, generator=generator)
                full[expert] = (values if shape.dtype == "fp8" else values / columns**0.5).to(full.dtype)
            if shape.dtype != "fp8":
                return full, None
            scale = torch.rand(
                shape.experts, rows // BLOCK, columns // BLOCK, device=device, generator=generator
            )
            return full, (scale + 0.5) / columns**0.5

        self.w1, self.s1 = matrix(2 * shape.inter, shape.hidden)
        self.w2, self.s2 = matrix(shape.hidden, shape.inter)

    def expert(self, which: Any) -> tuple[Any, Any]:
        """Both matrices of the experts `which` (a tensor of ids), in fp32."""
        out = []
        for weights, scales in ((self.w1, self.s1), (self.w2, self.s2)):
            full = weights[which].float()
            if scales is not None:
                full *= scales[which].repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
            out.append(full)
        return out[0], out[1]


class Batch:
    """Hidden states and routes of `tokens` tokens for one set of weights."""

    def __init__(self, weights: Weights, tokens: int, *, routing: str = "uniform", seed: int = 1) -> None:
        torch, shape = weights.torch, weights.shape
        self.weights, self.tokens = weights, tokens
        device = weights.w1.device
        generator = torch.Generator(device=device).manual_seed(seed + tokens)
        self.hidden = torch.randn(tokens, shape.hidden, device=device, generator=generator).to(weights.dtype)
        logits = torch.rand(tokens, shape.experts, device=device, generator=generator)
        if routing == "zipf":  # a few experts get most of the tokens
            popularity = torch.arange(1, shape.experts + 1, device=device, dtype=torch.float32).pow(-1.0)
            logits = popularity.log() - (-logits.clamp(1e-6, 1 - 1e-6).log()).log()
        elif routing != "uniform":
            raise ValueError(f"routing is uniform or zipf, not {routing!r}")
        top = logits.topk(shape.top_k, dim=1)
        self.ids = top.indices.to(torch.int32)
        self.route_weights = torch.rand(tokens, shape.top_k, device=device, generator=generator)
        self.route_weights /= self.route_weights.sum(1, keepdim=True)
        self.logits = logits

    def reference(self, rows: Any) -> Any:
        """fp32 result of the tokens `rows`, from the same (dequantized) weights; local experts only (id -1: none)."""
        torch = self.weights.torch
        x = self.hidden[rows].float()
        out = torch.zeros_like(x)
        for slot in range(self.ids.shape[1]):
            ids = self.ids[rows, slot].long()
            w1, w2 = self.weights.expert(ids.clamp(min=0))
            both = torch.bmm(w1, x.unsqueeze(2)).squeeze(2)
            gate, up = both.chunk(2, dim=1)
            y = torch.bmm(w2, (torch.nn.functional.silu(gate) * up).unsqueeze(2)).squeeze(2)
            out += y * (self.route_weights[rows, slot] * (ids >= 0)).unsqueeze(1)
            del w1, w2
        return out

    def call(self, module: ModuleType, *, inplace: bool = False, local_experts: int | None = None) -> Any:
        """SGLang's own `fused_experts` of `module` on this batch. `local_experts` below the total filters experts."""
        from sglang.srt.layers.moe import MoeRunnerConfig
        from sglang.srt.layers.moe.topk import StandardTopKOutput

        shape = self.weights.shape
        local = shape.experts if local_experts is None else local_experts
        config = MoeRunnerConfig(
            num_experts=shape.experts,
            num_local_experts=local,
            inplace=inplace,
            top_k=shape.top_k,
            hidden_size=shape.hidden,
        )
        fp8 = shape.dtype == "fp8"
        return module.fused_experts(
            self.hidden,
            self.weights.w1,
            self.weights.w2,
            StandardTopKOutput(self.route_weights, self.ids, self.logits),
            config,
            use_fp8_w8a8=fp8,
            w1_scale=self.weights.s1,
            w2_scale=self.weights.s2,
            block_shape=[BLOCK, BLOCK] if fp8 else None,
        )


def relative(a: Any, b: Any) -> float:
    """Norm of the difference over the norm of `b`; NaN where either is."""
    return float((a.float() - b.float()).norm() / b.float().norm())
