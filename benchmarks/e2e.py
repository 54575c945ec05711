"""A real SGLang engine end to end: time to first token, time per output token, tokens per second, and the tokens.

Every arm is a process of its own with dummy weights (or a real model), greedy decoding and the same prompts:

    off       as SGLang starts without the flag
    guards    the same with sglang-guards attached: same tokens, same speed
    on        --enable-fused-moe-sum-all-reduce as installed
    hotfix    on, SGLANG_GUARDS_HOTFIX=relaxed-atomics
    series    on, with the patch series (a tree made by patched_tree.py)
    off-tiles, series-tiles   with tiles of its own for the down projection (--tiles; see `sglang-guards bench --tune`)
    runner-NAME   without the flag, with --moe-runner-backend NAME
    ep-off, ep-on, ep-guarded, ep-series      the same under expert parallelism (EP = TP): as installed `ep-on` dies
    fusion-off, fusion-auto, fusion-extended  FlashInfer all-reduce fusion (two GPUs or more, NVLink multicast needed by
              some of its kernels: do not run these where it must stay off)

All arms start at once; then they are measured one after the other, while the others are idle.

    python benchmarks/e2e.py --tp 2 --arms off guards on hotfix series --out benchmarks/results/NAME.jsonl
    python benchmarks/e2e.py --dimensions Qwen3-235B-A22B-tp4 --fp8 --arms off on series runner-cutlass --out …
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

#: Dimensions of a Qwen3 MoE; one layer more or less changes nothing in kind.
DIMENSIONS: dict[str, dict[str, int]] = {
    "Qwen3-30B-A3B": {
        "hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "intermediate_size": 6144,
    },
    "Qwen3-235B-A22B": {
        "hidden_size": 4096, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "intermediate_size": 12288,
    },
    "Qwen3-235B-A22B-tp4": {  # one rank's shard as a model of its own
        "hidden_size": 4096, "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 128,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 384, "intermediate_size": 3072,
    },
    "Qwen3.5-122B-A10B-tp4": {  # the experts of one rank's shard, in a Qwen3 MoE
        "hidden_size": 3072, "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256,
        "num_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 256, "intermediate_size": 3072,
    },
}  # fmt: skip
#: For a port of its own per arm, so that arms can start at once.
ARMS = ("off", "guards", "on", "hotfix", "series", "ep-off", "ep-on", "ep-guarded", "ep-series", "fusion-off")
FUSION = {"fusion-auto": "auto", "fusion-extended": "auto"}


def model_folder(name: str, layers: int, vocabulary: int = 32000, *, fp8: bool = False) -> Path:
    """A folder with a config.json of these dimensions; weights are dummies."""
    folder = Path(tempfile.mkdtemp(prefix="sglang-guards-model-"))
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": layers,
        "vocab_size": vocabulary, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "bos_token_id": 1, "eos_token_id": 2,
        **DIMENSIONS[name],
    }  # fmt: skip
    if fp8:
        config["quantization_config"] = {
            "quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
        }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def arguments(arm: str, model: str, tp: int, extra: dict[str, Any]) -> dict[str, Any]:
    """Engine arguments of an arm."""
    values: dict[str, Any] = {
        "model_path": model, "load_format": "dummy", "skip_tokenizer_init": True, "tp_size": tp, "random_seed": 7,
        "attention_backend": "triton", "sampling_backend": "pytorch", "disable_radix_cache": True,
        "disable_custom_all_reduce": True, "enforce_disable_flashinfer_allreduce_fusion": True,
        "moe_runner_backend": "triton", "mem_fraction_static": 0.7, "max_total_tokens": 65536,
        "chunked_prefill_size": 16384, "max_running_requests": 32, "cuda_graph_max_bs": 32, "log_level": "warning",
    }  # fmt: skip
    if arm.startswith("runner-"):
        values["moe_runner_backend"] = arm.removeprefix("runner-")
    if arm in ("on", "hotfix", "series", "series-tiles", "ep-on", "ep-guarded", "ep-series"):
        values["enable_fused_moe_sum_all_reduce"] = True
    if arm.startswith("ep-"):
        values["ep_size"] = tp
    if arm.startswith("fusion-"):
        values["disable_custom_all_reduce"] = False
    if arm in FUSION:
        values.pop("enforce_disable_flashinfer_allreduce_fusion")
    if arm == "fusion-auto":
        values["flashinfer_allreduce_fusion_backend"] = None  # SGLang's own list decides
    values["nccl_port"] = 41000 + 7 * (
        ARMS.index(arm) if arm in ARMS else len(ARMS) + sum(map(ord, arm)) % 200
    )
    return values | extra


def environment(arm: str, series: Path | None, tiles: Path | None = None) -> dict[str, str]:
    """Environment of an arm: which SGLang tree, and whether the guards are attached. DeepGEMM compiles what is used."""
    env = dict(os.environ, HF_HUB_OFFLINE="1", SGLANG_JIT_DEEPGEMM_PRECOMPILE="0")
    env["SGLANG_SKIP_SGL_KERNEL_VERSION_CHECK"] = (
        "1"  # the host's torch may be older than the newest kernel package
    )
    if arm.endswith("-tiles"):
        if tiles is None:
            raise SystemExit("--tiles is needed for the arms with tiles")
        env["SGLANG_MOE_CONFIG_DIR"] = str(tiles / arm.removesuffix("-tiles"))
    paths = [str(HERE.parent), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if arm.removesuffix("-tiles").endswith("series"):
        if series is None:
            raise SystemExit("--series-tree is needed for the series arms (make one with patched_tree.py)")
        paths.insert(0, str(series))
    if arm in ("guards", "hotfix", "ep-guarded", "fusion-extended"):
        paths.insert(0, str(_plugin()))
    env["PYTHONPATH"] = os.pathsep.join(paths)
    env.pop("SGLANG_GUARDS", None)
    if arm in ("off", "on", "series", "ep-off", "ep-on", "ep-series") or "runner-" in arm or "-tiles" in arm:
        env["SGLANG_GUARDS"] = "off"
    if arm == "hotfix":
        env |= {"SGLANG_GUARDS_HOTFIX": "relaxed-atomics", "SGLANG_GUARDS": "warn"}
    if arm in ("guards", "ep-guarded"):
        env["SGLANG_GUARDS_AUTO"] = "0"
    return env


def _plugin() -> Path:
    """A folder that tells SGLang's plugin loader of this checkout, as an installed package would."""
    folder = Path(tempfile.mkdtemp(prefix="sglang-guards-plugin-"))
    info = folder / "sglang_guards-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sglang-guards\nVersion: 0.0.0\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nsglang_guards = sglang_guards.plugin:register\n"
    )
    return folder


def child(values: dict[str, Any], rounds: int, waits: bool) -> dict[str, Any]:
    """In the arm's own process: start the engine, run the workloads, return times and tokens."""
    import random

    import sglang
    from sglang.srt.server_args import ServerArgs

    fields = getattr(ServerArgs, "__dataclass_fields__", None) or ServerArgs.__struct_fields__
    # 0.5.15 and later name CUDA graph settings per phase; prefill graphs are left out, they only make the start longer.
    for old, new in (("cuda_graph_max_bs", "cuda_graph_max_bs_decode"), ("", "cuda_graph_backend_prefill")):
        if old in values and old not in fields:
            values[new] = values.pop(old)
        elif not old and new in fields:
            values.setdefault(new, "disabled")
    began = time.time()
    engine = sglang.Engine(**values)
    out: dict[str, Any] = {"start_s": round(time.time() - began, 1), "sglang": sglang.__version__}
    print(json.dumps({"ready": out["start_s"]}), flush=True)
    if waits:
        sys.stdin.readline()

    def prompts(count: int, length: int) -> list[list[int]]:
        rng = random.Random(length)
        return [[rng.randrange(10, 30000) for _ in range(length)] for _ in range(count)]

    def generate(batch: list[list[int]], tokens: int) -> tuple[float, list[list[int]]]:
        start = time.perf_counter()
        answers = engine.generate(
            input_ids=batch, sampling_params={"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
        )
        return time.perf_counter() - start, [a["output_ids"] for a in answers]

    out["tokens"] = {}
    for count, length in ((4, 16), (4, 300), (2, 4000)):
        out["tokens"][f"{count}x{length}"] = generate(prompts(count, length), 16)[1]
        print(json.dumps({"served": f"{count}x{length}"}), flush=True)
    if rounds:
        for name, batch in (
            ("1x16000", prompts(1, 16000)),
            ("8x2000", prompts(8, 2000)),
            ("32x64", prompts(32, 64)),
        ):
            first = [generate(batch, 1)[0] for _ in range(rounds + 1)][1:]
            row = {"ttft_ms": round(statistics.median(first) * 1e3, 2)}
            if name == "32x64":
                whole = [generate(batch, 129)[0] for _ in range(max(3, rounds // 2) + 1)][1:]
                took = statistics.median(whole)
                row["tpot_ms"] = round((took - statistics.median(first)) / 128 * 1e3, 4)
                row["tokens_per_s"] = round(32 * 129 / took, 1)
            out.setdefault("workloads", {})[name] = row
    engine.shutdown()
    return out


class Arm:
    """One arm in a subprocess; a server that dies or refuses is a result."""

    def __init__(self, arm: str, model: str, args: argparse.Namespace, *, waits: bool) -> None:
        self.arm, self.tp = arm, args.tp
        self.began = time.time()
        self.deadline = self.began + args.timeout
        values = arguments(arm, model, args.tp, json.loads(args.engine_args))
        rounds = 0 if arm.startswith("ep-") else args.rounds
        command = [sys.executable, __file__, "--child", json.dumps(values), "--rounds", str(rounds)]
        self.log = tempfile.NamedTemporaryFile("w+", prefix=f"e2e-{arm}-", suffix=".log", delete=False)  # noqa: SIM115
        self.process = subprocess.Popen(
            [*command, *(["--wait"] if waits else [])],
            env=environment(arm, args.series_tree, args.tiles),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            start_new_session=True,
        )
        self.lines: list[str] = []
        self.started = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith('{"ready"'):
                self.started.set()
        self.started.set()

    def wait_until_started(self) -> None:
        self.started.wait(max(1.0, self.deadline - time.time()))

    def go(self) -> None:
        """Measure now."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("go\n")
            self.process.stdin.flush()

    def end(self) -> None:
        """End what is left of the arm's processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def finish(self) -> dict[str, Any]:
        """The arm's row, once it has ended or its time is up."""
        try:
            code = self.process.wait(max(1.0, self.deadline - time.time()))
        except subprocess.TimeoutExpired:
            code = -1
        self.end()
        self.reader.join(5)
        self.log.flush()
        output = "".join(self.lines) + Path(self.log.name).read_text(errors="replace")
        row: dict[str, Any] = {
            "arm": self.arm, "tp": self.tp, "exit": code, "seconds": round(time.time() - self.began, 1)
        }  # fmt: skip
        answers = [json.loads(line) for line in self.lines if line.startswith('{"')]
        final = [a["result"] for a in answers if "result" in a]
        row |= {"served": [a["served"] for a in answers if "served" in a], **(final[-1] if final else {})}
        if not final:
            refused = ("LaunchRefused", "FMS101")
            words = (
                refused if refused[0] in output else ("illegal memory access", "CUDA error", "out of memory")
            )
            row["died"] = [word for word in words if word in output]
            errors = [
                line.strip()
                for line in output.splitlines()
                if re.match(r"\s*\w*(\.\w+)*(Error|Exception)\b", line)
            ]
            row["error_lines"] = errors[:3]
            row["log_tail"] = output[-1500:]
        return row


def run_all(arms: list[str], model: str, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Start every arm; then one after the other, or all at once with --together."""
    started = [Arm(arm, model, args, waits=not args.together) for arm in arms]
    try:
        for arm in started:
            arm.wait_until_started()
        for arm in started:
            arm.deadline = max(arm.deadline, time.time() + 60)
            arm.go()
            yield arm.finish()
    finally:
        for arm in started:
            arm.end()


def run_together(
    arms: list[str], tp: int, series_tree: Path | None, *, layers: int = 4, timeout: float = 240
) -> dict[str, dict[str, Any]]:
    """Tokens of several arms at once on the same GPUs, by arm; no times. Each takes a few GiB."""
    wanted = argparse.Namespace(
        tp=tp,
        rounds=0,
        timeout=timeout,
        series_tree=series_tree,
        engine_args="{}",
        together=True,
        tiles=None,
    )
    model = str(model_folder("Qwen3-30B-A3B", layers))
    return dict(zip(arms, run_all(arms, model, wanted), strict=True))


def device() -> dict[str, Any]:
    """GPU names and driver."""
    try:
        text = subprocess.run(
            ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout.strip()  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return {}
    return {
        "device": text.splitlines()[0].split(",")[0],
        "gpus": len(text.splitlines()),
        "driver": text.split(",")[-1].strip(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arms", nargs="+", default=["off", "guards", "on", "hotfix"])
    parser.add_argument("--together", action="store_true", help="run the arms at once (tokens, not times)")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--model", help="a model folder with real weights; default: dummy weights")
    parser.add_argument("--dimensions", choices=sorted(DIMENSIONS), default="Qwen3-30B-A3B")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--timeout", type=float, default=240)
    parser.add_argument("--series-tree", type=Path, help="made by patched_tree.py")
    parser.add_argument("--engine-args", default="{}", help="more engine arguments, JSON")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--no-deep-gemm", action="store_true", help="linear layers without DeepGEMM")
    parser.add_argument("--fp8", action="store_true", help="dummy weights in FP8, blocks of 128 × 128")
    parser.add_argument(
        "--tiles", type=Path, help="folder with SGLANG_MOE_CONFIG_DIR trees `off` and `series`"
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--wait", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps({"result": child(json.loads(args.child), args.rounds, args.wait)}), flush=True)
        return 0
    if args.no_deep_gemm:
        os.environ["SGLANG_ENABLE_JIT_DEEPGEMM"] = "0"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # so that the arms end too
    model = args.model or str(model_folder(args.dimensions, args.layers, fp8=args.fp8))
    if args.model:
        args.engine_args = json.dumps({"load_format": "auto"} | json.loads(args.engine_args))
    where = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "model": Path(args.model).name
        if args.model
        else f"{args.dimensions}, {args.layers} layers, {'FP8 128 × 128' if args.fp8 else 'bf16'}, dummy weights",
        "command": "python benchmarks/e2e.py "
        + " ".join(a if os.sep not in a else Path(a).name for a in sys.argv[1:]),
        **device(),
    }
    rows = []
    for row in run_all(args.arms, model, args):
        rows.append(row)
        shown = {k: v for k, v in row.items() if k not in ("tokens", "log_tail")}
        print(json.dumps(shown), flush=True)
        if args.out:
            args.out.parent.mkdir(parents=True, exist_ok=True)
            with args.out.open("a", encoding="utf-8") as sink:
                sink.write(json.dumps(row | where | {"together": args.together}) + "\n")
    first = next((r for r in rows if r.get("tokens")), None)
    for row in rows:
        if first and row.get("tokens") and row is not first:
            pairs = [
                (a, b)
                for name in first["tokens"]
                for x, y in zip(first["tokens"][name], row["tokens"].get(name, []), strict=False)
                for a, b in zip(x, y, strict=False)
            ]
            same = sum(a == b for a, b in pairs)
            print(f"{row['arm']}: {same} of {len(pairs)} tokens as {first['arm']}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
