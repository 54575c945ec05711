# ruff: noqa: E501 -- the page is written in whole lines
"""Makes docs/results.md and the plots from the JSONL files in benchmarks/results. No figure on that page is typed.

    python benchmarks/report.py            writes docs/results.md, docs/plots/*.png and the package's data/ file
    python benchmarks/report.py --check    exit 1 when the page on disk differs (plots are not compared)

Needs matplotlib for the plots; without it the page is made and the plots are left as they are.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS, DOCS = HERE / "results", HERE.parent / "docs"
DATA = HERE.parent / "sglang_guards" / "data" / "fused_sum_h200.json"
Row = dict[str, Any]
TABLE_TOKENS = (1, 8, 32, 64, 128, 256, 512, 2048, 4096, 8192, 16384, 32768)


def load(pattern: str) -> list[Row]:
    """Rows of all result files that match, older files first."""
    return [
        json.loads(line)
        for path in sorted(RESULTS.glob(pattern))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.strip()
    ]


class Cells:
    """Layer benchmark by (shape, dtype, tokens). `rows` holds the final variants; `earlier` fills cells that only the
    earlier run has, except at up to 32 tokens, where its default arm was compiled for dynamic sizes."""

    def __init__(self) -> None:
        earlier = [r for r in load("*-fused-moe-sum-earlier-variants.jsonl") if "error" not in r]
        final = [r for r in load("*-fused-moe-sum.jsonl") if "error" not in r]
        self.final = final
        self.at: dict[tuple[str, str, int], Row] = {}
        for row in [r for r in earlier if r["tokens"] > 32 or r["tokens"] == 1] + final:
            self.at[(row["shape"], row["dtype"], row["tokens"])] = row
        self.earlier = {(r["shape"], r["dtype"], r["tokens"]): r for r in earlier}
        self.shapes = list(dict.fromkeys((r["shape"], r["dtype"]) for r in earlier))

    def value(self, shape: tuple[str, str], tokens: int, arm: str, field: str = "speedup") -> float | None:
        row = self.at.get((*shape, tokens))
        found = (row or {}).get("arms", {}).get(arm, {}).get(field)
        return None if found is None else float(found)

    def all(self, arm: str, field: str, tokens: Iterable[int]) -> list[float]:
        return [v for s in self.shapes for t in tokens if (v := self.value(s, t, arm, field)) is not None]


def span(values: Sequence[float], digits: int = 2) -> str:
    """`low to high (median m)`."""
    low, high, middle = min(values), max(values), statistics.median(values)
    return f"{low:.{digits}f} to {high:.{digits}f} (median {middle:.{digits}f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(r) + " |" for r in rows),
    ]


def by_tokens(cells: Cells, arm: str, field: str = "speedup", digits: int = 2) -> list[str]:
    """One line per shape, one column per token count; empty where the arm was not measured there."""
    used = [t for t in TABLE_TOKENS if any(cells.value(s, t, arm, field) is not None for s in cells.shapes)]
    lines = []
    for shape in cells.shapes:
        values = [cells.value(shape, t, arm, field) for t in used]
        if any(v is not None for v in values):
            lines.append([shape[0], shape[1], *("" if v is None else f"{v:.{digits}f}" for v in values)])
    return table(["shard", "dtype", *(f"{t:,}" for t in used)], lines)


def as_shipped(cells: Cells) -> list[str]:
    large = [t for t in TABLE_TOKENS if t >= 64]
    on = cells.all("on", "speedup", large)
    return [
        "## The flag as shipped",
        "",
        f"From 64 tokens the flag runs at {span(on)} of the default's speed over {len(on)} cells; "
        f"{sum(v < 1 for v in on)} of them are slower than leaving it off.",
        "",
        "Time without the flag over time with it; below 1 the flag is slower.",
        "",
        *by_tokens(cells, "on"),
        "",
    ]


def patched(cells: Cells) -> list[str]:
    final = [r for r in cells.final if r["tokens"] >= 64]
    speed = [r["arms"]["patched"]["speedup"] for r in final]
    small = [r["arms"]["patched"]["speedup"] for r in cells.final if r["tokens"] < 64]
    relaxed = cells.all("relaxed", "speedup", [t for t in TABLE_TOKENS if t >= 64])
    early = statistics.median(
        r["arms"]["clear"]["speedup"] / r["arms"]["relaxed"]["speedup"]
        for r in cells.at.values()
        if "clear" in r["arms"] and r["dtype"] == "fp8"
    )
    shares = [s for r in final if (s := r["arms"]["patched"].get("share_of_bound")) is not None]
    below = [
        f"{r['shape']} {r['dtype']} at {r['tokens']:,} ({r['arms']['patched']['speedup']:.3f})"
        for r in final
        if r["arms"]["patched"]["speedup"] < 1
    ]
    lines = [
        "## With the patched kernel",
        "",
        f"With relaxed atomics alone (one line, also `SGLANG_GUARDS_HOTFIX=relaxed-atomics`) it runs at {span(relaxed)} "
        "of the default's speed from 64 tokens.",
        "",
        f"With all three kernel diffs of `benchmarks/variants` it runs at {span(speed)} over {len(speed)} cells from 64 "
        f"tokens, and at {span(small)} at 8 and 32 tokens"
        + (
            f"; slower than the default in {len(below)}: {', '.join(below)}."
            if below
            else "; never slower than the default."
        ),
        "",
        f"A combine that costs nothing is the bound. The patched arm reaches {statistics.median(shares):.2f} of it in the "
        f"median from 64 tokens, at least 0.9 in {sum(s >= 0.9 for s in shares)} of {len(shares)} cells; the goal of 0.9 "
        "everywhere is not met (benchmarks/variants/README.md says why).",
        "",
        f"The series in `patches/` has relaxed atomics, the bands and the buffer that is no longer allocated. The early clearing is "
        f"in `benchmarks/variants` only; in FP8 it is worth {(early - 1) * 100:+.1f} % in the median.",
        "",
        "Time of the default over time of the patched arm:",
        "",
        *by_tokens(cells, "patched"),
        "",
        "The bound, in the same terms:",
        "",
        *by_tokens(cells, "free"),
        "",
    ]
    return lines


def memory_and_accuracy(cells: Cells) -> list[str]:
    rows = [r for r in cells.final if r["tokens"] >= 512]
    ratio = [r["arms"]["patched"]["peak_bytes"] / r["arms"]["off"]["peak_bytes"] for r in rows]
    lines = [
        "## Memory, accuracy, repeatability",
        "",
        f"The layer's peak memory with the patched arm is {span(ratio)} of the default's from 512 tokens, since "
        "`intermediate_cache3` is not allocated; the flag as shipped allocates it all the same.",
        "",
    ]
    body = []
    for dtype in ("bf16", "fp8"):
        for arm in ("off", "on", "patched"):
            errors = [r["arms"][arm]["error"] for r in cells.final if r["dtype"] == dtype]
            repeats = [
                r["arms"][arm]["repeats"] for r in cells.final if r["dtype"] == dtype and r["tokens"] >= 64
            ]
            body.append(
                [
                    dtype,
                    arm,
                    f"{statistics.median(errors):.2e}",
                    f"{max(errors):.2e}",
                    f"{sum(repeats)} of {len(repeats)}",
                ]
            )
    return [
        *lines,
        "Relative error against fp32 (norm), and cells from 64 tokens where two runs agreed bit by bit:",
        "",
        *table(["dtype", "arm", "median error", "largest", "repeats"], body),
        "",
    ]


def tiles(cells: Cells) -> list[str]:
    rows = []
    for (shape, dtype, tokens), row in sorted(
        cells.earlier.items(), key=lambda i: (i[0][0], i[0][1], i[0][2])
    ):
        arms = row["arms"]
        if "off_tiles" in arms and tokens >= 64:
            both = arms.get("patched_tiles") or arms["patched_tiles_v1"]
            own = arms.get("patched") or arms["patched_v1"]
            rows.append(
                [
                    shape,
                    dtype,
                    f"{tokens:,}",
                    *(
                        f"{arms_value['speedup']:.3f}"
                        for arms_value in (arms["free"], own, arms["off_tiles"], both)
                    ),
                ]
            )
    best = max(rows, key=lambda r: float(r[5]))
    return [
        "## A tile of its own for the down projection",
        "",
        "SGLang gives the down projection the up projection's tile unless a `_down.json` file exists. With tiles measured "
        f"here the default gains up to ×{best[5]} ({best[0]} {best[1]} at {best[2]} tokens). Speed-ups over the default "
        "with its own tiles; the patched arms are those of the earlier run:",
        "",
        *table(
            ["shard", "dtype", "tokens", "bound", "patched", "default, own tile", "patched, own tile"], rows
        ),
        "",
    ]


def end_to_end() -> list[str]:
    rows = load("*-e2e.jsonl")
    if not rows:
        return []
    head = rows[0]
    body = []
    for row in rows:
        loads = row.get("workloads", {})
        body.append([row["arm"], *(str(loads.get(w, {}).get("ttft_ms", "")) for w in ("1x16000", "8x2000", "32x64")),
                     str(loads.get("32x64", {}).get("tpot_ms", "")), str(loads.get("32x64", {}).get("tokens_per_s", ""))])  # fmt: skip
    return [
        "## End to end",
        "",
        f"Real `sgl.Engine` {head['sglang']}, {head['model']}, TP {head['tp']} on {head['gpus']} × {head['device']}, NCCL "
        f"all-reduce, {head['date']} (`{head['command']}`). Medians; the series is `patches/` as of that time, with relaxed "
        "atomics and no `intermediate_cache3`.",
        "",
        *table(
            ["arm", "TTFT 1 × 16,000, ms", "8 × 2,000, ms", "32 × 64, ms", "TPOT 32 × 129, ms", "tokens/s"],
            body,
        ),
        "",
    ]


def faults() -> list[str]:
    servers, tests = load("*-servers.jsonl"), load("*-tests.jsonl")
    body = [
        [r["arm"], str(r["exit"]), ", ".join(r["served"]) or "–",
         f"{r['same_tokens_as'][1]} of {r['same_tokens_as'][2]} as {r['same_tokens_as'][0]}" if r["same_tokens_as"] else ", ".join(r["died"] or []),
         str(r["seconds"])]
        for r in servers
    ]  # fmt: skip
    lines = ["## Faults and guards on real servers", ""]
    if servers:
        head = servers[0]
        lines += [
            f"SGLang {head['sglang']}, {head['model']}, TP {head['tp']} on {head['gpus']} × {head['device']}, {head['date']} "
            f"(`{head['command']}`; {head['note']}). Prompts: 4 × 16, 4 × 300, 2 × 4,000 tokens, 16 greedy tokens each.",
            "",
            *table(["arm", "exit", "prompts served", "tokens, or how it died", "seconds"], body),
            "",
            "The unguarded server under expert parallelism serves short prompts and dies at the first longer ones; guarded, "
            "the same launch is refused before weights are loaded.",
            "",
        ]
    checks = [
        [
            f"`{t['what']}`",
            f"{t['passed']} passed, {t['failed']} failed" if "passed" in t else f"{t['errors']} errors",
            t.get("note") or t.get("first", ""),
        ]
        for t in tests
    ]
    return [*lines, *table(["run on the H200", "outcome", "note"], checks), ""]


def reductions() -> list[str]:
    rows = [r for r in load("*-reductions.jsonl") if "span_mb" in r]
    if not rows:
        return []
    return [
        "## What limits it",
        "",
        "Payload in the pattern of the fused sum (`benchmarks/probe_reductions.py`): adds are as fast as stores only while "
        "the sums stay in L2.",
        "",
        *table(
            ["span, MB", "store, GB/s", "add, GB/s"],
            [[f"{r['span_mb']:.0f}", f"{r['store_gbs']:,}", f"{r['reduce_gbs']:,}"] for r in rows],
        ),
        "",
    ]


def compiled() -> list[str]:
    rows = load("*-compiled.jsonl")
    if not rows:
        return []
    body = [
        [
            r["sglang"],
            r["state"],
            f"SM{r['sm']}",
            ", ".join(f"{n} × {w}" for w, n in r["ptx"].items()),
            ", ".join(f"{n} × {w}" for w, n in r["sass"].items()),
        ]
        for r in rows
    ]
    return [
        "## What the adds compile to",
        "",
        f"Ahead of time with Triton {rows[0]['triton']}, FP8 down projection, no GPU (`benchmarks/inspect_kernel.py`): on Blackwell "
        "(SM100, SM120) the shipped kernel has the same fences as on the H200, and the series removes them there too. This is code, not a "
        "measurement.",
        "",
        *table(["SGLang", "kernel", "for", "PTX", "SASS"], body),
        "",
    ]


NOT_MEASURED = """## Not measured

| what | the command that would |
|---|---|
| Blackwell (SM100, SM120): no such GPU was available; the flag's speed there is unknown | `sglang-guards bench --model MODEL --tp N`, or all shapes: `python benchmarks/bench_fused_moe_sum.py --out benchmarks/results/DATE-GPU-fused-moe-sum.jsonl` |
| TP 4 and hybrid EP 2 × TP 4 on four GPUs, all-reduce fusion off / auto / extended (no machine with four GPUs was lent; two GPUs ran without NVLink multicast, which some fusion kernels need) | `benchmarks/run_tp4.sh` |
| SGLang releases other than 0.5.15 on a GPU (0.5.23's kernel is compiled ahead of time and its diffs run in Triton's interpreter) | the same commands with that release installed |
| SM80, SM86, SM89: bf16 atomics compile to a compare-and-swap loop there | `sglang-guards bench` |
| acceptance length with speculative decoding | `python benchmarks/e2e.py --model MODEL --engine-args '{"speculative_algorithm": "NEXTN"}'` |
"""


def page(cells: Cells) -> str:
    first = cells.final[0]
    lines = [
        "# Results",
        "",
        "<!-- made by benchmarks/report.py from benchmarks/results/*.jsonl; edit those -->",
        "",
        f"One {first['device']} (SM{first['sm']}, driver {first['driver_version']}), SGLang {first['sglang']}, torch {first['torch']}, "
        f"Triton {first['triton']}, {first['date'][:10]}. Real `fused_experts` with random weights and uniform routing; every arm "
        "in one process, checked against fp32 before timing, CUDA-graph replays in interleaved rounds, L2 flushed before each "
        "sample; medians. One rank's shard of each model. Clocks were left as found (SM clock and throttle reasons are in each row).",
        "",
        "![speed-up](plots/speedup-bf16.png)",
        "![speed-up](plots/speedup-fp8.png)",
        "![share of the bound](plots/share.png)",
        "![latency](plots/latency.png)",
        "",
        *as_shipped(cells),
        *patched(cells),
        *memory_and_accuracy(cells),
        *reductions(),
        *compiled(),
        *tiles(cells),
        *end_to_end(),
        *faults(),
        NOT_MEASURED,
    ]
    return "\n".join(lines)


def shipped(cells: Cells) -> dict[str, Any]:
    """What FMS301 speaks from: speed of the flag as shipped by shape and token count."""
    shapes: dict[str, dict[str, float]] = {}
    for shape in cells.shapes:
        for tokens in TABLE_TOKENS:
            row = cells.at.get((*shape, tokens))
            if row is not None and tokens >= 64:
                shapes.setdefault(row["key"], {})[str(tokens)] = round(row["arms"]["on"]["speedup"], 2)
    every = [v for values in shapes.values() for v in values.values()]
    return {
        "device": cells.final[0]["device"],
        "sglang": cells.final[0]["sglang"],
        "what": "time without the flag over time with it, as shipped; below 1 the flag is slower",
        "shapes": shapes,
        "count": len(shapes),
        "span": [min(every), max(every)],
    }


def plots(cells: Cells, folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    colours = {"off": "black", "on": "tab:red", "relaxed": "tab:blue", "patched": "tab:green", "free": "0.6"}
    label = {
        "on": "as shipped",
        "relaxed": "relaxed atomics",
        "patched": "patched",
        "free": "bound",
        "off": "default",
    }

    def series(shape: tuple[str, str], arm: str, field: str) -> tuple[list[int], list[float]]:
        points = [(t, v) for t in TABLE_TOKENS if (v := cells.value(shape, t, arm, field)) is not None]
        return [p[0] for p in points], [p[1] for p in points]

    for dtype in ("bf16", "fp8"):
        shapes = [s for s in cells.shapes if s[1] == dtype]
        rows = -(-len(shapes) // 4)
        figure, axes = plt.subplots(rows, 4, figsize=(16, 3 * rows), sharex=True, sharey=True, squeeze=False)
        for axis, shape in zip(axes.flat, shapes, strict=False):
            for arm in ("free", "on", "relaxed", "patched"):
                x, y = series(shape, arm, "speedup")
                axis.plot(
                    x,
                    y,
                    color=colours[arm],
                    label=label[arm],
                    marker=".",
                    linestyle="--" if arm == "free" else "-",
                )
            axis.axhline(1, color="black", linewidth=0.8)
            axis.set_xscale("log", base=2)
            axis.set_title(shape[0], fontsize=9)
        for axis in axes.flat[len(shapes) :]:
            axis.axis("off")
        axes.flat[0].legend(fontsize=7)
        figure.supxlabel("tokens")
        figure.supylabel(f"speed-up over the default, {dtype}")
        figure.tight_layout()
        figure.savefig(folder / f"speedup-{dtype}.png", dpi=80)
        plt.close(figure)

    chosen = [s for s in cells.shapes if s[0].endswith("tp4")][:6]
    figure, axes = plt.subplots(2, 3, figsize=(15, 7), squeeze=False)
    for axis, shape in zip(axes.flat, chosen, strict=False):
        for arm in ("off", "on", "patched"):
            x, y = series(shape, arm, "us")
            low, high = series(shape, arm, "p20")[1], series(shape, arm, "p80")[1]
            axis.plot(x, y, color=colours[arm], label=label[arm])
            axis.fill_between(x, low, high, color=colours[arm], alpha=0.2)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_title(f"{shape[0]} {shape[1]}", fontsize=9)
    axes.flat[0].legend(fontsize=8)
    figure.supxlabel("tokens")
    figure.supylabel("µs per layer, band p20–p80")
    figure.tight_layout()
    figure.savefig(folder / "latency.png", dpi=80)
    plt.close(figure)

    figure, axis = plt.subplots(figsize=(8, 4))
    for shape in cells.shapes:
        x, y = series(shape, "patched", "share_of_bound")
        points = [(a, b) for a, b in zip(x, y, strict=True) if a >= 64 and -0.5 < b < 1.6]
        axis.plot([p[0] for p in points], [p[1] for p in points], marker=".", linewidth=0.7,
                  color="tab:green" if shape[1] == "fp8" else "tab:blue")  # fmt: skip
    axis.axhline(1, color="black", linewidth=0.8)
    axis.axhline(0.9, color="black", linewidth=0.5, linestyle=":")
    axis.set_xscale("log", base=2)
    axis.set_xlabel("tokens")
    axis.set_ylabel("share of the bound reached\n(blue bf16, green fp8)")
    figure.tight_layout()
    figure.savefig(folder / "share.png", dpi=80)
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    cells = Cells()
    text, data = page(cells), json.dumps(shipped(cells), indent=1) + "\n"
    target = DOCS / "results.md"
    if args.check:
        same = target.read_text(encoding="utf-8") == text and DATA.read_text(encoding="utf-8") == data
        print(
            "up to date"
            if same
            else "docs/results.md or the shipped data differs; run python benchmarks/report.py"
        )
        return 0 if same else 1
    target.write_text(text, encoding="utf-8")
    DATA.write_text(data, encoding="utf-8")
    try:
        plots(cells, DOCS / "plots")
    except ImportError as error:
        print(f"no plots: {error}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
