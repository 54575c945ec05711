"""The README's table of publicly reported launches, made from `tests/launches/corpus` (`--check`: is it up to date?).

The counts are those that `tests/launches/test_corpus.py` holds: every case within reach must be caught on the release
that it names (with the build where a case says `build`). Cases marked `fresh` were reported launches that no rule had
been made for when they were collected; those marked `further` were looked for after that, and none of them was caught
by the rules of that time.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.toml import tomllib  # noqa: E402

README = ROOT / "README.md"
CORPUS = ROOT / "tests" / "launches" / "corpus"
#: What each family's reported launches went wrong with, in the order of the table.
FAMILIES = {
    "RUN": (
        "MoE runner",
        "FP4 experts on TRT-LLM, AITER layouts under Triton, LoRA with EP, NVFP4 on Marlin",
    ),
    "ARF": ("all-reduce fusion", "hybrid EP × TP, a GPU without a kernel, B300 with EAGLE"),
    "PAR": (
        "parallelism, overlap",
        "gpt-oss with DP attention and EP, EPLB without all-to-all, two-batch overlap",
    ),
    "ATT": (
        "attention",
        "hybrid models on Blackwell, torch_native with speculation, sparse attention on SM120",
    ),
    "SPC": ("speculation", "EAGLE3 draft under EAGLE, NVFP4 target with a bf16 draft, decode nodes"),
    "QNT": ("quantization", "FP8 blocks against TP, shared experts of another precision"),
    "DET": ("determinism", "deterministic inference that does not cover the model"),
    "FLG": (
        "flags without effect",
        "adaptive speculation beside DP attention, a page size that costs the backend",
    ),
    "BLD": ("SGLang's constructors", "Marlin with DeepEP, MXFP4 experts without a runner"),
    "FMS": ("fused sum", "expert parallelism, dead flag"),
}
_TABLE = re.compile(r"\| family \| caught \|.*?(?=\n\n)", re.DOTALL)


def table() -> str:
    """The table's text."""
    cases = [tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(CORPUS.glob("*.toml"))]
    bad = [case for case in cases if case["kind"] == "bad"]
    reached = [case for case in bad if not case.get("out_of_reach")]
    families, fresh, further = (
        Counter(c["family"] for c in reached if marked is None or c.get(marked))
        for marked in (None, "fresh", "further")
    )
    rows = ["| family | caught | of these fresh | of these further | examples |", "|---|---|---|---|---|"]
    for family, (what, examples) in FAMILIES.items():
        count = families[family]
        new = f"{fresh[family] or '–'} | {further[family] or '–'}"
        rows.append(f"| {family} ({what}) | {count} of {count} | {new} | {examples} |")
    missing = set(families) - set(FAMILIES)
    if missing:
        raise SystemExit(f"say what the family is about: {', '.join(sorted(missing))}")
    out = len(bad) - len(reached)
    rows.append(
        f"| out of reach | {out} | – | – | four are repaired in every release here (silence is right); two name no "
        "cause that arguments or source could show; one is older than 0.5.10 |"
    )
    return "\n".join(rows)


def main() -> None:
    """Rewrite the table, or with --check say whether it is what the corpus says."""
    text = README.read_text(encoding="utf-8")
    made = _TABLE.sub(lambda _: table(), text, count=1)
    if "--check" in sys.argv[1:]:
        if made != text:
            raise SystemExit("README.md: run tools/corpus_table.py")
        return
    README.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
