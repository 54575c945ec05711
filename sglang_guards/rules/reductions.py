"""PAR114, PAR115: experts whose outputs are summed over the ranks never, or twice, under DP attention with EP."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.launch.parallel import dp_attention
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, ask, rule, set_to, sglang_issue
from sglang_guards.rules.parallelism import exit_sums


@rule(
    "PAR114",
    "experts-never-summed",
    Severity.ERROR,
    summary="the experts' output is never summed over the ranks under DP attention with EP",
    source={ask("experts_never_summed", architecture="model.architecture"): True},
    reports=[sglang_issue(27251)],
    applies=lambda launch: dp_attention(launch) and bool(launch["model.is_moe"]),
)
def never_summed(launch: Launch) -> Iterator[Violation]:
    """DP attention with as many EP ranks as DP ranks, for a model whose layer exit only scatters.

    ## What it checks
    No all-to-all backend, DP attention, EP equal to DP (and to TP where the installed source asks for it), a MoE block
    that leaves its sum to the layer's exit, and an exit of the model's own that scatters without summing.

    ## Why it matters
    Each token keeps the output of one rank's experts.

    ## When it hurts
    From the first token: wrong text, no error.

    ## Example
    `--model-path sgl-project/DeepSeek-V4-Flash-FP8 --tp 8 --dp 8 --ep 8 --enable-dp-attention` on 0.5.12. It works
    without `--ep`, and on 0.5.13.

    ## Fix
    Remove --ep-size, or use a release whose exit sums.
    """
    if exit_sums(launch):
        yield Violation(
            flags=("enable_dp_attention", "ep_size"),
            cause="the MoE block leaves the sum over ranks to the end of the layer, and this model only scatters there",
            impact="from the first token each token keeps one rank's experts: wrong text, no error",
            fix=set_to("ep_size", 1, safe=False),
        )


@rule(
    "PAR115",
    "experts-summed-twice",
    Severity.WARNING,
    summary="the experts' output may be summed twice under DP attention with EP",
    source={ask("experts_summed_twice", architecture="model.architecture"): True},
    reports=[sglang_issue(37187)],
    applies=lambda launch: (
        dp_attention(launch)
        and bool(launch["model.is_moe"])
        and launch["model.architecture"] != "GptOssForCausalLM"
    ),
)
def summed_twice(launch: Launch) -> Iterator[Violation]:
    """DP attention with as many EP ranks as DP ranks, for a model that all-reduces by itself.

    ## What it checks
    As PAR101, for every architecture: the MoE block all-reduces its output without asking whether the layer's exit
    sums it, and the layers use the communicator whose exit does.

    ## Why it matters
    The experts' output is scaled by the number of ranks while the residual is not.

    ## When it hurts
    From the first token: wrong text, no error. It is read from the source and not reported for these models. To
    confirm: an accuracy test with and without --ep-size.

    ## Example
    `--model-path stepfun-ai/step3 --tp 8 --dp 8 --ep 8 --enable-dp-attention` on 0.5.15. It works without `--ep`.

    ## Fix
    Remove --ep-size.
    """
    if exit_sums(launch):
        yield Violation(
            flags=("enable_dp_attention", "ep_size"),
            cause="the MoE block always all-reduces its output, and the end of the layer sums it again",
            impact="from the first token the experts' output is counted several times: wrong text, no error",
            fix=set_to("ep_size", 1, safe=False),
        )
