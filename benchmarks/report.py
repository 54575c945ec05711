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
    lines: list[str] = []
    for path in sorted(RESULTS.glob("*-e2e.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        head = rows[0]
        lines += [
            f"SGLang {head['sglang']}, {head['model']}, TP {head['tp']} on {head.get('gpus', 1)} × {head['device']}, {head['date']} "
            f"(`{head['command']}`):",
            "",
            *table(
                [
                    "arm",
                    "TTFT 1 × 16,000, ms",
                    "8 × 2,000, ms",
                    "32 × 64, ms",
                    "TPOT 32 × 129, ms",
                    "tokens/s",
                ],
                (_e2e_row(row) for row in rows),
            ),
            "",
        ]
    if not lines:
        return []
    return [
        "## End to end",
        "",
        "A real `sgl.Engine`; medians. In the runs of 2026-12-01 all engines were started first and measured in this order, the waiting "
        "ones idle but polling on the same 16 cores: the two prefill columns are bound by the GPU and comparable, the columns of "
        "32 × 64 are bound by the CPU there and swing by a fifth (`off-tiles` decodes with the same kernels as `off`). Their tiles are those "
        "of the down projection alone, before the counts from 8,192 were tuned again (see «Tiles of both projections»). The run on two "
        "GPUs had one engine at a time; its series had relaxed atomics and no `intermediate_cache3` only.",
        "",
        *lines,
    ]


def _e2e_row(row: Row) -> list[str]:
    loads = row.get("workloads", {})
    first = [str(loads.get(w, {}).get("ttft_ms", "")) for w in ("1x16000", "8x2000", "32x64")]
    small = loads.get("32x64", {})
    return [row["arm"], *first, str(small.get("tpot_ms", "")), str(small.get("tokens_per_s", ""))]


RUNNER_ARMS = (
    "on",
    "relaxed",
    "series",
    "off_tiles",
    "series_tiles",
    "cutlass",
    "deep_gemm",
    "triton_kernel",
    "free",
)
ARM_NAMES = {
    "on": "flag as shipped",
    "relaxed": "flag, relaxed",
    "series": "flag, series",
    "off_tiles": "no flag, own tile",
    "series_tiles": "series, own tile",
    "free": "bound",
}


def runner_rows() -> list[Row]:
    return [r for r in load("*-runners.jsonl") if "error" not in r]


def best_alternative(row: Row) -> tuple[str, float]:
    """The fastest arm that needs neither the flag nor a change of the kernel."""
    arms = row["arms"]
    others = {
        n: arms[n]["speedup"] for n in ("off_tiles", "cutlass", "deep_gemm", "triton_kernel") if n in arms
    }
    others["off"] = 1.0
    name = max(others, key=lambda n: others[n])
    return name, others[name]


def runners() -> list[str]:
    rows = runner_rows()
    if not rows:
        return []
    head = rows[0]
    lines = [
        "## Which runner",
        "",
        f"One {head['device']} (driver {head['driver_version']}), torch {head['torch']}, Triton {head['triton']}, {head['date'][:10]}; every arm "
        f"through SGLang's own `FusedMoE` layer with its permutation and combine (`{head['command']}`; on 0.5.23 the same). Time of "
        "Triton without the flag over the arm's time: above 1 the arm is faster. «Own tile»: a tile of its own for the down projection.",
        "",
    ]
    for release in dict.fromkeys(r["sglang"] for r in rows):
        mine = [r for r in rows if r["sglang"] == release]
        arms = [a for a in RUNNER_ARMS if any(a in r["arms"] for r in mine)]
        body = []
        for row in sorted(mine, key=lambda r: (r["shape"], r["dtype"], r["tokens"])):
            speeds = {a: row["arms"][a]["speedup"] for a in arms if a in row["arms"]}
            best = max((a for a in speeds if a != "free"), key=lambda a: speeds[a])
            body.append([
                row["shape"], row["dtype"], f"{row['tokens']:,}", f"{row['arms']['off']['us']:,.0f}",
                *("" if a not in speeds else f"**{speeds[a]:.2f}**" if a == best and speeds[a] > 1 else f"{speeds[a]:.2f}" for a in arms),
            ])  # fmt: skip
        lines += [
            f"### SGLang {release}",
            "",
            *table(["shard", "dtype", "tokens", "off, µs", *(ARM_NAMES.get(a, a) for a in arms)], body),
            "",
            *_reasons(mine),
            *_against_best(mine),
        ]
    return lines


def _reasons(rows: Sequence[Row]) -> list[str]:
    why: dict[tuple[str, str], str] = {}
    for row in rows:
        for name, reason in row.get("reasons", {}).items():
            why.setdefault((name, row["dtype"]), reason)
    body = [[name, dtype, reason[:140].replace("|", "/")] for (name, dtype), reason in sorted(why.items())]
    return (
        ["What did not run, and what it says:", "", *table(["runner", "dtype", "reason"], body), ""]
        if body
        else []
    )


def _against_best(rows: Sequence[Row]) -> list[str]:
    """Series with its own tile against the best that a stock SGLang offers here, from 64 tokens."""
    large = [r for r in rows if r["tokens"] >= 64 and "series" in r["arms"]]
    lost = []
    for row in large:
        mine = max(row["arms"].get(a, {}).get("speedup", 0.0) for a in ("series", "series_tiles"))
        name, other = best_alternative(row)
        if mine < other - 0.005:
            lost.append(
                f"{row['shape']} {row['dtype']} at {row['tokens']:,} (×{mine:.2f}, {ARM_NAMES.get(name, name)} ×{other:.2f})"
            )
    text = f"From 64 tokens the series (with its own tile where there is one) is as fast as the best of the others in {len(large) - len(lost)} of {len(large)} cells."
    if lost:
        text += (
            " Slower: "
            + ", ".join(lost)
            + ". Where another runner passes the bound of a free combine, its matrix products are "
            "faster, which no combine can make up for; these runners lose at few tokens."
        )
    absent = [n for n in ("cutlass", "deep_gemm") if not any(n in r["arms"] for r in rows)]
    if absent:
        text += f" {', '.join(absent)} did not run here, so nothing is said about it."
    return [text, ""]


def newest() -> list[str]:
    """The newest measured release beside the oldest, arm by arm."""
    rows = runner_rows()
    releases = list(dict.fromkeys(r["sglang"] for r in rows))
    if len(releases) < 2:
        return []
    at = {(r["sglang"], r["shape"], r["dtype"], r["tokens"]): r for r in rows}
    old, new = releases[0], releases[-1]
    body = []
    for key in [k for k in at if k[0] == old and (new, *k[1:]) in at]:
        one, two = at[key], at[(new, *key[1:])]
        cells = [
            key[1],
            key[2],
            f"{key[3]:,}",
            f"{one['arms']['off']['us']:,.0f} / {two['arms']['off']['us']:,.0f}",
        ]
        for arm in ("on", "relaxed", "patched", "series", "free"):
            cells.append(f"{one['arms'][arm]['speedup']:.3f} / {two['arms'][arm]['speedup']:.3f}")
        body.append(cells)

    def shares(arm: str) -> str:
        found = {
            v: [
                s for r in rows
                if r["sglang"] == v and r["tokens"] >= 64 and (s := r["arms"].get(arm, {}).get("share_of_bound")) is not None
            ]
            for v in releases
        }  # fmt: skip
        return ", ".join(f"{v}: {statistics.median(s):.2f} ({len(s)} cells)" for v, s in found.items() if s)

    return [
        f"## SGLang {new} beside {old}",
        "",
        "The same cells, speed-up over that release's default. Share of the bound (a free combine with the default's tile) that the series "
        f"reaches, median from 64 tokens: {shares('series')}; with a tile of its own for the down projection: {shares('series_tiles')}. "
        "Alone it stays under 0.9, since adds are dearer than stores where the sums leave L2 (see «What limits it»), and the combine is a few "
        "percent of the layer, so that 1 % of noise is a tenth of the share. «Tiles of both projections» goes further.",
        "",
        *table(
            ["shard", "dtype", "tokens", "off, µs", "as shipped", "relaxed", "patched", "series", "bound"],
            body,
        ),
        "",
    ]


def share_table(cells: Cells) -> list[str]:
    """How many cells reach which share of the bound, by token count: what a plot of 23 lines cannot show."""
    body = []
    for tokens in TABLE_TOKENS:
        shares = [
            v
            for s in cells.shapes
            if tokens >= 64 and (v := cells.value(s, tokens, "patched", "share_of_bound")) is not None
        ]
        if shares:
            ordered = sorted(shares)
            body.append([
                f"{tokens:,}", str(len(shares)), f"{statistics.median(shares):.2f}", f"{ordered[len(ordered) // 4]:.2f}",
                f"{ordered[-1 - len(ordered) // 4]:.2f}", str(sum(v >= 0.9 for v in shares)),
            ])  # fmt: skip
    return [
        "Share of the bound that the patched arm reaches, over the shards of this page:",
        "",
        *table(["tokens", "cells", "median", "lower quartile", "upper quartile", "at least 0.9"], body),
        "",
    ]


def stale_memory() -> list[str]:
    rows, costs = load("*-fp8-ep.jsonl"), load("*-fp8-ep-cost.jsonl")
    if not rows:
        return []
    body = []
    for r in rows:
        if "eager" in r:
            found = [
                f"{r[w]['wrong']} of {r[w]['calls']} ({r[w]['not_finite']})" for w in ("eager", "replayed")
            ]
        else:
            found = [f"does not run: {r['reason'][:70].replace('|', '/')}", ""]
        body.append(
            [
                r["sglang"],
                r["kind"],
                r["runner"],
                r.get("used", ""),
                "series" if r["series"] else "as installed",
                *found,
            ]
        )
    names = ("installed", "rows", "cleared")
    return [
        "## Per-tensor FP8 under expert parallelism",
        "",
        "SGLang's own layer and dispatcher as rank 0 of EP 2, the flag off, no poison, each call beside the same call with cleared buffers "
        f"(`{rows[0]['command']}`). A call is wrong when it is off by more than 1 %; in brackets: NaN or inf. DeepGEMM with per-tensor "
        "weights is compared with itself only.",
        "",
        *table(["SGLang", "checkpoint", "asked", "runner", "tree", "eager", "CUDA-graph replays"], body),
        "",
        "What a repair costs, µs per layer call (half of the routes elsewhere, CUDA-graph replay, L2 cold): the series' scale over routed rows "
        "against clearing the buffer.",
        "",
        *table(
            ["SGLang", "tokens", *names],
            ([r["sglang"], f"{r['tokens']:,}", *(f"{r['us'][n]['us']:,.1f}" for n in names)] for r in costs),
        ),
        "",
    ]


def oracle() -> list[str]:
    rows = load("*-oracle.jsonl")
    if not rows:
        return []
    words = sorted({r["observed"] for r in rows})
    body = []
    for release in dict.fromkeys(r["sglang"] for r in rows):
        mine = [r for r in rows if r["sglang"] == release]
        body.append([release, str(len(mine)), *(str(sum(r["observed"] == w for r in mine)) for w in words)])
    return [
        "## What the oracle saw",
        "",
        "Cells of kind × way in × filtered experts × top-k × tokens, judged on the GPU from SGLang's own code, the default first against fp32 "
        "and against itself with used memory (`pytest tests/gpu/test_oracle.py`). «The default is wrong» is per-tensor FP8 with filtered experts, "
        "and nothing else. The rules predict every one of these cells (`tests/contract/test_oracle_recorded.py`, without a GPU).",
        "",
        *table(["SGLang", "cells", *words], body),
        "",
    ]


def tuned() -> list[str]:
    rows = load("*-tune.jsonl")
    if not rows:
        return []
    body = [
        [
            r["shape"],
            f"{r['tokens']:,}",
            f"{r['gain']:.3f}",
            ", ".join(f"{k} {v}" for k, v in r["tile"].items()),
        ]
        for r in rows
    ]
    return [
        "## Tiles made on the machine",
        "",
        f"`{rows[0]['command']}` on one {rows[0]['device']}, SGLang {rows[0]['sglang']}: the layer with the flag as shipped, its time over that "
        "with the best tile for the down projection. The command writes SGLang's own files for SGLANG_MOE_CONFIG_DIR.",
        "",
        *table(["shard", "tokens", "gain", "tile"], body),
        "",
    ]


def both_tiles() -> list[str]:
    """Tiles of both projections: default and series, each tuned, beside the best other runner of the runner tables."""
    rows = load("*-both-tiles.jsonl")
    if not rows:
        return []
    names = {r["key"]: r["shape"] for r in load("*-runners.jsonl")}
    others: dict[tuple[str, int], tuple[float, str]] = {}
    bounds: dict[tuple[str, int], float] = {}
    for row in runner_rows():
        at = (row["key"], row["tokens"])
        found = [(row["arms"][n]["speedup"], f"{n} ×{row['arms'][n]['speedup']:.2f} on {row['sglang']}")
                 for n in ("cutlass", "deep_gemm", "triton_kernel") if n in row["arms"]]  # fmt: skip
        others[at] = max([*found, *([others[at]] if at in others else [])], default=(0.0, ""))
        if row["sglang"] == rows[0]["sglang"]:
            bounds[at] = row["arms"]["free"]["speedup"]
    body, shares, best = [], [], 0
    for row in rows:
        at, off = (row["key"], row["tokens"]), row["off"]["us"]
        gains = [off / us for us in (row["off"]["tuned_us"], row["series"]["us"], row["series"]["tuned_us"])]
        best += gains[2] > others.get(at, (0.0, ""))[0] - 0.005
        if at in bounds:
            shares.append((gains[2] - 1) / (bounds[at] - 1))
        body.append(
            [names.get(row["key"], row["key"]), row["key"].rpartition("-")[2], f"{row['tokens']:,}", f"{off:,.0f}",
             *(f"{gain:.3f}" for gain in gains), f"{bounds[at]:.3f}" if at in bounds else "",
             others.get(at, (0, ""))[1], _short(row["series"]["up"]), _short(row["series"]["down"])]
        )  # fmt: skip
    return [
        "## Tiles of both projections",
        "",
        f"`python benchmarks/sweep_both_tiles.py` on one {rows[0]['device']}, SGLang {rows[0]['sglang']}, {rows[0]['date']}: the best tiles for the up and "
        "the down projection, without the flag and with the series, all in one process (the script's first form made these rows: same tiles, "
        "arms and rounds). `sglang-guards bench --tune DIR --both` is the same search for one model. «bound» and «other runner» are those of the "
        "runner tables above, measured in another process on the same day. "
        f"The tuned series is at least as fast as the other runners in {best} of {len(rows)} cells (DeepGEMM ran on 0.5.15 only), and reaches "
        f"{statistics.median(shares):.2f} of the bound in the median. Where SGLang has no file for a shape (Qwen3.5-122B bf16 at TP 4) its default tile costs "
        "more than any flag gains.",
        "",
        *table(
            ["shard", "dtype", "tokens", "off, µs", "off, tuned", "series", "series, tuned", "bound", "other runner",
             "up: M, N, K, group, warps, stages", "down"],
            body,
        ),
        "",
    ]  # fmt: skip


def _short(tile: dict[str, int] | None) -> str:
    return "as up" if tile is None else ", ".join(str(value) for value in tile.values())


def loaded() -> list[str]:
    rows = load("*-loaded.jsonl")
    if not rows:
        return []
    body = []
    for r in rows:
        if "reason" in r:
            body.append([r["sglang"], r["model"], f"not loaded: {' '.join(r['reason'])[:90]}", "", "", ""])
            continue
        moe = [
            f"{x['count']} × {x['method']} on {x['runner']}" for x in r["layers"] if x["kind"] == "FusedMoE"
        ]
        body.append([r["sglang"], r["model"], ", ".join(moe), f"{r['parameter_bytes']:,}", f"{r['buffer_bytes']:,}", f"{r['allocated_bytes']:,}"])  # fmt: skip
    return [
        "## What real engines have loaded",
        "",
        f"Dummy weights, TP 1 (`{rows[0]['command']}`); for comparison with what `check` builds. `allocated` is all that torch holds after loading: "
        "Triton kernels keep their MXFP4 weights outside of the module's parameters. `tests/build/test_against_engine.py` holds `check`'s build "
        "against these rows: layers, methods and runners are the same, the bytes of the experts and of all parameters and buffers equal to the byte.",
        "",
        *table(
            ["SGLang", "model", "MoE layers", "parameters, bytes", "buffers, bytes", "allocated, bytes"], body
        ),
        "",
    ]


def matrix() -> list[str]:
    """Which releases were run on a GPU, and for what."""
    runs: dict[str, set[str]] = {}
    for pattern, what in (
        ("*-fused-moe-sum.jsonl", "kernels"), ("*-runners.jsonl", "kernels"), ("*-runners.jsonl", "runners"), ("*-oracle.jsonl", "oracle"),
        ("*-fp8-ep.jsonl", "FP8 under EP"), ("*-e2e.jsonl", "engine"), ("*-loaded.jsonl", "loading"), ("*-servers.jsonl", "servers with faults"),
    ):  # fmt: skip
        for row in load(pattern):
            if "sglang" in row and "reason" not in row:
                runs.setdefault(row["sglang"], set()).add(what)
    kinds = ("kernels", "runners", "oracle", "FP8 under EP", "engine", "loading", "servers with faults")
    body = [[v, *("✓" if k in runs[v] else "–" for k in kinds)] for v in sorted(runs)]
    return [
        "## Releases run on a GPU",
        "",
        "All other releases from 0.5.9 to 0.5.23 are judged from their source, and their patch series runs in Triton's interpreter on CPU.",
        "",
        *table(["SGLang", *kinds], body),
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
            f"`{t['what']}`" + (f", SGLang {t['sglang']}" if "sglang" in t else ""),
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
| other releases than those of the table above on a GPU | the same commands with that release installed |
| DeepGEMM on 0.5.23: the host's torch 2.11 has no package of it that fits (0.1.7 and 0.2.2 end in an assertion), so the engine ran without it | `python benchmarks/e2e.py --dimensions Qwen3-235B-A22B-tp4 --fp8 --arms off runner-deep_gemm --out FILE` |
| an engine with the tiles of both projections; Qwen3.5-397B on 0.5.15 beside its other runners | `python benchmarks/tiles_tree.py TILES`, then `e2e.py --arms off series-tiles runner-cutlass --tiles TILES`; `bench_fused_moe_sum.py --runners --tiles --only Qwen3.5-397B-A17B-tp4` with SGLANG_JIT_DEEPGEMM_PRECOMPILE=0 |
| flashinfer_cutlass with 16-bit experts: its kernels are compiled at first use from sources that were left out | the runner benchmark with a whole FlashInfer |
| a server at EP 2 with per-tensor FP8 | `python benchmarks/e2e.py --tp 2 --arms ep-off ep-series --engine-args '{"quantization": "fp8"}'` |
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
        f"First run: one {first['device']} (SM{first['sm']}, driver {first['driver_version']}), SGLang {first['sglang']}, torch {first['torch']}, "
        f"Triton {first['triton']}, {first['date'][:10]}. Real `fused_experts` with random weights and uniform routing; every arm "
        "in one process, checked against fp32 before timing, CUDA-graph replays in interleaved rounds, L2 flushed before each "
        "sample; medians. One rank's shard of each model. Clocks were left as found (SM clock and throttle reasons are in each row).",
        "",
        "![speed-up of four shards over the default](plots/headline.png)",
        "",
        *matrix(),
        *runners(),
        *newest(),
        *end_to_end(),
        *stale_memory(),
        *oracle(),
        *as_shipped(cells),
        *patched(cells),
        *share_table(cells),
        *memory_and_accuracy(cells),
        *reductions(),
        *compiled(),
        *tiles(cells),
        *tuned(),
        *both_tiles(),
        *loaded(),
        *faults(),
        NOT_MEASURED,
        "",
        "## All shards",
        "",
        "![speed-up](plots/speedup-bf16.png)",
        "![speed-up](plots/speedup-fp8.png)",
        "![latency](plots/latency.png)",
        "",
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
        "runners": shipped_runners(),
    }


def shipped_runners() -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    """What the rules about runners speak from: release -> shape -> runner -> tokens -> the default's time over its."""
    out: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for row in runner_rows():
        for name in ("cutlass", "deep_gemm", "triton_kernel"):
            if name in row["arms"]:
                runner = out.setdefault(row["sglang"], {}).setdefault(row["key"], {}).setdefault(name, {})
                runner[str(row["tokens"])] = round(row["arms"][name]["speedup"], 2)
    return out


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

    headline(plt, folder)


HEADLINE = (
    ("Qwen3-235B-A22B-tp4", "fp8"),
    ("Qwen3.5-122B-A10B-tp4", "fp8"),
    ("Qwen3-235B-A22B-tp4", "bf16"),
    ("Qwen3.5-122B-A10B-tp4", "bf16"),
)


def headline(plt: Any, folder: Path) -> None:
    """Four shards of the first release with runners, every line labelled at its end."""
    rows = runner_rows()
    release = rows[0]["sglang"]
    style = {"on": ("tab:red", "-"), "series_tiles": ("tab:green", "-"), "cutlass": ("tab:orange", "-"),
             "deep_gemm": ("tab:purple", "-"), "free": ("0.5", "--")}  # fmt: skip
    ticks = (16, 64, 512, 2048, 8192, 16384)
    figure, axes = plt.subplots(2, 2, figsize=(12, 8), sharex=True, sharey=True)
    for axis, (shape, dtype) in zip(axes.flat, HEADLINE, strict=True):
        mine = sorted(
            (r for r in rows if (r["sglang"], r["shape"], r["dtype"]) == (release, shape, dtype)), key=lambda r: r["tokens"]
        )  # fmt: skip
        ends = []
        for arm, (colour, line) in style.items():
            points = [(r["tokens"], r["arms"][arm]["speedup"]) for r in mine if arm in r["arms"]]
            if points:
                axis.plot(
                    [p[0] for p in points], [p[1] for p in points], color=colour, linestyle=line, marker="."
                )
                ends.append((points[-1][1], points[-1][0], ARM_NAMES.get(arm, arm), colour))
        axis.axhline(1, color="black", linewidth=0.8)
        low = -1.0
        for value, tokens, name, colour in sorted(ends):  # labels at the ends, pushed apart
            low = max(value, low + 0.045)
            axis.annotate(f"{name} {value:.2f}", (tokens, value), (24000, low), color=colour, fontsize=9, va="center",
                          annotation_clip=False)  # fmt: skip
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [f"{t // 1024}k" if t >= 1024 else str(t) for t in ticks], fontsize=9)
        axis.minorticks_off()
        axis.set_title(f"{shape}, {dtype}", fontsize=10)
        axis.grid(axis="y", linewidth=0.3)
    for axis in axes[1]:
        axis.set_xlabel("tokens")
    for axis in axes[:, 0]:
        axis.set_ylabel("speed-up over Triton without the flag")
    figure.suptitle(
        f"One MoE layer on one {rows[0]['device']}, SGLang {release} (above 1: faster than the default)",
        fontsize=11,
    )
    figure.tight_layout()
    figure.subplots_adjust(wspace=0.42, right=0.87)
    figure.savefig(folder / "headline.png", dpi=90)
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
