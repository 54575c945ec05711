"""docs/flags.md: for each flag of the verdict table, what decides it, from the table's own code and the releases.

python tools/flags_page.py    runs the shipped example through `check -v` and keeps what it prints
                              (docs/data/seed-question.txt); `tools/docs.py` puts it on the page
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from sglang_guards.flag_table import source_lines, table  # noqa: E402
from sglang_guards.preflight import releases  # noqa: E402

SEED = ROOT / "docs" / "data" / "seed-question.txt"
EXAMPLE = "examples/qwen3.5-122b-rtx-pro-6000"
#: The release of the question.
RELEASE = "0.5.15"
#: Spellings that other releases use for a row.
ALSO: Mapping[str, tuple[str, ...]] = {
    "--flashinfer-allreduce-fusion-backend": ("--enable-flashinfer-allreduce-fusion",),
    "--cuda-graph-max-bs": ("--cuda-graph-max-bs-decode",),
    "--disable-piecewise-cuda-graph": ("--cuda-graph-backend-prefill",),
}
#: Server args of the table's rows, in every spelling.
FIELDS = tuple(
    name.removeprefix("--").replace("-", "_") for row in table._ROWS for name in (row, *ALSO.get(row, ()))
)
#: Topics of rows whose code does not name them itself.
TOPICS: Mapping[str, tuple[str, ...]] = {
    "--moe-runner-backend": ("runner_backend",),
    "--speculative-moe-runner-backend": ("draft_runner_backend",),
}
#: What decides a row beside the lines of `landscape_lines`: a rule family or probes that its code asks.
DECIDED: Mapping[str, str] = {
    "--enable-fused-moe-sum-all-reduce": "the runner of the experts, top-k, and the FMS rules on this launch",
    "--flashinfer-allreduce-fusion-backend": "SGLang's list of architectures, its conditions, and the ARF rules",
    "--moe-runner-backend": "the method that the checkpoint's quantization selects",
    "--num-continuous-decode-steps": "whether any file of the release reads it",
    "--triton-attention-reduce-in-fp32": "the attention backend, and whether any file of the release reads it",
    "--schedule-policy": "the radix cache, for policies that look at it",
}
OUTCOMES = {
    "active": "it acts as asked (or as its default says)",
    "off": "it is not set and not on; «if set» says what it would do",
    "ignored": "it is set and nothing reads it in this launch",
    "overridden": "it is set and SGLang makes something else of it",
    "auto-enabled": "SGLang chose the value by itself",
    "recommended": "it is off, could be on, and nothing known speaks against it",
    "unknown": "the source or the launch does not tell",
}


def topics(make: Callable[..., Any]) -> list[str]:
    """The topics of `landscape_lines.LINES` that a row's code names, in its order."""
    code = ast.parse(textwrap.dedent(inspect.getsource(make)))
    words = [n.value for n in ast.walk(code) if isinstance(n, ast.Constant)]
    return list(dict.fromkeys(w for w in words if isinstance(w, str) and w in source_lines.LINES))


def page(data: Mapping[str, Any]) -> str:
    """docs/flags.md."""
    places: Mapping[str, Mapping[str, str]] = data["lines"]
    newest = list(places)[-1]
    out = [
        "# Flags",
        "",
        "`sglang-guards check -v` ends with the verdict table: for each of these flags what was asked, what the "
        "installed SGLang will do with it in this launch, why, and the line that decides it.",
        "",
        "| outcome | meaning |",
        "|---|---|",
        *(f"| {name} | {meaning} |" for name, meaning in OUTCOMES.items()),
        "",
        "## What decides each flag",
        "",
        f"Places are those of SGLang {newest}; [Releases](releases.md) shows what differs between releases.",
        "",
        "| flag | what it is | decided by | releases |",
        "|---|---|---|---|",
    ]
    for name, make in table._ROWS.items():
        doc = (inspect.getdoc(make) or "").split("\n")[0]
        deciding = [DECIDED[name]] if name in DECIDED else []
        named = (*topics(make), *TOPICS.get(name, ()))
        deciding += [f"`{_short(places[newest][topic])}`" for topic in named if places[newest].get(topic)]
        if not deciding and (where := places[newest].get(name)):
            deciding = [f"`{_short(where)}`"]
        spellings = (name, *ALSO.get(name, ()))
        flags, known = (
            "<br>".join(f"`{s}`" for s in spellings),
            "<br>".join(_known(s, places) for s in spellings),
        )
        out.append(f"| {flags} | {doc} | {'<br>'.join(deciding) or '–'} | {known} |")
    out += [
        "",
        "## The question that began it",
        "",
        "Can the fused MoE sum be switched on beside speculative decoding for Qwen3.5-122B-A10B-FP8 on "
        f"4 × RTX PRO 6000 with SGLang {RELEASE}? It acts on target and draft, corrupts nothing at EP 1, and costs "
        "speed where it was measured: leave it off. All-reduce fusion has no kernel on these GPUs, mixed chunk is "
        "switched off beside EAGLE, and two flags of the list are read by nothing. The whole answer, as printed:",
        "",
        "```text",
        f"$ tools/example.sh {RELEASE}",
        SEED.read_text(encoding="utf-8").rstrip(),
        "```",
        "",
        "With `--ep-size 4` the same flag is an error: [FMS101](rules/FMS101.md).",
        "",
        "Made by `python tools/docs.py` from `sglang_guards/flag_table/`, `docs/data/probes.json` and "
        "`docs/data/seed-question.txt`.",
        "",
    ]
    return "\n".join(out)


def _short(where: str) -> str:
    return where.removeprefix("sglang/srt/")


def _known(name: str, places: Mapping[str, Mapping[str, str]]) -> str:
    """Releases that declare a flag under this name."""
    having = [release for release, found in places.items() if found.get(name)]
    if len(having) == len(places):
        return "all"
    if not having:
        return "–"
    return having[0] if len(having) == 1 else f"{having[0]} – {having[-1]}"


def seed_question(trees: Path | None = None) -> str:
    """What `check -v` prints for the shipped example, without its duration and trailing blanks."""
    text = (ROOT / EXAMPLE / "launch.sh").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    words = re.sub(r"\\|^exec ", " ", "\n".join(lines)).split()
    tree = (trees or releases.trees_root()) / RELEASE
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_GUARDS", "FORCE_COLOR"))}
    env |= {
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tree}",
        "COLUMNS": "130",
        "NO_COLOR": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "sglang_guards", "check", "-v", "--gpu", "4xRTX-PRO-6000"]
    command += ["--model-config", EXAMPLE, "--", *words]
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode not in (0, 1):
        raise RuntimeError(textwrap.shorten(done.stderr, 2000) or f"exit code {done.returncode}")
    shown = re.sub(r" · [\d.]+ s$", "", done.stdout, flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in shown.strip().splitlines()) + "\n"


def main() -> int:
    SEED.parent.mkdir(parents=True, exist_ok=True)
    SEED.write_text(seed_question(), encoding="utf-8")
    print(f"wrote {SEED.relative_to(ROOT)}; now run: python tools/docs.py")
    return 0


if __name__ == "__main__":
    sys.exit(main())
