"""SPC107, SPC108: what a draft loses between a prefill node and a decode node."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.checkpoint import text_config
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, ask, rule, sglang_issue, unset

_EAGLE = frozenset({"EAGLE", "EAGLE3", "NEXTN"})
_BLOCK = frozenset({"DFLASH", "DSPARK"})


@rule(
    "SPC107",
    "decode-node-without-the-drafts-topk",
    Severity.ERROR,
    summary="a decode node does not get the top-k indices that the draft's sparse attention starts from",
    source={"decode_node_keeps_draft_topk": False},
    reports=(sglang_issue(30854),),
    applies=lambda launch: (
        launch.get("args.disaggregation_mode") == "decode"
        and str(launch.get("args.speculative_algorithm") or "").upper() in _EAGLE
    ),
)
def lost_seed(launch: Launch) -> Iterator[Violation]:
    """EAGLE on a decode node for a model whose draft shares the indexer's top-k between its steps.

    ## What it checks
    `--disaggregation-mode decode` with EAGLE, a config with `index_share_for_mtp_iteration` and `index_topk`, and an
    installed SGLang whose draft keeps a seed of indices that disaggregation does not hand over.

    ## Why it matters
    The seed keeps the size of an earlier batch.

    ## When it hurts
    With the first batch of another size: a copy between tensors of different shape ends the worker.

    ## Example
    `--model-path zai-org/GLM-5.2-FP8 --disaggregation-mode decode --speculative-algorithm EAGLE …` on 0.5.15. It works
    without speculation, and on 0.5.16.

    ## Fix
    Use a release that hands the seed over, or no speculation on this node.
    """
    text = text_config(launch["draft_model.config"])
    if not text.get("index_share_for_mtp_iteration") or not text.get("index_topk"):
        return
    yield Violation(
        flags=("disaggregation_mode", "speculative_algorithm"),
        cause="the draft starts each step from earlier top-k indices, and the prefill node does not send them to the "
        "decode node",
        impact="the worker dies at the first batch of another size, in a copy between tensors of different shapes",
        fix=unset("speculative_algorithm", otherwise="use SGLang 0.5.16 or later", safe=False),
    )


@rule(
    "SPC108",
    "decode-node-makes-no-draft-input",
    Severity.ERROR,
    summary="a decode node makes no first draft input for this algorithm",
    source={ask("decode_node_makes_draft_input", algorithm="args.speculative_algorithm"): False},
    reports=(sglang_issue(36140),),
    applies=lambda launch: (
        launch.get("args.disaggregation_mode") == "decode"
        and str(launch.get("args.speculative_algorithm") or "").upper() in _BLOCK
    ),
)
def no_draft_input(launch: Launch) -> Iterator[Violation]:
    """DFLASH or DSPARK on a decode node of a release that prepares the draft's input for EAGLE only.

    ## What it checks
    `--disaggregation-mode decode` with DFLASH or DSPARK, and an installed SGLang that gives requests from a prefill
    node no draft input for that algorithm, but reads it before the first decode step.

    ## Why it matters
    After prefill on the same node the draft makes that input; a decode node must make it from what was transferred.

    ## When it hurts
    With the first request that arrives from a prefill node: an AttributeError ends the worker.

    ## Example
    `--disaggregation-mode decode --speculative-algorithm DFLASH …` on 0.5.16. It works without
    `--speculative-algorithm`, and on 0.5.20.

    ## Fix
    Decode without speculation, use EAGLE, or a release that makes the input.
    """
    algorithm = launch["args.speculative_algorithm"]
    yield Violation(
        flags=("disaggregation_mode", "speculative_algorithm"),
        cause=f"the decode node makes no draft input for {algorithm} when a request arrives, and the first decode "
        "step reads one",
        impact="the first transferred request ends the worker with an AttributeError",
        fix=unset("speculative_algorithm", safe=False),
    )
