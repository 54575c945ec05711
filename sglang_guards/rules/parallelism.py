"""PAR: parallel sizes, overlap and replication against the model."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.fact import MOST_RANKS
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Finding, Fix, Severity
from sglang_guards.rules import Rule, rule
from sglang_guards.rules.reports_common import (  # fmt: skip
    NO_A2A,
    TRTLLM,
    env_on,
    has_lora,
    is_moe,
    issue,
    line,
    major,
    typed,
)

#: Architectures built on DeepseekV2MoE, which reads SGLANG_SHARED_EXPERT_TP1.
_DEEPSEEK_MOE = (
    "DeepseekV2For", "DeepseekV3For", "DeepseekV32For", "GlmMoeDsa", "KimiK25", "MistralLarge3",
)  # fmt: skip
_SCATTER_NEEDS = (
    "args.enable_dp_attention", "args.dp_size", "args.ep_size", "args.tp_size", "args.moe_a2a_backend",
    "source.reduce_scatterv_sums", "source.reduce_scatterv_needs_full_dp",
)  # fmt: skip


def _dp_attention(launch: Launch) -> bool:
    """DP attention by its flag or, where the flag is deprecated, by its size."""
    return bool(launch.get("args.enable_dp_attention")) or int(launch.get("args.attn_dp_size") or 1) > 1


def _exit_sums(launch: Launch) -> bool:
    """Whether the layers' exit sums the ranks' outputs: DP attention with EP = DP and no all-to-all backend."""
    dp = int(launch.get("args.attn_dp_size") or 1)
    dp = dp if dp > 1 else int(launch["args.dp_size"])
    if dp <= 1 or dp != int(launch["args.ep_size"]) or launch["args.moe_a2a_backend"] not in NO_A2A:
        return False
    if launch["source.reduce_scatterv_sums"] is not True:
        return False
    return launch["source.reduce_scatterv_needs_full_dp"] is False or dp == int(launch["args.tp_size"])


@rule(
    "PAR101",
    "gpt-oss-dp-attention-with-expert-parallelism",
    Severity.ERROR,
    summary="gpt-oss sums its experts' output twice under DP attention with EP",
    needs=(*_SCATTER_NEEDS, "source.gpt_oss_sums_twice"),
    evidence=(issue(37187),),
    applies=lambda launch: launch.get("model.architecture") == "GptOssForCausalLM" and _dp_attention(launch),
)
def gpt_oss_twice(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """gpt-oss with DP attention and as many EP ranks as DP ranks.

    ## What it checks
    No all-to-all backend, DP attention, EP equal to DP (and to TP where the installed source asks for it), and a
    model that all-reduces its experts' output before the exit of the layer sums it again.

    ## Why it matters
    The expert output is scaled by the number of ranks while the residual is not.

    ## When it hurts
    From the first token: garbage (GSM8K 0 of 128 in the report), without an error.

    ## Fix
    Remove --ep-size, or DP attention, or use a release that skips the first sum (0.5.20 does).
    """
    if launch["source.gpt_oss_sums_twice"] and _exit_sums(launch):
        yield rule.finding(
            flags=typed(launch, "enable_dp_attention", "ep_size"),
            cause=f"the experts' output is all-reduced in the model ({launch.where('source.gpt_oss_sums_twice')}) and "
            f"summed again at the layer's exit ({launch.where('source.reduce_scatterv_sums')})",
            impact="from the first token the output is garbage, without an error",
            fix=Fix("remove --ep-size", {"ep_size": 1}, "display"),
            evidence=(line(launch, "gpt_oss_sums_twice"),),
        )


@rule(
    "PAR102",
    "replicated-shared-expert-counted-per-rank",
    Severity.ERROR,
    summary="the replicated shared expert is counted once per rank",
    needs=(
        *_SCATTER_NEEDS,
        "gpu.platform",
        "model.num_shared_experts",
        "source.shared_expert_tp1_overcounted",
    ),
    evidence=(issue(31475), issue(35535)),
    applies=lambda launch: (
        env_on(launch, "SGLANG_SHARED_EXPERT_TP1")
        and not launch.get("args.enforce_shared_experts_fusion")
        and _dp_attention(launch)
        and str(launch.get("model.architecture") or "").startswith(_DEEPSEEK_MOE)
    ),
)
def shared_expert(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    if not launch["source.shared_expert_tp1_overcounted"] or not launch["model.num_shared_experts"]:
        return
    if launch["gpu.platform"] == "cuda" and _exit_sums(launch):
        yield rule.finding(
            flags=("SGLANG_SHARED_EXPERT_TP1=1", *typed(launch, "ep_size", "enable_dp_attention")),
            cause=f"every rank adds the whole shared expert ({launch.where('source.shared_expert_tp1_overcounted')}) "
            f"before the exit sums over {launch['args.ep_size']} ranks",
            impact="from the first token the output is garbage, without an error",
            fix=Fix("unset SGLANG_SHARED_EXPERT_TP1"),
            evidence=(line(launch, "shared_expert_tp1_overcounted"),),
        )


@rule(
    "PAR103",
    "two-batch-overlap-with-fused-shared-experts",
    Severity.WARNING,
    summary="two-batch overlap with enforced shared-experts fusion can hang",
    needs=("source.tbo_refuses_enforced_fusion", "source.tbo_pads_request_ids"),
    evidence=(issue(24690), issue(27510)),
    applies=lambda launch: (
        bool(launch.get("args.enable_two_batch_overlap"))
        and bool(launch.get("args.enforce_shared_experts_fusion"))
    ),
)
def tbo_fusion(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """--enable-two-batch-overlap with --enforce-shared-experts-fusion.

    ## What it checks
    Both are on, and the installed overlap neither refuses the pair nor pads the request ids that it needs.

    ## Why it matters
    The two halves of the batch then disagree about their sizes.

    ## When it hurts
    Under concurrent load: the server hangs. To tell: it is gone without --enforce-shared-experts-fusion.

    ## Fix
    Remove --enforce-shared-experts-fusion.
    """
    if (
        launch["source.tbo_refuses_enforced_fusion"] is False
        and launch["source.tbo_pads_request_ids"] is False
    ):
        yield rule.finding(
            flags=typed(launch, "enable_two_batch_overlap", "enforce_shared_experts_fusion"),
            cause="the overlap splits request ids without padding them "
            f"({launch.where('source.tbo_pads_request_ids')})",
            impact="a hang under concurrent load, in a public report",
            fix=Fix("remove --enforce-shared-experts-fusion", {"enforce_shared_experts_fusion": None}),
            evidence=(line(launch, "tbo_pads_request_ids"),),
        )


@rule(
    "PAR104",
    "two-batch-overlap-on-cutlass-mxfp4",
    Severity.WARNING,
    summary="two-batch overlap hands the CUTLASS MXFP4 runner an empty batch",
    needs=("args.moe_runner_backend", "gpu.platform", "gpu.sm"),
    evidence=(issue(38773),),
    applies=lambda launch: (
        bool(launch.get("args.enable_two_batch_overlap"))
        and launch.get("args.moe_runner_backend") == "flashinfer_mxfp4"
        and _dp_attention(launch)
    ),
)
def tbo_mxfp4(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Two-batch overlap and DP attention with flashinfer_mxfp4 on SM90.

    ## What it checks
    All three are on and the GPU is SM90, where flashinfer_mxfp4 is a CUTLASS kernel.

    ## Why it matters
    An idle DP rank, or half of a one-request batch, is empty; the kernel rejects its null pointer.

    ## When it hurts
    Not in warm-up: with the first single-token decode. To tell: send one short request.

    ## Fix
    Remove --enable-two-batch-overlap.
    """
    if major(launch) == 9:
        yield rule.finding(
            flags=typed(launch, "enable_two_batch_overlap", "moe_runner_backend"),
            cause=f"on SM{launch['gpu.sm']} flashinfer_mxfp4 is a CUTLASS kernel, which rejects an empty batch",
            impact="the workers die with the first single-token decode, in a public report",
            fix=Fix("remove --enable-two-batch-overlap", {"enable_two_batch_overlap": None}),
        )


@rule(
    "PAR105",
    "lora-with-replicated-dense-layers",
    Severity.WARNING,
    summary="adapters on replicated dense layers do not fit their buffer",
    needs=("args.moe_dense_tp_size", "args.tp_size", "model.first_k_dense", "lora.enabled"),
    evidence=(issue(29448),),
    applies=lambda launch: has_lora(launch) and launch.get("args.moe_dense_tp_size") == 1,
)
def lora_dense(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    targets = launch.get("lora.target_modules")
    if not launch["model.first_k_dense"] or int(launch["args.tp_size"]) < 2:
        return
    if targets is None or {"all", "gate_up_proj"} & set(targets):
        yield rule.finding(
            flags=typed(launch, "moe_dense_tp_size", "lora_paths"),
            cause=f"the first {launch['model.first_k_dense']} layers are dense and whole on every rank, the adapter "
            f"buffer holds 1/{launch['args.tp_size']}",
            impact="registering an adapter that has weights for them fails at start-up",
            fix=Fix("remove --moe-dense-tp-size", {"moe_dense_tp_size": None}, "display"),
        )


@rule(
    "RUN109",
    "trtllm-bf16-experts-in-piecewise-graph",
    Severity.WARNING,
    summary="bf16 TRT-LLM experts can crash while the piecewise prefill graph is captured",
    needs=("target.runner", "model.quant_kind", "gpu.platform", "gpu.sm", "args.cuda_graph_max_bs"),
    evidence=(issue(27712),),
    applies=lambda launch: is_moe(launch) and launch.get("args.disable_piecewise_cuda_graph") is False,
)
def trtllm_piecewise(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Unquantized experts on flashinfer_trtllm with the piecewise CUDA graph and a large batch.

    ## What it checks
    bf16 experts on TRT-LLM, an SM10x GPU, --cuda-graph-max-bs of 1024 or more as reported, and the piecewise graph
    still on after resolution (up to 0.5.12 SGLang switches it off for this runner).

    ## Why it matters
    The autotuner may pick a batched GEMM that reads out of bounds at that size.

    ## When it hurts
    At start-up, while the prefill graph is captured: an illegal memory access. To tell: it is gone without piecewise.

    ## Fix
    --disable-piecewise-cuda-graph, or another runner.
    """
    size = launch["args.cuda_graph_max_bs"]
    if not isinstance(size, int) or size < 1024:
        return
    if (
        launch["target.runner"] in TRTLLM
        and launch["model.quant_kind"] == "unquantized"
        and major(launch) == 10
    ):
        yield rule.finding(
            flags=typed(launch, "moe_runner_backend", "cuda_graph_max_bs"),
            cause=f"bf16 experts on {launch['target.runner']} with the piecewise graph on and batches up to {size}",
            impact="an illegal memory access while the prefill graph is captured, in a public report",
            fix=Fix("add --disable-piecewise-cuda-graph", {"disable_piecewise_cuda_graph": True}),
        )


@rule(
    "PAR106",
    "expert-parallelism-does-not-divide-tensor-parallelism",
    Severity.ERROR,
    summary="EP does not divide TP, and SGLang fails while it starts its ranks",
    needs=("args.tp_size", "args.ep_size", "source.moe_tp_is_floor"),
    evidence=(),
    applies=lambda launch: (
        launch.get("args.ep_size") not in (None, 1)
        and not any(launch.get(f"args.{name}") for name in ("elastic_ep_backend", "encoder_only"))
    ),
)
def ep_divides_tp(rule: Rule, launch: Launch) -> Iterator[Finding]:
    """Expert parallelism that the ranks of tensor parallelism cannot be divided into.

    ## What it checks
    TP is a multiple of EP times MoE data parallelism, and the installed source divides without asking. Elastic EP,
    which starts with fewer ranks, and an encoder server, which has no EP, are left alone.

    ## Why it matters
    MoE TP is TP // EP // MoE-DP. With EP above TP it is 0 and the launcher divides by it; with a remainder the
    groups are built from the quotient, and the ranks that are left over belong to no group.

    ## When it hurts
    At start-up: ZeroDivisionError, or an assertion of the ranks without a group, before any weight is read.

    ## Fix
    Set --ep-size to a divisor of --tp-size.
    """
    tp, ep = int(launch["args.tp_size"]), int(launch["args.ep_size"])
    ranks = tp // max(1, int(launch.get("args.moe_dp_size") or 1))
    if ranks < 1 or (ep > 0 and ranks % ep == 0) or not launch["source.moe_tp_is_floor"]:
        return
    best = max((size for size in range(1, min(ranks, ep, MOST_RANKS) + 1) if ranks % size == 0), default=1)
    where = launch.where("source.moe_tp_is_floor")
    yield rule.finding(
        flags=typed(launch, "tp_size", "ep_size"),
        cause=f"{ranks} ranks do not divide by EP {ep}: MoE TP is their quotient, taken without a check ({where})",
        impact="at start-up, before any weight is read",
        fix=Fix(f"set --ep-size {best}", {"ep_size": best}, "display"),
        evidence=(line(launch, "moe_tp_is_floor"),),
    )


@rule(
    "PAR107",
    "more-ranks-than-gpus",
    Severity.ERROR,
    summary="the launch needs more GPUs per node than there are",
    needs=("args.tp_size", "args.pp_size", "args.dp_size", "args.nnodes", "gpu.count", "gpu.platform"),
    evidence=(),
    applies=lambda launch: (
        "gpu.count" in launch.facts
        and launch.fact("gpu.count").origin == "assumed"
        and not any(launch.get(f"args.{name}") for name in ("use_ray", "elastic_ep_backend", "encoder_only"))
    ),
)
def ranks_fit(rule: Rule, launch: Launch) -> Iterator[Finding]:
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
    copies = 1 if _dp_attention(launch) or nodes > 1 else max(1, int(launch["args.dp_size"]))
    stages, width = max(1, pp // nodes), max(1, tp // max(1, nodes // pp))
    ranks = stages * width * copies
    first, step = int(launch.get("args.base_gpu_id") or 0), max(1, int(launch.get("args.gpu_id_step") or 1))
    # The step spreads the ranks of TP only; stages lie TP apart, and copies of the model TP x PP x step.
    needed = first + (copies - 1) * tp * pp * step + (stages - 1) * width + (width - 1) * step + 1
    if needed > int(launch["gpu.count"]):
        asked = {
            "tp_size": tp > 1, "pp_size": pp > 1, "dp_size": copies > 1, "nnodes": nodes > 1,
            "base_gpu_id": first > 0, "gpu_id_step": step > 1,
        }  # fmt: skip
        yield rule.finding(
            flags=typed(launch, *(name for name, does in asked.items() if does)),
            cause=f"{ranks} ranks on a node need {needed} GPUs, and --gpu names {launch['gpu.count']}",
            impact="at start-up: the ranks beyond the last GPU fail with an invalid device ordinal",
            fix=Fix("lower the parallel sizes, add nodes, or give --gpu the real number"),
        )
