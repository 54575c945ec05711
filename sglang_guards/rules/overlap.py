"""PAR110, PAR111: two-batch and single-batch overlap for models and runners that do not carry them."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, ask, rule, sglang_issue, unset

_NO_A2A = frozenset({None, "", "none"})


@rule(
    "PAR110",
    "two-batch-overlap-without-a-strategy",
    Severity.ERROR,
    summary="two-batch overlap has no strategy for this model's decoder layers",
    source={
        ask("model_runs_tbo", architecture="model.architecture"): True,
        ask("tbo_strategy_exists", architecture="model.architecture"): False,
    },
    reports=(sglang_issue(36840),),
    applies=lambda launch: bool(launch.get("args.enable_two_batch_overlap")),
)
def no_strategy(launch: Launch) -> Iterator[Violation]:
    """--enable-two-batch-overlap for a model whose layers are not on the overlap's list.

    ## What it checks
    The flag is on, the model hands its layers to two-batch overlap, and the installed list of strategies does not
    name the class of those layers. Both are read from the source for this architecture.

    ## Why it matters
    The strategy says how a layer is cut into stages. For a layer without one, the chooser raises
    NotImplementedError.

    ## When it hurts
    With the first batch that can be split, often minutes after start-up: the worker dies.

    ## Example
    `--model-path zai-org/GLM-5.3-Flash --tp 4 --dp 4 --enable-dp-attention --enable-two-batch-overlap` on 0.5.20.
    It works without `--enable-two-batch-overlap`.

    ## Fix
    Remove --enable-two-batch-overlap.
    """
    yield Violation(
        flags=("enable_two_batch_overlap",),
        cause=f"no strategy is listed for the decoder layers of {launch['model.architecture']}",
        impact="the first batch that can be split kills the workers with NotImplementedError",
        fix=unset("enable_two_batch_overlap"),
    )


@rule(
    "PAR111",
    "single-batch-overlap-reads-overwritten-input",
    Severity.ERROR,
    summary="single-batch overlap computes the shared expert from an input that the runner has overwritten",
    source={ask("sbo_reads_overwritten_input", architecture="model.architecture"): True},
    reports=(sglang_issue(36840),),
    applies=lambda launch: bool(launch.get("args.enable_single_batch_overlap")),
)
def overwritten_input(launch: Launch) -> Iterator[Violation]:
    """--enable-single-batch-overlap without an all-to-all backend, with a runner that works in place.

    ## What it checks
    The flag is on, no all-to-all backend is set, the experts run on Triton (which writes its result over its input),
    the model has shared experts, and its forward computes them in a hook that runs after the experts.

    ## Why it matters
    The hook reads the block's input. By then it holds the experts' output.

    ## When it hurts
    From the first token: wrong text, no error.

    ## Example
    `--model-path zai-org/GLM-5.3-Flash --tp 8 --ep-size 8 --moe-runner-backend triton --enable-single-batch-overlap`.
    It works with `--moe-a2a-backend deepep`, or without the flag.

    ## Fix
    Remove --enable-single-batch-overlap, or use DeepEP, for which it was made.
    """
    if launch["args.moe_a2a_backend"] not in _NO_A2A or not launch["model.num_shared_experts"]:
        return
    if launch.get("args.enforce_shared_experts_fusion") or launch["target.runner"] != "triton":
        return
    if launch.env.get("SGLANG_BLACKWELL_OVERLAP_SHARED_EXPERTS_OUTSIDE_SBO"):
        return  # the hook is not registered on Blackwell then
    yield Violation(
        flags=("enable_single_batch_overlap",),
        cause="without an all-to-all backend the shared expert is computed in a hook after the experts, and the Triton "
        "runner has written its result over their common input",
        impact="from the first token the text is wrong, without an error",
        fix=unset("enable_single_batch_overlap"),
    )
