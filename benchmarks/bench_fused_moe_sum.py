"""The fused MoE sum against SGLang's default: real `fused_experts`, every arm in one process, side by side.

Arms
    off       the default: routes stored, then summed
    on        --enable-fused-moe-sum-all-reduce as installed
    free      the default with the sum left out: a combine that costs nothing, the bound
    relaxed   one line changed (variants/<release>/1-*.diff)
    clear     and the output cleared by the up projection (… 2-*.diff)
    patched   all of variants/<release>/*.diff
    series    patches/v<release>, whole
    off_tiles, patched_tiles, series_tiles (with --tiles)   with tiles for the down projection measured on an H200
    cutlass, deep_gemm, … (with --runners)   SGLang's other runners; then every arm goes through SGLang's own MoE layer

Each arm is checked against fp32 before it is timed. Each sample is one replay of a CUDA graph; rounds are
interleaved; L2 is cold unless --l2 warm. Rows go to a JSONL file, and cells that are in it already are skipped.

    python benchmarks/bench_fused_moe_sum.py --out benchmarks/results/NAME.jsonl
    python benchmarks/bench_fused_moe_sum.py --model /models/Qwen3-235B-A22B-FP8 --tp 4 --out …
    python benchmarks/report.py benchmarks/results/*.jsonl
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sglang_guards.bench import cell, kernels, layer, process, runners  # noqa: E402
from sglang_guards.bench.shapes import DEFAULT_SHAPES, TOKENS, MoeShape, from_config  # noqa: E402


def changes(tree: Path) -> dict[str, Callable[[kernels.Texts], kernels.Texts]]:
    """The arms that come from variants/<release>; the one-line change alone for releases without a folder."""
    diffs = sorted((HERE / "variants" / _version()).glob("*.diff"))
    names = ("relaxed", "clear", "patched")
    made = {name: _prefix(diffs[: number + 1]) for number, name in enumerate(names[: len(diffs)])}
    patches = sorted((HERE.parent / "patches" / f"v{_version()}").glob("[0-9]*.patch"))
    if patches:
        made["series"] = _prefix(patches, only_these=True)
    return cell.default_changes() | made


def add_tuned(arms: cell.Arms) -> None:
    """Arms with the tiles of variants/tiles_h200.json: `off_tiles`, `patched_tiles`, `series_tiles`."""
    stored = json.loads((HERE / "variants" / "tiles_h200.json").read_text(encoding="utf-8"))

    def tables(kind: str) -> dict[str, dict[int, dict[str, int]]]:
        return {
            key: {
                int(count): dict(zip(stored["names"], tile, strict=True))
                for count, tile in kinds[kind].items()
            }
            for key, kinds in stored["shapes"].items()
            if kind in kinds
        }

    for arm, like, kind in (
        ("off_tiles", "off", "store"),
        ("patched_tiles", "patched", "fused"),
        ("series_tiles", "series", "fused"),
    ):
        if like in arms.modules:
            arms.add_tuned(arm, like, tables(kind), tables("up"))


def also(pairs: list[str]) -> dict[str, Callable[[kernels.Texts], kernels.Texts]]:
    """`--also NAME=FILE`: the diffs before the last one of variants/<release>, then FILE instead of it."""
    before = sorted((HERE / "variants" / _version()).glob("*.diff"))[:-1]
    return {name: _prefix([*before, Path(file)]) for name, _, file in (pair.partition("=") for pair in pairs)}


def _version() -> str:
    import sglang

    return str(sglang.__version__)


def _prefix(diffs: list[Path], *, only_these: bool = False) -> Callable[[kernels.Texts], kernels.Texts]:
    def change(files: kernels.Texts) -> kernels.Texts:
        for diff in diffs:
            files = kernels.apply_diff(files, diff.read_text(encoding="utf-8"), only_these=only_these)
        return files

    return change


def plan(shapes: Iterable[MoeShape], tokens: Iterable[int]) -> list[tuple[MoeShape, int]]:
    return [(shape, count) for shape in shapes for count in tokens]


def done(path: Path, l2: str, routing: str, fingerprint: str) -> set[tuple[str, int]]:
    """Cells that the file holds already for this source, L2 state and routing."""
    found = set()
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if (row["l2"], row["routing"], row["fingerprint"]) == (
                l2,
                routing,
                fingerprint,
            ) and "error" not in row:
                found.add((row["key"], row["tokens"]))
    return found


def arms_of(extra: list[str], tiles: bool, wanted: list[str]) -> cell.Arms:
    every = changes(kernels.root()) | also(extra)
    arms = cell.Arms({name: change for name, change in every.items() if not wanted or name in wanted})
    if tiles:
        add_tuned(arms)
    return arms


def compile_ahead(
    cells: list[tuple[MoeShape, int]], seconds: float, extra: list[str], tiles: bool, wanted: list[str]
) -> None:
    """In a process of its own: run every arm of some cells once, which fills Triton's cache on disk."""
    began = time.time()
    process.set_up()
    arms = arms_of(extra, tiles, wanted)
    weights: layer.Weights | None = None
    for shape, count in cells:
        if time.time() - began > seconds:
            return
        try:
            if weights is None or weights.shape != shape:
                weights = None
                weights = layer.Weights(shape)
            cell.warm(arms, layer.Batch(weights, count))
        except Exception as error:
            print(f"compile {shape.key} {count}: {type(error).__name__}: {error}"[:300], file=sys.stderr)


def compile_all(
    cells: list[tuple[MoeShape, int]],
    processes: int,
    seconds: float,
    extra: list[str],
    tiles: bool,
    wanted: list[str],
) -> None:
    """Compile in parallel; each process keeps to few shapes, since weights are made anew for each."""
    # Larger counts use the kernels of 4096, or of 16384 where the patched arm walks bands.
    cells = [(shape, count) for shape, count in cells if count <= 4096 or count == 16384]
    context = multiprocessing.get_context("spawn")
    shares = [
        cells[len(cells) * i // processes : len(cells) * (i + 1) // processes] for i in range(processes)
    ]
    workers = [
        context.Process(target=compile_ahead, args=(share, seconds, extra, tiles, wanted))
        for share in shares
        if share
    ]
    for worker in workers:
        worker.start()
    end = time.time() + seconds
    for worker in workers:
        worker.join(max(1.0, end - time.time()))
        if worker.is_alive():
            worker.terminate()


def shown(cells: list[tuple[MoeShape, int]]) -> Iterator[tuple[MoeShape, int]]:
    """The cells behind a progress bar where rich is there and the output is a terminal."""
    try:
        from rich.progress import track
    except ImportError:
        yield from cells
        return
    yield from track(cells, description="cells", disable=not sys.stdout.isatty())


def line_of(row: dict[str, Any]) -> str:
    arms = row["arms"]
    parts = [
        f"{name} {arm['us']:.0f}" + (f" ×{arm['speedup']:.3f}" if name not in ("off", "free") else "")
        for name, arm in arms.items()
    ]
    return f"{row['shape']} {row['dtype']} M={row['tokens']}: " + ", ".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--model", type=Path, help="model folder or config.json; default: a set of public models"
    )
    parser.add_argument("--tp", type=int, default=4, help="with --model")
    parser.add_argument("--ep", type=int, default=1, help="with --model")
    parser.add_argument("--dtype", choices=("bf16", "fp16", "fp8"))
    parser.add_argument(
        "--only", nargs="+", default=[], help="default shapes whose name contains one of these"
    )
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument("--l2", choices=("cold", "warm"), default="cold")
    parser.add_argument("--routing", choices=("uniform", "zipf"), default="uniform")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--seconds", type=float, default=1e9, help="start no new cell after this long; run again to go on"
    )
    parser.add_argument(
        "--tiles", action="store_true", help="add the arms with the down projection's own tiles"
    )
    parser.add_argument(
        "--also", nargs="+", default=[], metavar="NAME=DIFF", help="more arms: another last diff"
    )
    parser.add_argument(
        "--arms",
        nargs="+",
        default=[],
        help="changed kernels to measure beside off, on and free; default: all",
    )
    parser.add_argument(
        "--runners",
        action="store_true",
        help="SGLang's other runners too, all through SGLang's own MoE layer",
    )
    parser.add_argument("--compile-processes", type=int, default=0, help="compile ahead in so many processes")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    began = time.time()
    if args.model:
        shapes: Iterable[MoeShape] = [from_config(args.model, tp=args.tp, ep=args.ep, dtype=args.dtype)]
    else:
        shapes = [
            s
            for s in DEFAULT_SHAPES
            if args.dtype in (None, s.dtype) and (not args.only or any(o in s.name for o in args.only))
        ]
    command = "python benchmarks/bench_fused_moe_sum.py " + " ".join(
        a if os.sep not in a else Path(a).name for a in sys.argv[1:]
    )
    process.set_up()
    arms = arms_of(args.also, args.tiles, args.arms)
    where = cell.origin(arms.tree, command)
    ready = done(args.out, args.l2, args.routing, where["fingerprint"])
    todo = [(s, t) for s, t in plan(shapes, args.tokens) if (s.key, t) not in ready]
    if args.compile_processes and todo:
        compile_all(
            todo, args.compile_processes, min(200.0, args.seconds / 2), args.also, args.tiles, args.arms
        )
        print(f"compiled in {time.time() - began:.0f} s", flush=True)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    weights: layer.Weights | None = None
    measured: cell.HasCalls = arms
    failures = 0
    with args.out.open("a", encoding="utf-8") as sink:
        for shape, count in shown(todo):
            if time.time() - began > args.seconds:
                print("out of time; run the same command again for the rest", flush=True)
                break
            try:
                if weights is None or weights.shape != shape:
                    weights, measured = None, arms
                    cell.reset_dynamo()
                    weights = layer.Weights(shape)
                    if args.runners:
                        measured = runners.RunnerArms(arms, weights)
                        print(shape.key, "cannot run:", measured.reasons, flush=True)
                if count <= 32:
                    cell.reset_dynamo()
                row = cell.measure(
                    measured, weights, count, rounds=args.rounds, cold=args.l2 == "cold", routing=args.routing,
                    optional=runners.CANDIDATES[shape.dtype],
                )  # fmt: skip
                if isinstance(measured, runners.RunnerArms):
                    row["reasons"] = measured.reasons | row.get("reasons", {})
                print(line_of(row), flush=True)
            except Exception as error:  # one cell (memory, a wrong result) must not lose the others
                failures += 1
                row = {"shape": shape.name, "key": shape.key, "tokens": count, "dtype": shape.dtype, "l2": args.l2,
                       "routing": args.routing, "error": f"{type(error).__name__}: {error}"[:500]}  # fmt: skip
                print(f"{shape.key} M={count}: {row['error']}", flush=True)
            sink.write(json.dumps(row | where) + "\n")
            sink.flush()
    print(f"{len(todo)} cells, {failures} failed, {time.time() - began:.0f} s", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
