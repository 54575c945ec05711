"""ARF: FlashInfer all-reduce fusion where it refuses to start, gives wrong sums or does nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch import allreduce_fusion, fusion_auto_enable, parallel
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Severity
from sglang_guards.rules import Violation, read_in, rule, set_to, sglang_issue, vllm_issue
from sglang_guards.rules.allreduce_fusion_common import explicit, flags, forbid, off
from sglang_guards.source.models import fusion_contract


@rule(
    "ARF101",
    "fusion-without-a-kernel",
    Severity.ERROR,
    summary="all-reduce fusion is requested where it has no kernel",
    source={"refused at start-up; before that it did nothing": {"fusion_rejects_gpu": True}},
    reports=[sglang_issue(32330), sglang_issue(15650)],
    applies=explicit,
)
def no_kernel(launch: Launch) -> Iterator[Violation]:
    """All-reduce fusion set by the operator on a GPU, or over nodes, for which SGLang refuses it.

    ## What it checks
    The fusion flag is set, and the GPU is neither SM90 nor SM10x, or the backend that the request becomes cannot do
    what is asked (TRT-LLM's over several nodes, mnnvl over several nodes of SM90, cutedsl before SM100).

    ## Why it matters
    FlashInfer's kernels exist for SM90 and SM10x only. From 0.5.14 the workers refuse the request with a ValueError
    when they prepare the workspace; before that the flag does nothing and says nothing.

    ## When it hurts
    From 0.5.14: at the end of the start-up, after the weights are loaded, on every rank. Before: never, and the
    speed-up that was hoped for does not come (then it is a warning).

    ## Fix
    Remove the flag, or name a backend that this GPU and this number of nodes have.
    """
    if (launch["args.tp_size"] or 1) <= 1:
        return
    cuda, kernel = launch["gpu.platform"] == "cuda", allreduce_fusion.has_kernel(launch)
    found = allreduce_fusion.backend(launch) if cuda else None
    if kernel and (found is None or found.name is not None):
        return
    name = launch["gpu.name"] + (f" (SM{launch['gpu.sm']})" if cuda else "")
    refuses = cuda and bool(launch["source.fusion_rejects_gpu"])
    why = f": `{found.refusal}`" if found is not None and found.refusal else ""
    where = found.where if found is not None and refuses else launch.where("source.fusion_rejects_gpu")
    several = kernel and (launch["args.nnodes"] or 1) > 1
    yield Violation(
        severity=Severity.ERROR if refuses else Severity.WARNING,
        flags=flags(launch, *(("nnodes",) if several else ())),
        message="SGLang's workers refuse this all-reduce fusion at start-up"
        if refuses
        else "all-reduce fusion does nothing here",
        cause=(f"SGLang refuses it on {name}{why}" if kernel else f"{name} has no fused kernel{why}")
        + (f" ({where.removeprefix('sglang/srt/')})" if refuses else ""),
        impact="start-up fails with a ValueError on every rank, after the weights are loaded"
        if refuses
        else "no runtime effect: the server behaves as if the flag were unset",
        fix=off(launch),
        evidence=(Evidence("source", where),),
    )


@rule(
    "ARF102",
    "fusion-with-hybrid-expert-parallelism",
    Severity.ERROR,
    summary="all-reduce fusion reduces over only one of the two expert groups when EP and TP are combined "
    "(1 < EP < TP)",
    source={"fusion_hybrid_ep_reduces_moe_group": True, "fusion_hybrid_ep_guarded": False},
    reports=[sglang_issue(32511), sglang_issue(32012), sglang_issue(32963)],
    applies=allreduce_fusion.is_on,
)
def hybrid_ep(launch: Launch) -> Iterator[Violation]:
    """All-reduce fusion, requested or automatic, with 1 < EP < TP.

    ## What it checks
    Fusion is on, the experts are split both by EP and by TP (TP / EP / MoE-DP above 1), the model leaves the sum of its
    experts to the next layer, and the installed source reduces that sum over the expert group without a guard for
    this layout.

    ## Why it matters
    With both splits the experts' output is a partial sum over two groups. The model skips both reductions and the
    fused kernel makes up for one, so a part of every MoE layer's output is lost.

    ## When it hurts
    From the first token: the text is garbage (GSM8K 0 of 8 in the report). Nothing is logged, and nobody needs to
    type a fusion flag: SGLang switches it on by itself for listed architectures.

    ## Fix
    Switch fusion off, or use --ep-size 1 or --ep-size equal to --tp-size.
    """
    experts_tp, ep = parallel.experts_tp_of(launch), int(launch["args.ep_size"] or 1)
    if ep <= 1 or experts_tp <= 1:
        return
    if not allreduce_fusion.is_active(launch) or not allreduce_fusion.defers(launch):
        return
    yield Violation(
        flags=flags(launch, "tp_size", "ep_size"),
        cause=f"experts are split {ep} ways by EP and {experts_tp} ways by TP, and the fused kernel reduces over one "
        "of the two groups",
        impact="the output is wrong from the first token, without an error",
        fix=forbid(launch),
    )


@rule(
    "ARF103",
    "fusion-with-pipeline-stages",
    Severity.WARNING,
    summary="all-reduce fusion drops a reduction at every pipeline-stage boundary",
    source={"fusion_pp_completes_sum": False},
    reports=[vllm_issue(43616)],
    applies=allreduce_fusion.is_on,
)
def pipeline(launch: Launch) -> Iterator[Violation]:
    """All-reduce fusion with pipeline parallelism.

    ## What it checks
    Fusion is on with more than one pipeline stage, the model leaves the sum of its MLP or MoE to the next layer, and
    neither the framework (0.5.21 and later) nor the model's own forward completes it before the next stage gets it.

    ## Why it matters
    The last layer of a stage leaves its sum to a layer that lives on other ranks. The mark on the tensor does not
    travel, so nobody completes it. This follows from the source; no run has shown it yet, hence a warning.

    ## When it hurts
    To confirm: compare greedy output with and without fusion on this launch; differences beyond rounding are the fault.

    ## Fix
    Switch fusion off, or use one stage.
    """
    if (launch["args.pp_size"] or 1) <= 1 or not allreduce_fusion.is_active(launch):
        return
    if not allreduce_fusion.defers(launch) or launch.source is None:
        return
    architecture = launch["model.architecture"]
    config = launch.get("model.config")
    if fusion_contract.completes_before_stage(launch.source, architecture, config) is not False:
        return
    yield Violation(
        flags=flags(launch, "pp_size"),
        cause=f"{architecture} sends a stage's output on without completing a reduction that was left to the next "
        "layer",
        impact="wrong activations from the first token, once per stage boundary; read from the source, not shown in a "
        "run: compare greedy output with and without fusion",
        fix=forbid(launch),
    )


@rule(
    "ARF104",
    "fusion-with-deterministic-inference",
    Severity.ERROR,
    summary="all-reduce fusion breaks deterministic inference",
    source={"fusion_off_when_deterministic": False},
    reports=[sglang_issue(24629)],
    applies=allreduce_fusion.is_on,
)
def deterministic(launch: Launch) -> Iterator[Violation]:
    """All-reduce fusion with --enable-deterministic-inference or --rl-on-policy-target.

    ## What it checks
    Deterministic inference is requested, fusion is still on after resolution, and the installed SGLang does not switch
    it off by itself (0.5.12 and later do).

    ## Why it matters
    The fused kernel sums in an order that depends on the batch, so equal prompts give different results: what
    deterministic mode promises not to do.

    ## When it hurts
    At every request; SGLang's own deterministic test failed with it on H100 with TP 4.

    ## Fix
    Switch fusion off.
    """
    modes = [n for n in ("enable_deterministic_inference", "rl_on_policy_target") if launch[f"args.{n}"]]
    if modes and allreduce_fusion.is_active(launch):
        yield Violation(
            flags=flags(launch, *modes),
            cause="this SGLang leaves fusion on in deterministic mode",
            impact="the same prompt can give different results in different batches",
            fix=forbid(launch),
        )


@rule(
    "ARF105",
    "fusion-with-an-incomplete-model",
    Severity.WARNING,
    summary="the model defers reductions to a next layer that does not complete them",
    reports=[sglang_issue(19411)],
    applies=allreduce_fusion.is_on,
)
def incomplete(launch: Launch) -> Iterator[Violation]:
    """All-reduce fusion with a model that keeps only a part of its contract.

    ## What it checks
    Fusion is on, and the decoder layers of the launched architecture skip the sum of their MLP or MoE without marking
    the tensor for the next layer (a warning), or never say which layer is the last, so that the last one leaves its
    sum to nobody (an info).

    ## Why it matters
    A sum that nobody completes stays partial on each rank. The same fault in Qwen3.5 gave repeated text (sglang
    #19411) before it was released. What it costs here is read from the source and not measured.

    ## When it hurts
    To confirm: compare greedy output or an accuracy test with and without fusion on this launch.

    ## Fix
    Switch fusion off.
    """
    if not allreduce_fusion.is_active(launch):
        return
    kept = allreduce_fusion.contract(launch)
    if kept.kind not in ("broken", "last lost"):
        return
    lost = kept.kind == "last lost"
    yield Violation(
        severity=Severity.INFO if lost else Severity.WARNING,
        message="the last layer's output may stay a partial sum with all-reduce fusion" if lost else None,
        flags=flags(launch),
        cause=f"{kept.why} ({kept.where.removeprefix('sglang/srt/')})",
        impact="may be less accurate from the first token; read from the source, not measured: compare an accuracy "
        "test with and without fusion",
        fix=forbid(launch),
        evidence=(Evidence("source", kept.where),),
    )


@rule(
    "ARF201",
    "fusion-with-dp-attention",
    Severity.WARNING,
    summary="all-reduce fusion does nothing with DP attention",
    source={"fusion_noop_under_dp_attention": True},
    reports=[read_in("srt/layers/communicator.py of 0.5.15: apply_flashinfer_allreduce_fusion")],
    applies=explicit,
)
def dp_attention(launch: Launch) -> Iterator[Violation]:
    """All-reduce fusion set by the operator together with DP attention.

    ## What it checks
    The fusion flag is set, attention runs data-parallel, and the installed source takes the fused kernel only without
    it.

    ## Why it matters
    The flag has no effect and nothing says so; from 0.5.14 it still allocates FlashInfer's workspace on every rank.

    ## When it hurts
    Never; the speed-up does not come.

    ## Fix
    Remove the fusion flag, or DP attention.
    """
    if parallel.dp_attention(launch):
        # Releases from 0.5.22 on derive it from sizes: what was typed is named, not the field that holds the result.
        switch = ("enable_dp_attention",) if launch["args.enable_dp_attention"] else ()
        typed = tuple(
            name for name in ("enable_dp_attention", "attn_dp_size", "dp_size") if launch.given(name)
        )
        ways = launch.get("args.attn_dp_size")
        split = f"attention runs {ways} ways in parallel, and " if isinstance(ways, int) and ways > 1 else ""
        yield Violation(
            flags=flags(launch, *(typed or switch)),
            cause=f"{split}the fused kernel is taken only without DP attention",
            impact="no runtime effect: the server behaves as if the flag were unset",
            fix=off(launch),
        )


@rule(
    "ARF301",
    "fusion-could-be-on",
    Severity.INFO,
    summary="all-reduce fusion can be enabled for this model",
    reports=[sglang_issue(9973)],
    applies=lambda launch: not allreduce_fusion.is_on(launch),
)
def could_be_on(launch: Launch) -> Iterator[Violation]:
    """The extended auto-enable list: what start-up does where SGLang's own list lacks the architecture.

    ## What it checks
    Fusion is off, nobody forbade it, the architecture is on the reviewed list of sglang-guards, the installed source
    keeps the whole contract for it, SGLang's own conditions hold (GPU with a kernel, TP > 1, one node, no DP attention,
    no a2a backend), and none of the known defects applies.

    ## Why it matters
    SGLang lists architectures by their outer name, so wrappers and siblings of listed models run unfused. Reported
    gains reach from 2 % (Qwen3-MoE prefill) to 10 % end to end (Ling-plus, B200); none of them is ours.

    ## When it hurts
    Never; fusion would be faster.

    ## Fix
    At start-up the plugin switches it on and logs it; SGLANG_GUARDS_AUTO=0 forbids that. Without the plugin, set the
    flag.
    """
    decision = fusion_auto_enable.decide(launch)
    if decision.field is None:
        return
    change = set_to(decision.field, decision.value)
    yield Violation(
        flags=(change.text(launch.unrecorded()).partition(" ")[2],),
        cause=f"{decision.reason} ({decision.where.removeprefix('sglang/srt/')})",
        impact="no harm, a missed speed-up; the plugin enables it at start-up and logs it, unless SGLANG_GUARDS_AUTO=0",
        fix=change,
        evidence=(Evidence("source", decision.where),),
    )
