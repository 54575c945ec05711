"""BLD: what SGLang's own constructors say when the launch's models are built without a GPU, and what does not fit."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Severity
from sglang_guards.rules import Violation, read_in, rule, sglang_issue

GIB = 2**30
#: Server args that decide how much of the weights a rank holds, and what SGLang keeps aside for activations.
_SHARES = ("tp_size", "ep_size", "pp_size", "chunked_prefill_size")
#: When SGLang raises it -> what the operator sees.
_IMPACT: Mapping[str, str] = {
    "build": "every worker raises it while the model is built, before the weights are read",
    "weights": "every worker raises it while the weights are loaded",
    "load": "every worker raises it after the weights are loaded, before the first request",
    "memory": "every worker raises it after the weights are loaded, when the KV cache is allocated",
    "forward": "the server starts; the first batch that takes this path raises it",
}


def _was_built(launch: Launch) -> bool:
    return launch.get("build.status") is not None


def _on_a_gpu(launch: Launch) -> bool:
    return _was_built(launch) and launch["gpu.platform"] not in ("cpu", "npu", "mps")


def _ranks(launch: Launch) -> list[Mapping[str, Any]]:
    return list(launch["build.ranks"])


def _label(launch: Launch, rank: Mapping[str, Any]) -> str:
    place = rank["rank"]
    tp, pp = int(launch["args.tp_size"] or 1), int(launch["args.pp_size"] or 1)
    parts = [f"PP {place['pp_rank']}"] if pp > 1 else []
    parts += [f"TP {place['tp_rank']}"] if tp > 1 else []
    where = f" on rank {place['rank']} ({', '.join(parts)})" if parts else ""
    return f"the {'draft' if place['model'] == 'draft' else 'target'} model{where}"


def _short(where: str) -> str:
    return where.removeprefix("sglang/srt/")


@rule(
    "BLD101",
    "constructor-refuses",
    Severity.ERROR,
    summary="SGLang's own constructors refuse this launch",
    reports=[read_in("the installed SGLang's constructors, run on the meta device")],
    applies=_was_built,
)
def constructor_refuses(launch: Launch) -> Iterator[Violation]:
    """An exception that SGLang itself raises while it builds the launch's models.

    ## What it checks
    `check` builds the real model class of the launch with SGLang's own code, as its ranks would, on torch's meta
    device: target and draft, every pipeline stage, then the attention backends and overlap strategies. What SGLang
    raises there on purpose is this finding, in its own words, with file and line.

    ## Why it matters
    The launch passes SGLang's argument checks and dies minutes later in every worker.

    ## When it hurts
    While the model is built, after the weights are loaded, or at the first batch, as the finding says.

    ## Fix
    Where a change is known that SGLang's constructors accept, the finding names it.
    """
    for rank in _ranks(launch):
        no = rank.get("refusal")
        if no is None or no["when"] == "memory":
            continue
        layer = f" at {no['layer']}" if no["layer"] else ""
        yield Violation(
            message=f"SGLang refuses this launch while it builds the model: {no['message']}"
            if no["when"] == "build"
            else f"SGLang refuses this launch: {no['message']}",
            flags=_flags(launch, str(no["message"])),
            cause=f"{no['type']} in {_label(launch, rank)}{layer} ({_short(no['where'])})",
            impact=_IMPACT[no["when"]],
            evidence=(Evidence("source", _short(no["where"])),),
        )
        return  # the other ranks say the same


def _flags(launch: Launch, message: str) -> tuple[str, ...]:
    named = [name.replace("-", "_") for name in re.findall(r"--([a-z][a-z0-9-]+)", message)]
    names = (
        "tp_size",
        "ep_size",
        "pp_size",
        "moe_runner_backend",
        "moe_a2a_backend",
        "attention_backend",
        "quantization",
    )
    return tuple(name for name in dict.fromkeys((*named, *names)) if name in launch.typed)


@rule(
    "BLD102",
    "layer-without-runner",
    Severity.ERROR,
    summary="an MoE layer needs a runner that its quantization method did not make",
    reports=[sglang_issue(36569)],
    applies=_was_built,
)
def layer_without_runner(launch: Launch) -> Iterator[Violation]:
    """A built MoE layer whose first forward uses a runner that does not exist.

    ## What it checks
    Every MoE layer that SGLang built: where its method keeps no runner, the method's `apply` is walked with the built
    objects at hand. Only where every way through it uses `self.runner` is the missing runner a fault; methods that
    call their kernel themselves are left alone.

    ## Why it matters
    The runner backend was accepted, but the quantization method has no branch for it.

    ## When it hurts
    The server loads its weights and dies with an AttributeError at the first forward.

    ## Fix
    Leave --moe-runner-backend away, or name one that the method knows.
    """
    for rank in _ranks(launch):
        for layers in rank.get("layers") or ():
            if not layers.get("runner_read_at"):
                continue
            backend = launch.flag("moe_runner_backend")
            yield Violation(
                message=f"{layers['method']} makes no runner for {backend}, and its forward uses one",
                flags=("moe_runner_backend",),
                cause=f"{layers['count']} MoE layers of {_label(launch, rank)} have no runner; every way through apply "
                f"reads it ({_short(layers['runner_read_at'])})",
                impact="the weights load, then every worker dies with an AttributeError at the first forward",
                evidence=(Evidence("source", _short(layers["runner_read_at"])),),
            )
            return


@rule(
    "BLD105",
    "parameters-without-a-tensor",
    Severity.WARNING,
    summary="some of the model's parameters get no value from the checkpoint",
    reports=[read_in("the installed SGLang's load_weights over the checkpoint's headers")],
    applies=lambda launch: any(one.get("unwritten") is not None for one in launch.get("build.ranks") or ()),
)
def parameters_without_a_tensor(launch: Launch) -> Iterator[Violation]:
    """Weights that stay as they were allocated after SGLang's own loader went through the checkpoint.

    ## What it checks
    Where the checkpoint's safetensors are on this machine (or a `headers.json` made by `sglang-guards headers` lies
    beside its config.json), SGLang's own `load_weights` runs over tensors of their names, dtypes and shapes, without
    data. Weights that nothing wrote are named; scales and biases, which have defaults, are not.

    ## Why it matters
    SGLang's loaders pass over names that they do not know. The parameters keep whatever was in memory.

    ## When it hurts
    The server starts and answers with wrong text.

    ## Fix
    Use a checkpoint whose tensors this SGLang knows, or the release that its authors name.
    """
    for rank in _ranks(launch):
        names = rank.get("unwritten")
        if not names:
            continue
        yield Violation(
            message=f"{len(names)} weight{'s' if len(names) > 1 else ''} of the model "
            f"get{'' if len(names) > 1 else 's'} no value from the checkpoint",
            cause=f"SGLang's load_weights leaves {', '.join(names[:3])}{' …' if len(names) > 3 else ''} as allocated",
            impact="the server starts; the layers compute with whatever was in memory",
        )
        return


@rule(
    "BLD103",
    "weights-do-not-fit",
    Severity.ERROR,
    summary="the weights leave no memory for the KV cache",
    reports=[read_in("SGLang's memory pool configurators")],
    applies=_on_a_gpu,
)
def weights_do_not_fit(launch: Launch) -> Iterator[Violation]:
    """Weights of one rank that leave nothing of the share that SGLang takes for weights and KV cache.

    ## What it checks
    The weights of each rank as SGLang makes them, target and draft, against the GPU's memory times
    --mem-fraction-static, by SGLang's own arithmetic. CUDA's context and buffers are not counted, so the true room is
    smaller. Weights that are quantized on the way in or kept off the GPU are not judged.

    ## Why it matters
    It is the most asked question of all, and the answer comes after minutes of loading.

    ## When it hurts
    CUDA runs out of memory while the weights load, or SGLang raises `Not enough memory` after it.

    ## Fix
    More ranks, a smaller checkpoint, or a larger --mem-fraction-static where the weights themselves fit.
    """
    memory = float(launch["gpu.memory_gib"])
    for rank in _ranks(launch):
        if rank["rank"]["model"] != "target" or not rank.get("weights_final", True):
            continue
        weights = (rank.get("weights_bytes") or 0) / GIB
        no = rank.get("refusal")
        too_big = weights > memory
        if not too_big and not (no is not None and no["when"] == "memory"):
            continue
        share = launch["args.mem_fraction_static"]
        yield Violation(
            message=f"the weights of one rank take {weights:.1f} GiB of {memory:.1f} GiB"
            + ("" if too_big else f", and --mem-fraction-static {share:g} leaves nothing for the KV cache"),
            flags=tuple(n for n in (*_SHARES, "mem_fraction_static") if n in launch.typed),
            cause=f"{_label(launch, rank)}: {no['message']} ({_short(no['where'])})"
            if no is not None
            else f"{_label(launch, rank)}, as SGLang's own classes make its parameters",
            impact="CUDA runs out of memory while the weights load" if too_big else _IMPACT["memory"],
        )
        return


@rule(
    "BLD104",
    "kv-cache-holds-no-full-request",
    Severity.WARNING,
    summary="the KV cache holds less than one request of the context length",
    reports=[read_in("SGLang's memory pool configurators")],
    applies=lambda launch: launch.get("build.kv_tokens") is not None and _on_a_gpu(launch),
)
def kv_cache_is_small(launch: Launch) -> Iterator[Violation]:
    """Fewer KV-cache tokens than one request of the context length, or than the operator asked for.

    ## What it checks
    The tokens that SGLang's own arithmetic leaves beside the weights, against the context length and against
    --max-total-tokens.

    ## Why it matters
    SGLang starts, but refuses or cuts longer requests. A context length that nobody typed is only worth knowing.

    ## When it hurts
    At the first request that is longer than the cache.

    ## Fix
    Lower --context-length, raise --mem-fraction-static, use more ranks, or a smaller --kv-cache-dtype.
    """
    tokens, context = int(launch["build.kv_tokens"]), int(launch["build.context_length"])
    asked = launch.get("args.max_total_tokens") if launch.given("max_total_tokens") else None
    if isinstance(asked, int) and tokens < asked:
        yield Violation(
            message=f"the KV cache holds about {tokens:,} tokens, fewer than {launch.flag('max_total_tokens')}",
            flags=("max_total_tokens",),
            cause=f"that is what the weights leave of --mem-fraction-static {launch.get('args.mem_fraction_static')}",
            impact="SGLang takes the smaller number with a log line",
        )
    elif tokens < context and not (isinstance(asked, int) and asked < context):
        yield Violation(
            message=f"the KV cache holds about {tokens:,} tokens, less than one request of {context:,}",
            flags=tuple(n for n in ("context_length", "mem_fraction_static") if n in launch.typed),
            cause=f"that is what the weights leave of --mem-fraction-static {launch.get('args.mem_fraction_static')}",
            impact="the server starts; longer requests are refused or cut",
            severity=Severity.WARNING if launch.given("context_length") else Severity.INFO,
        )
