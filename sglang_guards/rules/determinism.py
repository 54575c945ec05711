"""DET: deterministic mode where it does not hold."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, rule, set_to, sglang_issue
from sglang_guards.rules.reports_common import is_moe

#: Deterministic inference reported as broken and still open: architecture -> (report, from how many GPUs).
_NOT_DETERMINISTIC = {"GptOssForCausalLM": (19431, 2), "Qwen3_5ForConditionalGeneration": (31261, 1)}


@rule(
    "DET101",
    "deterministic-mode-with-a-sum-by-batch-size",
    Severity.WARNING,
    summary="the sum over experts depends on the batch size in deterministic mode",
    source={"moe_sum_ignores_determinism": True},
    reports=[sglang_issue(20509)],
    applies=lambda launch: bool(launch["args.enable_deterministic_inference"]) and is_moe(launch),
)
def batch_dependent_sum(launch: Launch) -> Iterator[Violation]:
    """Deterministic inference with experts whose sum changes its kernel at 32 tokens.

    ## What it checks
    Deterministic mode is on, the experts run on Triton, more than 32 requests may decode together, and the installed
    sum over experts picks its kernel by the number of tokens without looking at the mode.

    ## Why it matters
    The two kernels round differently, so a request's text depends on who else is in the batch.

    ## When it hurts
    When the number of running requests crosses 32. To confirm: send the same prompt alone and among 40 others.

    ## Fix
    --max-running-requests 32, or a release whose sum looks at the mode (0.5.14 does).
    """
    running = launch["args.max_running_requests"]
    if launch["target.runner"] == "triton" and not (isinstance(running, int) and running <= 32):
        yield Violation(
            flags=("enable_deterministic_inference",),
            cause="different kernels sum batches of up to 32 tokens and larger ones, even in deterministic mode",
            impact="the same prompt gives different text once the batch crosses 32 tokens",
            fix=set_to("max_running_requests", 32, safe=False),
        )


@rule(
    "DET102",
    "deterministic-mode-not-covering-the-model",
    Severity.WARNING,
    summary="deterministic mode is reported not to cover this architecture",
    reports=[sglang_issue(19431), sglang_issue(31261)],
    applies=lambda launch: bool(launch["args.enable_deterministic_inference"]),
)
def not_deterministic(launch: Launch) -> Iterator[Violation]:
    """--enable-deterministic-inference on an architecture with an open report.

    ## What it checks
    The architecture is one for which a report of differing outputs is open: gpt-oss with TP above 1, and Qwen3.5's
    dense hybrid. It rests on reports alone; nothing in the source was found that decides it.

    ## Why it matters
    Some kernel of the model is not batch-invariant, and the mode does not replace it.

    ## When it hurts
    When the batch grows (past eight requests for gpt-oss). To confirm: SGLang's own deterministic test,
    `python -m sglang.test.test_deterministic`.

    ## Fix
    Do not rely on bit-equal outputs of this model.
    """
    number, ranks = _NOT_DETERMINISTIC.get(str(launch["model.architecture"]), (0, 0))
    if number and int(launch["args.tp_size"]) >= ranks:
        yield Violation(
            flags=("enable_deterministic_inference",),
            cause=f"for {launch['model.architecture']} a report of differing outputs is open (#{number})",
            impact="outputs change with the batch size; to confirm, run SGLang's deterministic test",
            evidence=(sglang_issue(number),),
        )
