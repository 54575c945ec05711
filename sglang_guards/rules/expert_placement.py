"""PAR108, PAR109, PAR116: experts that EPLB moves or doubles, and models that do not know it."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Change, Violation, ask, public_note, rule, sglang_issue, unset

_NO_A2A = frozenset({None, "", "none"})


def _moves(launch: Launch) -> bool:
    """Whether experts leave the places that their ids name."""
    start = launch.get("args.init_expert_location")
    return bool(launch.get("args.enable_eplb")) or start not in (None, "", "trivial")


def _without(launch: Launch, *fields: str) -> Change:
    """Remove those of the flags that the operator set."""
    typed = [name for name in fields if launch.given(name)] or [fields[0]]
    return Change(dict.fromkeys(typed), "use an all-to-all backend (--moe-a2a-backend deepep)", safe=False)


@rule(
    "PAR108",
    "experts-addressed-by-their-old-places",
    Severity.ERROR,
    summary="after EPLB moves experts, this model goes on addressing them by their old places",
    source={ask("forward_names_placement", architecture="model.architecture"): False},
    reports=(sglang_issue(39580),),
    applies=lambda launch: _moves(launch) and launch["model.is_moe"],
)
def old_places(launch: Launch) -> Iterator[Violation]:
    """EPLB without an all-to-all backend, for a model whose forward does not ask where experts are.

    ## What it checks
    Experts are moved (`--enable-eplb`, or `--init-expert-location` other than trivial), no all-to-all backend is
    set, experts are spread over ranks, and the MoE forward that then runs calls its router without the experts'
    placement. The installed source is asked for this architecture; from 0.5.23 the router asks by itself.

    ## Why it matters
    Router ids are logical. Once weights have moved they must be mapped to physical ids; this forward uses them as
    they are, so tokens go to other experts than the router chose.

    ## When it hurts
    At the first rebalance (or from the start, with an initial placement): wrong text from then on, no error. To
    tell: compare an answer before and after `--eplb-rebalance-num-iterations` forward passes.

    ## Example
    `--model-path Qwen/Qwen3-30B-A3B --tp 4 --ep-size 4 --enable-eplb` on 0.5.19. It works with
    `--moe-a2a-backend deepep`, or without `--enable-eplb`.

    ## Fix
    Remove the flag that moves experts, or use an all-to-all backend.
    """
    if launch["args.moe_a2a_backend"] not in _NO_A2A or int(launch["args.ep_size"]) <= 1:
        return
    yield Violation(
        flags=tuple(f for f in ("enable_eplb", "init_expert_location", "ep_size") if launch.given(f)),
        cause=f"{launch['model.architecture']} without an all-to-all backend calls its router without the experts' "
        "placement",
        impact="from the first rebalance on, tokens reach experts that the router did not choose: wrong text, no "
        "error",
        fix=_without(launch, "enable_eplb", "init_expert_location"),
    )


@rule(
    "PAR109",
    "expert-replicas-picked-per-rank",
    Severity.ERROR,
    summary="each rank picks its own replica of an expert, so a token's expert runs twice or never",
    source={
        ask("replicas_same_on_all_ranks"): False,
        ask("forward_names_placement", architecture="model.architecture"): True,
    },
    applies=lambda launch: bool(launch.get("args.ep_num_redundant_experts")) and launch["model.is_moe"],
)
def replicas(launch: Launch) -> Iterator[Violation]:
    """Redundant experts without an all-to-all backend, where ranks do not agree on the replica.

    ## What it checks
    `--ep-num-redundant-experts` above 0 with EPLB and no all-to-all backend, and an installed source that picks the
    replica by the rank that asks.

    ## Why it matters
    Without an all-to-all backend every rank sees every token and keeps the experts that it holds. When rank 0 maps a
    token's expert to its own replica and rank 1 to another one, both compute it, or nobody does.

    ## When it hurts
    From the first token: wrong sums, no error. To tell: an accuracy test against the same launch without redundancy.

    ## Example
    `--model-path deepseek-ai/DeepSeek-V3 --tp 8 --ep-size 8 --enable-eplb --ep-num-redundant-experts 8` on 0.5.15.
    It works without `--ep-num-redundant-experts`.

    ## Fix
    Remove --ep-num-redundant-experts, or use an all-to-all backend.
    """
    if launch["args.moe_a2a_backend"] not in _NO_A2A or int(launch["args.ep_size"]) <= 1:
        return
    if not launch["args.enable_eplb"] or launch["args.ep_dispatch_algorithm"] not in ("static", "dynamic"):
        return
    yield Violation(
        flags=("ep_num_redundant_experts", "ep_size"),
        cause="each rank picks a replica by itself, and without an all-to-all backend every rank picks for every "
        "token",
        impact="from the first token some experts are added twice and others not at all, without an error",
        fix=_without(launch, "ep_num_redundant_experts"),
    )


@rule(
    "PAR116",
    "eplb-for-a-model-that-hands-out-no-experts",
    Severity.ERROR,
    summary="EPLB cannot move the experts of this model class",
    source={ask("model_hands_out_expert_weights", architecture="model.architecture"): False},
    reports=(public_note("https://github.com/sgl-project/sglang/pull/21205"),),
    applies=lambda launch: bool(launch.get("args.enable_eplb")) and launch["model.is_moe"],
)
def no_weights_to_move(launch: Launch) -> Iterator[Violation]:
    """--enable-eplb for a model class without the list of expert weights that a rebalance moves.

    ## What it checks
    EPLB is on, and neither the model's class nor a class that it inherits from has `routed_experts_weights_of_layer`,
    which the installed EPLB manager reads at a rebalance without asking whether it is there.

    ## Why it matters
    A rebalance copies expert weights from rank to rank; it has to know which tensors these are.

    ## When it hurts
    At the first rebalance, after `--eplb-rebalance-num-iterations` forward passes: every worker dies with an
    AttributeError, minutes or hours into serving.

    ## Example
    `--model-path MiniMaxAI/MiniMax-M2.5 --tp 8 --ep-size 8 --moe-a2a-backend deepep --enable-eplb`. It works without
    `--enable-eplb`.

    ## Fix
    Remove --enable-eplb.
    """
    yield Violation(
        flags=("enable_eplb",),
        cause=f"{launch['model.architecture']} has no routed_experts_weights_of_layer, which a rebalance reads",
        impact="the server runs until the first rebalance, then every worker dies with an AttributeError",
        fix=unset("enable_eplb", safe=False),
    )
