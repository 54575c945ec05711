"""ARF: FlashInfer all-reduce fusion where it refuses to start, gives wrong sums or does nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch import allreduce_fusion, fusion_auto_enable
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import issue, line
from sglang_guards.source.models import fusion_contract

_ON = ("args.tp_size", "args.nnodes", "gpu.platform", "gpu.sm")


def _explicit(launch: Launch) -> bool:
    return allreduce_fusion.is_on(launch) and allreduce_fusion.is_explicit(launch)


@rule(
    "ARF101",
    "fusion-without-a-kernel",
    Severity.ERROR,
    summary="all-reduce fusion is asked for where it has no kernel",
    needs=(*_ON, "gpu.name", "source.fusion_rejects_gpu", "fusion.backend"),
    evidence=(issue(32330), issue(15650)),
    applies=_explicit,
)
def no_kernel(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    why = f": «{found.refusal}»" if found is not None and found.refusal else ""
    where = found.where if found is not None and refuses else launch.where("source.fusion_rejects_gpu")
    yield rule.finding(
        severity=Severity.ERROR if refuses else Severity.WARNING,
        flags=allreduce_fusion.flags(
            launch, *(() if not kernel or (launch["args.nnodes"] or 1) == 1 else ("nnodes",))
        ),
        message="all-reduce fusion is refused when the workers start"
        if refuses
        else "all-reduce fusion does nothing here",
        cause=(f"SGLang refuses it on {name}{why}" if kernel else f"{name} has no fused kernel{why}")
        + (f" ({where.removeprefix('sglang/srt/')})" if refuses else ""),
        impact="start-up fails with a ValueError on every rank, after the weights are loaded"
        if refuses
        else "never: the server runs as without the flag",
        fix=allreduce_fusion.off(launch),
        evidence=(Evidence("source", where),),
    )


@rule(
    "ARF102",
    "fusion-with-hybrid-expert-parallelism",
    Severity.ERROR,
    summary="all-reduce fusion sums over one group only when experts are split by EP and TP at once",
    needs=(
        *_ON,
        "args.ep_size",
        "model.architecture",
        "source.fusion_hybrid_ep_reduces_moe_group",
        "source.fusion_hybrid_ep_guarded",
        "fusion.contract",
    ),
    evidence=(issue(32511), issue(32012), issue(32963)),
    applies=allreduce_fusion.is_on,
)
def hybrid_ep(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """All-reduce fusion, asked for or automatic, with 1 < EP < TP.

    ## What it checks
    Fusion is on, the expert-parallel size lies between 1 and the tensor-parallel size, the model leaves the sum of its
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
    tp, ep = launch["args.tp_size"] or 1, launch["args.ep_size"] or 1
    if not 1 < ep < tp or not allreduce_fusion.is_active(launch):
        return
    if not launch["source.fusion_hybrid_ep_reduces_moe_group"] or launch["source.fusion_hybrid_ep_guarded"]:
        return
    if not allreduce_fusion.defers(launch):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, "tp_size", "ep_size"),
        cause=f"experts are split {ep} ways by EP and {tp // ep} ways by TP; the fused kernel reduces over one of the "
        f"two groups ({launch.where('source.fusion_hybrid_ep_reduces_moe_group')})",
        impact="from the first token the output is wrong, without any message",
        fix=allreduce_fusion.forbid(launch),
        evidence=(line(launch, "fusion_hybrid_ep_reduces_moe_group"),),
    )


@rule(
    "ARF103",
    "fusion-with-pipeline-stages",
    Severity.WARNING,
    summary="all-reduce fusion loses a sum at every pipeline-stage boundary",
    needs=(
        *_ON,
        "args.pp_size",
        "model.architecture",
        "source.fusion_pp_completes_sum",
        "fusion.contract",
    ),
    evidence=(Evidence("report", "https://github.com/vllm-project/vllm/issues/43616"),),
    applies=allreduce_fusion.is_on,
)
def pipeline(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """All-reduce fusion with pipeline parallelism.

    ## What it checks
    Fusion is on with more than one pipeline stage, the model leaves the sum of its MLP or MoE to the next layer, and
    neither the framework (0.5.21 and later) nor the model's own forward completes it before the next stage gets it.

    ## Why it matters
    The last layer of a stage leaves its sum to a layer that lives on other ranks. The mark on the tensor does not
    travel, so nobody completes it. This follows from the source; no run has shown it yet, hence a warning.

    ## When it hurts
    To tell: compare greedy output with and without fusion on this launch; differences beyond rounding are the fault.

    ## Fix
    Switch fusion off, or use one stage.
    """
    if (launch["args.pp_size"] or 1) <= 1 or not allreduce_fusion.is_active(launch):
        return
    if (
        launch["source.fusion_pp_completes_sum"]
        or not allreduce_fusion.defers(launch)
        or launch.source is None
    ):
        return
    architecture = launch["model.architecture"]
    if (
        fusion_contract.completes_before_stage(launch.source, architecture, launch.get("model.config"))
        is not False
    ):
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, "pp_size"),
        cause=f"{architecture} hands a stage's output on without completing a sum that was left to the next layer "
        f"({launch.where('source.fusion_pp_completes_sum')})",
        impact="from the first token, once per stage boundary; by the source, not shown in a run: compare greedy "
        "output with and without fusion",
        fix=allreduce_fusion.forbid(launch),
        evidence=(line(launch, "fusion_pp_completes_sum"),),
    )


@rule(
    "ARF104",
    "fusion-with-deterministic-inference",
    Severity.ERROR,
    summary="all-reduce fusion breaks deterministic inference",
    needs=(*_ON, "source.fusion_off_when_deterministic"),
    evidence=(issue(24629),),
    applies=allreduce_fusion.is_on,
)
def deterministic(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """All-reduce fusion with --enable-deterministic-inference or --rl-on-policy-target.

    ## What it checks
    Deterministic inference is asked for, fusion is still on after resolution, and the installed SGLang does not switch
    it off by itself (0.5.12 and later do).

    ## Why it matters
    The fused kernel sums in an order that depends on the batch, so equal prompts give different results: what
    deterministic mode promises not to do.

    ## When it hurts
    At every request; SGLang's own deterministic test failed with it on H100 with TP 4.

    ## Fix
    Switch fusion off.
    """
    if not allreduce_fusion.is_active(launch) or launch["source.fusion_off_when_deterministic"]:
        return
    asked = [n for n in ("enable_deterministic_inference", "rl_on_policy_target") if launch.get(f"args.{n}")]
    if not asked:
        return
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, *asked),
        cause="this SGLang leaves fusion on in deterministic mode",
        impact="at every request: the same prompt may get different results in different batches",
        fix=allreduce_fusion.forbid(launch),
        evidence=(line(launch, "fusion_off_when_deterministic"),),
    )


@rule(
    "ARF105",
    "fusion-with-an-incomplete-model",
    Severity.WARNING,
    summary="the model leaves sums to a next layer that does not take them",
    needs=(*_ON, "model.architecture", "fusion.contract"),
    evidence=(Evidence("report", "https://github.com/sgl-project/sglang/issues/19411"),),
    applies=allreduce_fusion.is_on,
)
def incomplete(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """All-reduce fusion with a model that keeps only a part of its contract.

    ## What it checks
    Fusion is on, and the decoder layers of the launched architecture skip the sum of their MLP or MoE without marking
    the tensor for the next layer (a warning), or never say which layer is the last, so that the last one leaves its
    sum to nobody (an info).

    ## Why it matters
    A sum that nobody completes stays partial on each rank. The same fault in Qwen3.5 gave repeated text (sglang
    #19411) before it was released. What it costs here is read from the source and not measured.

    ## When it hurts
    To tell: compare greedy output or an accuracy test with and without fusion on this launch.

    ## Fix
    Switch fusion off.
    """
    if not allreduce_fusion.is_active(launch):
        return
    kept = allreduce_fusion.contract(launch)
    if kept.kind not in ("broken", "last lost"):
        return
    lost = kept.kind == "last lost"
    yield rule.finding(
        severity=Severity.INFO if lost else Severity.WARNING,
        message="the last layer's sum may stay partial with all-reduce fusion" if lost else None,
        flags=allreduce_fusion.flags(launch),
        cause=f"{kept.why} ({kept.where.removeprefix('sglang/srt/')})",
        impact="from the first token, by the source; how much it costs was not measured: compare an accuracy test with "
        "and without fusion",
        fix=allreduce_fusion.forbid(launch),
        evidence=(Evidence("source", kept.where),),
    )


@rule(
    "ARF201",
    "fusion-with-dp-attention",
    Severity.WARNING,
    summary="all-reduce fusion does nothing with data-parallel attention",
    needs=("source.fusion_noop_under_dp_attention", "args.tp_size"),
    evidence=(Evidence("source", "srt/layers/communicator.py of 0.5.15: apply_flashinfer_allreduce_fusion"),),
    applies=_explicit,
)
def dp_attention(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    if not allreduce_fusion.dp_attention(launch) or not launch["source.fusion_noop_under_dp_attention"]:
        return
    other = "enable_dp_attention" if launch.get("args.enable_dp_attention") else "attn_dp_size"
    yield rule.finding(
        flags=allreduce_fusion.flags(launch, other),
        cause="the fused kernel is taken only without DP attention "
        f"({launch.where('source.fusion_noop_under_dp_attention')})",
        impact="never: the server runs as without the flag",
        fix=allreduce_fusion.off(launch),
        evidence=(line(launch, "fusion_noop_under_dp_attention"),),
    )


@rule(
    "ARF301",
    "fusion-could-be-on",
    Severity.INFO,
    summary="all-reduce fusion can be switched on for this model",
    needs=(
        *_ON,
        "args.ep_size",
        "args.pp_size",
        "args.moe_a2a_backend",
        "args.speculative_algorithm",
        "gpu.name",
        "model.architecture",
        "source.fusion_auto_architectures",
        "fusion.contract",
    ),
    evidence=(Evidence("report", "https://github.com/sgl-project/sglang/issues/9973"),),
    applies=lambda launch: not allreduce_fusion.is_on(launch),
)
def could_be_on(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    flag = "--" + decision.field.replace("_", "-")
    typed = flag if decision.value is True else f"{flag} {decision.value}"
    yield rule.finding(
        flags=(typed,),
        cause=f"{decision.reason} ({decision.where.removeprefix('sglang/srt/')})",
        impact="never: the plugin switches it on at start-up and logs it, unless SGLANG_GUARDS_AUTO=0",
        fix=Fix(f"add {typed}", {decision.field: decision.value}),
        evidence=(Evidence("source", decision.where),),
    )
