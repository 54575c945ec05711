"""RUN302: Triton experts of a shape for which SGLang ships no tuned tiles."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.launch.parallel import experts_tp_of
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, manual, read_in, rule


@rule(
    "RUN302",
    "no-tuned-tiles-for-this-shape",
    Severity.INFO,
    summary="SGLang ships no tuned tiles for the experts' shape on this GPU",
    reports=[read_in("fused_moe_triton_config.py: get_config_file_name")],
    applies=lambda launch: bool(launch["model.is_moe"]) and launch["gpu.platform"] == "cuda",
)
def untuned(launch: Launch) -> Iterator[Violation]:
    """Experts on the Triton runner, without a tuned file for their shape.

    ## What it checks
    The name of the file that SGLang looks for (experts per rank, width per rank, GPU, weights), in the installed
    release's folders for every Triton version; `SGLANG_MOE_CONFIG_DIR` replaces them and is left alone.

    ## Why it matters
    Without it SGLang takes default tiles for all batch sizes.

    ## When it hurts
    Always, by some percent to a multiple of the kernel's time. To confirm: the log says `Using default MoE kernel
    config. Performance might be sub-optimal!`.

    ## Example
    `--model-path Qwen/Qwen3-30B-A3B --tp 8` on H20-3e. It is answered by a tuned file.

    ## Fix
    Tune the shape with SGLang's own script, which writes the file.
    """
    if launch.env.get("SGLANG_MOE_CONFIG_DIR") or launch["args.enable_deterministic_inference"]:
        return
    if launch["target.runner"] != "triton" or launch["target.weight_only"]:
        return
    name = _file(launch)
    if name is None:
        return
    if launch.answer("tile_file_ships", file=name).value:
        return
    yield Violation(
        cause=f"no folder of this release holds {name}",
        impact="the experts run on default tiles at every batch size, which is slower; how much was not measured",
        fix=manual(
            "run SGLang's benchmark/kernels/fused_moe_triton/tuning_fused_moe_triton.py --tune for this model, TP and "
            "EP, and put its file there"
        ),
    )


def _file(launch: Launch) -> str | None:
    """SGLang's name of the file; None for weights whose name is not sure."""
    kind, block = launch["model.quant_kind"], launch["model.quant_block"]
    weights = {"unquantized": "", "fp8": ",dtype=fp8_w8a8"}.get(str(kind))
    if weights is None:
        return None
    ways, ep = experts_tp_of(launch), max(1, int(launch["args.ep_size"] or 1))
    width = int(launch["model.moe_intermediate_size"]) // ways
    experts = (int(launch["model.num_experts"]) + int(launch["args.ep_num_redundant_experts"] or 0)) // ep
    if launch["model.num_shared_experts"]:
        experts += int(launch["build.target.fused_shared_experts"])
    shape = f",block_shape=[{block[0]}, {block[1]}]" if block else ""
    device = str(launch["gpu.name"]).replace(" ", "_")
    return f"E={experts},N={width},device_name={device}{weights}{shape}.json"
