"""FLG: flags that are declared and do nothing."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Severity
from sglang_guards.rules import Violation, read_in, rule, unset

#: Flags that recent releases declare and do not read.
_UNREAD = ("num_continuous_decode_steps", "triton_attention_reduce_in_fp32")


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


@rule(
    "FLG201",
    "flag-that-nothing-reads",
    Severity.WARNING,
    summary="no code of this SGLang reads the flag",
    source={_flag(field): {f"{field}_read": False} for field in _UNREAD},
    reports=[read_in("a search of the installed tree for readers of the field")],
    applies=lambda launch: any(launch.given(field) for field in _UNREAD),
)
def unread(launch: Launch) -> Iterator[Violation]:
    """--num-continuous-decode-steps and --triton-attention-reduce-in-fp32.

    ## What it checks
    The flag is set, and no file of the installed SGLang but its declaration names the field.

    ## Why it matters
    Guides still recommend both: the one against scheduling overhead, the other for numerical stability. The code that
    read them is gone.

    ## When it hurts
    Never at run time; the operator counts on an effect that is not there.

    ## Fix
    Remove the flag.
    """
    for field in _UNREAD:
        if launch.given(field):
            yield Violation(
                case=_flag(field),
                flags=(field,),
                cause=f"{field} is declared, and no other file of this SGLang names it",
                impact="no runtime effect: the server behaves as if the flag were unset",
                fix=unset(field),
            )
