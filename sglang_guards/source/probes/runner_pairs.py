"""Whether the runner that an experts' method makes can take its tokens: cores, fused functions, and methods without.

Everything is read where SGLang itself decides it: the method's `create_moe_runner`, `MoeRunner.__init__`, and the
pairs that `register_fused_func` names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sglang_guards.source.probes.moe_runner import FP8, MODELOPT, MXFP4, UNQUANT, facts_for, runners_made
from sglang_guards.source.syntax.evaluate import Choice, Path, World, paths
from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import plain
from sglang_guards.source.tree import Answer, Source, Unknown, probe

_MOE = "sglang/srt/layers/moe"
RUNNER = f"{_MOE}/moe_runner/runner.py"
UTILS = f"{_MOE}/utils.py"
_BASE = f"{_MOE}/moe_runner/base.py"
_QUANT = "sglang/srt/layers/quantization"
_SCHEMES = f"{_QUANT}/compressed_tensors/schemes"
#: Where functions for a pair may be registered.
_FOLDERS = ("sglang/srt/layers", "sglang/srt/lora", "sglang/srt/hardware_backend")

#: The experts' kind, as in `checkpoint.quant_kind` -> file and class of the method. Kinds whose class depends on more
#: than the kind are left out.
METHODS: Mapping[str, tuple[str, str]] = {
    "unquantized": (UNQUANT, "UnquantizedFusedMoEMethod"),
    "fp8": (FP8, "Fp8MoEMethod"),
    "modelopt_fp8": (MODELOPT, "ModelOptFp8MoEMethod"),
    "modelopt_fp4": (MODELOPT, "ModelOptNvFp4FusedMoEMethod"),
    "mxfp4": (MXFP4, "Mxfp4MoEMethod"),
    "ct_fp8": (f"{_SCHEMES}/compressed_tensors_w8a8_fp8_moe.py", "CompressedTensorsW8A8Fp8MoE"),
    "ct_wna16": (f"{_SCHEMES}/compressed_tensors_wNa16_moe.py", "CompressedTensorsWNA16MoE"),
    "ct_nvfp4": (f"{_SCHEMES}/compressed_tensors_w4a4_nvfp4_moe.py", "CompressedTensorsW4A4Nvfp4MoE"),
}
_WEIGHT_ONLY_NVFP4 = f"{_SCHEMES}/compressed_tensors_w4a16_nvfp4_moe.py"
#: FP4 experts in an FP8 checkpoint; for these the FP8 config picks the method by the runner.
FP4_IN_FP8 = "fp4_in_fp8"


@dataclass(frozen=True)
class _Experts:
    """One kind of expert layer on CUDA, as the probes ask for it; all values are text."""

    kind: str
    backend: str
    a2a: str
    sm: str

    def facts(self, source: Source) -> dict[str, Any]:
        sm = int(self.sm)
        backend = _member(source, "MoeRunnerBackend", self.backend)
        a2a = _member(source, "MoeA2ABackend", self.a2a)
        fp4 = self.kind == FP4_IN_FP8
        facts = facts_for(backend, get_moe_a2a_backend=Choice(a2a), get_device_capability=divmod(sm, 10))
        for open_question in (
            "is_deepgemm_moe_runner_backend_enabled",
            "use_deep_gemm",
            "use_mega_moe",
            "_fi_kernel",
            "_is_cutedsl_v1_deepep",
            "supports_aiter",
            "is_weight_per_channel",
        ):
            facts.pop(open_question, None)
        return facts | {
            "use_triton_kernels": backend == "triton_kernels",
            "use_flashinfer_cutlass": backend == "flashinfer_cutlass",
            "use_flashinfer_trtllm_moe": backend in ("flashinfer_trtllm", "flashinfer_trtllm_routed"),
            **{
                f"is_sm{family}0{end}": sm // 10 == family
                for family in (9, 10, 12)
                for end in ("", "_supported")
            },
            "is_npu_arch35": False,
            "is_fp4_expert": fp4,
            "is_fp4_experts": fp4,
            "dequant_fp4_to_fp8": False,
            "use_mxfp8": False,
            "use_intel_amx_backend": False,
            "use_intel_xpu_backend": False,
            **_flags_of_methods(backend),
        }


def _flags_of_methods(backend: str) -> dict[str, Any]:
    """What the methods' constructors keep of a backend that was named; under auto more decides."""
    if backend in ("auto", "flashinfer_mxfp4"):
        return {}
    return {
        "use_marlin": backend == "marlin",
        "use_flashinfer": False,
        "_fi_kernel": None,
        **{
            f"enable_{name}_moe": backend in (name, f"{name}_routed")
            for name in ("flashinfer_cutlass", "flashinfer_cutedsl", "flashinfer_trtllm")
        },
    }


def _member(source: Source, enum: str, value: str) -> str:
    """The enum's member of this value, in small letters, as `is_<member>()` asks for it.

    Unknown for a member that answers to another one's question too: conditions would be followed wrongly.
    """
    code = source.function(UTILS, enum)
    assert isinstance(code.node, ast.ClassDef)
    members = {
        node.value.value: node.targets[0].id
        for node in code.node.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    if value not in members:
        raise Unknown(f"{enum} has no member {value}")
    member = members[value]
    asking = re.compile(r"^    def is_(\w+)\(.*\n((?:(?: {8}.*)?\n)*)", re.MULTILINE)
    for asks in asking.finditer(source.text(UTILS) or ""):
        if re.search(rf"\b{enum}\.{member}\b", asks[2]) and asks[1] != member.lower():
            raise Unknown(f"is_{asks[1]} asks for {member} too")
    return member.lower()


def _value(source: Source, enum: str, member: str) -> str:
    text = source.text(UTILS) or ""
    found = re.search(rf"^class {enum}\b.*?^    {member.upper()} = \"(\w+)\"", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise Unknown(f"{enum} has no member {member}")
    return found[1]


def _method(source: Source, experts: _Experts, facts: Mapping[str, object]) -> tuple[str, str]:
    """File and class of the method. Raises Unknown where more than the kind decides."""
    if experts.kind not in ("fp8", FP4_IN_FP8):
        if experts.kind not in METHODS:
            raise Unknown(f"which method {experts.kind} experts have is not in the table")
        if experts.kind == "ct_nvfp4" and source.exists(_WEIGHT_ONLY_NVFP4):
            raise Unknown("whether these experts quantize activations")
        if experts.kind == "ct_wna16" and (
            experts.backend not in ("auto", "marlin") or int(experts.sm) >= 100
        ):
            raise Unknown("which scheme int4 experts have")
        return METHODS[experts.kind]
    code = source.function(FP8, "Fp8Config.get_quant_method")
    assert isinstance(code.node, ast.FunctionDef)
    pinned = {**facts, "is_layer_skipped": False}
    names = {_returned(path) for path in paths(_experts_branch(code.node), World(pinned))}
    if len(names) != 1:
        raise Unknown(f"{experts.kind} experts get one of {len(names)} methods")
    name = names.pop()
    if name in ("Fp8MoEMethod", "fp8_method"):
        return FP8, "Fp8MoEMethod"
    for rel in source.files(_QUANT, "mxfp4*.py"):
        if re.search(rf"^class {re.escape(name)}\b", source.text(rel) or "", re.MULTILINE):
            return rel, name
    raise Unknown(f"{name} was not found")


def _experts_branch(function: ast.FunctionDef) -> Sequence[ast.stmt]:
    for node in walk(function):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "isinstance(layer, FusedMoE)":
            return node.body
    raise Unknown("no branch for expert layers")


def _returned(path: Path) -> str:
    value = path.end.value if isinstance(path.end, ast.Return) else None
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id
    return value.id if isinstance(value, ast.Name) else "something"


# -- K1: the runner and what hands it its tokens -----------------------------------------------------------


@probe(
    "experts_runner_is_accepted",
    "MoeRunner accepts the runner of these experts: it has a core, or a function for the all-to-all backend.",
)
def experts_runner_is_accepted(source: Source, kind: str, backend: str, a2a: str, sm: str) -> Answer:
    experts = _Experts(kind, backend, a2a, sm)
    facts = experts.facts(source)
    rel, name = _method(source, experts, facts)
    made, where = runners_made(source, rel, name, facts)
    if not made or None in made or "none" in made:
        raise Unknown(f"which runner {name} makes")
    found = {runner: _accepted(source, str(runner), a2a, facts) for runner in made}
    if len(set(found.values())) != 1:
        raise Unknown(f"{name} may make {' or '.join(sorted(map(str, made)))}")
    runners = "/".join(sorted(_value(source, "MoeRunnerBackend", str(runner)) for runner in made))
    if next(iter(found.values())):
        return Answer(True, where, f"{name} makes {runners}")
    return Answer(False, _refusal(source), f"{name} makes {runners}")


def _accepted(source: Source, runner: str, a2a: str, facts: Mapping[str, object]) -> bool:
    code = source.function(RUNNER, "MoeRunner.__init__")
    assert isinstance(code.node, ast.FunctionDef)
    plain(code.node)
    pinned = {**facts, "runner_backend": Choice(runner), "lora_enabled": False, "get": None}
    states = {_core(path) for path in paths(code.node.body, World(pinned))}
    if len(states) > 1:
        states.discard("raises")  # what else it refuses is another question
    if states == {"core"}:
        return True
    if states == {"raises"}:
        return False
    if not states <= {"fused", "refused"} or "refused" not in states:
        raise Unknown(f"what MoeRunner does with {runner}")
    return (a2a, _value(source, "MoeRunnerBackend", runner)) in _registered(source)


def _core(path: Path) -> str:
    """What one way through the constructor leaves: a core, none, or an exception."""
    core: ast.expr | None = None
    asked = False
    for step in path.steps:
        node = step.node
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.runner_core":
            core = node.value
        asked = asked or (isinstance(node, ast.If) and "fused_func is None" in ast.unparse(node.test))
    if core is None:
        return "raises" if isinstance(path.end, ast.Raise) else "something"
    none = isinstance(core, ast.Constant) and core.value is None
    if isinstance(path.end, ast.Raise):
        return ("refused" if none else "core") if asked else "something"
    return "fused" if none else "core"


def _refusal(source: Source) -> str:
    line = source.line(RUNNER, r"^ +raise NotImplementedError\($\n.*requires a fused func")
    return f"{RUNNER}:{line}" if line else RUNNER


def _registered(source: Source) -> frozenset[tuple[str, str]]:
    """Pairs of all-to-all backend and runner with a function of their own. Unknown where one is not spelled out."""
    key = "fused functions"
    if key not in source.memo:
        source.memo[key] = frozenset(_pairs(source))
    found = source.memo[key]
    assert isinstance(found, frozenset)
    return found


def _pairs(source: Source) -> set[tuple[str, str]]:
    found = set()
    for rel in (rel for folder in _FOLDERS for rel in source.files(folder, "**/*.py")):
        data = source.data(rel) or b""
        if rel == _BASE or b"register_fused_func" not in data:
            continue
        text = data.decode("utf-8", "replace")
        for call in re.finditer(r"\bregister_fused_func\s*\(", text):
            pair = re.match(
                r"\s*[\"'](\w+)[\"'],\s*[\"'](\w+)[\"'],?\s*\)", text[call.end() : call.end() + 200]
            )
            if pair is not None:
                found.add((pair[1], pair[2]))
            elif not text[: call.start()].rpartition("\n")[2].lstrip().startswith("#"):
                raise Unknown(f"{rel} registers a function for a pair that is not spelled out")
    if not found:
        raise Unknown("no function of a runner was found")
    return found


# -- K2: the method and the runner it needs ----------------------------------------------------------------


@probe(
    "experts_method_has_runner",
    "The experts' method makes a runner for the backend, or its forward needs none.",
)
def experts_method_has_runner(source: Source, kind: str, backend: str, a2a: str, sm: str) -> Answer:
    experts = _Experts(kind, backend, a2a, sm)
    facts = experts.facts(source)
    rel, name = _method(source, experts, facts)
    made, where = runners_made(source, rel, name, facts)
    if not made:
        return Answer(False, where, f"{name} raises")
    if "none" not in made and None not in made:
        return Answer(True, where, name)
    if made != {"none"}:
        raise Unknown(f"whether {name} makes a runner")
    code = source.function(rel, f"{name}.apply")
    assert isinstance(code.node, ast.FunctionDef)
    reads = [_reads_runner(path) for path in paths(code.node.body, World(facts))]
    if all(line is not None for line in reads) and reads:
        return Answer(False, f"{code.rel}:{reads[-1]}", f"{name} keeps no runner")
    if any(line is not None for line in reads):
        raise Unknown(f"whether the forward of {name} needs a runner")
    return Answer(True, code.where(), f"the forward of {name} needs no runner")


def _reads_runner(path: Path) -> int | None:
    """The line at which a way through the forward uses `self.runner`, ways that raise before included."""
    for step in path.steps:
        for node in step.live:
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "self.runner":
                return node.lineno
    return path.end.lineno if isinstance(path.end, ast.Raise) else None
