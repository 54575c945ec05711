"""PAR112: what a pipeline stage needs from the one before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_guards.launch.checkpoint import text_config
from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, rule, sglang_issue, unset


@rule(
    "PAR112",
    "pipeline-stage-reuses-indices-it-never-got",
    Severity.ERROR,
    summary="a pipeline stage begins with a layer that reuses top-k indices of the stage before",
    source={"stages_hand_over_topk": False},
    reports=(sglang_issue(29014), sglang_issue(28659), sglang_issue(29162)),
    applies=lambda launch: int(launch.get("args.pp_size") or 1) > 1 and _shares(launch),
)
def reuses_indices(launch: Launch) -> Iterator[Violation]:
    """Pipeline parallelism for sparse-attention models whose layers share top-k indices.

    ## What it checks
    `--pp-size` above 1, a config whose layers reuse the indexer's top-k of an earlier layer (`index_topk_freq`,
    `index_skip_topk_offset`, `index_topk_pattern`), a stage that begins with such a layer, and an installed model
    that does not hand the indices from stage to stage.

    ## Why it matters
    The layer asks for indices that live on another rank.

    ## When it hurts
    During warm-up or graph capture, after the weights have loaded: the later stages crash.

    ## Example
    `--model-path zai-org/GLM-5.2-FP8 --tp 8 --pp-size 2 --nnodes 2 …` on 0.5.13. It works without `--pp-size`, and on
    0.5.14 and later.

    ## Fix
    Use tensor parallelism over the nodes, or a release whose stages hand the indices over.
    """
    if launch.env.get("SGLANG_PP_LAYER_PARTITION"):
        return
    layers, stages = int(launch["model.num_layers"]), int(launch["args.pp_size"])
    starts = {start for n in range(1, stages) for start in (n * layers // stages, -(-n * layers // stages))}
    text = text_config(launch["model.config"])
    offset = launch["source.topk_reuse_has_offset"]
    reusing = sorted(layer for layer in starts if _reuses(text, layer, offset))
    if len(reusing) < len(starts):
        return
    yield Violation(
        flags=("pp_size",),
        cause=f"layer {reusing[0]}, the first of a later stage, reuses the top-k indices of an earlier layer, which "
        "stages do not hand over",
        impact="the later stages crash in warm-up, after the weights have loaded",
        fix=unset("pp_size", safe=False),
    )


def _shares(launch: Launch) -> bool:
    text = text_config(launch.get("model.config") or {})
    freq = text.get("index_topk_freq")
    return bool(text.get("index_topk")) and (
        (isinstance(freq, int) and freq > 1) or "S" in str(text.get("index_topk_pattern") or "")
    )


def _reuses(text: Mapping[str, Any], layer: int, knows_offset: bool) -> bool:
    """SGLang's own arithmetic of which layers reuse indices."""
    pattern = text.get("index_topk_pattern")
    if pattern:
        return layer < len(pattern) and pattern[layer] == "S"
    freq, offset = int(text.get("index_topk_freq") or 1), text.get("index_skip_topk_offset")
    shift = int(offset) if knows_offset and isinstance(offset, int) else 2
    return max(layer - shift + 1, 0) % freq != 0
