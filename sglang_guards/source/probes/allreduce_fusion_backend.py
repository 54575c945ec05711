"""Which FlashInfer backend a request for all-reduce fusion becomes on a GPU, by the installed `_resolve_backend`."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from sglang_guards.source.syntax import evaluate
from sglang_guards.source.syntax.slicing import Unknown
from sglang_guards.source.tree import Code, Source

COMM_FUSION = "sglang/srt/layers/flashinfer_comm_fusion.py"


@dataclass(frozen=True)
class Backend:
    """`name` is trtllm, mnnvl or cutedsl; None when SGLang refuses, with its words in `refusal`."""

    name: str | None
    where: str = ""
    refusal: str = ""


def resolve_backend(source: Source, asked: str, sm: int, *, multi_node: bool) -> Backend | None:
    """What `asked` becomes; None where the source cannot be followed.

    Sources without a backend choice (up to 0.5.13) know TRT-LLM's kernel only and never refuse.
    """
    try:
        code = source.maybe(COMM_FUSION, "_resolve_backend")
        if code is None:
            return Backend("trtllm", COMM_FUSION) if source.text(COMM_FUSION) else None
        return _outcome(code, _world(source, asked, sm, multi_node))
    except (Unknown, SyntaxError):
        return None


def _world(source: Source, asked: str, sm: int, multi_node: bool) -> evaluate.World:
    facts: dict[str, object] = {"backend": asked, "is_multi_node": multi_node}
    facts |= dict.fromkeys(("is_sm90_supported", "is_sm90"), sm // 10 == 9)
    facts |= dict.fromkeys(("is_sm100_supported", "is_sm100"), sm // 10 == 10)
    helper = source.maybe(COMM_FUSION, "_mnnvl_supported")
    if helper is not None:
        world = evaluate.World(facts)
        ends = {_value(path.end, world) for path in evaluate.paths(getattr(helper.node, "body", []), world)}
        if len(ends) == 1:
            facts["_mnnvl_supported"] = ends.pop()
    return evaluate.World(facts)


def _value(end: ast.stmt | None, world: evaluate.World) -> object:
    return (
        world.value(end.value) if isinstance(end, ast.Return) and end.value is not None else evaluate.UNKNOWN
    )


def _outcome(code: Code, world: evaluate.World) -> Backend | None:
    outcomes: set[Backend] = set()
    for path in evaluate.paths(getattr(code.node, "body", []), world):
        where = code.where(path.end)
        if isinstance(path.end, ast.Raise):
            words = [
                n.value
                for n in ast.walk(path.end)
                if isinstance(n, ast.Constant) and isinstance(n.value, str)
            ]
            outcomes.add(Backend(None, where, "".join(words)))
        else:
            name = _value(path.end, world)
            if not isinstance(name, str):
                return None
            outcomes.add(Backend(name, where))
    return outcomes.pop() if len(outcomes) == 1 else None
