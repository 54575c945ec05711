"""One rank's MoE shape, from a config.json and the parallel sizes, and the default set of the benchmarks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_guards.launch.checkpoint import model_facts

#: Rows and columns of one scale in block-quantized fp8.
BLOCK = 128


@dataclass(frozen=True)
class MoeShape:
    """What one rank computes per MoE layer. `dtype` is bf16, fp16 or fp8 (block 128 × 128); `top_k` includes fused
    shared experts."""

    name: str
    experts: int
    inter: int
    hidden: int
    top_k: int
    dtype: str = "bf16"

    @property
    def key(self) -> str:
        """The shape alone, as profiles and shipped results are keyed (the same as `measured.shape_key`)."""
        return f"E{self.experts}-N{self.inter}-H{self.hidden}-K{self.top_k}-{self.dtype}"

    @property
    def valid(self) -> bool:
        """False where block-quantized weights cannot be split this far: SGLang refuses them after loading."""
        return self.inter > 0 and (
            self.dtype != "fp8" or (self.inter % BLOCK == 0 and self.hidden % BLOCK == 0)
        )

    # -- what the layer must do at least -------------------------------------------------------------------------

    def flops(self, tokens: int) -> int:
        """Operations of both matrix products, a multiply-add counted as two."""
        return 2 * tokens * self.top_k * self.inter * self.hidden * 3

    def bytes_moved(self, tokens: int, *, fused: bool) -> int:
        """Bytes that must go through device memory if each tensor is touched once: weights of the experts that
        `tokens` reach under uniform routing, activations, and the combine."""
        wide = 1 if self.dtype == "fp8" else 2
        routes = tokens * self.top_k
        reached = self.experts * (1 - (1 - 1 / self.experts) ** routes)
        weights = reached * self.inter * self.hidden * 3 * wide
        inside = routes * self.inter * 2 * 3 * 2  # gate_up written and read, activation written and read
        ends = tokens * self.hidden * 2 * 2
        combine = tokens * self.hidden * 2 if fused else routes * self.hidden * 2 * 2
        return int(weights + inside + ends + combine)

    def cache3_bytes(self, tokens: int) -> int:
        """The buffer [tokens, top_k, hidden] that the fused sum does not need (SGLang allocates it all the same)."""
        return tokens * self.top_k * self.hidden * 2


def from_config(path: Path, *, tp: int, ep: int = 1, dtype: str | None = None) -> MoeShape:
    """The shape of a model folder or config.json at a TP and EP size.

    Raises ValueError when the config names no experts, a size is missing, or the sizes do not divide.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read {file}: {error}") from None
    facts = model_facts(config)
    if not facts["is_moe"]:
        raise ValueError(f"{file} describes no mixture of experts")
    missing = [name for name in ("moe_intermediate_size", "hidden_size", "top_k") if not facts.get(name)]
    if missing:
        raise ValueError(f"{file} does not say {', '.join(missing)}")
    if (
        tp < 1
        or ep < 1
        or tp % ep
        or facts["num_experts"] % ep
        or facts["moe_intermediate_size"] % (tp // ep)
    ):
        raise ValueError(
            f"{facts['num_experts']} experts of {facts['moe_intermediate_size']} do not split at TP {tp}, EP {ep}"
        )
    kind = dtype or (
        "fp8"
        if "fp8" in str(facts["quant_kind"])
        else {"float16": "fp16"}.get(str(facts.get("dtype")), "bf16")
    )
    name = str(facts.get("architecture") or file.parent.name)
    inter = facts["moe_intermediate_size"] // (tp // ep)
    return MoeShape(
        f"{name}-tp{tp}", facts["num_experts"] // ep, inter, facts["hidden_size"], facts["top_k"], kind
    )


#: (name, experts, intermediate size, hidden size, top-k); fused shared experts counted where SGLang fuses them.
_MODELS = (
    ("Qwen3-235B-A22B", 128, 1536, 4096, 8),
    ("Qwen3.5-122B-A10B", 256, 1024, 3072, 8),
    ("Qwen3.5-397B-A17B", 512, 1024, 4096, 10),
    ("Qwen3-30B-A3B", 128, 768, 2048, 8),
    ("GLM-4.6", 161, 1536, 5120, 9),
    ("DeepSeek-V3", 257, 2048, 7168, 9),
    ("MiniMax-M2", 256, 1536, 3072, 8),
)

#: Shards at TP 4 and 8 in bf16 and, where the blocks divide, fp8.
DEFAULT_SHAPES: tuple[MoeShape, ...] = tuple(
    shape
    for tp in (4, 8)
    for name, experts, inter, hidden, top_k in _MODELS
    for dtype in ("fp8", "bf16")
    if (shape := MoeShape(f"{name}-tp{tp}", experts, inter // tp, hidden, top_k, dtype)).valid
)
TOKENS: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
