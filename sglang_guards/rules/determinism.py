"""DET: deterministic mode where it does not hold; FLG: flags that nothing reads."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import is_moe, issue, line, typed

#: Deterministic inference reported as broken and still open: architecture -> (report, from how many GPUs).
_NOT_DETERMINISTIC = {"GptOssForCausalLM": (19431, 2), "Qwen3_5ForConditionalGeneration": (31261, 1)}
#: Flags that recent releases declare and do not read.
_UNREAD = ("num_continuous_decode_steps", "triton_attention_reduce_in_fp32")


@rule(
    "DET101",
    "deterministic-mode-with-a-sum-by-batch-size",
    Severity.WARNING,
    summary="the sum over experts depends on the batch size in deterministic mode",
    needs=("target.runner", "args.max_running_requests", "source.moe_sum_ignores_determinism"),
    evidence=(issue(20509),),
    applies=lambda launch: is_moe(launch) and bool(launch.get("args.enable_deterministic_inference")),
)
def batch_dependent_sum(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Deterministic inference with experts whose sum changes its kernel at 32 tokens.

    ## What it checks
    Deterministic mode is on, the experts run on Triton, more than 32 requests may decode together, and the installed
    sum over experts picks its kernel by the number of tokens without looking at the mode.

    ## Why it matters
    The two kernels round differently, so a request's text depends on who else is in the batch.

    ## When it hurts
    When the number of running requests crosses 32. To tell: send the same prompt alone and among 40 others.

    ## Fix
    --max-running-requests 32, or a release whose sum looks at the mode (0.5.14 does).
    """
    running = launch["args.max_running_requests"]
    if launch["target.runner"] != "triton" or (isinstance(running, int) and running <= 32):
        return
    if launch["source.moe_sum_ignores_determinism"]:
        yield rule.finding(
            flags=typed(launch, "enable_deterministic_inference"),
            cause=f"up to 32 tokens are summed by another kernel than more, in this mode too "
            f"({launch.where('source.moe_sum_ignores_determinism')})",
            impact="the same prompt gives different text once the batch crosses 32 tokens",
            fix=Fix("add --max-running-requests 32", {"max_running_requests": 32}, "display"),
            evidence=(line(launch, "moe_sum_ignores_determinism"),),
        )


@rule(
    "DET102",
    "deterministic-mode-not-covering-the-model",
    Severity.WARNING,
    summary="deterministic mode is reported not to cover this architecture",
    needs=("model.architecture", "args.tp_size"),
    evidence=(issue(19431), issue(31261)),
    applies=lambda launch: bool(launch.get("args.enable_deterministic_inference")),
)
def not_deterministic(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """--enable-deterministic-inference on an architecture with an open report.

    ## What it checks
    The architecture is one for which a report of differing outputs is open: gpt-oss with TP above 1, and Qwen3.5's
    dense hybrid. It rests on reports alone; nothing in the source was found that decides it.

    ## Why it matters
    Some kernel of the model is not batch-invariant, and the mode does not replace it.

    ## When it hurts
    When the batch grows (past eight requests for gpt-oss). To tell: SGLang's own deterministic test,
    `python -m sglang.test.test_deterministic`.

    ## Fix
    Do not rely on bit-equal outputs of this model.
    """
    number, ranks = _NOT_DETERMINISTIC.get(str(launch["model.architecture"]), (0, 0))
    if number and int(launch["args.tp_size"]) >= ranks:
        yield rule.finding(
            flags=typed(launch, "enable_deterministic_inference"),
            cause=f"for {launch['model.architecture']} a report of differing outputs is open (#{number})",
            impact="outputs change with the batch size; to tell, run SGLang's deterministic test",
            fix=None,
            evidence=(issue(number),),
        )


@rule(
    "FLG201",
    "flag-that-nothing-reads",
    Severity.WARNING,
    summary="no code of this SGLang reads the flag",
    needs=("source.num_continuous_decode_steps_read", "source.triton_attention_reduce_in_fp32_read"),
    evidence=(Evidence("source", "a search of the installed tree for readers of the field"),),
    applies=lambda launch: any(launch.given(field) for field in _UNREAD),
)
def unread(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """--num-continuous-decode-steps and --triton-attention-reduce-in-fp32.

    ## What it checks
    The flag is set, and no file of the installed SGLang but its declaration names the field.

    ## Why it matters
    Guides still recommend both: the one against scheduling overhead, the other for numerical stability. The code that
    read them is gone.

    ## When it hurts
    Never at run time; the operator counts on an effect that is not there.

    ## Fix
    Remove the flag.
    """
    for field in _UNREAD:
        if launch.given(field) and launch[f"source.{field}_read"] is False:
            yield rule.finding(
                flags=typed(launch, field),
                cause=f"{field} is declared and named nowhere else in this SGLang",
                impact="the flag has no effect",
                fix=Fix(f"remove --{field.replace('_', '-')}", {field: None}),
            )
