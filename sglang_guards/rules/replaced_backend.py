"""FLG204: an attention backend that was typed, and another one that runs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Severity
from sglang_guards.rules import Violation, rule, set_to

#: What was typed -> the resolved fields that may hold it, by the phase that runs on it.
_PHASES = {
    "attention_backend": ("prefill", "decode"),
    "prefill_attention_backend": ("prefill",),
    "decode_attention_backend": ("decode",),
}
#: Lines above an assignment in which its condition stands.
_ABOVE = 12


@rule(
    "FLG204",
    "typed-attention-backend-replaced",
    Severity.WARNING,
    summary="SGLang runs attention on another backend than was typed",
)
def replaced(launch: Launch) -> Iterator[Violation]:
    """An attention backend that resolution replaces in every phase that it was typed for.

    ## What it checks
    `--attention-backend`, `--prefill-attention-backend` and `--decode-attention-backend` as typed, against what
    prefill and decode run on after resolution. A backend that still runs one of its phases is not reported, and a
    phase with a flag of its own is left to that flag.

    ## Why it matters
    SGLang says so in one line of the log. Whoever typed a backend for its speed, or to stay with it, gets another.

    ## When it hurts
    Always. To confirm: the line `attention_backend=` of the log.

    ## Example
    `--attention-backend fa3 --kv-cache-dtype fp8_e5m2` on H100 runs on triton. With `--kv-cache-dtype fp8_e4m3` it
    stays on fa3.

    ## Fix
    Type the backend that runs, or remove what excludes the other.
    """
    for field, phases in _PHASES.items():
        typed = launch.get(f"typed.{field}")
        if not isinstance(typed, str) or not launch.given(field):
            continue
        mine = [phase for phase in phases if not _other_flag(launch, field, phase)]
        runs = {phase: _backend(launch, phase) for phase in mine}
        if not mine or None in runs.values() or typed in runs.values():
            continue
        if any(_is_alias(launch, typed, str(backend)) for backend in runs.values()):
            continue
        now = " and ".join(dict.fromkeys(str(backend) for backend in runs.values()))
        place = _set_at(launch, field, typed, str(runs[mine[0]]))
        yield Violation(
            flags=(field,),
            cause=f"{' and '.join(mine)} run{'s' if len(mine) == 1 else ''} on {now}"
            + (f" ({place})" if place else ""),
            impact="the server has the speed and the limits of the other backend",
            fix=set_to(field, now, otherwise=f"change what excludes {typed}") if " and " not in now else None,
            message=f"SGLang replaces the attention backend {typed}",
            evidence=(Evidence("source", place),) if place else (),
        )


def _other_flag(launch: Launch, field: str, phase: str) -> bool:
    """Whether the phase has a flag of its own beside the general one, and that was typed."""
    return field == "attention_backend" and launch.given(f"{phase}_attention_backend")


def _backend(launch: Launch, phase: str) -> str | None:
    """What a phase runs on after resolution; None where that is not known."""
    own = launch.get(f"args.{phase}_attention_backend") or launch.get("args.attention_backend")
    return own if isinstance(own, str) else None


def _texts(launch: Launch) -> Iterator[tuple[str, str]]:
    """The files that resolve server args, with their texts."""
    if launch.source is not None:
        for rel in ("sglang/srt/server_args.py", *launch.source.files("sglang/srt/arg_groups", "*.py")):
            yield rel, launch.source.text(rel) or ""


def _is_alias(launch: Launch, typed: str, runs: str) -> bool:
    """Whether SGLang has the typed name as another one of the backend that runs."""
    pair = re.compile(rf"[\"']{re.escape(typed)}[\"']: [\"']{re.escape(runs)}[\"']")
    return any(pair.search(text) for _, text in _texts(launch))


def _set_at(launch: Launch, field: str, typed: str, runs: str) -> str:
    """The line that puts one backend in the place of the other, where exactly one does."""
    setting = re.compile(rf"(?<!\w){field}(?:[\"']: | = |=)[\"']{re.escape(runs)}[\"']")
    found = []
    for rel, text in _texts(launch):
        lines = text.split("\n")
        for number, line in enumerate(lines):
            above = "\n".join(lines[max(0, number - _ABOVE) : number])
            if setting.search(line) and re.search(rf"== [\"']{re.escape(typed)}[\"']", above):
                found.append(f"{rel.removeprefix('sglang/srt/')}:{number + 1}")
    return found[0] if len(found) == 1 else ""
