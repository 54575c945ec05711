"""ATT: attention backends that the model, the GPU, the draft or the algorithm does not take."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.checkpoint import text_config
from sglang_guards.launch.fact import Fact
from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Evidence, Severity
from sglang_guards.rules import Change, Violation, ask, manual, rule, sglang_issue, unset

#: Algorithms whose draft takes its attention backend from the table that the probe reads.
_EAGLE = frozenset({"EAGLE", "EAGLE3", "NEXTN", "STANDALONE"})
_FIELDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


def backends(launch: Launch) -> dict[str, str]:
    """The attention backend of each phase, and the field that names it; phases that resolution leaves open are out."""
    whole = launch["args.attention_backend"]
    found = {}
    for phase in ("prefill", "decode"):
        own = launch.get(f"args.{phase}_attention_backend")
        if own or whole:
            found[phase] = str(own or whole)
    return found


def _field(launch: Launch, phase: str) -> str:
    own = f"{phase}_attention_backend"
    return own if launch.get(f"args.{own}") else "attention_backend"


def _typed(launch: Launch, *fields: str) -> tuple[str, ...]:
    return tuple(name for name in fields if launch.given(name)) or fields[:1]


def _is_mla(launch: Launch) -> bool:
    """Whether SGLang runs the model with latent attention. Raises MissingFact where that is not known."""
    if not text_config(launch["model.config"]).get("kv_lora_rank"):
        return False
    architecture = str(launch["model.architecture"])
    text = launch.source.text("sglang/srt/configs/model_config.py") if launch.source is not None else None
    if text is None or f'"{architecture}"' not in text:
        raise MissingFact("model.mla")
    return True


def _place(fact: Fact) -> str:
    return fact.where.removeprefix("sglang/srt/").removeprefix("sglang/")


@rule(
    "ATT101",
    "attention-backend-not-for-this-model-or-gpu",
    Severity.ERROR,
    summary="this attention backend refuses the model or the GPU once the weights are loaded",
    applies=lambda launch: any(launch.given(field) for field in _FIELDS) and launch["gpu.platform"] == "cuda",
)
def refused(launch: Launch) -> Iterator[Violation]:
    """An attention backend whose constructor refuses the kind of model or the GPU.

    ## What it checks
    For the backends of prefill and decode, the tests in the function of the installed source that builds them: MLA
    or not, and the GPU's compute capability.

    ## Why it matters
    The argument parser takes every name; the constructor asks when the worker builds its attention.

    ## When it hurts
    After the weights have loaded: every worker dies.

    ## Example
    `--attention-backend fa3` on an RTX PRO 6000, or `--attention-backend trtllm_mha` for DeepSeek-V3. It works without
    `--attention-backend`.

    ## Fix
    Remove the flag: SGLang then picks a backend that fits.
    """
    mla = _is_mla(launch)
    missing, certain = None, False
    for phase, backend in backends(launch).items():
        field = _field(launch, phase)
        if not launch.given(field):
            continue
        try:
            answer = launch.answer(
                "attention_backend_takes", backend=backend, mla=str(mla), sm=str(launch["gpu.sm"])
            )
        except MissingFact as unknown:
            missing = unknown
            continue
        if answer.value is True and (launch.get("args.dcp_size") or 1) > 1:
            missing = MissingFact("which attention backends take decode context parallelism")
        if answer.value is False and not certain:
            certain = True
            kind = "latent attention (MLA)" if mla else "no latent attention (MLA)"
            yield Violation(
                flags=_typed(launch, field),
                cause=f"SGLang tests the launch before it builds {backend}, and a model with {kind} on "
                f"SM{launch['gpu.sm']} fails ({_place(answer)})",
                impact="every worker dies once the weights are loaded",
                fix=unset(field),
                evidence=(Evidence("source", _place(answer)),),
            )
    if missing is not None and not certain:
        raise missing


@rule(
    "ATT102",
    "attention-backend-not-for-hybrid-models",
    Severity.ERROR,
    summary="hybrid models take only some attention backends on Blackwell, and this is none of them",
    source={ask("is_hybrid_gdn", architecture="model.architecture"): True},
    reports=(sglang_issue(35080),),
    applies=lambda launch: launch["gpu.platform"] == "cuda" and int(launch["gpu.sm"]) >= 100,
)
def hybrid(launch: Launch) -> Iterator[Violation]:
    """A model with gated-delta-net layers (Qwen3.5, Qwen3-Next) on Blackwell with another attention backend.

    ## What it checks
    The architecture is one that the installed source counts as such a hybrid, the GPU is Blackwell, and the attention
    backend is not in the set that the wrapper of hybrid models allows there.

    ## Why it matters
    Resolution lets it pass; the wrapper asserts.

    ## When it hurts
    After the weights have loaded: the assertion ends every worker.

    ## Example
    `--model-path Qwen/Qwen3.5-35B-A3B --attention-backend flashinfer` on B300, 0.5.18. It works with
    `--attention-backend triton`.

    ## Fix
    Use triton, or leave the choice to SGLang.
    """
    if not launch.answer("is_hybrid_gdn", architecture=str(launch["model.architecture"])).value:
        return
    for phase, backend in backends(launch).items():
        answer = launch.answer("hybrid_gdn_takes", backend=backend, sm=str(launch["gpu.sm"]))
        if answer.value is False:
            field = _field(launch, phase)
            yield Violation(
                flags=_typed(launch, field),
                cause=f"{backend} is not among the backends that hybrid models take on SM{launch['gpu.sm']} "
                f"({_place(answer)})",
                impact="an assertion ends every worker once the weights are loaded",
                fix=Change({field: "triton"}),
                evidence=(Evidence("source", _place(answer)),),
            )
            return


@rule(
    "ATT103",
    "no-draft-for-this-attention-backend",
    Severity.ERROR,
    summary="there is no draft attention backend of this name",
    applies=lambda launch: str(launch.get("args.speculative_algorithm") or "").upper() in _EAGLE,
)
def no_draft_backend(launch: Launch) -> Iterator[Violation]:
    """EAGLE with an attention backend that has no draft side.

    ## What it checks
    The backend that the draft takes (`--speculative-draft-attention-backend`, else the target's of the phase) is not
    in the installed table of draft backends.

    ## Why it matters
    The draft worker looks it up when it starts.

    ## When it hurts
    After the weights have loaded: ValueError `EAGLE is not supported in attention backend …`.

    ## Example
    `--attention-backend torch_native --speculative-algorithm EAGLE …`. It works with `--attention-backend triton`.

    ## Fix
    Use another attention backend, or another for the draft.
    """
    own = launch.get("args.speculative_draft_attention_backend")
    of_phase = backends(launch)
    mode = "decode" if launch.get("args.speculative_attention_mode") == "decode" else "prefill"
    wanted = [("extend", own or of_phase.get(mode))]
    if int(launch.get("args.speculative_num_steps") or 0) > 1:
        wanted.append(("decode", own or of_phase.get("decode")))
    for phase, backend in wanted:
        if not backend:
            continue
        answer = launch.answer("draft_backend_exists", backend=str(backend), phase=phase)
        if answer.value is False:
            field = "speculative_draft_attention_backend" if own else _field(launch, mode)
            yield Violation(
                flags=_typed(launch, field, "speculative_algorithm"),
                cause=f"SGLang has no {backend} among its draft backends ({_place(answer)})",
                impact="the draft worker raises ValueError once the weights are loaded",
                fix=unset(field),
                evidence=(Evidence("source", _place(answer)),),
            )
            return


@rule(
    "ATT104",
    "torch-native-with-speculation",
    Severity.ERROR,
    summary="the torch_native attention backend cannot verify drafted tokens",
    source={"torch_native_needs_extend_lengths": True},
    reports=(sglang_issue(36352),),
    applies=lambda launch: str(launch.get("args.speculative_algorithm") or "").upper() not in ("", "NONE"),
)
def torch_native(launch: Launch) -> Iterator[Violation]:
    """--attention-backend torch_native with any speculative algorithm.

    ## What it checks
    The phase that verifies drafted tokens runs on torch_native, and the installed backend reads extend lengths
    there and knows nothing of verify batches.

    ## Why it matters
    A verify batch has no extend lengths.

    ## When it hurts
    With the warm-up request: AttributeError in the worker.

    ## Example
    `--attention-backend torch_native --speculative-algorithm NGRAM`. It works with `--attention-backend triton`.

    ## Fix
    Remove --attention-backend, or speculation.
    """
    phase = "decode" if launch.get("args.speculative_attention_mode") == "decode" else "prefill"
    if backends(launch).get(phase) != "torch_native":
        return
    field = _field(launch, phase)
    yield Violation(
        flags=_typed(launch, field, "speculative_algorithm"),
        cause="torch_native verifies the drafted tokens here, and needs extend lengths, which verify batches lack",
        impact="the warm-up request ends the worker with an AttributeError",
        fix=unset(field),
    )


@rule(
    "ATT105",
    "sparse-attention-without-a-kernel-for-sm120",
    Severity.ERROR,
    summary="sparse attention (DSA) of this SGLang has no path for SM12x",
    source={"dsa_knows_sm120": False},
    reports=(sglang_issue(26087),),
    applies=lambda launch: launch["gpu.platform"] == "cuda" and int(launch["gpu.sm"]) // 10 == 12,
)
def sparse_on_sm120(launch: Launch) -> Iterator[Violation]:
    """DeepSeek-V3.2 or GLM-5 (sparse attention) on SM12x GPUs.

    ## What it checks
    The resolved attention backend is DSA (called nsa before), the GPU is SM12x, and the installed backend schedules
    its indexer with DeepGEMM and has no branch of its own for SM12x.

    ## Why it matters
    DeepGEMM's function knows SM9x and SM10x only. Every DSA kernel choice goes through it.

    ## When it hurts
    In graph capture or with the first request: the workers die.

    ## Example
    `--model-path nvidia/GLM-5.1-NVFP4 --tp 8` on eight RTX PRO 6000, 0.5.12. It works on later releases that have a
    path for SM12x (0.5.17).

    ## Fix
    Use a release with a path for SM12x, or another GPU.
    """
    if not {"dsa", "nsa"} & set(backends(launch).values()):
        return
    yield Violation(
        flags=tuple(name for name in _FIELDS if launch.given(name)),
        cause=f"the sparse-attention indexer needs DeepGEMM, which has no kernel for SM{launch['gpu.sm']}",
        impact="graph capture or the first request ends the workers",
        fix=manual("use a release whose sparse attention has a path for SM12x (0.5.17 has), or another GPU"),
    )
