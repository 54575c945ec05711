"""Which architectures implement the whole contract of FlashInfer all-reduce fusion, read from `srt/models/*.py`.

The contract has two shapes. With `layers/communicator.py` (up to 0.5.20) a decoder layer computes whether the next
layer will absorb its sum, has its MLP or MoE skip the sum, marks the tensor instead of completing it, tells its
communicator which layer is the last, and normalises with a norm that has the fused kernel. With
`layers/layer_boundary/` (0.5.21 and later) it declares its stages and leaves the sum to the framework.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from sglang_guards.source.models.class_graph import Cls, Graph, arguments, last_name
from sglang_guards.source.models.construction import Construction
from sglang_guards.source.models.contract import DEFERRING, MARK, Contract, communicates, declares
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Answer, Items, Source, probe

BOUNDARY = "sglang/srt/layers/layer_boundary"
_COMMUNICATES = re.compile(
    r"LayerCommunicator\(|make_layer_communicator\(|(?:make|append)_stages\(|make_stage_boundary\("
)
#: How a model keeps the hidden states of a layer for EAGLE3.
_CAPTURES = re.compile(r"aux_hidden_states\.append\(\s*hidden_states \+ residual")
#: Draft models run under the target's setting; they are never entries of a list.
_DRAFT = re.compile(r"NextN|MTP|Eagle|DSpark|DFlash", re.IGNORECASE)


def full_contract(source: Source, architecture: str, config: Mapping[str, Any] | None = None) -> Answer:
    """Whether the entry class `architecture` builds only decoder layers that implement the whole contract.

    `config` is the checkpoint's config as a dict; it tells which language model a wrapper builds. Costs a few
    milliseconds. False also means broken; None means that the source could not be followed.
    """
    found = contract(source, architecture, config)
    return Answer(None if found.kind is None else found.kind == "full", found.where or None, found.why)


def contract(source: Source, architecture: str, config: Mapping[str, Any] | None = None) -> Contract:
    """`full_contract` with the reason; never raises. The last answer for an architecture is kept: several rules and
    the auto-enable list ask within one start."""
    key = f"contract {architecture}"
    kept = source.memo.get(key)
    if isinstance(kept, tuple) and kept[0] == config:
        return cast(Contract, kept[1])
    found = _contract(source, architecture, config)
    source.memo[key] = (config, found)
    return found


def _contract(source: Source, architecture: str, config: Mapping[str, Any] | None) -> Contract:
    try:
        graph = graph_of(source)
        entry = graph.holder(architecture)
        if entry is None:
            return Contract(None, "", f"no model file defines {architecture}")
        return _of_entry(graph, entry, config)
    except Unknown as why:
        return Contract(None, "", str(why))
    except (Exception, RecursionError) as why:  # noqa: BLE001 - a probe may never stop a server
        return Contract(None, "", f"{type(why).__name__}: {why}")


def decoders(source: Source, architecture: str, config: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Names of the decoder-layer classes that an architecture stacks; empty where they were not found."""
    return tuple(sorted(cls.name for cls in decoder_classes(source, architecture, config)))


def decoder_classes(
    source: Source, architecture: str, config: Mapping[str, Any] | None = None
) -> tuple[Cls, ...]:
    """The decoder-layer classes that an architecture stacks; empty where they were not found."""
    graph = graph_of(source)
    entry = graph.holder(architecture)
    return () if entry is None else tuple(_constructed(graph, entry, config).decoders)


def model_classes(source: Source, architecture: str) -> tuple[Cls, ...]:
    """The model classes between an entry class and its layers, bases included; empty where they were not found."""
    return tuple(_reached(source, architecture, None) or ())


def completes_before_stage(
    source: Source, architecture: str, config: Mapping[str, Any] | None = None
) -> bool | None:
    """Whether the model itself completes a sum that its last layer left, before the next pipeline stage gets it.

    Models of the layer boundary always do (probe `fusion_pp_completes_sum`); this is about the others.
    """
    reached = _reached(source, architecture, config)
    if reached is None:
        return None
    graph = graph_of(source)
    bodies = [code.node for cls in reached if (code := graph.own(cls, "forward")) is not None]
    leaving = [node for body in bodies for node in walk(body) if isinstance(node, ast.If) and _leaves(node)]
    if not leaving:
        return None  # the model knows no pipeline stages, or sends by a way that is not known
    return all(MARK in ast.unparse(node) for node in leaving)


def _leaves(branch: ast.If) -> bool:
    """Whether a branch hands the hidden states to the next stage."""
    returned = [node.value for node in branch.body if isinstance(node, ast.Return) and node.value is not None]
    return any(
        isinstance(value, ast.Call) and last_name(value.func) == "PPProxyTensors" for value in returned
    )


def captures_unreduced(
    source: Source, architecture: str, config: Mapping[str, Any] | None = None
) -> bool | None:
    """Whether the model hands ``hidden_states + residual`` to an EAGLE3 draft with a sum still open."""
    reached = _reached(source, architecture, config)
    if reached is None:
        return None
    texts = map(graph_of(source).text, reached)
    return any(_CAPTURES.search(text) and MARK not in text for text in texts)


def _reached(source: Source, architecture: str, config: Mapping[str, Any] | None) -> list[Cls] | None:
    """The model classes between the entry class and its layers, bases included; None where they were not found."""
    try:
        graph = graph_of(source)
        entry = graph.holder(architecture)
        if entry is None:
            return None
        reached = _constructed(graph, entry, config).reached
        return list({owner: None for cls in reached for owner in graph.mro(cls)})
    except (Exception, RecursionError):  # noqa: BLE001 - a probe may never stop a server
        return None


def all_kinds(source: Source) -> dict[str, str | None]:
    """Contract kind of every entry architecture, drafts left out. Slow (seconds): for tests and reviews."""
    graph = graph_of(source)
    entries = (entry.name for rel in graph.files() for entry in graph.entries(rel))
    return {name: contract(source, name).kind for name in sorted(entries) if not _DRAFT.search(name)}


def derived_set(source: Source) -> tuple[str, ...]:
    """Entry architectures that implement the whole contract; slow, as `all_kinds` is."""
    return tuple(name for name, kind in all_kinds(source).items() if kind == "full")


@probe("models_full_contract", "entry architectures that implement the whole all-reduce-fusion contract")
def _models_full_contract(source: Source) -> Items:
    return Items(derived_set(source))


def graph_of(source: Source) -> Graph:
    """The graph of model classes of a source tree, made once."""
    made = source.memo.get("model graph")
    if not isinstance(made, Graph):
        made = source.memo["model graph"] = Graph(source)
    return made


def _constructed(graph: Graph, entry: Cls, config: Mapping[str, Any] | None) -> Construction:
    def is_layer(cls: Cls, stacked: bool) -> bool:
        if any(_COMMUNICATES.search(graph.text(owner)) for owner in graph.mro(cls)):
            return True
        found = graph.method(cls, "forward")
        names = arguments(found[1].node) if found else []
        return "forward_batch" in names and (stacked or "residual" in names)

    made = Construction(graph, is_layer)
    made.of(entry, {"config": config} if config else None)
    return made


def _of_entry(graph: Graph, entry: Cls, config: Mapping[str, Any] | None) -> Contract:
    made = _constructed(graph, entry, config)
    if made.dynamic:
        return Contract(None, made.dynamic, f"{entry.name} chooses its language model at run time")
    if not made.decoders:
        return Contract(
            "none", entry.rel, f"{entry.name} stacks no decoder layer that communicates by the framework"
        )
    framework = graph.source.exists(BOUNDARY)
    judged = {cls: (declares if framework else communicates)(graph, cls) for cls in made.decoders}
    kinds = {found.kind for found in judged.values()}
    defers = True if kinds & DEFERRING else None if None in kinds else False
    order = ("broken", "last lost", None, "half", "none")
    worst = next((f for kind in order for f in judged.values() if f.kind == kind), None)
    if worst is None:
        return replace(next(iter(judged.values())), defers=True)
    if "full" in kinds and worst.kind in ("half", "none"):
        why = f"{entry.name} mixes layers, or its config chooses: {worst.why}"
        return Contract(None, worst.where, why, None if config is None else defers)
    return replace(worst, defers=defers)
