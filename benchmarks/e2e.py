"""A real SGLang engine end to end: time to first token, time per output token, tokens per second, and the tokens.

Every arm is a process of its own with dummy weights (or a real model), greedy decoding and the same prompts:

    off       as SGLang starts without the flag
    guards    the same with sglang-guards attached: same tokens, same speed
    on        --enable-fused-moe-sum-all-reduce as installed
    hotfix    on, SGLANG_GUARDS_HOTFIX=relaxed-atomics
    series    on, with the patch series (a tree made by patched_tree.py)
    ep-off, ep-on, ep-guarded, ep-series      the same under expert parallelism (EP = TP): as installed `ep-on` dies
    fusion-off, fusion-auto, fusion-extended  FlashInfer all-reduce fusion (two GPUs or more, NVLink multicast needed by
              some of its kernels: do not run these where it must stay off)

    python benchmarks/e2e.py --tp 2 --arms off guards on hotfix series --out benchmarks/results/NAME.jsonl
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
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
}  # fmt: skip
#: For a port of its own per arm, so that arms can start at once.
ARMS = ("off", "guards", "on", "hotfix", "series", "ep-off", "ep-on", "ep-guarded", "ep-series", "fusion-off")
FUSION = {"fusion-auto": "auto", "fusion-extended": "auto"}


def model_folder(name: str, layers: int, vocabulary: int = 32000) -> Path:
    """A folder with a config.json of these dimensions; weights are dummies."""
    folder = Path(tempfile.mkdtemp(prefix="sglang-guards-model-"))
    config = {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "num_hidden_layers": layers,
        "vocab_size": vocabulary, "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000.0,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False,
        "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "bos_token_id": 1, "eos_token_id": 2,
        **DIMENSIONS[name],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def arguments(arm: str, model: str, tp: int, extra: dict[str, Any]) -> dict[str, Any]:
    """Engine arguments of an arm."""
    values: dict[str, Any] = {
        "model_path": model, "load_format": "dummy", "skip_tokenizer_init": True, "tp_size": tp, "random_seed": 7,
        "attention_backend": "triton", "sampling_backend": "pytorch", "disable_radix_cache": True,
        "disable_custom_all_reduce": True, "enforce_disable_flashinfer_allreduce_fusion": True,
        "moe_runner_backend": "triton", "mem_fraction_static": 0.3, "max_total_tokens": 65536,
        "chunked_prefill_size": 16384, "max_running_requests": 32, "cuda_graph_max_bs": 32, "log_level": "warning",
    }  # fmt: skip
    if arm in ("on", "hotfix", "series", "ep-on", "ep-guarded", "ep-series"):
        values["enable_fused_moe_sum_all_reduce"] = True
    if arm.startswith("ep-"):
        values["ep_size"] = tp
    if arm.startswith("fusion-"):
        values["disable_custom_all_reduce"] = False
    if arm in FUSION:
        values.pop("enforce_disable_flashinfer_allreduce_fusion")
    if arm == "fusion-auto":
        values["flashinfer_allreduce_fusion_backend"] = None  # SGLang's own list decides
    values["nccl_port"] = 41000 + 7 * (ARMS.index(arm) if arm in ARMS else len(ARMS) + len(arm))
    return values | extra


def environment(arm: str, series: Path | None) -> dict[str, str]:
    """Environment of an arm: which SGLang tree, and whether the guards are attached."""
    env = dict(os.environ, HF_HUB_OFFLINE="1", SGLANG_ENABLE_JIT_DEEPGEMM="0")
    paths = [str(HERE.parent), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    if arm.endswith("series"):
        if series is None:
            raise SystemExit("--series-tree is needed for the series arms (make one with patched_tree.py)")
        paths.insert(0, str(series))
    if arm in ("guards", "hotfix", "ep-guarded", "fusion-extended"):
        paths.insert(0, str(_plugin()))
    env["PYTHONPATH"] = os.pathsep.join(paths)
    env.pop("SGLANG_GUARDS", None)
    if arm in ("off", "on", "series", "ep-off", "ep-on", "ep-series"):
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


def child(values: dict[str, Any], rounds: int) -> dict[str, Any]:
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


def run_arm(arm: str, model: str, args: argparse.Namespace) -> dict[str, Any]:
    """One arm in a subprocess; a server that dies or refuses is a result."""
    extra = json.loads(args.engine_args)
    values = arguments(arm, model, args.tp, extra)
    began = time.time()
    command = [
        sys.executable,
        __file__,
        "--child",
        json.dumps(values),
        "--rounds",
        str(0 if arm.startswith("ep-") else args.rounds),
    ]
    try:
        done = subprocess.run(
            command,
            env=environment(arm, args.series_tree),
            capture_output=True,
            text=True,
            timeout=args.timeout,
        )
        output, code = done.stdout + "\n" + done.stderr, done.returncode
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    except subprocess.TimeoutExpired as late:
        output = (late.stdout or b"").decode(errors="replace") + (late.stderr or b"").decode(errors="replace")
        code, lines = -1, [line for line in output.splitlines() if line.startswith('{"')]
    row: dict[str, Any] = {"arm": arm, "tp": args.tp, "exit": code, "seconds": round(time.time() - began, 1)}
    served = [json.loads(line)["served"] for line in lines if line.startswith('{"served"')]
    final = [json.loads(line)["result"] for line in lines if line.startswith('{"result"')]
    row |= {"served": served, **(final[-1] if final else {})}
    if not final:
        words = (
            ("LaunchRefused", "FMS101")
            if "LaunchRefused" in output
            else ("illegal memory access", "CUDA error", "out of memory")
        )
        row["died"] = [word for word in words if word in output]
        row["log_tail"] = output[-1500:]
    return row


def run_together(
    arms: list[str], tp: int, series_tree: Path | None, *, layers: int = 4, timeout: float = 240
) -> dict[str, dict[str, Any]]:
    """Tokens of several arms at once on the same GPUs, by arm; no times. Each takes a few GiB."""
    wanted = argparse.Namespace(
        tp=tp,
        rounds=0,
        timeout=timeout,
        series_tree=series_tree,
        engine_args=json.dumps({"mem_fraction_static": 0.7}),
    )
    model = str(model_folder("Qwen3-30B-A3B", layers))
    with ThreadPoolExecutor(len(arms)) as pool:
        return dict(zip(arms, pool.map(lambda arm: run_arm(arm, model, wanted), arms), strict=True))


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
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps({"result": child(json.loads(args.child), args.rounds)}), flush=True)
        return 0
    model = args.model or str(model_folder(args.dimensions, args.layers))
    if args.model:
        args.engine_args = json.dumps({"load_format": "auto"} | json.loads(args.engine_args))
    where = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "model": Path(args.model).name
        if args.model
        else f"{args.dimensions}, {args.layers} layers, dummy weights",
        "command": "python benchmarks/e2e.py "
        + " ".join(a if os.sep not in a else Path(a).name for a in sys.argv[1:]),
        **device(),
    }
    with ThreadPoolExecutor(len(args.arms) if args.together else 1) as pool:
        rows = []
        for row in pool.map(lambda arm: run_arm(arm, model, args), args.arms):
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
