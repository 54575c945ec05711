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
from sglang_guards.bench.tune import Choice
from sglang_guards.errors import CouldNotCheck
from sglang_guards.launch.profile import (
    DECODE,
    DEFAULT,
    FUSED,
    HOTFIX,
    PREFILL,
    Profile,
    cache_folder,
)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="sglang-guards bench",
        description="Measure SGLang's MoE runners and --enable-fused-moe-sum-all-reduce for a rank's shard of a model "
        "on GPU 0, and remember the answer: the rules about speed then speak from it. Random weights; takes a minute "
        "or two and a few GiB.",
    )
    made.add_argument("--model", type=Path, required=True, help="model folder or config.json")
    made.add_argument("--tp", type=int, required=True, help="tensor parallel size of the launch")
    made.add_argument("--ep", type=int, default=1, help="expert parallel size of the launch")
    made.add_argument(
        "--dtype", choices=("bf16", "fp16", "fp8"), help="of the experts, where the config does not say"
    )
    made.add_argument("--tokens", type=int, nargs="+", help="token counts; default: a set for what is asked")
    made.add_argument(
        "--tune",
        type=Path,
        metavar="DIR",
        help="instead: measure tiles for the down projection and write SGLang's files for SGLANG_MOE_CONFIG_DIR=DIR",
    )
    made.add_argument("--fused-sum", action="store_true", help="with --tune: for a launch that sets the flag")
    made.add_argument("--both", action="store_true", help="with --tune: tiles of the up projection too")
    made.add_argument("--format", choices=("text", "json"), default="text")
    return made


def main(argv: Sequence[str]) -> int:
    """Measure, print and store. Raises CouldNotCheck where this machine cannot measure."""
    args = parser().parse_args(argv)
    if args.tokens and min(args.tokens) < 1:
        raise CouldNotCheck("--tokens are positive numbers", "for example --tokens 1 64 8192")
    try:
        if args.tune:
            return _tune(args)
        profile = product.run(
            args.model,
            tp=args.tp,
            ep=args.ep,
            dtype=args.dtype,
            tokens=args.tokens or product.DEFAULT_TOKENS,
            progress=_progress,
        )
    except product.CannotMeasure as error:
        what, _, hint = str(error).partition("; ")
        raise CouldNotCheck(what, hint or "run it where the model will be served") from None
    if args.format == "json":
        print(json.dumps(asdict(profile)))
    else:
        print(text(profile))
    return 0


def _tune(args: argparse.Namespace) -> int:
    """Measure, write, and print what was gained at each token count."""
    print(f"{'tokens':>8}  {'gain':>5}  tiles", file=sys.stderr)

    def progress(count: int, choice: Choice) -> None:
        up = f"up {_tile(choice.up)}; " if args.both else ""
        down = f"down {_tile(choice.down)}" if choice.down else "down that of the up projection"
        print(f"{count:>8,}  {choice.gain:>5.3f}  {up}{down}", file=sys.stderr, flush=True)

    written = product.tune(
        args.model, args.tune, tp=args.tp, ep=args.ep, dtype=args.dtype, tokens=args.tokens,
        fused=args.fused_sum, both=args.both, progress=progress,
    )  # fmt: skip
    print("\n".join(str(path) for path in written))
    print(f"start the server with SGLANG_MOE_CONFIG_DIR={args.tune}")
    return 0


def _tile(tile: dict[str, int]) -> str:
    return ", ".join(f"{name} {value}" for name, value in tile.items())


def _progress(shape: MoeShape, tokens: int, row: dict[str, Any] | None) -> None:
    """Trouble and progress go to stderr; the answer to stdout."""
    if row is None:
        print(f"{shape.key}: {tokens:,} tokens …", end=" ", file=sys.stderr, flush=True)
    else:
        print(f"{row['arms']['off']['us']:,.0f} µs", file=sys.stderr, flush=True)


def text(profile: Profile) -> str:
    """Tokens × runner, the best one for each phase, the flags that choose it, and what cannot run."""
    arms = {name: ratios for name, ratios in profile.arms().items() if name != DEFAULT}
    heads = {FUSED: "fused sum", HOTFIX: "+ hotfix"}
    names = [heads.get(name, name) for name in arms]
    lines = [
        f"{profile.shape} on {profile.device} (SM{profile.sm}), SGLang {profile.sglang} [{profile.fingerprint}]",
        "",
        f"{'tokens':>8}  {'triton µs':>9}  " + "  ".join(f"{name:>9}" for name in names),
    ]
    for count in sorted(profile.ratios):
        us = profile.default_us.get(count)
        cells = [f"{arm[count]:.2f}" if count in arm else "" for arm in arms.values()]
        lines.append(
            f"{count:>8,}  {'' if us is None else f'{us:,.0f}':>9}  "
            + "  ".join(f"{value:>{max(9, len(name))}}" for name, value in zip(names, cells, strict=True))
        )
    lines += [
        "",
        "each figure: time of triton without the flag over the arm's time; below 1 the arm is slower",
    ]
    lines += [f"cannot run: {name}: {why}" for name, why in profile.reasons.items()]
    lines += [""] if profile.reasons else []
    for word, phase in (("decode", DECODE), ("prefill", PREFILL)):
        if found := profile.best(phase):
            name, gain = found
            lines.append(f"best for {word}: {name} ×{gain:.2f}   {flags(name)}")
    tokens, worst = profile.worst
    verdict = "slower than leaving it off" if worst < 0.99 else "not slower than leaving it off"
    lines.append(f"the flag is {verdict}: {worst:.2f} at {tokens:,} tokens. Stored in {cache_folder()}")
    return "\n".join(lines)


def flags(arm: str) -> str:
    """What to write in the launch command for an arm."""
    return {
        DEFAULT: "--moe-runner-backend triton",
        FUSED: "--moe-runner-backend triton --enable-fused-moe-sum-all-reduce",
        HOTFIX: "SGLANG_GUARDS_HOTFIX=relaxed-atomics … --moe-runner-backend triton --enable-fused-moe-sum-all-reduce",
    }.get(arm, f"--moe-runner-backend {arm}")
