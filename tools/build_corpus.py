"""Check every launch of the test corpus with its build, on some releases: what SGLang's own constructors said.

    python tools/build_corpus.py [--releases 0.5.15 0.5.23] [--kind good] [--only NAME …] [--json FILE] [-v]

prints a line per release, each refusal, each reason why something was not built, and each MoE layer of which the
hand-written table of `launch/` says something else than the build. One process per release. Exit code 1 where a good
launch is refused by the build, or the table disagrees.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.launches.checks import MODELS, environment  # noqa: E402
from tests.launches.corpus_cases import CORPUS  # noqa: E402
from tests.releases import RELEASES  # noqa: E402

Row = dict[str, Any]


def main() -> int:
    options = _options()
    rows: list[Row] = []
    for release in options.releases:
        names = [name for name in CORPUS if _wanted(name, release, options)]
        found = []
        for row in run(release, names):
            found.append(row)
            if options.verbose:
                print(line(row), flush=True)
        rows += found
        print(summary(release, found), flush=True)
    for rule, (caught, of) in sorted(alone(rows).items()):
        print(f"{rule}: {caught} of {of} reported launches refused by the build alone")
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    wrong = [row for row in rows if false_error(row) or row["disagrees"]]
    for row in rows:
        if (row in wrong or row["status"] == "not built") and not options.verbose:
            print(line(row))
    return 1 if wrong else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--releases", nargs="+", default=list(RELEASES[1:]), help="default: all with the flag"
    )
    parser.add_argument("--only", nargs="*", default=[], help="words in a launch's name")
    parser.add_argument("--catches", nargs="*", default=[], help="rules, or families, that claim a launch")
    parser.add_argument("--kind", choices=("good", "bad", "all"), default="good")
    parser.add_argument("--json", help="keep the rows in this file")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line per launch")
    return parser.parse_args()


def _wanted(name: str, release: str, options: argparse.Namespace) -> bool:
    case = CORPUS[name]
    if options.only and not any(word in name for word in options.only):
        return False
    if options.catches and not any(r.startswith(tuple(options.catches)) for r in case.get("catches", ())):
        return False
    if options.kind not in ("all", case["kind"]) or case["gpu"] == "unknown":
        return False
    return release in case.get("releases", [case.get("release")])


def run(release: str, names: list[str]) -> Iterator[Row]:
    """A row per launch, as they come; equal environments and machines follow each other."""
    order = sorted(names, key=lambda n: (sorted(CORPUS[n].get("env", {}).items()), CORPUS[n]["gpu"]))
    process = subprocess.Popen(
        [sys.executable, "-c", "from tools.build_corpus import serve; serve()", *order],
        env=environment(release),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for text in process.stdout:
        yield {"release": release, **json.loads(text)}
    if process.wait():
        raise RuntimeError(f"{release}: the process ended with exit code {process.returncode}")


def serve() -> None:
    """In the release's process: a JSON line per launch named on the command line."""
    for name in sys.argv[1:]:
        started = time.monotonic()
        row = _one(name)
        print(json.dumps(row | {"seconds": round(time.monotonic() - started, 2)}), flush=True)


def _one(name: str) -> Row:
    from sglang_guards.errors import CouldNotCheck
    from sglang_guards.launch.facts import Launch
    from sglang_guards.preflight import launch_check

    room: Any = importlib.import_module("sglang_guards.preflight.judging")
    judge = room.judge
    case = CORPUS[name]
    row: Row = {"name": name, "kind": case["kind"], "status": "not taken", "why": "", "disagrees": []}
    launches: list[Launch] = []

    def judged(launch: Launch, *args: Any) -> Any:
        launches.append(launch)
        return judge(launch, *args)

    room.judge = judged
    try:
        report = launch_check.check(
            [word.replace("{models}", str(MODELS)) for word in case["argv"]],
            gpu=case["gpu"],
            env=environment_of(case),
            model_config=MODELS / case["model"] if case.get("model") else None,
        )
    except CouldNotCheck as error:
        return row | {"why": error.message}
    finally:
        room.judge = judge
    build = report.build
    if build is None:
        return row | {"why": next((f.message for f in report.findings), "")}
    compared, disagrees = against_the_table(launches[0])
    return row | {
        "status": build["status"],
        "why": build["reason"],
        "notes": sorted({note for rank in build["ranks"] for note in rank["notes"]}),
        "kv_tokens": launches[0].get("build.kv_tokens"),
        "peak_mib": build["peak_mib"],
        "findings": [[f.id, f.severity.value, f.message, f.cause] for f in report.findings],
        "layers": sorted(
            {
                f"{rank['rank']['model']} {x['count']} × {x['method']} on {x['runner'] or 'no runner'}"
                for rank in build["ranks"]
                for x in rank["layers"]
            }
        ),
        "compared": compared,
        "disagrees": disagrees,
    }


def environment_of(case: Row) -> dict[str, str]:
    """This process's, with what the case sets."""
    import os

    return dict(os.environ) | (case.get("env") or {})


#: What the checkpoint's quantization is called here -> the first words of the methods that SGLang has for it.
METHODS = {
    "unquantized": ("UnquantizedFusedMoEMethod",),
    "fp8": ("Fp8MoEMethod",),
    "modelopt_fp8": ("ModelOptFp8MoEMethod",),
    "modelopt_fp4": ("ModelOptNvFp4FusedMoEMethod",),
    "ct_fp8": ("CompressedTensorsFusedMoEMethod (CompressedTensorsW8A8Fp8MoE", "CompressedTensorsW8A8Fp8MoE"),
    "ct_wna16": (
        "CompressedTensorsFusedMoEMethod (CompressedTensorsWNA16",
        "CompressedTensorsFusedMoEMethod (CompressedTensorsMxInt4MoE",
        "CompressedTensorsWNA16",
    ),
    "mxfp4": ("Mxfp4",),
    "mxfp8": ("Fp8MoEMethod", "Mxfp8"),
    "w4afp8": ("W4AFp8MoEMethod",),
    "quark_mxfp4": ("QuarkFusedMoEMethod (QuarkW4A4MXFp4MoE", "QuarkW4A4MXFp4MoE"),
    "gptq": ("GPTQMarlinMoEMethod", "GPTQ"),
    "gptq_marlin": ("GPTQMarlinMoEMethod", "GPTQ"),
    "awq": ("AWQ",),
    "awq_marlin": ("AWQ",),
    "auto_round": ("GPTQ", "AWQ"),
}
#: Runners that are objects of their own; other names stand for kernels that a method calls itself.
MADE = ("triton", "marlin", "deep_gemm")


def against_the_table(launch: Any) -> tuple[int, list[str]]:
    """How many answers of the hand-written table could be compared with the build, and those that differ."""
    from sglang_guards.launch.facts import Launch

    kept = {name: fact for name, fact in launch.facts.items() if not name.startswith("build.")}
    table = Launch(kept, argv=launch.argv, env=launch.env, typed=launch.typed, source=launch.source)
    compared, differ = 0, []
    for model in ("target", "draft"):
        moe, method = launch.get(f"build.{model}.moe"), launch.get(f"build.{model}.method")
        if moe is None:
            continue
        same = {"MoE layers": (table.get(f"{model}.exists"), moe, table.get(f"{model}.exists") == moe)}
        if moe and method and not method.startswith("KTEP"):  # KTransformers wraps the method
            kind = table.get(f"{model}.kind")
            same["method"] = (kind, method, _is_method(kind, method, launch))
            runner, made = table.get(f"{model}.runner"), launch.get(f"build.{model}.runner", "")
            same["runner"] = (runner, made, _is_runner(runner, made, launch, model))
        for what, (ours, built, equal) in same.items():
            if ours is None:  # the table says that it does not know
                continue
            compared += 1
            if not equal:
                differ.append(f"{model} {what}: the table says {ours}, the build {built or 'none'}")
    return compared, differ


def _is_method(kind: Any, method: str, launch: Any) -> bool:
    if kind in ("fp8", "mxfp8", "mxfp4") and method.startswith(("Mxfp4", "DeepSeekMxfp4")):
        text = str(launch.get("model.config") or {})  # DeepSeek-V4: FP4 experts in an FP8 checkpoint
        return kind == "mxfp4" or "expert_dtype" in text
    return method.startswith(METHODS.get(kind, ("?",)))


def _is_runner(runner: Any, made: str, launch: Any, model: str) -> bool:
    """An all-to-all backend stands for a runner that takes its layout, which Triton's plain one does not."""
    own = launch.get("args.speculative_moe_a2a_backend") if model == "draft" else None
    if runner == (own or launch.get("args.moe_a2a_backend")):
        return made != "triton"
    return runner == made if made else runner not in MADE or _uncertain(launch, model)


def _uncertain(launch: Any, model: str) -> bool:
    """A layer that has a runner and may pass it by, or layers of more than one kind: the build names no one runner."""
    layers = [x for r in launch["build.ranks"] if r["rank"]["model"] == model for x in r["layers"]]
    return any(x["runner"] for x in layers)


def false_error(row: Row) -> bool:
    """A launch that is known to work, and an error from its build."""
    return bool(row["kind"] == "good" and _has_build_error(row))


def alone(rows: list[Row]) -> dict[str, tuple[int, int]]:
    """Of the launches that were reported to go wrong, by the rule that claims them: how many have an error from their
    build, whatever the rules say.
    """
    counts: dict[str, tuple[int, int]] = {}
    for row in rows:
        rule = next(iter(CORPUS[row["name"]].get("catches") or ()), None)
        if row["kind"] == "bad" and rule is not None:
            caught, of = counts.get(rule, (0, 0))
            counts[rule] = (caught + _has_build_error(row), of + 1)
    return counts


def _has_build_error(row: Row) -> bool:
    return any(f[0].startswith("BLD") and f[1] == "error" for f in row.get("findings", ()))


def line(row: Row) -> str:
    """One launch."""
    bad = [f"{f[0]} {f[2]} [{f[3]}]" for f in row.get("findings", ()) if f[0].startswith("BLD")]
    said = "; ".join([*row["disagrees"], *bad, row["why"], *row.get("notes", ())])
    head = f"{row['release']:12} {row['name']:48} {row['status']:10} {row['seconds']:5.1f} s"
    return f"{head} {', '.join(row.get('layers', ()))} {said}"


def summary(release: str, rows: list[Row]) -> str:
    """One release: how many launches were built, how many of them wrongly refused, and how the table fared."""
    states = Counter(row["status"] for row in rows)
    taken = len(rows) - states["not taken"]
    compared = sum(row.get("compared", 0) for row in rows)
    return (
        f"SGLang {release}: {states['built']} of {taken} launches built, {states['refused']} refused, "
        f"{sum(map(false_error, rows))} false errors; the table: {compared} answers compared, "
        f"{sum(len(row['disagrees']) for row in rows)} differ"
    )


if __name__ == "__main__":
    sys.exit(main())
