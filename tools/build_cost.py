"""What the build adds to a check: seconds of the first launch and of each further one in a process, and memory.

    python tools/build_cost.py [--rounds 3] [RELEASE …]

Fresh processes check one launch, then five, with and without the build. Wall is what an operator waits, CPU what all
processes together used (on a machine that is loaded, look at that). Memory is the sum over all processes of a check,
pages that they share counted once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.launches.checks import environment  # noqa: E402

RELEASES = ("0.5.15", "0.5.19", "0.5.23")
FURTHER = 4
_LAUNCHES = """
import sys
from sglang_guards.preflight import launch_check
for ep in (1, 2, 4, 8, 1)[: int(sys.argv[1])]:
    launch_check.check(
        ["python", "-m", "sglang.launch_server", "--model-path", "some/model", "--tp", "8", "--ep-size", str(ep)],
        gpu="8xH200", model_config="tests/launches/models/qwen3-30b-a3b/config.json", build=sys.argv[2] == "build",
    )
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="*", default=list(RELEASES))
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    for release in options.release:
        rounds = [_round(release) for _ in range(options.rounds)]
        found = {key: round(statistics.median(r[key] for r in rounds), 2) for key in rounds[0]}
        print(f"{release} {found}", flush=True)
    return 0


def _round(release: str) -> dict[str, float]:
    """Seconds that the build adds, and the most memory."""
    cells = {
        (number, mode): _run(release, number, mode)
        for number in (1, 1 + FURTHER)
        for mode in ("plain", "build")
    }
    found = {}
    for at, what in enumerate(("wall", "cpu")):
        first, every = (cells[n, "build"][at] - cells[n, "plain"][at] for n in (1, 1 + FURTHER))
        found[f"first_{what}"] = first
        found[f"further_{what}"] = (every - first) / FURTHER
    return found | {
        "plain_mib": cells[1 + FURTHER, "plain"][2],
        "build_mib": cells[1 + FURTHER, "build"][2],
    }


def _run(release: str, number: int, mode: str) -> tuple[float, float, float]:
    """Wall seconds, CPU seconds and MiB of one process with all that it started."""
    started = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHES, str(number), mode],
        env=environment(release),
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    most = [0.0]
    watcher = threading.Thread(target=_watch, args=(process.pid, most), daemon=True)
    watcher.start()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{release}: the check ended with {process.returncode}")
    return time.monotonic() - started, usage.ru_utime + usage.ru_stime, most[0]


def _watch(pid: int, most: list[float]) -> None:
    while Path(f"/proc/{pid}").exists():
        most[0] = max(most[0], sum(map(_pss, _tree(pid))))
        time.sleep(0.2)


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(p for child in children for p in _tree(int(child)))]


def _pss(pid: int) -> float:
    """MiB of a process, pages shared with others in part."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("Pss:")), 0.0)


if __name__ == "__main__":
    sys.exit(main())
