"""Flags that operators ask about: who reads them in this SGLang, and what they depend on."""

from __future__ import annotations

import ast
import re

from sglang_guards.source.syntax.shape import upright
from sglang_guards.source.tree import Answer, Items, Source, Unknown, probe

SCHEDULE_POLICY = "sglang/srt/managers/schedule_policy.py"
#: Declarations of arguments, which name every flag without acting on it.
_DECLARES = re.compile(r"sglang/srt/(server_args\.py|arg_groups/field_order\.py|arg_groups/fields/)")


def _line_of(source: Source, rel: str, word: str) -> int | None:
    """Number of the first line that holds the word outside a comment; the text is not kept."""
    data = source.data(rel)
    if data is None or word.encode() not in data:
        return None
    lines = enumerate(data.decode("utf-8", errors="replace").split("\n"), 1)
    return next((number for number, line in lines if word in line.split("#")[0]), None)


def _reader(source: Source, field: str) -> Answer:
    """The first place in the serving code that reads a field. Reads every file: ask where the flag is set."""
    source.need("sglang/srt/server_args.py")
    found = [
        (rel, line)
        for rel in source.files("sglang/srt", "**/*.py")
        if not _DECLARES.match(rel) and (line := _line_of(source, rel, field))
    ]
    if not found:
        return Answer(False, None, f"nothing reads {field}")
    rel, line = found[0]
    return Answer(True, f"{rel}:{line}", f"read in {len(found)} file{'s' if len(found) > 1 else ''}")


@probe(
    "triton_attention_reduce_in_fp32_read",
    "Something reads triton_attention_reduce_in_fp32. Reads the whole tree.",
)
def triton_attention_reduce_in_fp32_read(source: Source) -> Answer:
    return _reader(source, "triton_attention_reduce_in_fp32")


@probe(
    "num_continuous_decode_steps_read", "Something reads num_continuous_decode_steps. Reads the whole tree."
)
def num_continuous_decode_steps_read(source: Source) -> Answer:
    return _reader(source, "num_continuous_decode_steps")


@probe(
    "schedule_policy_needs_radix_cache", "Without the radix cache a cache-aware schedule policy becomes fcfs."
)
def schedule_policy_needs_radix_cache(source: Source) -> Answer:
    code = source.function(SCHEDULE_POLICY, "SchedulePolicy._validate_and_adjust_policy")
    for node in ast.walk(code.node):
        if (
            isinstance(node, ast.If)
            and "tree_cache" in ast.unparse(node.test)
            and "disable" in ast.unparse(node.test)
        ):
            upright(node.test, "tree_cache")
            last = node.body[-1]
            falls_back = isinstance(last, ast.Return) and "FCFS" in ast.unparse(last)
            return Answer(True if falls_back else None, code.where(node), ast.unparse(last))
    raise Unknown("how the policy is adjusted has another shape")


@probe("schedule_policies_cache_aware", "Names of the schedule policies that need the radix cache.")
def schedule_policies_cache_aware(source: Source) -> Items:
    code = source.maybe(SCHEDULE_POLICY, "CacheAwarePolicy")
    if code is None or not isinstance(code.node, ast.ClassDef):
        return Items(None)
    values = [node.value for node in code.node.body if isinstance(node, ast.Assign)]
    names = [
        value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    ]
    return Items(tuple(sorted(names)), code.where())
