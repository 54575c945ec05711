"""Test-only SGLang plugin: lets a real launcher on a machine without a GPU pose as the one in $SGLANG_GUARDS_TEST_GPU.

The launcher's modules bind CUDA-only packages at import when they see a GPU, so they are imported first. A launch that
the guard lets pass dies in the worker, which finds no GPU: assert texts, never exit codes alone.
"""

import importlib
import os


def register():
    wanted = os.environ.get("SGLANG_GUARDS_TEST_GPU")
    if not wanted:
        return
    from sglang_guards.launch import gpus
    from sglang_guards.preflight import simulated_gpu

    simulated_gpu.warm_up()
    importlib.import_module("sglang.srt.entrypoints.http_server")
    simulated_gpu.strike(gpus.parse(wanted))
