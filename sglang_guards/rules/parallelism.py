"""PAR: parallel sizes, overlap and replication against the model."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.fact import MOST_RANKS
from sglang_guards.launch.facts import Launch
from sglang_guards.launch.parallel import dp_attention
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, manual, rule, set_to, sglang_issue, unset
from sglang_guards.rules.reports_common import NO_A2A, env_on, has_lora, major, runner_backend

#: Architectures built on DeepseekV2MoE, which reads SGLANG_SHARED_EXPERT_TP1.
_DEEPSEEK_MOE = (
    "DeepseekV2For", "DeepseekV3For", "DeepseekV32For", "GlmMoeDsa", "KimiK25", "MistralLarge3",
)  # fmt: skip


def exit_sums(launch: Launch) -> bool:
    """Whether the layers' exit sums the ranks' outputs: DP attention with EP = DP and no all-to-all backend."""
    dp = int(launch["args.attn_dp_size"] or 1)
    dp = dp if dp > 1 else int(launch["args.dp_size"])
    if dp <= 1 or dp != int(launch["args.ep_size"]) or launch["args.moe_a2a_backend"] not in NO_A2A:
        return False
    return launch["source.reduce_scatterv_needs_full_dp"] is False or dp == int(launch["args.tp_size"])


@rule(
    "PAR101",
    "gpt-oss-dp-attention-with-expert-parallelism",
    Severity.ERROR,
    summary="gpt-oss reduces its experts' output twice under DP attention with EP",
    source={"gpt_oss_sums_twice": True, "reduce_scatterv_sums": True},
    reports=[sglang_issue(37187)],
    applies=lambda launch: dp_attention(launch) and launch["model.architecture"] == "GptOssForCausalLM",
)
def gpt_oss_twice(launch: Launch) -> Iterator[Violation]:
    """gpt-oss with DP attention and as many EP ranks as DP ranks.

    ## What it checks
    No all-to-all backend, DP attention, EP equal to DP (and to TP where the installed source asks for it), and a
    model that all-reduces its experts' output before the exit of the layer sums it again.

    ## Why it matters
    The expert output is scaled by the number of ranks while the residual is not.

    ## When it hurts
    From the first token: garbage (GSM8K 0 of 128 in the report), without an error.

    ## Fix
    --ep-size 1, no DP attention, or a release that skips the first sum (0.5.20 does).
    """
    if exit_sums(launch):
        yield Violation(
            flags=("enable_dp_attention", "ep_size"),
            cause=f"the experts' output is all-reduced in the model ({launch.where('source.gpt_oss_sums_twice')}) and "
            f"summed again at the layer's exit ({launch.where('source.reduce_scatterv_sums')})",
            impact="the output is garbage from the first token, without an error",
            fix=set_to("ep_size", 1, safe=False),
        )


@rule(
    "PAR102",
    "replicated-shared-expert-counted-per-rank",
    Severity.ERROR,
    summary="the replicated shared expert is added once per rank",
    source={"shared_expert_tp1_overcounted": True, "reduce_scatterv_sums": True},
    reports=[sglang_issue(31475), sglang_issue(35535)],
    applies=lambda launch: (
        env_on(launch, "SGLANG_SHARED_EXPERT_TP1")
        and not launch["args.enforce_shared_experts_fusion"]
        and dp_attention(launch)
        and str(launch["model.architecture"]).startswith(_DEEPSEEK_MOE)
    ),
)
def shared_expert(launch: Launch) -> Iterator[Violation]:
    """SGLANG_SHARED_EXPERT_TP1=1 with DP attention and EP.

    ## What it checks
    The switch is on, the model is of the DeepseekV2MoE family with a shared expert that is not fused, the layer's
    exit sums over the ranks, and the installed model adds the shared expert on every rank before that.

    ## Why it matters
    The sum then holds the shared expert once per EP rank.

    ## When it hurts
    From the first token: garbage, without an error.

    ## Fix
    Unset SGLANG_SHARED_EXPERT_TP1, or use a release that adds it on one rank (0.5.21 does).
    """
    if launch["gpu.platform"] == "cuda" and launch["model.num_shared_experts"] and exit_sums(launch):
        yield Violation(
            flags=("SGLANG_SHARED_EXPERT_TP1=1", "ep_size", "enable_dp_attention"),
            cause=f"every rank adds the whole shared expert before the layer's exit sums over {launch['args.ep_size']} "
            "ranks",
            impact="the output is garbage from the first token, without an error",
            fix=manual("unset SGLANG_SHARED_EXPERT_TP1"),
        )


@rule(
    "PAR103",
    "two-batch-overlap-with-fused-shared-experts",
    Severity.WARNING,
    summary="two-batch overlap with enforced shared-experts fusion can hang",
    source={"tbo_pads_request_ids": False, "tbo_refuses_enforced_fusion": False},
    reports=[sglang_issue(24690), sglang_issue(27510)],
    applies=lambda launch: (
        bool(launch["args.enable_two_batch_overlap"]) and bool(launch["args.enforce_shared_experts_fusion"])
    ),
)
def tbo_fusion(launch: Launch) -> Iterator[Violation]:
    """--enable-two-batch-overlap with --enforce-shared-experts-fusion.

    ## What it checks
    Both are on, and the installed overlap neither refuses the pair nor pads the request ids that it needs.

    ## Why it matters
    The two halves of the batch then disagree about their sizes.

    ## When it hurts
    Under concurrent load: the server hangs. To confirm: it is gone without --enforce-shared-experts-fusion.

    ## Fix
    Remove --enforce-shared-experts-fusion.
    """
    yield Violation(
        flags=("enable_two_batch_overlap", "enforce_shared_experts_fusion"),
        cause="the overlap splits request ids without padding them",
        impact="a hang under concurrent load, in a public report",
        fix=unset("enforce_shared_experts_fusion"),
    )


@rule(
    "PAR104",
    "two-batch-overlap-on-cutlass-mxfp4",
    Severity.WARNING,
    summary="two-batch overlap passes an empty batch to the CUTLASS MXFP4 runner",
    reports=[sglang_issue(38773)],
    applies=lambda launch: (
        bool(launch["args.enable_two_batch_overlap"])
        and runner_backend(launch) == "flashinfer_mxfp4"
        and dp_attention(launch)
    ),
)
def tbo_mxfp4(launch: Launch) -> Iterator[Violation]:
    """Two-batch overlap and DP attention with flashinfer_mxfp4 on SM90.

    ## What it checks
    All three are on and the GPU is SM90, where flashinfer_mxfp4 is a CUTLASS kernel.

    ## Why it matters
    An idle DP rank, or half of a one-request batch, is empty; the kernel rejects its null pointer.

    ## When it hurts
    Not in warm-up: with the first single-token decode. To confirm: send one short request.

    ## Fix
    Remove --enable-two-batch-overlap.
    """
    if major(launch) == 9:
        yield Violation(
            flags=("enable_two_batch_overlap", "moe_runner_backend"),
            cause=f"on SM{launch['gpu.sm']} flashinfer_mxfp4 is a CUTLASS kernel, which rejects an empty batch",
            impact="the workers die at the first single-token decode, in a public report",
            fix=unset("enable_two_batch_overlap"),
        )


@rule(
    "PAR105",
    "lora-with-replicated-dense-layers",
    Severity.WARNING,
    summary="LoRA adapters on replicated dense layers do not fit their buffer",
    reports=[sglang_issue(29448)],
    applies=lambda launch: launch["args.moe_dense_tp_size"] == 1 and has_lora(launch),
)
def lora_dense(launch: Launch) -> Iterator[Violation]:
    """--moe-dense-tp-size 1 with LoRA on a model with leading dense layers.

    ## What it checks
    Adapters are on, the dense layers are replicated over more than one rank, the model has such layers, and the
    adapters target the gate and up projection or could not be read.

    ## Why it matters
    The dense layer is whole on every rank, its adapter buffer is sized for a share.

    ## When it hurts
    When an adapter with weights for a dense layer is registered: a shape mismatch, the server does not start. To
    tell: look for layers.0 in the adapter's weight names.

    ## Fix
    Remove --moe-dense-tp-size.
    """
    if not launch["model.first_k_dense"] or int(launch["args.tp_size"]) < 2:
        return
    targets = launch.get("lora.target_modules")
    if targets is None or {"all", "gate_up_proj"} & set(targets):
        yield Violation(
            flags=("moe_dense_tp_size", "lora_paths"),
            cause=f"the first {launch['model.first_k_dense']} layers are dense and whole on every rank, but the "
            f"adapter buffer holds 1/{launch['args.tp_size']} of them",
            impact="registering an adapter with weights for these layers fails at start-up",
            fix=unset("moe_dense_tp_size", safe=False),
        )


@rule(
    "PAR106",
    "expert-parallelism-does-not-divide-tensor-parallelism",
    Severity.ERROR,
    summary="EP does not divide TP, so SGLang fails while it starts its ranks",
    source={"moe_tp_is_floor": True},
    applies=lambda launch: (
        launch["args.ep_size"] not in (None, 1)
        and not any(launch[f"args.{name}"] for name in ("elastic_ep_backend", "encoder_only"))
    ),
)
def ep_divides_tp(launch: Launch) -> Iterator[Violation]:
    """Expert parallelism that the ranks of tensor parallelism cannot be divided into.

    ## What it checks
    TP is not a multiple of EP times MoE data parallelism, and the installed source takes the integer quotient. Elastic
    EP, which starts with fewer ranks, and an encoder server, which has no EP, are left alone.

    ## Why it matters
    MoE TP is TP // EP // MoE-DP. With EP above TP it is 0 and the launcher divides by it; with a remainder the
    groups are built from the quotient, and the ranks that are left over belong to no group.

    ## When it hurts
    At start-up: ZeroDivisionError, or an assertion of the ranks without a group, before any weight is read.

    ## Fix
    Set --ep-size to a divisor of --tp-size.
    """
    tp, ep = int(launch["args.tp_size"]), int(launch["args.ep_size"])
    ranks = tp // max(1, int(launch["args.moe_dp_size"] or 1))
    if ranks < 1 or (ep > 0 and ranks % ep == 0):
        return
    best = max((size for size in range(1, min(ranks, ep, MOST_RANKS) + 1) if ranks % size == 0), default=1)
    yield Violation(
        flags=("tp_size", "ep_size"),
        cause=f"{ranks} ranks are not a multiple of EP {ep}; SGLang takes their integer quotient as the MoE TP size",
        impact="start-up fails before any weight is read",
        fix=set_to("ep_size", best, safe=False),
    )


@rule(
    "PAR107",
    "more-ranks-than-gpus",
    Severity.ERROR,
    summary="the launch needs more GPUs per node than there are",
    applies=lambda launch: (
        "gpu.count" in launch.facts
        and launch.fact("gpu.count").origin == "assumed"
        and not any(launch[f"args.{name}"] for name in ("use_ray", "elastic_ep_backend", "encoder_only"))
    ),
)
def ranks_fit(launch: Launch) -> Iterator[Violation]:
    """More ranks on a node than it has GPUs.

    ## What it checks
    The node's share of TP × PP, times DP where that is not DP attention, counted from --base-gpu-id in steps of
    --gpu-id-step (which spreads TP), against the number in --gpu. Only `check --gpu` asks: at start-up a launcher
    may see fewer GPUs than its ranks do (Ray).

    ## Why it matters
    Each rank takes the GPU of its number.

    ## When it hurts
    At start-up: the ranks beyond the last GPU fail with "invalid device ordinal".

    ## Fix
    Lower the parallel sizes, add nodes, or check with the GPUs of the real node.
    """
    if launch["gpu.platform"] not in ("cuda", "hip"):
        return
    tp, pp, nodes = (max(1, int(launch[f"args.{name}"])) for name in ("tp_size", "pp_size", "nnodes"))
    copies = 1 if dp_attention(launch) or nodes > 1 else max(1, int(launch["args.dp_size"]))
    stages, width = max(1, pp // nodes), max(1, tp // max(1, nodes // pp))
    ranks = stages * width * copies
    first, step = int(launch["args.base_gpu_id"] or 0), max(1, int(launch["args.gpu_id_step"] or 1))
    # The step spreads the ranks of TP only; stages lie TP apart, and copies of the model TP x PP x step.
    needed = first + (copies - 1) * tp * pp * step + (stages - 1) * width + (width - 1) * step + 1
    if needed > int(launch["gpu.count"]):
        requested = {
            "tp_size": tp > 1, "pp_size": pp > 1, "dp_size": copies > 1, "nnodes": nodes > 1,
            "base_gpu_id": first > 0, "gpu_id_step": step > 1,
        }  # fmt: skip
        yield Violation(
            flags=tuple(name for name, does in requested.items() if does),
            cause=f"{ranks} ranks on a node need {needed} GPUs, and --gpu names {launch['gpu.count']}",
            impact="at start-up the ranks beyond the last GPU fail with an invalid device ordinal",
            fix=manual("lower the parallel sizes, add nodes, or give --gpu the real number"),
        )
