"""What the guard costs at start-up: python benchmarks/bench_overhead.py RELEASE… (needs tools/env.sh's environment).

Per release, in fresh processes of the real SGLang (median of --repeat):
  launcher   SGLang's load_plugins() with the guard less the same without it, plus the first validation of a launch
             with the flag on
  worker     the same difference in a child process that SGLang would have started, with the model runner imported
             where that works without a GPU
An interpreter that does not start SGLang pays nothing: the wheel installs no .pth file (a test holds that).
"""

from __future__ import annotations

import argparse
import compileall
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "tests" / "launches" / "models" / "qwen3.5-122b-a10b-fp8"
ARGV = [
    "--model-path", str(MODEL), "--tp", "4", "--attention-backend", "triton", "--disable-radix-cache",
    "--enable-fused-moe-sum-all-reduce",
]  # fmt: skip


def launcher() -> dict[str, float]:
    """Milliseconds of load_plugins() and of the first validation in a launcher; run in a fresh process."""
    _pose()
    loaded = _load_plugins()
    if os.environ.get("SGLANG_PLUGINS"):
        return {"launcher": loaded}
    kept = _ours()  # what loading the plugin imported; the validation imports the rest
    from sglang.srt.server_args import ServerArgs, prepare_server_args

    from sglang_guards import sglang_compat
    from sglang_guards.hook import attach

    assert hasattr(ServerArgs.check_server_args, "__wrapped__"), "the guard is not attached"
    server_args = prepare_server_args(ARGV)
    sglang_compat.resolve(server_args)
    _forget_ours(keep=kept)
    before = time.perf_counter()
    attach._handle_fused_moe_sum_all_reduce(server_args)
    return {"launcher": loaded + (time.perf_counter() - before) * 1000}


def worker() -> dict[str, float]:
    """Milliseconds of load_plugins() in a child that counts as SGLang's; run in a fresh process."""
    _pose()

    def run() -> None:
        """Stands for SGLang's scheduler, which cannot be imported without a GPU's packages."""

    run.__module__ = "sglang.srt.managers.scheduler"  # by this a worker is recognised
    process = multiprocessing.current_process()
    process._target = run
    multiprocessing.process._parent_process = process
    return {"worker": _load_plugins()}


def _pose() -> None:
    """This process as a launcher with GPUs is when SGLang loads plugins."""
    from sglang_guards.launch import gpus
    from sglang_guards.preflight import simulated_gpu

    simulated_gpu.hide()
    simulated_gpu.warm_up()
    simulated_gpu.strike(gpus.parse("4xH100"))
    import sglang.launch_server  # noqa: F401

    _forget_ours()


def _load_plugins() -> float:
    from sglang.srt.plugins import load_plugins

    started = time.perf_counter()
    load_plugins()
    return (time.perf_counter() - started) * 1000


def _ours() -> set[str]:
    return {name for name in sys.modules if name.partition(".")[0] == "sglang_guards"}


def _forget_ours(keep: Collection[str] = ("sglang_guards",)) -> None:
    """The pose, or an earlier validation, has imported modules of ours that a launch must import itself."""
    for name in _ours() - set(keep):
        del sys.modules[name]


def measure(release: str, trees: Path, repeat: int) -> dict[str, float]:
    spent = {}
    for role in ("launcher", "worker"):
        medians = []
        for plugins in ("", "none-of-these"):
            env = {
                **os.environ,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{trees / release}",
                "HF_HUB_OFFLINE": "1",
                "PYTHONWARNINGS": "ignore",
                "SGLANG_PLUGINS": plugins,
            }
            runs = []
            for _ in range(repeat):
                command = [sys.executable, __file__, "--inside", role]
                done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout.splitlines()[-1])[role])
            medians.append(statistics.median(runs))
        spent[role] = medians[0] - medians[1]
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("release", nargs="*")
    parser.add_argument("--repeat", type=int, default=5)
    default = Path.home() / ".cache" / "sglang-guards" / "trees"
    parser.add_argument("--trees", type=Path, default=Path(os.environ.get("SGLANG_GUARDS_TREES", default)))
    parser.add_argument("--inside", choices=("launcher", "worker"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        print(json.dumps(launcher() if asked.inside == "launcher" else worker()))
        return
    compileall.compile_dir(ROOT / "sglang_guards", quiet=1)  # as pip does when it installs
    print(f"command  python benchmarks/bench_overhead.py {' '.join(asked.release)} --repeat {asked.repeat}")
    print(f"machine  {os.cpu_count()} cores, Python {sys.version.split()[0]}, load {os.getloadavg()[0]:.1f}")
    for release in asked.release:
        print(
            f"{release:14}",
            {k: f"{v:.1f} ms" for k, v in measure(release, asked.trees, asked.repeat).items()},
        )


if __name__ == "__main__":
    main()
