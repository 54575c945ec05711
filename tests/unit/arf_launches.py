"""Launches for the all-reduce-fusion rules, built from facts over the source tree of a real release."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sglang_guards import source as engine
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.source.tree import Source
from tests.trees import tree

GPUS: Mapping[str, tuple[str, int | None, str]] = {
    "H100": ("cuda", 90, "NVIDIA H100 80GB HBM3"),
    "H20": ("cuda", 90, "NVIDIA H20"),
    "H200": ("cuda", 90, "NVIDIA H200"),
    "H200NVL": ("cuda", 90, "NVIDIA H200 NVL"),
    "B200": ("cuda", 100, "NVIDIA B200"),
    "B300": ("cuda", 103, "NVIDIA B300 SXM6 AC"),
    "GB200": ("cuda", 100, "NVIDIA GB200"),
    "GB300": ("cuda", 103, "NVIDIA GB300"),
    "RTX": ("cuda", 120, "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
    "L40S": ("cuda", 89, "NVIDIA L40S"),
    "MI300X": ("hip", None, "AMD Instinct MI300X"),
}
_DEFAULTS: dict[str, Any] = {
    "tp_size": 4,
    "ep_size": 1,
    "pp_size": 1,
    "dp_size": 1,
    "nnodes": 1,
    "moe_a2a_backend": "none",
    "enable_dp_attention": False,
    "enable_deterministic_inference": False,
    "rl_on_policy_target": None,
    "speculative_algorithm": None,
    "cuda_graph_backend_prefill": None,
    "enforce_disable_flashinfer_allreduce_fusion": False,
}
_PACKAGES = ("flashinfer-python", "flashinfer-jit-cache", "flashinfer-cubin")


@cache
def source(release: str) -> Source:
    found = engine.find(tree(release))
    assert found is not None
    return found


def launch(
    release: str,
    gpu: str = "H200",
    arch: str = "Qwen3MoeForCausalLM",
    *,
    fusion: str | None = None,
    given: bool = True,
    model: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    packages: Mapping[str, str] | None = None,
    tree_source: Source | None = None,
    **args: Any,
) -> Launch:
    """`fusion` is off, on (the switch or «auto») or a backend; `given` says who set it."""
    platform, sm, name = GPUS[gpu]
    facts = {f"args.{key}": Fact(value, "default") for key, value in (_DEFAULTS | args).items()}
    origin = "given" if given and fusion else "resolved" if fusion else "default"
    where = tree_source or source(release)
    if where.ask("fusion_backend_flag_exists").value:
        value: object = "auto" if fusion == "on" else fusion
        facts["args.flashinfer_allreduce_fusion_backend"] = Fact(value, origin)
        facts["args.enable_flashinfer_allreduce_fusion"] = Fact(False, "default")
    else:
        facts["args.enable_flashinfer_allreduce_fusion"] = Fact(fusion is not None, origin)
    facts |= {
        f"gpu.{k}": Fact(v, "assumed") for k, v in (("platform", platform), ("sm", sm), ("name", name)) if v
    }
    facts |= {"model.architecture": Fact(arch, "config"), "model.quant": Fact(None, "config")}
    facts |= {f"model.{key}": Fact(value, "config") for key, value in (model or {}).items()}
    facts |= {f"packages.{key}": Fact((packages or {}).get(key), "machine") for key in _PACKAGES}
    return Launch(facts=facts, env=env or {}, source=where)
