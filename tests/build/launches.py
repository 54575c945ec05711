"""Launches whose build is known: the release, the machine, and what SGLang's own constructors say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Case:
    """One launch and what its build must say."""

    name: str
    release: str
    gpu: str
    model: str
    args: tuple[str, ...]
    status: str
    #: A part of SGLang's words, or of our reason.
    says: str = ""
    when: str = "build"
    #: count, method and runner of the MoE layers of target rank 0.
    layers: tuple[int, str, str] | None = None
    gib: float | None = None
    finding: str = ""
    env: dict[str, str] = field(default_factory=dict)

    def launch(self) -> dict[str, Any]:
        argv = ["python", "-m", "sglang.launch_server", "--model-path", f"some/{self.model}", *self.args]
        return {"argv": argv, "gpu": self.gpu, "model": self.model, "env": self.env or None, "build": True}


CASES = (
    Case(
        "adapters on attention", "0.5.15", "4xH100", "qwen3-30b-a3b",
        ("--tp", "4", "--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", "q_proj", "o_proj"),
        "built", layers=(48, "UnquantizedFusedMoEMethod", "triton"),
    ),
    Case(
        "adapters on experts of a runner that knows none", "0.5.15", "8xH100", "gpt-oss-20b",
        ("--tp", "2", "--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", "all",
         "--lora-backend", "triton"),
        "refused", "LoRA MoE not supported for backend", when="load", finding="BLD101",
    ),
    Case(
        "the same in the newest release", "0.5.23", "8xH100", "gpt-oss-20b",
        ("--tp", "2", "--enable-lora", "--max-lora-rank", "16", "--lora-target-modules", "all",
         "--lora-backend", "triton"),
        "refused", when="load", finding="BLD101",
    ),
    Case(
        "a bf16 model over 8 ranks", "0.5.15", "8xH200", "qwen3-30b-a3b", ("--tp", "8"), "built",
        layers=(48, "UnquantizedFusedMoEMethod", "triton"), gib=7.2,
    ),
    Case(
        "blocks that do not divide", "0.5.15", "8xH200", "qwen3-coder-480b-a35b-fp8", ("--tp", "8"), "refused",
        "= 320 is not divisible by weight quantization block_n = 128", finding="BLD101",
    ),
    Case(
        "the same with expert parallelism", "0.5.23", "8xH200", "qwen3-coder-480b-a35b-fp8",
        ("--tp", "8", "--ep-size", "8"), "built", layers=(62, "Fp8MoEMethod", "triton"), gib=56.4,
    ),
    Case(
        "a runner without a function for the all-to-all backend", "0.5.16", "8xH200", "deepseek-v4-flash",
        ("--tp", "8", "--dp", "8", "--enable-dp-attention", "--moe-a2a-backend", "deepep",
         "--moe-runner-backend", "marlin"),
        "refused", "requires a fused func for a2a backend deepep", finding="BLD101",
    ),
    Case(
        "a method without a branch for the runner", "0.5.17", "1xH100", "gpt-oss-20b",
        ("--moe-runner-backend", "flashinfer_cutlass"), "built",
        layers=(24, "Mxfp4MoEMethod", ""), finding="BLD102",
    ),
    Case(
        "a method that needs no runner", "0.5.19", "8xH20", "deepseek-r1-w4afp8", ("--tp", "8", "--ep-size", "8"),
        "built", layers=(58, "W4AFp8MoEMethod", ""), gib=43.6,
    ),
    Case(
        "an attention backend that the hybrid model does not take", "0.5.17", "1xB300", "qwen3.5-35b-a3b",
        ("--tp", "1", "--attention-backend", "flashinfer"), "refused",
        "backends are supported on Blackwell GPUs for hybrid GDN models", when="load", finding="BLD101",
    ),
    Case(
        "the same where the runner notes its backends first", "0.5.18", "1xB300", "qwen3.5-35b-a3b",
        ("--tp", "1", "--attention-backend", "flashinfer"), "refused",
        "backends are supported on Blackwell GPUs for hybrid GDN models", when="load", finding="BLD101",
    ),
    Case(
        "a model whose kernels write tables of options", "0.5.15", "8xH200", "deepseek-v4-flash",
        ("--tp", "8", "--dp", "8", "--enable-dp-attention", "--moe-a2a-backend", "deepep",
         "--moe-runner-backend", "marlin"),
        "refused", "requires a fused func for a2a backend deepep", finding="BLD101",
    ),
    Case(
        "the same where the release takes it", "0.5.21", "1xB300", "qwen3.5-35b-a3b",
        ("--tp", "1", "--attention-backend", "flashinfer"), "built",
        layers=(40, "UnquantizedFusedMoEMethod", "flashinfer_trtllm"),
    ),
    Case(
        "weights that leave nothing", "0.5.19", "8xRTX5090", "deepseek-v3", ("--tp", "8"), "refused",
        "leave no GPU memory for the KV cache", when="memory", finding="BLD103",
    ),
    Case(
        "an all-to-all backend that needs DeepGEMM", "0.5.19", "8xH200", "deepseek-v3",
        ("--tp", "8", "--moe-a2a-backend", "deepep"), "built", layers=(58, "Fp8MoEMethod", "deep_gemm"),
    ),
)  # fmt: skip
