"""SPC: speculative decoding against the rest of the launch."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import (  # fmt: skip
    NEXTN_FAMILY,
    TRTLLM,
    issue,
    line,
    major,
    reported_in,
    speculates,
    typed,
)

_DRAFT_TRITON = Fix(
    "add --speculative-moe-runner-backend triton --speculative-moe-a2a-backend none",
    {"speculative_moe_runner_backend": "triton", "speculative_moe_a2a_backend": "none"},
)
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")


def _algorithm(launch: Launch) -> str:
    return str(launch.get("args.speculative_algorithm") or "").upper()


@rule(
    "SPC101",
    "mixed-chunk-kept-with-speculation",
    Severity.ERROR,
    summary="mixed chunk and speculative decoding meet an assertion",
    needs=("args.enable_mixed_chunk", "args.speculative_algorithm", "source.mixed_chunk_spec_assertion"),
    evidence=(Evidence("source", "ServerArgs.check_server_args: «enable_mixed_chunk is required …»"),),
    applies=lambda launch: (
        bool(launch.get("args.enable_mixed_chunk")) and _algorithm(launch) not in ("", "NONE")
    ),
)
def mixed_chunk(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Mixed chunk that is still on beside speculative decoding after resolution.

    ## What it checks
    Both are on in the resolved arguments, and the installed check asserts that they are not. Every built-in
    algorithm switches mixed chunk off first (SPC201), so this concerns algorithms that a plugin registers.

    ## Why it matters
    The assertion reads «enable_mixed_chunk is required for speculative decoding»: the opposite of what it means.

    ## When it hurts
    At start-up, before the GPU is touched.

    ## Fix
    Remove --enable-mixed-chunk.
    """
    if launch["source.mixed_chunk_spec_assertion"]:
        yield rule.finding(
            flags=typed(launch, "enable_mixed_chunk", "speculative_algorithm"),
            cause=f"SGLang asserts that mixed chunk is off, in words that say the opposite "
            f"({launch.where('source.mixed_chunk_spec_assertion')})",
            impact="the launcher stops at once",
            fix=Fix("remove --enable-mixed-chunk", {"enable_mixed_chunk": None}),
            evidence=(line(launch, "mixed_chunk_spec_assertion"),),
        )


@rule(
    "SPC102",
    "eagle3-without-a-draft",
    Severity.ERROR,
    summary="EAGLE3 has no draft model and loads the target as its own",
    needs=("draft_model.built_in", "model.config", "model.architecture"),
    evidence=(issue(36528),),
    applies=lambda launch: _algorithm(launch) == "EAGLE3",
)
def eagle3_no_draft(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """--speculative-algorithm EAGLE3 without a draft.

    ## What it checks
    The algorithm is EAGLE3, no draft path is given (or it is the target's), and the checkpoint has no MTP layers.

    ## Why it matters
    EAGLE3 needs a trained draft. The target is loaded a second time in its place and lacks what a draft must offer.

    ## When it hurts
    After both copies have loaded: an AttributeError in every worker.

    ## Fix
    Name a draft with --speculative-draft-model-path, or remove --speculative-algorithm.
    """
    if launch["draft_model.built_in"] and not _has_mtp(launch["model.config"]):
        yield rule.finding(
            flags=typed(launch, "speculative_algorithm"),
            cause=f"no --speculative-draft-model-path, and {launch['model.architecture']} brings no draft layers",
            impact="after both copies of the model have loaded every worker dies",
            fix=Fix(
                "remove --speculative-algorithm, or name a draft", {"speculative_algorithm": None}, "display"
            ),
        )


def _has_mtp(config: object) -> bool:
    if not isinstance(config, dict):
        return False
    parts = [config, *(part for part in config.values() if isinstance(part, dict))]
    return any(part.get(key) for part in parts for key in _MTP_KEYS)


@rule(
    "SPC103",
    "bf16-draft-experts-on-trtllm",
    Severity.WARNING,
    summary="the bf16 draft layer of an NVFP4 checkpoint runs on TRT-LLM experts",
    needs=(
        "draft.runner",
        "draft_model.built_in",
        "model.architecture",
        "model.quant_kind",
        "gpu.platform",
        "gpu.sm",
    ),
    evidence=(issue(30209), issue(30210), issue(32377)),
    applies=lambda launch: speculates(launch) and launch.get("model.architecture") in NEXTN_FAMILY,
)
def bf16_draft(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """NVFP4 checkpoints of the DeepSeek family whose unquantized draft layer takes the TRT-LLM runner.

    ## What it checks
    The target's experts are NVFP4, the draft is the checkpoint's own NextN layer (left in bf16), its experts run on
    flashinfer_trtllm, and the GPU is of the SM10x family.

    ## Why it matters
    TRT-LLM's bf16 batched GEMM was traced reading out of bounds there. SGLang has a default that would avoid it
    (Triton for the bf16 draft), but only on ROCm.

    ## When it hurts
    After minutes to hours of load: an illegal memory access on one rank, and the others wait for it. To tell: the
    crash is gone with the fix, and the draft is a small part of the time.

    ## Fix
    --speculative-moe-runner-backend triton --speculative-moe-a2a-backend none.
    """
    if (
        launch["model.quant_kind"] != "modelopt_fp4"
        or not launch["draft_model.built_in"]
        or major(launch) != 10
    ):
        return
    if launch["draft.runner"] in TRTLLM:
        yield rule.finding(
            flags=typed(launch, "speculative_algorithm"),
            cause=f"the draft layer is bf16 and takes the target's runner, {launch['draft.runner']}, on "
            f"SM{launch['gpu.sm']}",
            impact="an illegal memory access after minutes to hours of load, in several public reports",
            fix=_DRAFT_TRITON,
        )


@rule(
    "SPC104",
    "draft-inherits-megamoe",
    Severity.WARNING,
    summary="the draft inherits the mega-MoE dispatch, which its experts cannot take",
    needs=(
        "args.moe_a2a_backend",
        "args.speculative_moe_a2a_backend",
        "model.quant_kind",
        "draft_model.built_in",
    ),
    evidence=(issue(40623),),
    applies=lambda launch: speculates(launch) and launch.get("args.moe_a2a_backend") == "flashinfer_megamoe",
)
def megamoe_draft(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """flashinfer_megamoe together with EAGLE on an NVFP4 checkpoint.

    ## What it checks
    The target's all-to-all backend is flashinfer_megamoe, the draft is built in and has none of its own, and the
    checkpoint is NVFP4, so that the draft layer is not.

    ## Why it matters
    The mega-MoE dispatch leaves expert ids global. The draft's unquantized experts fall back to a kernel that takes
    them for local ones.

    ## When it hurts
    At warm-up: an illegal memory access. Either feature alone works. To tell: the crash names the Triton MoE kernel.

    ## Fix
    --speculative-moe-a2a-backend none --speculative-moe-runner-backend triton.
    """
    own = launch.get("args.speculative_moe_a2a_backend")
    fp4 = launch["model.quant_kind"] in ("modelopt_fp4", "nvfp4", "ct_nvfp4")
    if own in (None, "flashinfer_megamoe") and launch["draft_model.built_in"] and fp4:
        yield rule.finding(
            flags=typed(launch, "moe_a2a_backend", "speculative_algorithm"),
            cause="the draft has no --speculative-moe-a2a-backend of its own, and its experts are not NVFP4",
            impact="an illegal memory access at warm-up, in a public report",
            fix=_DRAFT_TRITON,
        )


@rule(
    "SPC105",
    "eagle3-draft-under-eagle",
    Severity.WARNING,
    summary="an EAGLE3 draft runs under the EAGLE algorithm and predicts nothing",
    needs=("draft_model.architecture", "args.speculative_algorithm", "source.eagle3_told_by_algorithm"),
    evidence=(issue(21272),),
    applies=lambda launch: (
        _algorithm(launch) in ("EAGLE", "NEXTN") and launch.get("draft_model.built_in") is False
    ),
)
def eagle3_draft(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """An EAGLE3 draft checkpoint with --speculative-algorithm EAGLE.

    ## What it checks
    The draft's architecture is an EAGLE3 one and the algorithm is EAGLE (or NEXTN), by which SGLang chooses the
    hidden states that it hands to the draft.

    ## Why it matters
    The draft gets one hidden state in place of three, so its guesses are never accepted.

    ## When it hurts
    All the time, without a message: the accept length is exactly 1.0 and speculation only costs time.

    ## Fix
    --speculative-algorithm EAGLE3.
    """
    if (
        "eagle3" in str(launch["draft_model.architecture"]).lower()
        and launch["source.eagle3_told_by_algorithm"]
    ):
        yield rule.finding(
            flags=typed(launch, "speculative_algorithm", "speculative_draft_model_path"),
            cause=f"the draft is {launch['draft_model.architecture']}, and only EAGLE3 gives it its three hidden "
            f"states ({launch.where('source.eagle3_told_by_algorithm')})",
            impact="all the time: the accept length is 1.0 and every step pays for the draft",
            fix=Fix("use --speculative-algorithm EAGLE3", {"speculative_algorithm": "EAGLE3"}, "display"),
            evidence=(line(launch, "eagle3_told_by_algorithm"),),
        )


@rule(
    "SPC106",
    "glm-dsa-eagle-with-partial-attention-dp",
    Severity.WARNING,
    summary="GLM's sparse attention under EAGLE needs one attention rank per DP rank",
    needs=("args.tp_size", "args.dp_size", "args.enable_dp_attention"),
    evidence=(issue(31384), issue(30296)),
    applies=lambda launch: (
        speculates(launch)
        and launch.get("model.architecture") == "GlmMoeDsaForCausalLM"
        and reported_in(launch, "0.5.14", "0.5.15.post1")
    ),
)
def glm_dsa(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """GLM with sparse attention, EAGLE, and DP attention whose DP size is below TP.

    ## What it checks
    GlmMoeDsaForCausalLM with EAGLE and DP attention where 1 < dp < tp, on 0.5.14 to 0.5.15.post1. The range is that
    of the reports: nothing in the source was found that decides it.

    ## Why it matters
    The query side and the cache side of the attention disagree about the batch in the draft and verify steps.

    ## When it hurts
    With the first concurrent requests: the workers crash. dp equal to tp works, and so does running without EAGLE.
    To tell: send two requests at once.

    ## Fix
    --dp equal to --tp, or no speculation.
    """
    tp, dp = int(launch["args.tp_size"]), int(launch["args.dp_size"])
    if launch["args.enable_dp_attention"] and 1 < dp < tp:
        yield rule.finding(
            flags=typed(launch, "tp_size", "dp_size", "speculative_algorithm"),
            cause=f"TP {tp} over DP {dp} leaves {tp // dp} attention ranks per DP rank",
            impact="the workers crash with the first concurrent requests, in two public reports of these releases",
            fix=Fix(f"use --dp {tp}", {"dp_size": tp}, "display"),
        )


@rule(
    "SPC201",
    "mixed-chunk-switched-off-by-speculation",
    Severity.WARNING,
    summary="SGLang switches mixed chunk off for this speculative algorithm",
    needs=("args.enable_mixed_chunk", "args.speculative_algorithm"),
    evidence=(Evidence("source", "arg_groups/speculative_hook.py, «Mixed chunked prefill is disabled»"),),
    applies=lambda launch: launch.given("enable_mixed_chunk") and _algorithm(launch) not in ("", "NONE"),
)
def mixed_chunk_off(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """--enable-mixed-chunk beside speculative decoding.

    ## What it checks
    The operator asked for mixed chunk, an algorithm is set, and after resolution mixed chunk is off.

    ## Why it matters
    The flag does nothing; SGLang says so in one line of the log.

    ## When it hurts
    Never at run time: prefill chunks and decode steps are scheduled apart.

    ## Fix
    Remove --enable-mixed-chunk.
    """
    if launch["args.enable_mixed_chunk"] is False:
        yield rule.finding(
            flags=typed(launch, "enable_mixed_chunk", "speculative_algorithm"),
            cause=f"after resolution enable_mixed_chunk is off because of {_algorithm(launch)}",
            impact="the flag has no effect",
            fix=Fix("remove --enable-mixed-chunk", {"enable_mixed_chunk": None}),
        )
