"""PAR112, PAR117, PAR118: what a pipeline stage lacks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sglang_guards.launch.checkpoint import text_config
from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, ask, rule, sglang_issue, unset


@rule(
    "PAR112",
    "pipeline-stage-reuses-indices-it-never-got",
    Severity.ERROR,
    summary="a pipeline stage begins with a layer that needs the top-k indices of the stage before, which are not sent",
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


@rule(
    "PAR117",
    "pipeline-stage-waits-for-a-folded-residual",
    Severity.ERROR,
    summary="a pipeline stage waits for a residual that the stage before does not send",
    source={ask("stage_reads_folded_residual", architecture="model.architecture"): True},
    reports=(sglang_issue(36906),),
    applies=lambda launch: (
        int(launch.get("args.pp_size") or 1) > 1
        and bool(text_config(launch.get("model.config") or {}).get("hc_mult"))
    ),
)
def folded_residual(launch: Launch) -> Iterator[Violation]:
    """Pipeline parallelism for a model with hyper-connections whose stages still read a residual.

    ## What it checks
    `--pp-size` above 1, a config with hyper-connections (`hc_mult`), a model whose later stages read the residual
    without asking whether there is one, and a warm-up that leaves it out for such models.

    ## Why it matters
    Hyper-connections carry the residual inside the hidden state, so no stage is handed one.

    ## When it hurts
    In warm-up, after the weights have loaded: every stage but the first dies with a KeyError.

    ## Example
    `--model-path zai-org/GLM-5.3-Flash --pp-size 3` on 0.5.20. It works without `--pp-size`, and on 0.5.21.

    ## Fix
    Use tensor parallelism, or a release whose stages ask for the residual first.
    """
    yield Violation(
        flags=("pp_size",),
        cause=f"{launch['model.architecture']} keeps its residual inside the hidden state, and the later "
        "stages still expect a separate one",
        impact="every stage but the first dies with KeyError: 'residual' in warm-up, after the weights have loaded",
        fix=unset("pp_size", safe=False),
    )


@rule(
    "PAR118",
    "triton-attention-looks-for-layer-0",
    Severity.ERROR,
    summary="Triton attention looks for layer 0 on a pipeline stage that does not hold it",
    source={"triton_attention_reads_own_stage": False},
    reports=(sglang_issue(30335),),
    applies=lambda launch: int(launch.get("args.pp_size") or 1) > 1 and _on_triton(launch),
)
def layer_zero(launch: Launch) -> Iterator[Violation]:
    """Triton attention with so many pipeline stages that one begins behind as many layers as it holds.

    ## What it checks
    `--pp-size` above 1, Triton attention in prefill or decode, an installed backend that takes the head size from
    layer 0, and a stage with more layers before it than in it. The stages are split as SGLang splits them
    (`SGLANG_PP_LAYER_PARTITION` included). With two even stages the wrong index still hits a layer of the same shape.

    ## Why it matters
    A stage keeps the KV cache of its own layers. The place of layer 0 is then negative, and beyond the list's start.

    ## When it hurts
    When the attention backend is made, after the weights have loaded: an IndexError on the later stages.

    ## Example
    `--model-path Qwen/Qwen3-VL-2B-Thinking --pp-size 4 --attention-backend triton` on 0.5.15. It works with
    `--pp-size 2`, with another attention backend, and on 0.5.18.

    ## Fix
    Use no pipeline stages, or another attention backend.
    """
    _needs_plain_cache(launch)
    spans = _stages(launch)
    late = next((n for n, (start, count) in enumerate(spans) if start > count), None)
    if late is None:
        return
    start, count = spans[late]
    typed = [name for name in _BACKENDS if launch.given(name) and launch[f"args.{name}"] == "triton"]
    yield Violation(
        flags=(*typed, "pp_size"),
        cause=f"stage {late} holds {count} layers from layer {start} on, and Triton attention asks it for layer 0",
        impact="an IndexError on the later stages when the attention backend is made, after the weights have loaded",
        fix=unset("pp_size", otherwise="use another attention backend", safe=False),
    )


_BACKENDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


def _on_triton(launch: Launch) -> bool:
    whole, *phases = (launch.get(f"args.{name}") for name in _BACKENDS)
    return any((own or whole) == "triton" for own in phases)


def _needs_plain_cache(launch: Launch) -> None:
    """Sliding windows and linear attention keep other caches, of which nothing is said."""
    text = text_config(launch["model.config"])
    kinds = set(text.get("layer_types") or ()) - {"full_attention"}
    slides = text.get("sliding_window") and text.get("use_sliding_window") is not False
    linear = any(key.startswith(("linear_", "mamba_", "hybrid_")) and value for key, value in text.items())
    if kinds or slides or linear:
        raise MissingFact("model.kv_cache")


def _stages(launch: Launch) -> list[tuple[int, int]]:
    """First layer and number of layers of each stage, by SGLang's own split."""
    layers, stages = int(launch["model.num_layers"]), int(launch["args.pp_size"])
    typed = launch.env.get("SGLANG_PP_LAYER_PARTITION")
    if typed:
        counts = [int(word) for word in typed.split(",") if word.strip().isdigit()]
        if len(counts) != stages or sum(counts) != layers:
            raise MissingFact("env.SGLANG_PP_LAYER_PARTITION")
    else:
        base, rest = divmod(layers, stages)
        counts = [base + (n >= stages - rest) for n in range(stages)]
    return [(sum(counts[:n]), count) for n, count in enumerate(counts)]
