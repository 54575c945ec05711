"""The rows of the verdict table on launches built by hand: what was asked, the effect, and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_guards.flag_table.rows import ACTS, requested
from sglang_guards.flag_table.source_lines import READERS, acted_on
from sglang_guards.flag_table.table import verdicts
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.report.model import FlagVerdict
from sglang_guards.source.tree import Answer, Items, Source
from tests.contract.tables import source
from tests.mutation.overlay import Edited
from tests.rules.cases import base_facts
from tests.trees import RELEASES

SUM = "enable_fused_moe_sum_all_reduce"

#: What a resolved launch has beside the facts of the hazard rules.
MORE: dict[str, Any] = {
    "args.flashinfer_allreduce_fusion_backend": None, "args.num_continuous_decode_steps": 1,
    "args.schedule_policy": "fcfs", "args.disable_radix_cache": False, "args.schedule_conservativeness": 1.0,
    "args.mem_fraction_static": 0.85, "args.cuda_graph_max_bs_decode": None, "args.cuda_graph_config":
    "CudaGraphConfig(decode=PhaseConfig(backend='full', max_bs=256, bs=[1]), prefill=PhaseConfig(backend='disabled'))",
    "args.triton_attention_reduce_in_fp32": False, "args.enable_deterministic_inference": False,
    "args.attention_backend": "fa3", "gpu.memory_gib": 140.4, "model.dtype": "bfloat16", "args.kt_weight_path": None,
    "args.rl_on_policy_target": None, "args.enable_paged_experts": False, "args.dtype": "auto",
}  # fmt: skip


def launch(
    release: str = "0.5.15", given: tuple[str, ...] = (), typed: dict[str, str] | None = None, **args: Any
) -> Launch:
    """A launch whose `args` (and dotted facts, with __ for the dot) are changed; those in `given` were typed."""
    values = {
        **base_facts("moe-on-8-h200"),
        **MORE,
        **{k.replace("__", ".") if "__" in k else f"args.{k}": v for k, v in args.items()},
    }
    facts = {}
    for name, value in values.items():
        field = name.removeprefix("args.")
        origin = "given" if field in given else "resolved" if field in args else "default"
        facts[name] = Fact(value, origin)
    return Launch(facts, typed=typed or {}, source=source(release))


def row(flag: str, made: Launch) -> FlagVerdict:
    return next(r for r in verdicts(made) if r.flag == flag)


def test_every_row_is_made_and_none_fails() -> None:
    rows = verdicts(launch())
    assert len(rows) == 17  # without the rows of flags that are off, of a draft and of speculation
    assert all(r.source for r in rows), [r.flag for r in rows if not r.source]
    assert not [r for r in rows if "could not be told" in r.why]


def test_a_launch_that_was_not_resolved_has_no_rows() -> None:
    assert verdicts(Launch({})) == ()


def test_a_missing_fact_is_named_and_costs_one_row() -> None:
    made = launch(given=("moe_a2a_backend",), moe_a2a_backend="deepep")
    known = {name: fact for name, fact in made.facts.items() if name != "model.is_moe"}
    rows = {r.flag: r for r in verdicts(Launch(known, source=made.source))}
    assert rows["--moe-a2a-backend"].effect == "unknown"
    assert "model.is_moe" in rows["--moe-a2a-backend"].why
    assert rows["--schedule-policy"].effect == "active"


def test_a_flag_that_the_release_lacks_has_no_row() -> None:
    made = launch()
    known = {k: f for k, f in made.facts.items() if "fused_moe_sum" not in k and "allreduce_fusion" not in k}
    flags = {r.flag for r in verdicts(Launch(known, source=made.source))}
    assert not {"--enable-fused-moe-sum-all-reduce", "--flashinfer-allreduce-fusion-backend"} & flags


ROWS: list[tuple[str, str, str, dict[str, Any]]] = [
        ("--enable-fused-moe-sum-all-reduce", "off", "if set: acts on the experts of target", {}),
        ("--enable-fused-moe-sum-all-reduce", "active", "acts on the experts of target (Triton, top-8)",
         {"given": ("enable_fused_moe_sum_all_reduce",), "enable_fused_moe_sum_all_reduce": True}),
        ("--enable-fused-moe-sum-all-reduce", "active", "refused",
         {"given": ("enable_fused_moe_sum_all_reduce",), "enable_fused_moe_sum_all_reduce": True, "ep_size": 8}),
        ("--enable-fused-moe-sum-all-reduce", "ignored", "FMS201",
         {"given": ("enable_fused_moe_sum_all_reduce",), "enable_fused_moe_sum_all_reduce": True,
          "moe_runner_backend": "flashinfer_trtllm", "gpu__sm": 100}),
        ("--enable-fused-moe-sum-all-reduce", "off", "if set: does nothing",
         {"moe_a2a_backend": "deepep", "ep_size": 8}),
        ("--moe-runner-backend", "auto-enabled", "SGLang chose flashinfer_trtllm",
         {"moe_runner_backend": "flashinfer_trtllm", "gpu__sm": 100}),
        ("--moe-runner-backend", "active", "run on triton",
         {"given": ("moe_runner_backend",), "moe_runner_backend": "triton"}),
        ("--moe-runner-backend", "active", "nobody measured other runners for this shape on this GPU",
         {"given": ("moe_runner_backend",), "moe_runner_backend": "triton"}),
        ("--moe-runner-backend", "off", "has no experts", {"model__is_moe": False}),
        ("--moe-a2a-backend", "active", "dispatches tokens over EP",
         {"given": ("moe_a2a_backend",), "moe_a2a_backend": "deepep"}),
        ("--disable-shared-experts-fusion", "off", "no shared experts", {}),
        ("--disable-shared-experts-fusion", "auto-enabled", "SGLang set it",
         {"model__num_shared_experts": 1, "disable_shared_experts_fusion": True}),
        ("--moe-dense-tp-size", "ignored", "no leading dense layers",
         {"given": ("moe_dense_tp_size",), "moe_dense_tp_size": 1}),
        ("--moe-dense-tp-size", "active", "over TP 1",
         {"given": ("moe_dense_tp_size",), "moe_dense_tp_size": 1, "model__first_k_dense": 3}),
        ("--enable-dp-attention", "active", "8 ways",
         {"given": ("enable_dp_attention",), "enable_dp_attention": True, "dp_size": 8}),
        ("--enable-dp-attention", "overridden", "off at DP 1",
         {"given": ("enable_dp_attention",), "enable_dp_attention": False}),
        ("--enable-mixed-chunk", "overridden", "because of EAGLE",
         {"given": ("enable_mixed_chunk",), "enable_mixed_chunk": False, "speculative_algorithm": "EAGLE"}),
        ("--enable-mixed-chunk", "off", "switches it off because of EAGLE", {"speculative_algorithm": "EAGLE"}),
        ("--enable-mixed-chunk", "off", "keeps it beside EAGLE",
         {"release": "0.5.23", "speculative_algorithm": "EAGLE"}),
        ("--enable-mixed-chunk", "off", "switches it off because of NGRAM",
         {"release": "0.5.23", "speculative_algorithm": "NGRAM"}),
        ("--num-continuous-decode-steps", "ignored", "only declared",
         {"given": ("num_continuous_decode_steps",), "num_continuous_decode_steps": 4}),
        ("--num-continuous-decode-steps", "off", "nothing in managers/ reads it", {}),
        ("--triton-attention-reduce-in-fp32", "ignored", "runs on fa3",
         {"given": ("triton_attention_reduce_in_fp32",), "triton_attention_reduce_in_fp32": True}),
        ("--triton-attention-reduce-in-fp32", "ignored", "only declared",
         {"given": ("triton_attention_reduce_in_fp32",), "triton_attention_reduce_in_fp32": True,
          "attention_backend": "triton"}),
        ("--triton-attention-reduce-in-fp32", "ignored", "double-sparsity",
         {"release": "0.5.10", "given": ("triton_attention_reduce_in_fp32",),
          "triton_attention_reduce_in_fp32": True, "attention_backend": "triton"}),
        ("--schedule-policy", "overridden", "fcfs is used",
         {"given": ("schedule_policy",), "schedule_policy": "lpm", "disable_radix_cache": True}),
        ("--schedule-policy", "active", "cached prefix", {"given": ("schedule_policy",), "schedule_policy": "lpm"}),
        ("--schedule-conservativeness", "auto-enabled", "0.3", {"schedule_conservativeness": 0.3}),
        ("--mem-fraction-static", "auto-enabled", "140.4 GiB", {"mem_fraction_static": 0.85}),
        ("--mem-fraction-static", "active", "0.8 of", {"given": ("mem_fraction_static",), "mem_fraction_static": 0.8}),
        ("--cuda-graph-max-bs-decode", "auto-enabled", "256", {}),
        ("--cuda-graph-backend-prefill", "off", "without a CUDA graph", {}),
        ("--moe-runner-backend", "active", "deepep dispatches the tokens",
         {"given": ("moe_runner_backend", "moe_a2a_backend"), "moe_runner_backend": "deep_gemm",
          "moe_a2a_backend": "deepep"}),
        ("--attention-backend", "active", "prefill and decode run on fa3",
         {"given": ("attention_backend",), "attention_backend": "fa3"}),
        ("--attention-backend", "overridden", "fa4",
         {"given": ("attention_backend",), "attention_backend": "fa4", "typed__attention_backend": "flashinfer"}),
        ("--attention-backend", "active", "ATT101",
         {"given": ("attention_backend",), "attention_backend": "fa3", "gpu__sm": 120}),
        ("--decode-attention-backend", "active", "decode runs on triton",
         {"given": ("decode_attention_backend",), "decode_attention_backend": "triton"}),
        ("--enable-two-batch-overlap", "active", "as two",
         {"given": ("enable_two_batch_overlap",), "enable_two_batch_overlap": True}),
        ("--enable-two-batch-overlap", "active", "PAR110",
         {"given": ("enable_two_batch_overlap",), "enable_two_batch_overlap": True,
          "model__architecture": "MiniMaxM2ForCausalLM"}),
        ("--enable-two-batch-overlap", "ignored", "never splits",
         {"given": ("enable_two_batch_overlap",), "enable_two_batch_overlap": True,
          "model__architecture": "Qwen3NextForCausalLM"}),
        ("--enable-eplb", "active", "PAR108",
         {"given": ("enable_eplb",), "enable_eplb": True, "ep_size": 8, "init_expert_location": "trivial"}),
        ("--disaggregation-mode", "active", "decode only",
         {"given": ("disaggregation_mode",), "disaggregation_mode": "decode"}),
        ("--kv-cache-dtype", "active", "fp8_e4m3", {"given": ("kv_cache_dtype",), "kv_cache_dtype": "fp8_e4m3"}),
        ("--page-size", "active", "attention-backend would be trtllm_mha without it",
         {"given": ("page_size",), "page_size": 16, "without__page_size": {"attention_backend": "trtllm_mha"}}),
        ("--enable-deterministic-inference", "active", "DET101",
         {"release": "0.5.12", "given": ("enable_deterministic_inference",), "enable_deterministic_inference": True}),
]  # fmt: skip


@pytest.mark.parametrize(("flag", "effect", "words", "args"), ROWS)
def test_the_row(flag: str, effect: str, words: str, args: dict[str, Any]) -> None:
    found = row(flag, launch(**args))
    assert (found.effect, words in found.why) == (effect, True), found


def test_what_was_asked_is_shown_as_typed() -> None:
    made = launch(
        typed={
            "tp_size": "--tp 4",
            "schedule_policy": "--schedule-policy=lpm",
            "enable_mixed_chunk": "--enable-mixed",
        }
    )
    assert requested(made, "tp_size") == "4"
    assert requested(made, "schedule_policy") == "lpm"
    assert requested(made, "enable_mixed_chunk") == "on"
    assert requested(made, "moe_runner_backend") == "not set"


def test_a_row_that_breaks_does_not_cost_the_others() -> None:
    rows = {r.flag: r for r in verdicts(launch(schedule_conservativeness="odd"))}
    assert rows["--schedule-conservativeness"].effect == "unknown"
    assert rows["--schedule-policy"].effect == "active"


# -- a flag acts only where the line that acts on it was read ------------------------------------------------------


class Declared(Source):
    """A tree of which only the declarations of server args are left."""

    def data(self, rel: str) -> bytes | None:
        kept = rel == "sglang/srt/server_args.py" or "/arg_groups/fields/" in rel
        return super().data(rel) if kept else None


class Silent(Source):
    """A tree that is there, and of which no probe can make anything."""

    def _run(self, name: str, arguments: Mapping[str, str]) -> Answer | Items:
        return Answer(None, None, "not understood")


#: Flags whose effect a probe decides; what the others do stands in lines that are looked for.
ASKED = (
    "--enable-fused-moe-sum-all-reduce",
    "--moe-runner-backend",
    "--schedule-policy",
    "--enable-two-batch-overlap",
    "--num-continuous-decode-steps",
)


def made_of(tree: Source, args: dict[str, Any]) -> list[FlagVerdict]:
    return list(verdicts(dataclasses.replace(launch(**args), source=tree)))


@pytest.mark.parametrize("args", [args for _, effect, _, args in ROWS if effect in ACTS])
def test_no_flag_acts_where_nothing_was_read(args: dict[str, Any], tmp_path: Path) -> None:
    real = launch(**args).source
    assert real is not None
    bare = made_of(Source(tmp_path), args)
    assert [row.flag for row in bare if row.effect == "unknown"]
    assert not [row for row in bare if row.effect in ACTS]
    silent = {row.flag: row for row in made_of(Silent(real.root), args)}
    assert not [silent[flag] for flag in ASKED if flag in silent and silent[flag].effect == "active"]


@pytest.mark.parametrize("args", [args for _, effect, _, args in ROWS if effect in ACTS])
def test_a_declaration_is_no_reader(args: dict[str, Any]) -> None:
    args = {**args, "release": "0.5.23"}
    rows = made_of(Declared(source("0.5.23").root), args)
    assert [row for row in rows if row.source], "the declarations are there"
    assert not [row for row in rows if row.effect in ACTS]


@pytest.mark.parametrize("release", RELEASES)
def test_every_release_has_the_lines_that_act(release: str) -> None:
    for field in READERS:
        assert acted_on(launch(release, (), None, **{field: "triton"}), field), field


def test_the_fused_sum_is_not_active_where_a_rule_about_it_could_not_read() -> None:
    args: dict[str, Any] = {"given": (SUM,), SUM: True}
    tree = launch(**args).source
    assert tree is not None
    rel = "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe.py"
    text = tree.text(rel) or ""
    assert "enable_fused_moe_sum_all_reduce" in text
    moved = Edited(tree, {rel: text.replace("enable_fused_moe_sum_all_reduce", "fuses_sum")})
    found = {row.flag: row for row in made_of(moved, args)}["--enable-fused-moe-sum-all-reduce"]
    assert (found.effect, "was not found" in found.why) == ("unknown", True), found
