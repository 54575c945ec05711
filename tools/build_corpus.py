"""Build every launch of a corpus on some releases, and print what SGLang's own constructors said.

    python tools/build_corpus.py --corpus tests/launches/corpus --models tests/launches/models \
        --trees FOLDER_OF_UNPACKED_WHEELS --releases 0.5.15 0.5.19 0.5.23 [--only NAME…] [--json FILE]

One process per release and kind of GPU imports SGLang; every launch is a fork of it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import tomllib

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO))

from tests.releases import between  # noqa: E402


def main() -> None:
    options = _options()
    if options.serve:
        _serve(options)
        return
    rows: list[dict[str, Any]] = []
    for release in options.releases:
        cases = [case for case in _cases(options) if _wanted(case, release, options)]
        by_gpu: dict[str, list[dict[str, Any]]] = {}
        for case in cases:
            by_gpu.setdefault(case["gpu"].split("x", 1)[1], []).append(case)
        for group in by_gpu.values():
            rows += _run(release, group, options)
    if options.json:
        Path(options.json).write_text(json.dumps(rows, indent=1), encoding="utf-8")
    _summary(rows)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--trees", type=Path, default=Path.home() / ".cache/sglang-guards/trees")
    parser.add_argument("--releases", nargs="+", default=["0.5.19"])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--kind", choices=("good", "bad", "all"), default="all")
    parser.add_argument("--first-rank", action="store_true", help="rank 0 only")
    parser.add_argument("--any-release", action="store_true", help="also releases that a case does not name")
    parser.add_argument("--json")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    return parser.parse_args()


def _cases(options: argparse.Namespace) -> list[dict[str, Any]]:
    cases = []
    for path in sorted(options.corpus.glob("*.toml")):
        case = tomllib.loads(path.read_text(encoding="utf-8"))
        if case["kind"] == "good":
            span = between(case["since"], case.get("until"))
            case["releases"] = [release for release in span if release not in case.get("except", ())]
        cases.append({"name": path.stem, "first": options.first_rank} | case)
    return cases


def _wanted(case: dict[str, Any], release: str, options: argparse.Namespace) -> bool:
    if options.only and not any(word in case["name"] for word in options.only):
        return False
    if options.kind not in ("all", case["kind"]) or case["gpu"] == "unknown":
        return False
    return options.any_release or release in case.get("releases", [case.get("release")])


def _run(release: str, cases: list[dict[str, Any]], options: argparse.Namespace) -> list[dict[str, Any]]:
    env = os.environ | {
        "PYTHONPATH": f"{options.trees / release}{os.pathsep}{REPO}",
        "HF_HUB_OFFLINE": "1",
        "SGLANG_LOGGING_CONFIG_PATH": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        work, out = Path(folder) / "work.json", Path(folder) / "out.jsonl"
        work.write_text(
            json.dumps({"cases": cases, "models": str(options.models.resolve()), "out": str(out)})
        )
        arguments = [sys.executable, __file__, "--corpus", ".", "--models", ".", "--serve", str(work)]
        log = Path(folder) / "log"
        with log.open("w") as sink:
            done = subprocess.run(arguments, env=env, stdout=sink, stderr=sink, check=False)
        lines = out.read_text().splitlines() if out.exists() else []
        if done.returncode:
            print(f"{release}: the process ended with {done.returncode}: {log.read_text()[-1500:]}")
    rows = [{"release": release, **json.loads(line)} for line in lines]
    for row in rows:
        _show(row)
    return rows


def _show(row: dict[str, Any]) -> None:
    build = row.get("build") or {}
    text = build.get("reason") or row.get("error") or ""
    for rank in build.get("ranks", ()):
        if rank["refusal"]:
            r = rank["refusal"]
            text = f"{r['type']}: {r['message'][:200]} ({r['where']}) {r['layer']} [{rank['rank']['model']}]"
            break
    else:
        first = next((r for r in build.get("ranks", ()) if r["status"] == "built"), None)
        if first and not text:
            kinds = ", ".join(f"{x['count']}×{x['method']}:{x['runner'] or '-'}" for x in first["layers"])
            tokens = first.get("kv_tokens")
            text = f"KV {tokens} of {first.get('context_length')} " if tokens else ""
            text += f"{(first['weights_bytes'] or 0) / 2**30:.2f} GiB {kinds}"
    status = build.get("status") or "refused in resolution"
    print(f"{row['release']:12} {row['name']:48} {status:10} {row['seconds']:5.1f}s {text[:330]}", flush=True)


def _summary(rows: list[dict[str, Any]]) -> None:
    for release in dict.fromkeys(row["release"] for row in rows):
        for kind in ("good", "bad"):
            count = Counter(
                (row.get("build") or {}).get("status", "not resolved")
                for row in rows
                if row["release"] == release and row["kind"] == kind
            )
            if count:
                print(release, kind, dict(count))


def _serve(options: argparse.Namespace) -> None:
    work = json.loads(Path(options.serve).read_text())
    from sglang_guards.build import construct
    from sglang_guards.launch import gpus
    from sglang_guards.preflight import simulated_gpu

    construct.torch_on_meta.prepare_libraries()
    folder = Path(tempfile.mkdtemp())
    simulated_gpu.hide()
    simulated_gpu.write_tools(folder)
    os.environ["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    gpu = gpus.parse(work["cases"][0]["gpu"])
    simulated_gpu.strike(gpu)
    construct.prepare(gpu)
    import sglang.srt.model_loader
    import sglang.srt.server_args  # noqa: F401

    for case in work["cases"]:
        pid = os.fork()
        if pid == 0:
            _one(case, Path(work["models"]), Path(work["out"]))
        os.waitpid(pid, 0)


def _one(case: dict[str, Any], models: Path, out: Path) -> None:
    started = time.monotonic()
    row: dict[str, Any] = {"name": case["name"], "kind": case["kind"]}
    try:
        row["build"] = _build(case, models)
    except BaseException as error:
        row["error"] = f"{type(error).__name__}: {str(error)[:300]}"
    row["seconds"] = time.monotonic() - started
    with contextlib.suppress(OSError), out.open("a") as file:
        file.write(json.dumps(row) + "\n")
    os._exit(0)


def _build(case: dict[str, Any], models: Path) -> dict[str, Any]:
    from sglang.srt.server_args import prepare_server_args

    from sglang_guards import sglang_compat
    from sglang_guards.build import construct
    from sglang_guards.launch import gpus, model_files
    from sglang_guards.preflight import command_line, simulated_gpu

    os.environ.update(case.get("env") or {})
    simulated_gpu.strike(gpus.parse(case["gpu"]))
    words = list(command_line.parse([w.replace("{models}", str(models)) for w in case["argv"]]).args)
    config = models / case["model"] / "config.json"
    scratch = Path(tempfile.mkdtemp())
    for at, word in enumerate(words[:-1]):
        if word in ("--model-path", "--model"):
            folder = model_files.lay_out(model_files.read(config), config.parent, words[at + 1], scratch)
            words[at + 1] = str(folder)
    server_args = prepare_server_args(words)
    view = sglang_compat.resolve(server_args)
    return construct.build(
        server_args, view, gpu=gpus.parse(case["gpu"]), first_rank_only=case["first"]
    ).to_dict()


if __name__ == "__main__":
    main()
