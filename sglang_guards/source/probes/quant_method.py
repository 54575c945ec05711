"""Which quantization method an expert layer gets: what its constructor takes, and what the quantization config returns.

Both answer True or not at all: a tree that takes its experts' method from somewhere else has a runner that nobody
here has read.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sglang_guards.source.probes.moe_runner import facts_for
from sglang_guards.source.syntax.evaluate import Path, World, paths, terminal_name, truth
from sglang_guards.source.syntax.nodes import copied, walk
from sglang_guards.source.syntax.shape import guards, names_in, plain
from sglang_guards.source.tree import Answer, Code, Source, Unknown, probe

LAYER = "sglang/srt/layers/moe/fused_moe_triton/layer.py"
_QUANT = "sglang/srt/layers/quantization"
_UNQUANTIZED = "UnquantizedFusedMoEMethod"

# -- the layer ---------------------------------------------------------------------------------------------

#: What may be written to the layer's method -> the tests around it that say when. KTransformers and paged experts
#: wrap the method, each by a server arg of its own.
_WRITES: Mapping[str, frozenset[tuple[str, bool]]] = {
    "None": frozenset(),
    "quant_method": frozenset(),
    "quant_config.get_quant_method": frozenset({("kt_config is not None", False)}),
    _UNQUANTIZED: frozenset({("kt_config is not None", False), ("self.quant_method is None", True)}),
    "KTEPWrapperMethod": frozenset({("kt_config is not None", True)}),
    "make_for_layer": frozenset({("get_exec().moe.enable_paged_experts", True)}),
}
_HAS_CONFIG = frozenset(
    {"quant_config is not None", "self.quant_method is None and quant_config is not None"}
)
#: Calls that get the layer itself and leave its method alone.
_HARMLESS = frozenset(
    {
        "MoeRunnerConfig",
        "make_for_layer",
        "quant_config.get_quant_method",
        "self.register_buffer",
        "self._set_runner_flags",
        "self.quant_method.create_weights",
        "self.quant_method.create_moe_runner",
        "self.quant_method.get_moe_runner_backend",
        "self.quant_method.get_moe_routing_method_type",
    }
)


@probe(
    "layer_takes_configured_method",
    "An expert layer takes the method that its quantization config returns, the unquantized one without.",
)
def layer_takes_configured_method(source: Source) -> Answer:
    code = source.function(LAYER, "FusedMoE.__init__")
    plain(code.node)
    config: ast.stmt | None = None
    fallback: ast.stmt | None = None
    for node in walk(code.node):
        if isinstance(node, ast.Call):
            _leaves_method_alone(node)
        if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)) or not _writes(node):
            continue
        around = {(ast.unparse(test), taken) for test, taken in guards(code.node, node)}
        what = _what(node)
        if what == "quant_config.get_quant_method":
            config = node
            around = {one for one in around if one[0] not in _HAS_CONFIG or not one[1]}
        if what not in _WRITES or not around >= _WRITES[what]:
            raise Unknown(f"line {node.lineno}: the layer may take {what}")
        if extra := around - _WRITES[what] - {("kt_config is not None", False)}:
            raise Unknown(f"line {node.lineno}: {what} is taken by {sorted(extra)[0][0]}")
        fallback = node if what == _UNQUANTIZED else fallback
    if config is None or fallback is None:
        raise Unknown("the layer asks no quantization config for its method")
    _from_sglang(source, code, (), {_UNQUANTIZED})
    return Answer(True, code.where(config), "quant_config.get_quant_method")


def _leaves_method_alone(node: ast.Call) -> None:
    name = ast.unparse(node.func)
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    whole = any(isinstance(item, ast.Name) and item.id == "self" for item in given)
    own = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "self"
    if (whole or own) and name not in _HARMLESS:
        raise Unknown(f"line {node.lineno}: {name} may give the layer another method")


def _writes(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(
        isinstance(item, ast.Attribute) and item.attr == "quant_method"
        for target in targets
        for item in walk(target)
    )


def _what(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> str:
    value = node.value
    if value is None or isinstance(node, ast.AugAssign):
        return "something"
    return ast.unparse(value.func if isinstance(value, ast.Call) else value)


# -- the quantization config -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """Where a quantization's config is, and which methods it gives expert layers in the releases of SGLang."""

    file: str
    name: str
    methods: frozenset[str]


def _config(file: str, name: str, *methods: str) -> Config:
    return Config(f"{_QUANT}/{file}", name, frozenset({*methods, _UNQUANTIZED}))


_CT = _config(
    "compressed_tensors/compressed_tensors.py",
    "CompressedTensorsConfig",
    "CompressedTensorsFusedMoEMethod",
    "Mxfp4MoEMethod",
)
_QUARK = _config("quark/quark.py", "QuarkConfig", "QuarkFusedMoEMethod", "Fp8MoEMethod")
#: By the experts' kind, as in `checkpoint.quant_kind`. Kinds that never reach the Triton runner are left out.
CONFIGS: Mapping[str, Config] = {
    "fp8": _config("fp8.py", "Fp8Config", "Fp8MoEMethod"),
    "modelopt_fp8": _config("modelopt_quant.py", "ModelOptFp8Config", "ModelOptFp8MoEMethod"),
    "mxfp4": _config("mxfp4.py", "Mxfp4Config", "Mxfp4MoEMethod", "Mxfp4DynamicQuantMoEMethod"),
    "w8a8_fp8": _config("w8a8_fp8.py", "W8A8Fp8Config", "W8A8FP8MoEMethod"),
    "w8a8_int8": _config("w8a8_int8.py", "W8A8Int8Config", "W8A8Int8MoEMethod", "UnquantizedLinearMethod"),
    "blockwise_int8": _config("blockwise_int8.py", "BlockInt8Config", "BlockInt8MoEMethod"),
    "bitsandbytes": _config("bitsandbytes.py", "BitsAndBytesConfig", "BitsAndBytesMoEMethod"),
    "moe_wna16": _config("moe_wna16.py", "MoeWNA16Config", "MoeWNA16Method"),
    **dict.fromkeys(("ct_fp8", "ct_int8", "ct_wna16"), _CT),
    "quark_fp8": _QUARK,
}
#: Functions that a test about the checkpoint may call; anything else may be a switch of the fork's own.
_ABOUT_CHECKPOINT = frozenset(
    {
        "is_layer_skipped",
        "is_layer_excluded",
        "is_layer_skipped_quant",
        "is_layer_skipped_awq",
        "should_ignore_layer",
        "is_moe_layer_skipped",
        "_is_mxfp4_moe",
        "_is_mx_fp4",
        "isinstance",
        "get",
        "any",
        "cast",
    }
)


@probe(
    "config_gives_its_method",
    "The quantization config gives expert layers the method that SGLang has for it, and no other.",
)
def config_gives_its_method(source: Source, kind: str) -> Answer:
    if kind not in CONFIGS:
        raise Unknown(f"which method {kind} experts have is not in the table")
    config = CONFIGS[kind]
    code = source.function(source.need(config.file), f"{config.name}.get_quant_method")
    given = set(_methods(source, code, {}))
    if strange := sorted(given - config.methods - {"None"}):
        raise Unknown(f"{config.name} gives expert layers {strange[0]}")
    own = given - {"None", _UNQUANTIZED, "UnquantizedLinearMethod"}
    if not own:
        raise Unknown(f"{config.name} gives expert layers no method that was found")
    return Answer(True, code.where(), ", ".join(sorted(own)))


def _methods(source: Source, code: Code, named: Mapping[str, str]) -> Iterator[str]:
    """Names of the classes that the function returns for an expert layer, «None» among them."""
    body = _for_experts(code.node)
    facts = facts_for("auto", is_npu=False, is_fp4_experts=False, use_mxfp8=False, cpu_has_amx_support=False)
    for path in paths(body, World(facts)):
        if isinstance(path.end, ast.Raise):
            continue
        _only_the_checkpoint_decides(path, World(facts))
        value = path.end.value if isinstance(path.end, ast.Return) else None
        if isinstance(value, ast.Name):
            value = _last_given(path, value.id)
        if value is None or (isinstance(value, ast.Constant) and value.value is None):
            yield "None"
        elif not isinstance(value, ast.Call):
            raise Unknown(f"line {value.lineno}: {ast.unparse(value)} is returned")
        elif helper := _own_helper(source, code, value):
            yield from _methods(
                source, helper, {k.arg: ast.unparse(k.value) for k in value.keywords if k.arg}
            )
        else:
            name = ast.unparse(value.func)
            name = named.get(name, name)
            _from_sglang(source, code, [step.node for step in path.steps], {name})
            yield name


def _for_experts(function: ast.stmt) -> list[ast.stmt]:
    """The body for a layer that is a FusedMoE, and nothing else that is asked for."""
    body: list[ast.stmt] = _Pinned().visit(copied(function)).body
    return body


class _Pinned(ast.NodeTransformer):
    """`isinstance(layer, …)` as its answer for an expert layer; classes that are not SGLang's own stay a question."""

    _OTHERS = frozenset(
        {"LinearBase", "RadixAttention", "ParallelLMHead", "VocabParallelEmbedding", "Attention", "FusedMoE"}
    )

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if terminal_name(node) != "isinstance" or len(node.args) != 2 or ast.unparse(node.args[0]) != "layer":
            return node
        kinds = node.args[1].elts if isinstance(node.args[1], ast.Tuple) else [node.args[1]]
        names = {terminal_name(kind) for kind in kinds}
        if not names <= self._OTHERS:
            return node
        return ast.copy_location(ast.Constant("FusedMoE" in names), node)


def _only_the_checkpoint_decides(path: Path, world: World) -> None:
    """Unknown where an open test, or what a local name in it was given, asks anything but the checkpoint."""
    for at, step in enumerate(path.steps):
        if not isinstance(step.node, ast.If) or truth(world.value(step.node.test)) is not None:
            continue
        asked: list[ast.expr] = [step.node.test]
        local = {"self", "layer", "prefix", *world.pinned}
        for earlier in reversed(path.steps[:at]):
            if not isinstance(earlier.node, ast.Assign):
                continue
            targets = {ast.unparse(target) for target in earlier.node.targets}
            local |= targets
            if targets & set().union(*(names_in(part) for part in asked)):
                asked.append(earlier.node.value)
        for part in asked:
            _asks_the_checkpoint(part, local, part is asked[0])


def _asks_the_checkpoint(part: ast.expr, known: set[str], whole: bool) -> None:
    for node in walk(part):
        own = isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.")
        if isinstance(node, ast.Call) and terminal_name(node) not in _ABOUT_CHECKPOINT and (whole or not own):
            raise Unknown(f"line {node.lineno}: {ast.unparse(node)} decides the method")
    if names_in(part) & {"environ", "envs", "getenv"}:
        raise Unknown(f"line {part.lineno}: the environment decides the method")
    if strange := sorted(_loose_names(part) - known - {"list", "str", "dict"}):
        raise Unknown(f"line {part.lineno}: {strange[0]} decides the method")


def _loose_names(test: ast.expr) -> set[str]:
    """Names that stand alone in a test: what is called, and the classes of an `isinstance`, are not among them."""
    apart = {
        id(item)
        for node in walk(test)
        if isinstance(node, ast.Call)
        for part in [node.func, *(node.args[1:] if terminal_name(node) == "isinstance" else [])]
        for item in walk(part)
    }
    return {node.id for node in walk(test) if isinstance(node, ast.Name) and id(node) not in apart}


def _last_given(path: Path, name: str) -> ast.expr | None:
    found: ast.expr | None = None
    for step in path.steps:
        if isinstance(step.node, ast.Assign) and any(ast.unparse(t) == name for t in step.node.targets):
            found = step.node.value
    if found is None:
        raise Unknown(f"what {name} is was not found")
    return found


def _own_helper(source: Source, code: Code, call: ast.Call) -> Code | None:
    """The function of the same file that a method hands the question to (`self._get_quant_method(…)`)."""
    if not (isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "self"):
        return None
    text = source.text(code.rel) or ""
    owners = re.findall(
        rf"^class (\w+)(?:(?!^class ).)*?^    def {call.func.attr}\b", text, re.MULTILINE | re.DOTALL
    )
    if len(owners) != 1:
        raise Unknown(f"{call.func.attr} is in {len(owners)} classes of the file")
    return source.function(code.rel, f"{owners[0]}.{call.func.attr}")


def _from_sglang(source: Source, code: Code, nodes: Sequence[ast.stmt], names: Iterable[str]) -> None:
    """Unknown where a class comes from outside SGLang's layers, under whatever name."""
    text = source.text(code.rel) or ""
    for name in names:
        imported = [
            node.module or ""
            for node in nodes
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names)
        ]
        if not imported and re.search(rf"^class {re.escape(name)}\b", text, re.MULTILINE):
            continue
        if not imported:
            imported = [
                found[1]
                for found in re.finditer(r"^ *from ([\w.]+) import (\([^)]*\)|.*)$", text, re.MULTILINE)
                if re.search(rf"\b{re.escape(name)}\b", found[2])
            ]
        if not imported or not all(module.startswith("sglang.srt.layers.") for module in imported):
            raise Unknown(f"{name} comes from {imported[0] if imported else 'nowhere that was found'}")
