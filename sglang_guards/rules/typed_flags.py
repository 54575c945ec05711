"""FLG202, FLG203: what became of the flags that the operator typed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Severity
from sglang_guards.rules import Violation, rule, sglang_issue, unset

#: Switches of which another rule speaks, with more to say.
_OTHER_RULES = frozenset(
    {
        "enable_mixed_chunk", "enable_flashinfer_allreduce_fusion", "enable_fused_moe_sum_all_reduce",
        "enable_dp_attention", "trust_remote_code",
    }
)  # fmt: skip
#: Backends that run anywhere, and slower than those that SGLang picks for a GPU.
_GENERAL = frozenset({"triton", "torch_native", "flex_attention"})
_ATTENTION = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")


@rule(
    "FLG202",
    "typed-switch-turned-off",
    Severity.WARNING,
    summary="SGLang turns a switch off that was typed",
    reports=(sglang_issue(23289),),
)
def turned_off(launch: Launch) -> Iterator[Violation]:
    """A switch that the operator set and that resolution turned off again.

    ## What it checks
    Every switch that was typed, against its value after resolution. Switches with a rule of their own are left to it.

    ## Why it matters
    SGLang says so in one line of the log, or not at all, and goes on without it.

    ## When it hurts
    No runtime effect: the server behaves as if the flag were unset.

    ## Example
    `--speculative-algorithm EAGLE … --speculative-adaptive --enable-dp-attention` on 0.5.12: steps stay fixed. It is
    the same launch without `--speculative-adaptive`.

    ## Fix
    Remove the flag, or what excludes it.
    """
    for name in sorted(launch.facts):
        field = name.removeprefix("typed.")
        if field == name or field in _OTHER_RULES or launch.facts[name].value is not True:
            continue
        if not launch.given(field) or launch.get(f"args.{field}") is not False:
            continue
        place = _switched_off_at(launch, field)
        yield Violation(
            flags=(field,),
            cause=f"it is off after resolution{f' ({place})' if place else ''}",
            impact="no runtime effect: the server behaves as if the flag were unset",
            fix=unset(field),
            message=f"SGLang turns --{field.replace('_', '-')} off for this launch",
            evidence=(Evidence("source", place),) if place else (),
        )


def _switched_off_at(launch: Launch, field: str) -> str:
    """The line that sets a switch to False, where there is exactly one."""
    if launch.source is None:
        return ""
    pattern = re.compile(
        rf"^ +(?:(?:self|server_args|cfg|args)\.{field} = False|{field}=False,|return \{{[\"']{field}[\"']: False)",
        re.MULTILINE,
    )
    found = []
    files = ["sglang/srt/server_args.py", *launch.source.files("sglang/srt/arg_groups", "*.py")]
    for rel in files:
        text = launch.source.text(rel) or ""
        found += [f"{rel}:{text.count(chr(10), 0, hit.start()) + 1}" for hit in pattern.finditer(text)]
    return found[0].removeprefix("sglang/srt/") if len(found) == 1 else ""


@rule(
    "FLG203",
    "typed-flag-costs-a-faster-backend",
    Severity.WARNING,
    summary="a typed flag makes SGLang give up a faster backend",
    reports=(sglang_issue(39515),),
)
def costs_a_backend(launch: Launch) -> Iterator[Violation]:
    """A flag that flips another default to a slower one.

    ## What it checks
    The launch is resolved once more without each typed flag. Where attention then runs on a backend made for the GPU
    and with the flag on a general one (triton), the flag costs that. What else a flag changes stands in the verdict
    table.

    ## Why it matters
    Nobody asked for it, and SGLang does not say it.

    ## When it hurts
    Always: the server is slower than it could be (2.6 times at 12k context in the report). To confirm: compare the
    line `attention_backend=` of the log with and without the flag.

    ## Example
    `--model-path Qwen/Qwen3.5-122B-A10B-FP8 --page-size 16 --speculative-algorithm NEXTN …` on B200: attention falls
    from trtllm_mha to triton. It stays with `--attention-backend trtllm_mha` typed.

    ## Fix
    Remove the flag, or type the backend beside it.
    """
    for name in sorted(launch.facts):
        flag = name.removeprefix("without.")
        if flag == name or not launch.given(flag):
            continue
        lost = _lost(launch, launch.facts[name].value)
        if lost is None:
            continue
        field, before, after = lost
        yield Violation(
            flags=(flag,),
            cause=f"without it SGLang resolves {field} to {before}, with it to {after}",
            impact="the server is slower from the first token on, without a word in the log",
            fix=unset(
                flag, otherwise=f"add --{field.replace('_', '-')} {before}" if field in _ATTENTION else ""
            ),
        )


def _lost(launch: Launch, without: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """The field whose faster value the flag costs, its value without the flag and with it."""
    for field in _ATTENTION:
        if field in without:
            before, after = without[field], launch[f"args.{field}"]
            if before not in (*_GENERAL, None, "") and after in _GENERAL:
                return field, before, after
    return None
