"""Run scenarios on the SGLang of this process: pose, SGLang's own load_plugins, its parser, resolution and validation.

Reads a JSON list of {argv, gpu, env, path} on standard input; prints one JSON answer per scenario. Each runs in a fork,
since a pose and loaded plugins cannot be undone. `path` holds folders in front of `sys.path`, as where plugins lie.
"""

from __future__ import annotations

import gc
import io
import json
import logging
import os
import pickle
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

FLAG = "enable_fused_moe_sum_all_reduce"


def scenario(asked: dict[str, Any]) -> dict[str, Any]:
    from sglang_guards import sglang_compat
    from sglang_guards.launch import gpus
    from sglang_guards.preflight import simulated_gpu

    os.environ.update(asked.get("env") or {})
    sys.argv = ["sglang.launch_server", *asked["argv"]]
    simulated_gpu.strike(gpus.parse(asked["gpu"]))
    log = io.StringIO()
    handler = logging.StreamHandler(log)  # on our own logger: SGLang's parser replaces the root's handlers
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logging.getLogger("sglang_guards").addHandler(handler)
    logging.getLogger("sglang_guards").setLevel(logging.INFO)
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    if asked.get("beside"):
        sys.path.insert(0, str(Path(__file__).parent / "beside"))
    sys.path[:0] = asked.get("path") or []
    loader = io.StringIO()
    plugins_log = logging.getLogger("sglang.srt.plugins")
    plugins_log.addHandler(logging.StreamHandler(loader))
    plugins_log.setLevel(logging.INFO)
    load_plugins()
    answer: dict[str, Any] = {"raised": None, "text": "", "loader": loader.getvalue()}
    try:
        server_args = prepare_server_args(asked["argv"])
        sglang_compat.resolve(server_args)
        for _ in range(asked.get("times", 1)):
            server_args.check_server_args()
        if asked.get("publish"):
            publish(server_args)
        copy = pickle.loads(pickle.dumps(server_args))
        view = sglang_compat.view(server_args)
        answer |= {
            "replaced": bool(getattr(sys.modules.get("replaces_check"), "CALLS", None)),
            "flag": getattr(view, FLAG, None),
            "worker_flag": getattr(sglang_compat.view(copy), FLAG, None),
            "fusion": getattr(view, "flashinfer_allreduce_fusion_backend", None)
            or getattr(view, "enable_flashinfer_allreduce_fusion", None),
            "args": {name: repr(getattr(view, name, None)) for name in sglang_compat.fields(server_args)},
            "models": sorted(models()),
        }
    except BaseException as error:  # noqa: BLE001 - what was raised is the answer
        answer |= {
            "raised": type(error).__name__,
            "text": str(error),
            "trace": traceback.format_exc()[-2000:],
        }
        answer["is_value_error"] = isinstance(error, ValueError)
    return answer | {"log": log.getvalue().splitlines()}


def models() -> list[str]:
    """Architectures with their classes, where something has imported SGLang's registry."""
    registry = sys.modules.get("sglang.srt.models.registry")
    found = registry.ModelRegistry.models if registry else {}
    return [f"{name}: {getattr(cls, '__module__', cls)}" for name, cls in found.items()]


def publish(server_args: Any) -> None:
    """What the tokenizer process does next; 0.5.15 compares the record with its own declarations there."""
    try:
        from sglang.srt.server_args import set_global_server_args_for_tokenizer as publish_in_this_process
    except ImportError:  # later releases publish through the runtime context, with the ranks of a process
        return
    publish_in_this_process(server_args)


def main() -> None:
    from sglang_guards.preflight import simulated_gpu

    tools = Path(tempfile.mkdtemp(prefix="sglang-guards-tools-"))
    simulated_gpu.write_tools(tools)
    os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
    gc.disable()  # nothing to find in imports
    simulated_gpu.hide()
    simulated_gpu.warm_up()
    gc.freeze()
    gc.enable()
    answers = []
    for asked in json.load(sys.stdin):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read)
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, 1)
            with os.fdopen(write, "w") as pipe:
                json.dump(scenario(asked), pipe)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            answers.append(json.loads(pipe.read() or '{"raised": "crash", "text": "", "log": []}'))
        os.waitpid(child, 0)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
