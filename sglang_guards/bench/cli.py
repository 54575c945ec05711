"""`sglang-guards bench --model PATH --tp N`: measure the flag on this machine, for this model, with this SGLang."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sglang_guards.bench import product
from sglang_guards.bench.shapes import MoeShape
from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch.profile import Profile, cache_folder


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="sglang-guards bench",
        description="Measure --enable-fused-moe-sum-all-reduce for one rank's shard of a model on GPU 0, and remember "
        "the answer: FMS301 then speaks from it. Random weights; takes a minute or two and a few GiB.",
    )
    made.add_argument("--model", type=Path, required=True, help="model folder or config.json")
    made.add_argument("--tp", type=int, required=True, help="tensor parallel size of the launch")
    made.add_argument("--ep", type=int, default=1, help="expert parallel size of the launch")
    made.add_argument(
        "--dtype", choices=("bf16", "fp16", "fp8"), help="of the experts, where the config does not say"
    )
    made.add_argument("--tokens", type=int, nargs="+", default=list(product.DEFAULT_TOKENS))
    made.add_argument("--format", choices=("text", "json"), default="text")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print and store. Raises CouldNotCheck where this machine cannot measure."""
    args = parser().parse_args(argv)
    if min(args.tokens) < 1:
        raise CouldNotCheck("--tokens are positive numbers", "for example --tokens 1 64 8192")
    try:
        profile = product.run(
            args.model, tp=args.tp, ep=args.ep, dtype=args.dtype, tokens=args.tokens, progress=_progress
        )
    except product.CannotMeasure as error:
        what, _, hint = str(error).partition("; ")
        raise CouldNotCheck(what, hint or "run it where the model will be served") from None
    if args.format == "json":
        print(json.dumps(asdict(profile)))
    else:
        print(text(profile))
    return 0


def _progress(shape: MoeShape, tokens: int, row: dict[str, Any] | None) -> None:
    """Trouble and progress go to stderr; the answer to stdout."""
    if row is None:
        print(f"{shape.key}: {tokens:,} tokens …", end=" ", file=sys.stderr, flush=True)
    else:
        print(f"{row['arms']['off']['us']:,.0f} µs", file=sys.stderr, flush=True)


def text(profile: Profile) -> str:
    """The profile as a table and a verdict."""
    lines = [
        f"{profile.shape} on {profile.device} (SM{profile.sm}), SGLang {profile.sglang} [{profile.fingerprint}]",
        "",
        f"{'tokens':>8}  {'flag':>6}  {'hotfix':>6}",
    ]
    for count in sorted(profile.ratios):
        fixed = profile.relaxed.get(count)
        lines.append(
            f"{count:>8,}  {profile.ratios[count]:>6.2f}  {'' if fixed is None else f'{fixed:.2f}':>6}"
        )
    tokens, worst = profile.worst
    verdict = "the flag is slower than leaving it off" if worst < 0.99 else "the flag is not slower"
    lines += [
        "",
        "default's time over the flag's; below 1 the flag is slower. hotfix: SGLANG_GUARDS_HOTFIX=relaxed-atomics",
        f"{verdict}: {worst:.2f} at {tokens:,} tokens. Stored in {cache_folder()}",
    ]
    return "\n".join(lines)
