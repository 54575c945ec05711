"""Changes that may settle what SGLang's constructors refuse: a table from kinds of messages to changes.

Nothing here is said to the operator before the changed launch was resolved, judged and built again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Fix

#: At most so many changes are tried: each costs a resolution and a build.
MOST = 4


def candidates(launch: Launch, finding_id: str) -> list[Fix]:
    """Changes to try for a BLD finding, the likeliest first."""
    found: list[Fix] = []
    for fix in _candidates(launch, finding_id):
        if fix.set and fix not in found and any(launch.get(f"args.{k}") != v for k, v in fix.set.items()):
            found.append(fix)
    return found[:MOST]


def _candidates(launch: Launch, finding_id: str) -> Iterator[Fix]:
    if finding_id == "BLD102":
        yield from _other_runner(launch)
        return
    message = _message(launch)
    for name in re.findall(r"--([a-z][a-z0-9-]+)", message):  # the flag that SGLang itself names
        if (field := name.replace("-", "_")) in launch.typed:
            yield _set(field, None)
    for pattern, make in _TABLE:
        match = re.search(pattern, message)
        if match is not None:
            yield from make(launch, match)


def _message(launch: Launch) -> str:
    ranks: list[Mapping[str, Any]] = launch.get("build.ranks") or []
    return next((str(one["refusal"]["message"]) for one in ranks if one.get("refusal")), "")


def _set(field: str, value: Any, why: str = "") -> Fix:
    flag = "--" + field.replace("_", "-")
    text = f"remove {flag}" if value is None else f"set {flag} {value}"
    return Fix(text + (f": {why}" if why else ""), {field: value}, applicability="display")


def _more_experts_apart(launch: Launch, match: re.Match[str]) -> Iterator[Fix]:
    """Whole blocks per rank: experts split by EP first, fewer TP ranks second."""
    tp, ep = int(launch["args.tp_size"]), max(1, int(launch.get("args.ep_size") or 1))
    for wider in range(ep + 1, tp + 1):
        if tp % wider == 0:
            yield _set("ep_size", wider, "experts are then split into fewer pieces")
    yield from _fewer_ranks(launch, match)


def _fewer_ranks(launch: Launch, match: re.Match[str]) -> Iterator[Fix]:
    tp = int(launch["args.tp_size"])
    for fewer in range(tp - 1, 0, -1):
        if tp % fewer == 0:
            yield _set("tp_size", fewer)


def _other_pair(launch: Launch, match: re.Match[str]) -> Iterator[Fix]:
    """A runner and an all-to-all backend that do not go together: let SGLang choose either."""
    yield _set("moe_runner_backend", None, "SGLang chooses one that goes with the all-to-all backend")
    yield _set("moe_runner_backend", "deep_gemm")
    yield _set("moe_a2a_backend", None, "without an all-to-all backend the runner has its function")


def _other_runner(launch: Launch) -> Iterator[Fix]:
    yield _set("moe_runner_backend", None, "SGLang chooses a runner that the method knows")
    yield _set("moe_runner_backend", "triton")


def _allowed_attention(launch: Launch, match: re.Match[str]) -> Iterator[Fix]:
    """One of the backends that the message itself lists."""
    names = re.findall(r"'(\w+)'", match[1])
    preferred = [name for name in ("trtllm_mha", "triton", "fa4", "flashinfer") if name in names]
    for name in [*preferred, *(n for n in names if n not in preferred)]:
        yield _set("attention_backend", name)


def _other_draft_attention(launch: Launch, match: re.Match[str]) -> Iterator[Fix]:
    yield _set("attention_backend", None, "SGLang chooses one that the draft has too")
    yield _set("attention_backend", "triton")


def _no_overlap(launch: Launch, match: re.Match[str]) -> Iterator[Fix]:
    yield _set("enable_two_batch_overlap", None)


def _larger_share(launch: Launch, match: re.Match[str]) -> Iterator[Fix]:
    """SGLang names the smallest share that leaves something; a little more, so that something can be served."""
    now = float(launch.get("args.mem_fraction_static") or 0.0)
    for share in (0.9, 0.95):
        if share > now:
            yield _set("mem_fraction_static", share)


_Make = Callable[[Launch, "re.Match[str]"], Iterator[Fix]]
#: What SGLang says (a pattern) -> changes to try.
_TABLE: tuple[tuple[str, _Make], ...] = (
    (
        r"(?i)gate's and up's weight|down's weight|moe.*intermediate|num_experts .*divisible",
        _more_experts_apart,
    ),
    (r"(?i)(?:output|input)(?:_partition)?_size.*not divisible", _fewer_ranks),
    (r"(?i)must be divisible by|is not divisible by", _fewer_ranks),
    (r"(?i)requires a fused func for a2a backend", _other_pair),
    (r"(?i)unsupported.*moe.*runner|moe runner backend.*not supported|unsupported .*backend", _other_pair),
    (r"(?i)Only (\{[^}]*\}) backends are supported", _allowed_attention),
    (r"(?i)EAGLE is not supported in .*attention backend", _other_draft_attention),
    (r"(?i)init_new_tbo|two.batch|tbo", _no_overlap),
    (r"(?i)no GPU memory for the KV cache|Not enough memory", _larger_share),
)
