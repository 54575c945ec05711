"""SPC: speculative decoding against the rest of the launch."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.launch.moe_runner import NVFP4_KINDS
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, read_in, rule, set_to, sglang_issue, unset
from sglang_guards.rules.reports_common import NEXTN_FAMILY, TRTLLM, major, reported_in, speculates

_DRAFT_ON_TRITON = set_to("speculative_moe_runner_backend", "triton") + set_to(
    "speculative_moe_a2a_backend", "none"
)
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "mtp_num_layers")


def _algorithm(launch: Launch) -> str:
    return str(launch["args.speculative_algorithm"] or "").upper()


@rule(
    "SPC101",
    "mixed-chunk-kept-with-speculation",
    Severity.ERROR,
    summary="mixed chunk with speculative decoding fails an assertion",
    source={"mixed_chunk_spec_assertion": True},
    reports=[read_in("ServerArgs.check_server_args: `enable_mixed_chunk is required …`")],
    applies=lambda launch: bool(launch["args.enable_mixed_chunk"]) and _algorithm(launch) not in ("", "NONE"),
)
def mixed_chunk(launch: Launch) -> Iterator[Violation]:
    """Mixed chunk that is still on beside speculative decoding after resolution.

    ## What it checks
    Both are on in the resolved arguments, and the installed check asserts that they are not. Every built-in
    algorithm switches mixed chunk off first (SPC201), so this concerns algorithms that a plugin registers.

    ## Why it matters
    The assertion reads `enable_mixed_chunk is required for speculative decoding`: the opposite of what it means.

    ## When it hurts
    At start-up, before the GPU is touched.

    ## Fix
    Remove --enable-mixed-chunk.
    """
    yield Violation(
        flags=("enable_mixed_chunk", "speculative_algorithm"),
        cause="SGLang asserts that mixed chunk is off with speculative decoding (its message says the opposite)",
        impact="the launcher stops at once",
        fix=unset("enable_mixed_chunk"),
    )


@rule(
    "SPC102",
    "eagle3-without-a-draft",
    Severity.ERROR,
    summary="EAGLE3 has no draft model and loads the target as its own draft",
    reports=[sglang_issue(36528)],
    applies=lambda launch: _algorithm(launch) == "EAGLE3",
)
def eagle3_no_draft(launch: Launch) -> Iterator[Violation]:
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
        yield Violation(
            flags=("speculative_algorithm",),
            cause=f"no --speculative-draft-model-path, and {launch['model.architecture']} has no draft layers",
            impact="every worker dies with an AttributeError after both copies of the model are loaded",
            fix=unset(
                "speculative_algorithm",
                otherwise="name a draft with --speculative-draft-model-path",
                safe=False,
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
    summary="the draft's bf16 experts run on TRT-LLM's batched GEMM, which was traced reading out of bounds",
    reports=[sglang_issue(30209), sglang_issue(30210), sglang_issue(32377)],
    applies=lambda launch: speculates(launch) and launch["model.architecture"] in NEXTN_FAMILY,
)
def bf16_draft(launch: Launch) -> Iterator[Violation]:
    """NVFP4 checkpoints of the DeepSeek family whose unquantized draft layer takes the TRT-LLM runner.

    ## What it checks
    The target's experts are NVFP4, the draft is the checkpoint's own NextN layer (left in bf16), its experts run on
    flashinfer_trtllm, and the GPU is of the SM10x family.

    ## Why it matters
    TRT-LLM's bf16 batched GEMM was traced reading out of bounds there. SGLang has a default that would avoid it
    (Triton for the bf16 draft), but only on ROCm.

    ## When it hurts
    During CUDA graph capture, or after minutes to hours of load: an illegal memory access on one rank, and the others
    wait for it. To confirm: the crash is gone with the fix, and the draft is a small part of the time. The kernels that
    were traced are those for few tokens per expert, which decoding takes at every step and a prefill node of a
    disaggregated server for short prompts only: there this is a note.

    ## Fix
    --speculative-moe-runner-backend triton --speculative-moe-a2a-backend none.
    """
    if launch["model.quant_kind"] != "modelopt_fp4" or not launch["draft_model.built_in"]:
        return
    if major(launch) == 10 and launch["draft.runner"] in TRTLLM:
        prefills_only = launch.get("args.disaggregation_mode") == "prefill"
        yield Violation(
            flags=("speculative_algorithm",),
            severity=Severity.INFO if prefills_only else None,
            cause=f"the draft layer of this NVFP4 checkpoint is bf16 and uses the target's runner, "
            f"{launch['draft.runner']}, on SM{launch['gpu.sm']}",
            impact="an illegal memory access during CUDA graph capture or after minutes to hours of load, in several "
            "public reports"
            + (": with few tokens per batch, which is rare on a prefill node" if prefills_only else ""),
            fix=_DRAFT_ON_TRITON,
        )


@rule(
    "SPC104",
    "draft-inherits-megamoe",
    Severity.WARNING,
    summary="the draft inherits the mega-MoE dispatch, which its experts do not support",
    reports=[sglang_issue(40623)],
    applies=lambda launch: launch["args.moe_a2a_backend"] == "flashinfer_megamoe" and speculates(launch),
)
def megamoe_draft(launch: Launch) -> Iterator[Violation]:
    """flashinfer_megamoe together with EAGLE on an NVFP4 checkpoint.

    ## What it checks
    The target's all-to-all backend is flashinfer_megamoe, the draft is built in and has none of its own, and the
    checkpoint is NVFP4, so that the draft layer is not.

    ## Why it matters
    The mega-MoE dispatch leaves expert ids global. The draft's unquantized experts fall back to a kernel that takes
    them for local ones.

    ## When it hurts
    At warm-up: an illegal memory access. Either feature alone works. To confirm: the crash names the Triton MoE kernel.

    ## Fix
    --speculative-moe-a2a-backend none --speculative-moe-runner-backend triton.
    """
    if launch["args.speculative_moe_a2a_backend"] not in (None, "flashinfer_megamoe"):
        return
    if launch["model.quant_kind"] in NVFP4_KINDS and launch["draft_model.built_in"]:
        yield Violation(
            flags=("moe_a2a_backend", "speculative_algorithm"),
            cause="the draft has no --speculative-moe-a2a-backend of its own, and its experts are not NVFP4",
            impact="an illegal memory access in the warm-up, in a public report",
            fix=_DRAFT_ON_TRITON,
        )


@rule(
    "SPC105",
    "eagle3-draft-under-eagle",
    Severity.WARNING,
    summary="an EAGLE3 draft under the EAGLE algorithm is never accepted",
    source={"eagle3_told_by_algorithm": True},
    reports=[sglang_issue(21272)],
    applies=lambda launch: (
        _algorithm(launch) in ("EAGLE", "NEXTN") and launch["draft_model.built_in"] is False
    ),
)
def eagle3_draft(launch: Launch) -> Iterator[Violation]:
    """An EAGLE3 draft checkpoint with --speculative-algorithm EAGLE.

    ## What it checks
    The draft's architecture is an EAGLE3 one and the algorithm is EAGLE (or NEXTN), by which SGLang chooses the
    hidden states that it hands to the draft.

    ## Why it matters
    The draft gets one hidden state in place of three, so its guesses are never accepted.

    ## When it hurts
    At every step, without a message: the accept length is exactly 1.0 and speculation only costs time.

    ## Fix
    --speculative-algorithm EAGLE3.
    """
    if "eagle3" in str(launch["draft_model.architecture"]).lower():
        yield Violation(
            flags=("speculative_algorithm", "speculative_draft_model_path"),
            cause=f"the draft is {launch['draft_model.architecture']}, and only the algorithm EAGLE3 gives it three "
            "hidden states",
            impact="the accept length stays at 1.0, so that every step pays for the draft and gains nothing",
            fix=set_to("speculative_algorithm", "EAGLE3", safe=False),
        )


def _decode_node(launch: Launch) -> bool:
    """A decode node of a release for which the fault is reported there."""
    return launch.get("args.disaggregation_mode") == "decode" and reported_in(launch, "0.5.15", "0.5.19")


@rule(
    "SPC106",
    "glm-dsa-eagle-with-partial-attention-dp",
    Severity.WARNING,
    summary="GLM's sparse attention under EAGLE needs DP equal to TP",
    reports=[sglang_issue(31384), sglang_issue(30296), sglang_issue(39072)],
    applies=lambda launch: (
        (reported_in(launch, "0.5.14", "0.5.15.post1") or _decode_node(launch))
        and speculates(launch)
        and launch["model.architecture"] == "GlmMoeDsaForCausalLM"
    ),
)
def glm_dsa(launch: Launch) -> Iterator[Violation]:
    """GLM with sparse attention, EAGLE, and DP attention whose DP size is below TP.

    ## What it checks
    GlmMoeDsaForCausalLM with EAGLE and DP attention where 1 < dp < tp, on 0.5.14 to 0.5.15.post1, and on a decode node
    (`--disaggregation-mode decode`) up to 0.5.19. The ranges are those of the reports: nothing in the source was
    found that decides it.

    ## Why it matters
    The query side and the cache side of the attention disagree about the batch in the draft and verify steps.

    ## When it hurts
    With the first concurrent requests: the workers crash. dp equal to tp works, and so does running without EAGLE.
    To confirm: send two requests at once.

    ## Fix
    --dp equal to --tp, or no speculation.
    """
    tp, dp = int(launch["args.tp_size"]), int(launch["args.dp_size"])
    if launch["args.enable_dp_attention"] and 1 < dp < tp:
        yield Violation(
            flags=("tp_size", "dp_size", "speculative_algorithm"),
            cause=f"TP {tp} over DP {dp} leaves {tp // dp} attention ranks per DP rank",
            impact="the workers crash at the first concurrent requests, in public reports of these releases",
            fix=set_to("dp_size", tp, safe=False),
        )


@rule(
    "SPC201",
    "mixed-chunk-switched-off-by-speculation",
    Severity.WARNING,
    summary="SGLang disables mixed chunk for this speculative algorithm",
    reports=[read_in("arg_groups/speculative_hook.py: `Mixed chunked prefill is disabled`")],
    applies=lambda launch: launch.given("enable_mixed_chunk") and _algorithm(launch) not in ("", "NONE"),
)
def mixed_chunk_off(launch: Launch) -> Iterator[Violation]:
    """--enable-mixed-chunk beside speculative decoding.

    ## What it checks
    The operator requested mixed chunk, an algorithm is set, and after resolution mixed chunk is off.

    ## Why it matters
    The flag does nothing; SGLang says so in one line of the log.

    ## When it hurts
    Never at run time: prefill chunks and decode steps are scheduled apart.

    ## Fix
    Remove --enable-mixed-chunk.
    """
    if launch["args.enable_mixed_chunk"] is False:
        yield Violation(
            flags=("enable_mixed_chunk", "speculative_algorithm"),
            cause=f"resolution disables mixed chunk because of {_algorithm(launch)}",
            impact="no runtime effect: the server behaves as if the flag were unset",
            fix=unset("enable_mixed_chunk"),
        )
