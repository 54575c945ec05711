"""What a real engine has loaded: MoE layers, their quantization methods and runners, and bytes of weights per rank.

    python benchmarks/loaded_model.py --model FOLDER [--model …] [--engine-args JSON] --out FILE

For comparison with what `sglang-guards check` builds on the meta device for the same launch. Dummy weights; each engine
is stopped as soon as its weights are loaded and processed. All models are loaded at once on the same GPUs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TARGET = "LOADED_MODEL_OUT"


def register() -> None:
    """Called by SGLang's plugin loader in every process: look at the model once it is loaded."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(
        "sglang.srt.model_executor.model_runner.ModelRunner.load_model", after_load_model, HookType.AFTER
    )


def after_load_model(result: Any, runner: Any, *args: Any, **kwargs: Any) -> None:
    """Write what is there and end the process; nothing else is wanted of this server."""
    rank = int(getattr(runner, "tp_rank", 0) or 0)
    import torch

    found = describe(runner.model) | {"rank": rank, "allocated_bytes": torch.cuda.memory_allocated()}
    Path(f"{os.environ[TARGET]}-{rank}").write_text(json.dumps(found))
    os._exit(0)


def describe(model: Any) -> dict[str, Any]:
    """Modules, MoE layers and bytes of a loaded model; tensors that share storage count once."""
    from collections import Counter

    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    seen: dict[int, int] = {}
    kinds: Counter[str] = Counter()
    for tensor in [*model.parameters(), *model.buffers()]:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen[storage.data_ptr()] = storage.nbytes()
            kinds[str(tensor.dtype)] += storage.nbytes()
    layers: Counter[tuple[str, str, str]] = Counter()
    moe_bytes = 0
    for module in model.modules():
        method = getattr(module, "quant_method", None)
        if method is None:
            continue
        runner = getattr(getattr(method, "runner", None), "runner_backend", None)
        if isinstance(module, FusedMoE):
            moe_bytes += sum(p.numel() * p.element_size() for p in module.parameters())
        layers[(type(module).__name__, type(method).__name__, str(getattr(runner, "value", None)))] += 1
    return {
        "architecture": type(model).__name__,
        "parameter_bytes": sum(p.numel() * p.element_size() for p in model.parameters()),
        "buffer_bytes": sum(b.numel() * b.element_size() for b in model.buffers()),
        "storage_bytes": sum(seen.values()),
        "bytes_by_dtype": dict(kinds),
        "moe_parameter_bytes": moe_bytes,
        "layers": [
            {"kind": kind, "method": method, "runner": runner, "count": count}
            for (kind, method, runner), count in sorted(layers.items())
        ],
    }


def _plugin() -> Path:
    """A folder that tells SGLang's plugin loader of `register`."""
    folder = Path(tempfile.mkdtemp(prefix="loaded-model-plugin-"))
    info = folder / "loaded_model-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loaded-model\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\nloaded_model = loaded_model:register\n")
    return folder


def load(number: int, model: Path, extra: dict[str, Any], timeout: float) -> list[dict[str, Any]]:
    """Rows of one model, one per rank; one with `reason` where nothing was loaded."""
    values: dict[str, Any] = {
        "model_path": str(model), "load_format": "dummy", "skip_tokenizer_init": True, "attention_backend": "triton",
        "mem_fraction_static": 0.9, "disable_radix_cache": True, "log_level": "warning",
        "nccl_port": 43000 + 7 * number,
    }  # fmt: skip
    values |= extra
    target = Path(tempfile.mkdtemp()) / "loaded"
    env = dict(os.environ, HF_HUB_OFFLINE="1", SGLANG_GUARDS="off", SGLANG_JIT_DEEPGEMM_PRECOMPILE="0")
    env["SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"] = (
        "1"  # the newest kernel package needs a newer torch than the host's
    )
    env[TARGET] = str(target)
    paths = [str(_plugin()), str(HERE), str(HERE.parent), *env.get("PYTHONPATH", "").split(os.pathsep)]
    env["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    code = "import json, sys, sglang\nif __name__ == '__main__': sglang.Engine(**json.loads(sys.argv[1]))"
    script = target.with_name("serve.py")  # a file: the engine's processes import it again
    script.write_text(code)
    head = {"model": model.name, "engine_args": extra, "tp": values.get("tp_size", 1)}
    try:
        done = subprocess.run(
            [sys.executable, str(script), json.dumps(values)],
            env=env, capture_output=True, text=True, timeout=timeout, start_new_session=True,
        )  # fmt: skip
        output = done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        output = (late.stderr or b"").decode(errors="replace")
    found = [json.loads(p.read_text()) for p in sorted(target.parent.glob("loaded-*"))]
    if not found:
        errors = [line for line in output.splitlines() if re.match(r"\w*(\.\w+)*(Error|Exception)\b", line)]
        return [head | {"reason": errors[:3] or output[-800:]}]
    return [head | row for row in found]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, action="append", required=True, help="folder with config.json")
    parser.add_argument("--engine-args", default="{}", help="more engine arguments, JSON")
    parser.add_argument("--timeout", type=float, default=200)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    import e2e
    import sglang

    extra = json.loads(args.engine_args)
    where = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "sglang": sglang.__version__,
        "command": "python benchmarks/loaded_model.py "
        + " ".join(a if os.sep not in a else Path(a).name for a in sys.argv[1:]),
        **e2e.device(),
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(args.model)) as pool, args.out.open("a", encoding="utf-8") as sink:
        jobs = [pool.submit(load, n, m, extra, args.timeout) for n, m in enumerate(args.model)]
        for job in jobs:
            for row in job.result():
                print(json.dumps(row)[:2000], flush=True)
                sink.write(json.dumps(row | where) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
