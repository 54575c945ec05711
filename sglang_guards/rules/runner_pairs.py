"""RUN114 to RUN117: a runner without a function for its tokens, and a method without the runner it needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sglang_guards.launch.checkpoint import text_config
from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.launch.moe_runner import has_fp4_experts
from sglang_guards.report.model import Evidence, Severity
from sglang_guards.rules import Change, Violation, manual, public_note, rule, sglang_issue, unset
from sglang_guards.source.probes.runner_pairs import FP4_IN_FP8

#: All-to-all backends whose experts are FusedMoE layers with a runner of the method's own.
_DISPATCHERS = frozenset({"none", "deepep", "deepep_v2", "mooncake", "nixl", "mori", "flashinfer", "pplx"})
#: Backends that a method of their own, a wrapper or another platform takes.
_ELSEWHERE = ("humming", "lora_", "experimental_", "ascend", "intel_xpu", "aiter", "flashinfer_megamoe")
_WORDS = {FP4_IN_FP8: "FP4"}
#: What both rules ask of the source.
_ACCEPTED, _MADE = "experts_runner_is_accepted", "experts_method_has_runner"


@dataclass(frozen=True)
class _Experts:
    """The experts of the target or of the draft, as the source is asked about them."""

    who: str
    kind: str
    backend: str
    a2a: str
    backend_flag: str
    a2a_flag: str


def _experts(launch: Launch, which: str) -> _Experts | None:
    """None without MoE layers, or where the experts run outside of FusedMoE's own runners."""
    draft = which == "draft"
    if not launch[f"{which}.exists"]:
        return None
    prefix = "speculative_" if draft else ""
    own_backend = launch[f"args.{prefix}moe_runner_backend"]
    own_a2a = launch[f"args.{prefix}moe_a2a_backend"]
    backend, a2a = own_backend or launch["args.moe_runner_backend"], own_a2a or launch["args.moe_a2a_backend"]
    if (a2a or "none") not in _DISPATCHERS or str(backend).startswith(_ELSEWHERE):
        return None
    launch[f"{which}.runner"]  # missing where something else may run the experts
    kind = str(launch[f"{which}.kind"])
    if has_fp4_experts(text_config(launch[f"{'draft_model' if draft else 'model'}.config"])):
        if kind != "fp8":
            raise MissingFact(f"{which}.kind")
        kind = FP4_IN_FP8
    return _Experts(
        who="the draft's" if draft else "the",
        kind=kind,
        backend=str(backend or "auto"),
        a2a=str(a2a or "none"),
        backend_flag=f"{prefix}moe_runner_backend" if own_backend else "moe_runner_backend",
        a2a_flag=f"{prefix}moe_a2a_backend" if own_a2a else "moe_a2a_backend",
    )


def _ask(launch: Launch, probe: str, experts: _Experts, **changed: str) -> tuple[bool, str]:
    asked = {
        "kind": experts.kind,
        "backend": experts.backend,
        "a2a": experts.a2a,
        "sm": str(launch["gpu.sm"]),
    }
    fact = launch.answer(probe, **(asked | changed))
    return bool(fact.value), fact.where.removeprefix("sglang/srt/")


def _works(launch: Launch, experts: _Experts, **changed: str) -> bool:
    try:
        return all(_ask(launch, probe, experts, **changed)[0] for probe in (_MADE, _ACCEPTED))
    except MissingFact:
        return False


def _way_out(launch: Launch, experts: _Experts) -> Change:
    """The smallest change after which the source accepts these experts."""
    if launch.given(experts.backend_flag) and _works(launch, experts, backend="auto"):
        return unset(experts.backend_flag)
    if experts.a2a != "none" and _works(launch, experts, a2a="none"):
        if experts.who == "the":
            return unset("moe_a2a_backend", safe=False)
        return Change({"speculative_moe_a2a_backend": "none"})
    return manual("name a runner that the method has a branch for")


def _tokens(a2a: str) -> str:
    return "for tokens that no all-to-all backend dispatched" if a2a == "none" else f"for {a2a}"


def _flags(launch: Launch, experts: _Experts) -> tuple[str, ...]:
    names = (experts.backend_flag, experts.a2a_flag)
    return tuple(name for name in names if launch.given(name)) or (experts.a2a_flag,)


def _judged(launch: Launch) -> bool:
    """On CUDA, without adapters (LoRA's layers have runners of their own), and where nothing was built.

    What SGLang's own constructors refuse is BLD101 and BLD102.
    """
    if launch["gpu.platform"] != "cuda" or launch.get("build.status") not in (None, "not built"):
        return False
    return launch["lora.enabled"] is False


@rule(
    "RUN114",
    "runner-without-function-for-all-to-all",
    Severity.ERROR,
    summary="the MoE runner has no function for the tokens that it is handed",
    reports=[sglang_issue(32846), sglang_issue(28412)],
    applies=_judged,
)
def no_function(launch: Launch) -> Iterator[Violation]:
    """A runner and an all-to-all backend that SGLang registers no function for.

    ## What it checks
    For the experts of target and draft: which runner the quantization method of the installed source makes for the
    backend, GPU and quantization; whether MoeRunner has a core for it; and, where it has none, whether a function is
    registered for this runner together with the all-to-all backend. `check` builds the layer itself and says BLD101;
    this rule speaks at start-up, where nothing is built.

    ## Why it matters
    Resolution accepts the pair. NVFP4 experts with DeepEP are such a pair by default: auto becomes TRT-LLM on
    Blackwell and Marlin on Hopper, and neither has a function for DeepEP.

    ## When it hurts
    While the model is built: NotImplementedError in every worker.

    ## Fix
    Leave the runner to SGLang where auto has a function, else run without the all-to-all backend.
    """
    yield from _both(launch, _ACCEPTED)


@rule(
    "RUN115",
    "method-without-the-runner",
    Severity.ERROR,
    summary="the experts' quantization method has no branch for this runner",
    reports=[sglang_issue(36569)],
    applies=lambda launch: (
        (
            launch["args.moe_runner_backend"] not in ("auto", None, "")
            or launch["args.speculative_moe_runner_backend"] not in ("auto", None, "")
        )
        and _judged(launch)
    ),
)
def no_runner(launch: Launch) -> Iterator[Violation]:
    """A runner backend for which the experts' method makes no runner, or raises.

    ## What it checks
    The `create_moe_runner` of the quantization method in the installed source, followed for the backend, the GPU and
    the kind of experts: every way through it raises, or none makes a runner and every way through `apply` uses one.
    FP8 experts with flashinfer_cutlass are RUN101's. `check` builds the layer itself and says BLD101 or BLD102.

    ## Why it matters
    Resolution accepts every name.

    ## When it hurts
    While the model is built where the method raises, else at the first forward: an AttributeError in every worker.

    ## Fix
    Leave --moe-runner-backend away, or name one that the method knows.
    """
    yield from _both(launch, _MADE)


def _both(launch: Launch, probe: str) -> Iterator[Violation]:
    missing, certain = None, False
    for which in ("target", "draft"):
        try:
            found = _violation(launch, which, probe)
        except MissingFact as unknown:
            missing = missing or unknown
            continue
        if found is not None:
            certain = True
            yield found
    if missing is not None and not certain:
        raise missing


def _violation(launch: Launch, which: str, probe: str) -> Violation | None:
    experts = _experts(launch, which)
    if experts is None:
        return None
    kind = _WORDS.get(experts.kind, experts.kind)
    if probe == _MADE:
        if experts.a2a != "none" or experts.backend == "auto":
            return None
        if (experts.kind, experts.backend) == ("fp8", "flashinfer_cutlass"):
            return None
        fine, place = _ask(launch, _MADE, experts)
        cause = f"the method of {experts.who} {kind} experts makes no runner for {experts.backend} ({place})"
        impact = "every worker dies while the model is built, or with an AttributeError at the first forward"
    else:
        if experts.a2a == "none" and experts.backend == "auto":
            return None  # what SGLang takes by itself, without a pair to judge
        try:
            fine, place = _ask(launch, _ACCEPTED, experts)
        except MissingFact:
            if experts.a2a == "none":
                return None  # RUN115 asks about the same method, and says what is not known
            raise
        cause = (
            f"the runner that {experts.backend} gives {experts.who} {kind} experts has neither a core of its "
            f"own nor a function {_tokens(experts.a2a)} ({place})"
        )
        impact = "every worker raises NotImplementedError while the model is built"
    if fine:
        return None
    return Violation(
        flags=_flags(launch, experts),
        cause=cause,
        impact=impact,
        fix=_way_out(launch, experts),
        evidence=(Evidence("source", place),),
    )


@rule(
    "RUN116",
    "deepep-prefill-without-function",
    Severity.ERROR,
    summary="the MoE runner takes DeepEP's low-latency layout only, and prefill batches come in the other one",
    reports=[public_note("https://github.com/SemiAnalysisAI/InferenceX/pull/2299")],
    applies=lambda launch: (
        launch["args.moe_a2a_backend"] == "deepep"
        and launch["args.deepep_mode"] != "low_latency"
        and launch.get("args.disaggregation_mode") != "decode"
        and launch["gpu.platform"] == "cuda"
        and launch["lora.enabled"] is False
    ),
)
def prefill_layout(launch: Launch) -> Iterator[Violation]:
    """NVFP4 experts on flashinfer_cutedsl with DeepEP, on a server that prefills.

    ## What it checks
    The all-to-all backend is DeepEP in the mode auto or normal, the server is no decode node, and the function that
    the installed source registers for the runner unpacks the six values of the low-latency layout, where a prefill
    batch has five.

    ## Why it matters
    DeepEP's mode auto takes the normal layout for every batch with a prefill in it.

    ## When it hurts
    At the first prefill: «not enough values to unpack» in every worker, or an assertion before it.

    ## Fix
    Remove --moe-a2a-backend, or use DeepEP on decode nodes only. The low-latency mode takes few tokens per rank.
    """
    experts = _experts(launch, "target")
    if experts is None or experts.backend == "auto":
        return
    fine, place = _ask(launch, "deepep_function_takes_prefill", experts)
    if not fine:
        yield Violation(
            flags=("moe_a2a_backend", "moe_runner_backend"),
            cause=f"a prefill batch comes in DeepEP's normal layout, and the function of {experts.backend} unpacks "
            f"the low-latency one ({place})",
            impact="every worker dies at the first prefill",
            fix=unset("moe_a2a_backend", otherwise="use DeepEP on decode nodes only", safe=False),
            evidence=(Evidence("source", place),),
        )


@rule(
    "RUN117",
    "method-reads-what-deepep-lacks",
    Severity.ERROR,
    summary="the experts' method reads a field that DeepEP's batches do not have",
    reports=[sglang_issue(29849)],
    applies=lambda launch: (
        launch["args.moe_a2a_backend"] == "deepep"
        and launch["args.moe_runner_backend"] == "flashinfer_mxfp4"
        and not any("MEGA_MOE" in name for name in launch.env)
        and launch["lora.enabled"] is False
        and launch["gpu.platform"] == "cuda"
    ),
)
def batch_without_field(launch: Launch) -> Iterator[Violation]:
    """FP4 experts with a kernel of their own (flashinfer_mxfp4 on Blackwell) and DeepEP.

    ## What it checks
    The method that the installed source gives these experts makes no runner and reads, before any condition, a field
    of the batch (`topk_output`) that neither of DeepEP's layouts has.

    ## Why it matters
    The method was written for batches that no all-to-all backend dispatched. Resolution accepts the pair.

    ## When it hurts
    At the first forward: an AttributeError in every worker.

    ## Fix
    Remove --moe-a2a-backend.
    """
    experts = _experts(launch, "target")
    if experts is None or experts.kind != FP4_IN_FP8:
        return
    fine, place = _ask(launch, "experts_method_fits_deepep", experts)
    if not fine:
        yield Violation(
            flags=_flags(launch, experts),
            cause=f"the method of the FP4 experts reads a field that DeepEP's batches do not have ({place})",
            impact="every worker dies with an AttributeError at the first forward",
            fix=unset("moe_a2a_backend", safe=False),
            evidence=(Evidence("source", place),),
        )
