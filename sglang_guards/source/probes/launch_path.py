"""Two ways that this project takes for granted: from an expert layer to its runner, and from a launcher to our hook."""

from __future__ import annotations

import ast
import re

from sglang_guards.source.probes.moe_runner import FP8, UNQUANT, facts_for, runner_made
from sglang_guards.source.syntax.evaluate import terminal_name
from sglang_guards.source.syntax.shape import guards
from sglang_guards.source.tree import Answer, Source, Unknown, probe

LAYER = "sglang/srt/layers/moe/fused_moe_triton/layer.py"
ENGINE = "sglang/srt/entrypoints/engine.py"
VALIDATOR = "check_server_args"


@probe(
    "layer_runs_quant_method", "An expert layer always runs what its quantization method made, nothing else."
)
def layer_runs_quant_method(source: Source) -> Answer:
    code = source.function(LAYER, "FusedMoE.run_moe_core")
    body = list(getattr(code.node, "body", []))
    if body and isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant):
        body = body[1:]
    value = body[-1].value if body and isinstance(body[-1], ast.Return) else None
    applies = isinstance(value, ast.Call) and ast.unparse(value.func) == "self.quant_method.apply"
    if len(body) != 1 or not applies:
        raise Unknown("run_moe_core does more than to run the quantization method")
    return Answer(True, code.where(body[0]), "self.quant_method.apply")


def _default_is_triton(source: Source, rel: str, method: str, platform: str) -> Answer:
    name, where = runner_made(source, rel, method, facts_for("auto", platform, _use_aiter=False))
    if name is None:
        return Answer(None, where, "the runner under auto depends on an unknown condition")
    return Answer(name == "triton", where, f"the runner is {name}")


@probe("unquant_auto_is_triton", "Unquantized experts run on Triton under auto on CUDA.")
def unquant_auto_is_triton(source: Source) -> Answer:
    return _default_is_triton(source, UNQUANT, "UnquantizedFusedMoEMethod", "cuda")


@probe("fp8_auto_is_triton", "FP8 experts run on Triton under auto on CUDA, where DeepGEMM is not enabled.")
def fp8_auto_is_triton(source: Source) -> Answer:
    return _default_is_triton(source, FP8, "Fp8MoEMethod", "cuda")


@probe(
    "launcher_calls_validator",
    "The launcher calls ServerArgs.check_server_args, where this project attaches.",
)
def launcher_calls_validator(source: Source) -> Answer:
    text = source.text(source.need(ENGINE)) or ""
    for place in re.finditer(rf"^ +\w+\.{VALIDATOR}\(\)", text, re.MULTILINE):
        line = text.count("\n", 0, place.start()) + 1
        if holder := _holder(source, line):
            for node in ast.walk(holder):
                if isinstance(node, ast.Expr) and node.lineno == line and not guards(holder, node):
                    return Answer(True, f"{ENGINE}:{line}", f"calls the method {VALIDATOR}")
    for name in ("launch_subprocesses", "_launch_subprocesses"):
        code = source.maybe(ENGINE, f"Engine.{name}") or source.maybe(ENGINE, name)
        calls = [n for n in ast.walk(code.node) if isinstance(n, ast.Call)] if code else []
        bare = [n for n in calls if isinstance(n.func, ast.Name) and terminal_name(n) == VALIDATOR]
        if code and bare:
            return Answer(False, code.where(bare[0]), f"calls a function {VALIDATOR}, not the method")
    raise Unknown(f"the launcher calls no {VALIDATOR} that was found")


def _holder(source: Source, line: int) -> ast.stmt | None:
    """The function of engine.py around a line."""
    heads = r"^(?:class (\w+)|( *)(?:async )?def (\w+))"
    owner = name = None
    for number, text in enumerate(source.lines(ENGINE)[:line], 1):
        if number < line and ("def " in text or "class " in text) and (head := re.match(heads, text)):
            if head[1]:
                owner, name = head[1], None
            elif len(head[2]) <= 4:
                owner, name = (None if not head[2] else owner), head[3]
    if name is None:
        return None
    code = source.maybe(ENGINE, f"{owner}.{name}" if owner else name)
    return code.node if code else None
