"""The benchmark's process holds all that SGLang's MoE code asks of it: arguments, groups, runner, in every era."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.trees import tree

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = Path(__file__).resolve().parent / "site"
#: One release for each way of holding arguments, groups and MoE settings.
RELEASES = ("0.5.11", "0.5.15", "0.5.16", "0.5.19", "0.5.23")
SCRIPT = """
import importlib, json, os, sys, warnings
warnings.simplefilter("ignore")
import torch, transformers  # most of the start, for all forks at once; SGLang itself is imported in each
from sglang_guards.bench import kernels, process, runners
for words in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        break
    assert os.waitpid(child, 0)[1] == 0, words
else:
    sys.exit()
ranks, made = int(words[0]), words[1:]
process.set_up(ranks=ranks, ep=ranks) if made == "all" else process.publish_args()
module = importlib.import_module(kernels.names(kernels.root())[0])
found = {}
for flag in (True, False):
    kernels.set_flag(module, flag)
    for name in ("get_global_server_args", "get_server_args", "get_exec"):
        if hasattr(module, name):
            args = getattr(module, name)()
            args = args.moe if name == "get_exec" else args
            found[str(flag)] = args.enable_fused_moe_sum_all_reduce
try:  # what the default path asks for when it allocates its output
    if hasattr(module, "get_parallel"):
        group = module.get_parallel().tp_group
    elif hasattr(module, "get_tp_group"):
        group = module.get_tp_group()
    else:
        group = None
    found["tp"] = group.world_size if group else None
except Exception as error:
    found["tp"] = type(error).__name__
from sglang.srt.layers.moe.utils import get_moe_runner_backend
for name in ("triton", "deep_gemm"):
    runners.select(name)
    assert get_moe_runner_backend().value == name
found["offered"] = len(runners.offered())
print(json.dumps(found), flush=True)
"""


@cache
def _process(release: str, *asked: str) -> list[dict[str, Any]]:
    """The answers of one interpreter that forks for each: a number of ranks, and `all` or `args` is made."""
    paths = [str(ROOT), str(STAND_INS), str(tree(release))]
    env = dict(os.environ, HF_HUB_OFFLINE="1", PYTHONPATH=os.pathsep.join(paths))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *asked],
        capture_output=True, text=True, env=env, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("release", RELEASES)
def test_what_the_kernel_path_asks_for_is_there(release: str, ranks: int) -> None:
    found = _process(release, "1all", "2all")[ranks - 1]
    assert (found["True"], found["False"]) == (True, False)
    assert found["tp"] == (ranks if release >= "0.5.16" else None)
    assert found["offered"] > 5


def test_arguments_alone_are_not_enough_from_0_5_16_on() -> None:
    """The fault that this module was written against, so that the test above can fail."""
    assert _process("0.5.23", "1args")[0]["tp"] == "RuntimeError"
