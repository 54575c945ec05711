"""What the guard costs at start-up: python benchmarks/bench_overhead.py RELEASE… (needs tools/env.sh's environment).

Per release, in fresh processes of the real SGLang (median of --repeat):
  launcher   register() plus the first validation of a launch with the flag on
  worker     register() alone, as a scheduler process runs it
An interpreter that does not start SGLang pays nothing: the wheel installs no .pth file (a test holds that).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "launches" / "models" / "qwen3.5-122b-a10b-fp8"
ARGV = [
    "--model-path", str(MODEL), "--tp", "4", "--attention-backend", "triton", "--disable-radix-cache",
    "--enable-fused-moe-sum-all-reduce",
]  # fmt: skip


def inside() -> None:
    """Measure in this process, which has one SGLang release; prints milliseconds as JSON."""
    from sglang_guards import compat, gpus, pose

    pose.hide()
    pose.warm_up()
    pose.strike(gpus.parse("4xH100"))
    from sglang.srt.plugins import hook_registry  # noqa: F401  (SGLang has it loaded when it calls register)
    from sglang.srt.server_args import prepare_server_args

    for name in [name for name in sys.modules if name.startswith("sglang_guards")]:
        del sys.modules[name]
    started = time.perf_counter()
    from sglang_guards import plugin

    plugin.register()
    registered = time.perf_counter()
    server_args = prepare_server_args(ARGV)
    compat.resolve(server_args)
    before = time.perf_counter()
    from sglang_guards import hooks

    hooks._handle_fused_moe_sum_all_reduce(server_args)
    after = time.perf_counter()
    worker = (registered - started) * 1000
    print(json.dumps({"worker": worker, "launcher": worker + (after - before) * 1000}))


def measure(release: str, trees: Path, repeat: int) -> dict[str, float]:
    env = {
        **os.environ,
        "PYTHONPATH": f"{ROOT}{os.pathsep}{trees / release}",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    runs = []
    for _ in range(repeat):
        command = [sys.executable, __file__, "--inside"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
        runs.append(json.loads(done.stdout.splitlines()[-1]))
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="*")
    parser.add_argument("--repeat", type=int, default=5)
    default = Path.home() / ".cache" / "sglang-guards" / "trees"
    parser.add_argument("--trees", type=Path, default=Path(os.environ.get("SGLANG_GUARDS_TREES", default)))
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        inside()
        return
    print(f"command  python benchmarks/bench_overhead.py {' '.join(asked.release)} --repeat {asked.repeat}")
    print(f"machine  {os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    for release in asked.release:
        print(
            f"{release:14}",
            {k: f"{v:.1f} ms" for k, v in measure(release, asked.trees, asked.repeat).items()},
        )


if __name__ == "__main__":
    main()
