"""Probes of attention backends: which ones SGLang refuses for a kind of model, a GPU, a draft, once the weights are in.

The checks stand in functions that run when the workers build their attention; each probe evaluates the few tests of
such a function for what the launch says, and answers None as soon as one of them asks something else.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from sglang_guards.source.syntax.nodes import walk
from sglang_guards.source.syntax.shape import names_in
from sglang_guards.source.tree import Answer, Code, Source, Unknown, probe

REGISTRY = "sglang/srt/layers/attention/attention_registry.py"
DRAFT = "sglang/srt/speculative/draft_utils.py"
TORCH_NATIVE = "sglang/srt/layers/attention/torch_native_backend.py"
HYBRID = ("sglang/srt/configs/hybrid_arch.py", "sglang/srt/model_executor/model_runner.py")
_DSA = (
    ("sglang/srt/layers/attention/dsa_backend.py", "sglang/srt/layers/attention/dsa"),
    ("sglang/srt/layers/attention/nsa_backend.py", "sglang/srt/layers/attention/nsa"),
)
#: Platforms that the probes are asked for are NVIDIA's.
_PLATFORM = {"_is_musa": False, "_is_npu": False, "_is_hip": False, "_is_cuda": True}


def truth(node: ast.expr, known: Mapping[str, object]) -> bool | None:
    """Whether a test holds, None where it asks something that is not known."""
    if isinstance(node, ast.BoolOp):
        values = [truth(part, known) for part in node.values]
        decisive = isinstance(node.op, ast.Or)
        if decisive in values:
            return decisive
        return None if None in values else not decisive
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        inner = truth(node.operand, known)
        return None if inner is None else not inner
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return _compared(node.ops[0], _value(node.left, known), _value(node.comparators[0], known))
    value = _value(node, known)
    return None if value is None else bool(value)


def _compared(op: ast.cmpop, left: object, right: object) -> bool | None:
    if left is None or right is None:
        return None
    if isinstance(op, (ast.Eq, ast.NotEq)):
        return (left == right) is isinstance(op, ast.Eq)
    if isinstance(op, (ast.In, ast.NotIn)) and isinstance(right, (set, frozenset, tuple)):
        return (left in right) is isinstance(op, ast.In)
    if isinstance(left, int) and isinstance(right, int):
        ops: dict[type[ast.cmpop], bool] = {
            ast.Gt: left > right, ast.GtE: left >= right, ast.Lt: left < right, ast.LtE: left <= right,
        }  # fmt: skip
        return ops.get(type(op))
    return None


def _value(node: ast.expr, known: Mapping[str, object]) -> object:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, (ast.Set, ast.Tuple, ast.List)):
        values = [_value(item, known) for item in node.elts]
        return None if None in values else frozenset(values)
    if isinstance(node, ast.Call) and not node.args and not node.keywords:
        return known.get(f"{ast.unparse(node.func).rpartition('.')[2]}()")
    if isinstance(node, ast.Attribute):
        return known.get(node.attr)
    return known.get(node.id) if isinstance(node, ast.Name) else None


def _refused(body: Sequence[ast.stmt], known: dict[str, object]) -> tuple[ast.stmt | None, bool]:
    """The statement that refuses, if one does for certain; and whether all tests on the way were understood."""
    clear = True
    for node in body:
        if isinstance(node, ast.Assert):
            holds = truth(node.test, known)
            if holds is False:
                return node, clear
            clear = clear and holds is not None
        elif isinstance(node, ast.Raise):
            return node, clear
        elif isinstance(node, ast.Return):
            return None, clear
        elif isinstance(node, ast.If):
            taken = truth(node.test, known)
            if taken is None:
                clear = clear and not any(isinstance(n, (ast.Raise, ast.Assert)) for n in walk(node))
                continue
            found, understood = _refused(node.body if taken else node.orelse, known)
            clear = clear and understood
            if found is not None:
                return found, clear
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            known[node.targets[0].id] = _value(node.value, known)
    return None, clear


def _answered(code: Code, body: Sequence[ast.stmt], known: dict[str, object]) -> Answer:
    refusal, clear = _refused(body, known)
    if refusal is not None and clear:
        return Answer(False, code.where(refusal))
    if not clear:
        raise Unknown("a check asks something else too")
    return Answer(True, code.where())


@probe(
    "attention_backend_takes",
    "The constructor of an attention backend takes this kind of model on this GPU (backend, mla, sm).",
)
def attention_backend_takes(source: Source, backend: str, mla: str, sm: str) -> Answer:
    rel = source.need(REGISTRY)
    text = source.text(rel) or ""
    head = re.search(
        rf'^@register_attention_backend\("{re.escape(backend)}"\)\n(?:@.*\n)*def (\w+)', text, re.MULTILINE
    )
    if head is None:
        raise Unknown(f"no attention backend {backend} is registered")
    code = source.function(rel, head[1])
    major, minor = divmod(int(sm), 10)
    known: dict[str, object] = {
        **_PLATFORM,
        "use_mla_backend": mla == "True",
        "major": major,
        "minor": minor,
        "is_encoder_decoder": False,
        "dcp_size": 1,
        "dcp_enabled": False,  # decode context parallelism has conditions of its own; the build asks them
    }
    return _answered(code, getattr(code.node, "body", ()), known)


@probe("is_hybrid_gdn", "The architecture is a hybrid with gated-delta-net layers, as SGLang counts them.")
def is_hybrid_gdn(source: Source, architecture: str) -> Answer:
    for rel, name in ((HYBRID[0], "hybrid_gdn_config"), (HYBRID[1], "ModelRunner.hybrid_gdn_config")):
        code = source.maybe(rel, name)
        if code is None:
            continue
        classes = {n for n in names_in(code.node) if n.endswith("Config") and n[0].isupper()}
        if not classes:
            continue
        stem = re.sub(r"For(?:CausalLM|ConditionalGeneration)\w*$", "", architecture)
        return Answer(f"{stem}Config" in classes, code.where())
    raise Unknown("which models are hybrids was not found")


@probe(
    "hybrid_gdn_takes",
    "Hybrid models with gated-delta-net layers take this attention backend on this GPU (backend, sm).",
)
def hybrid_gdn_takes(source: Source, backend: str, sm: str) -> Answer:
    code = source.function(REGISTRY, "attn_backend_wrapper")
    for node in walk(code.node):
        if not isinstance(node, ast.If) or "hybrid_gdn_config" not in set(names_in(node.test)):
            continue
        if not any(isinstance(n, ast.Assert) for n in walk(node)):
            continue
        major = int(sm) // 10
        known: dict[str, object] = {
            **_constants(source),
            "is_blackwell()": major in (10, 11, 12),
            "is_npu()": False,
            "is_sm120_supported()": major == 12,
            "is_sm120": major == 12,
            "attention_backend": backend,
            "prefill_attention_backend": "",
            "decode_attention_backend": "",
            "prefill_attention_backend_str": backend,
            "decode_attention_backend_str": backend,
        }
        body = [n for n in node.body if isinstance(n, ast.If) and _about_gpu(n)]
        if len(body) != 1:
            raise Unknown("the check of hybrid models has another shape")
        return _answered(code, body, known)
    raise Unknown("no check of hybrid models was found")


def _about_gpu(node: ast.If) -> bool:
    return "is_blackwell" in set(names_in(node.test))


def _constants(source: Source) -> dict[str, object]:
    """Sets of names that stand at module level of the registry."""
    found: dict[str, object] = {}
    for name, text in re.findall(r"^([A-Z_0-9]+) = (\{[^}]*\})", source.text(REGISTRY) or "", re.MULTILINE):
        found[name] = _value(ast.parse(text, mode="eval").body, {})
    return found


@probe(
    "draft_backend_exists", "An EAGLE draft has this attention backend (backend; phase: decode or extend)."
)
def draft_backend_exists(source: Source, backend: str, phase: str) -> Answer:
    name = "create_decode_backend" if phase == "decode" else "create_draft_extend_backend"
    code = source.function(DRAFT, f"DraftBackendFactory.{name}")
    for node in walk(code.node):
        if isinstance(node, ast.Dict) and len(node.keys) > 3:
            keys = [k.value for k in node.keys if isinstance(k, ast.Constant)]
            if len(keys) != len(node.keys):
                raise Unknown("the table of draft backends is made at run time")
            return Answer(backend in keys, code.where(node))
    raise Unknown("the table of draft backends was not found")


@probe(
    "torch_native_needs_extend_lengths",
    "The torch_native backend reads extend lengths, which no verify batch of speculation has.",
)
def torch_native_needs_extend_lengths(source: Source) -> Answer:
    code = source.function(TORCH_NATIVE, "TorchNativeAttnBackend.forward_extend")
    names = set(names_in(code.node))
    whole = set(
        re.findall(
            r"\b(?:is_target_verify|spec_info|custom_mask|draft_token_num)\b", source.text(code.rel) or ""
        )
    )
    if whole:
        raise Unknown("the torch_native backend looks at speculation")
    for node in walk(code.node):
        if isinstance(node, ast.Attribute) and node.attr == "extend_prefix_lens":
            return Answer(True, code.where(node))
    raise Unknown(f"forward_extend reads {', '.join(sorted(names)[:3])}")


@probe("dsa_knows_sm120", "Sparse attention (DSA) has a path of its own for SM12x GPUs.")
def dsa_knows_sm120(source: Source) -> Answer:
    for backend, folder in _DSA:
        if len(source.text(backend) or "") < 2000:  # absent, or an alias of the renamed module
            continue
        for rel in (backend, *source.files(folder, "*.py")):
            if (line := source.line(rel, r"(?i)sm_?12[0-9x]?\b|sm120")) is not None:
                return Answer(True, f"{rel}:{line}")
        line = source.line(backend, r"deep_gemm\.get_paged_mqa_logits_metadata\(")
        if line is None:
            raise Unknown("who schedules the indexer was not found")
        return Answer(False, f"{backend}:{line}")
    raise Unknown("the backend of sparse attention has another shape")
