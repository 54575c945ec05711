"""Tiles of the up and the down projection together: whole layers without the flag and with the series, on this GPU.

First every tile of the up projection (the down projection takes the same one, as SGLang does without a `_down.json`),
then the two best with every tile of the down projection, for both arms, all in one process. A line of `--out` holds
one shape at one token count: the default's time, the series' time, and the best tuned time of each with its tiles.

    python benchmarks/sweep_both_tiles.py E128-N384-H4096-K8-fp8 --tokens 2048 8192 16384 --out tiles.jsonl

`sglang-guards bench --tune DIR --both` is the same search for one model, and writes SGLang's files.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from bench_fused_moe_sum import changes  # noqa: E402

from sglang_guards.bench import cell, kernels, layer, process, timing, tune  # noqa: E402
from sglang_guards.bench.shapes import DEFAULT_SHAPES, MoeShape  # noqa: E402

#: Orders of row blocks that the up projection is tried with.
GROUPS = (1, 16, 64)


def series_only() -> dict[str, Any]:
    return {name: change for name, change in changes(kernels.root()).items() if name == "series"}


def up_tiles(dtype: str) -> list[tune.Tile]:
    return [
        tile | {"GROUP_SIZE_M": group}
        for rows in (64, 128)
        for tile in tune.candidates(rows, dtype)
        for group in GROUPS
    ]


def measure(arms: cell.Arms, shape: MoeShape, tokens: int, rounds: int) -> dict[str, Any]:
    """One line of the result."""
    weights = layer.Weights(shape)
    batch = layer.Batch(weights, tokens)
    reference = batch.call(arms.modules["off"]).clone()
    tuned = {name: arms.modules[f"tuned_{name}"] for name in ("off", "series")}

    def runs(arm: str, pair: tune.Pair) -> Any:
        call = tune.with_tiles(tuned[arm], shape.key, pair, batch)
        try:
            right = layer.relative(call(), reference) < cell.TOLERANCE[shape.dtype]
        except Exception:  # does not fit into shared memory or registers
            return None
        return call if right else None

    ups = up_tiles(shape.dtype)
    calls = {str(n): call for n, tile in enumerate(ups) if (call := runs("off", (tile, None)))}
    times = timing.interleaved(calls, rounds=rounds, cold=True)
    best = [ups[int(name)] for name in sorted(times, key=lambda name: times[name].us)[:2]]
    pairs = [(arm, up, down) for arm in tuned for up in best
             for down in (None, *tune.candidates(up["BLOCK_SIZE_M"], shape.dtype))]  # fmt: skip
    calls = {str(n): call for n, (arm, up, down) in enumerate(pairs) if (call := runs(arm, (up, down)))}
    for name in tuned:
        calls[name] = lambda name=name: batch.call(arms.modules[name])
    times = timing.interleaved(calls, rounds=rounds, cold=True)
    row: dict[str, Any] = {"key": shape.key, "tokens": tokens}
    for arm in tuned:
        number = min((n for n in times if n.isdigit() and pairs[int(n)][0] == arm), key=lambda n: times[n].us)
        _, up, down = pairs[int(number)]
        row[arm] = {
            "us": round(times[arm].us, 1),
            "tuned_us": round(times[number].us, 1),
            "up": up,
            "down": down,
        }
    return row


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shapes", nargs="+", metavar="SHAPE", help="keys of the default shapes")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8192, 16384])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    known = {shape.key: shape for shape in DEFAULT_SHAPES}
    if unknown := [key for key in args.shapes if key not in known]:
        parser.error(f"unknown shapes {', '.join(unknown)}; known: {', '.join(known)}")
    process.set_up()
    arms = cell.Arms(series_only())
    for name in ("off", "series"):
        arms.add_tuned(f"tuned_{name}", name, {})
    origin = cell.origin(arms.tree, "python benchmarks/sweep_both_tiles.py " + " ".join(sys.argv[1:]))
    with args.out.open("a", encoding="utf-8") as sink:
        for key in args.shapes:
            for count in args.tokens:
                row = measure(arms, known[key], count, args.rounds) | origin
                print(
                    f"{key} {count}: " + json.dumps({arm: row[arm] for arm in ("off", "series")}), flush=True
                )
                sink.write(json.dumps(row) + "\n")
                sink.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
