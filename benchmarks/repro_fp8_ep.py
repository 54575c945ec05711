"""Per-tensor FP8 experts with dynamic activations under expert parallelism: does the default path repeat, is it right?

SGLang's own FusedMoE layer and dispatcher as rank 0 of EP 2 on one GPU (the other rank is imagined), the flag off, no
poison: each call beside the same call with buffers that were cleared. Half of the routes go to the other rank.

    python benchmarks/repro_fp8_ep.py --out benchmarks/results/NAME.jsonl          kinds × runners, eager and replayed
    python benchmarks/repro_fp8_ep.py --cost --out …                               what repairs cost, per token count

Kinds: `online` (a 16-bit checkpoint and --quantization fp8), `serialized` (FP8 weights with one scale per expert,
dynamic activations), `static` (the same with stored activation scales), `block` (128 × 128), the last two as controls.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sglang_guards.bench import cell, kernels, layer, process, runners, timing  # noqa: E402

EXPERTS, INTER, HIDDEN, TOP_K, STEPS = 64, 768, 2048, 8, 12
BATCHES = (2048, 64, 64, 512, 4096, 64, 128, 1024, 32, 32, 8192, 64, 16, 2048, 4096, 64)
DECODE = (1, 8, 32, 64)
KINDS = ("online", "serialized", "static", "block")
RUNNERS = ("triton", "auto", "cutlass", "deep_gemm", "flashinfer_cutlass", "marlin")
WRONG = 0.01


def quant_config(kind: str) -> Any:
    from sglang.srt.layers.quantization.fp8 import Fp8Config

    return Fp8Config(
        is_checkpoint_fp8_serialized=kind != "online",
        activation_scheme="static" if kind == "static" else "dynamic",
        weight_block_size=[128, 128] if kind == "block" else None,
    )


def build(kind: str, runner: str) -> Any:
    """The layer with random weights, as SGLang leaves it after loading."""
    import torch
    from sglang.srt.layers.moe.fused_moe_triton.layer import FusedMoE

    runners.select(runner)
    torch.manual_seed(0)
    with torch.device("cuda"):
        made = FusedMoE(
            num_experts=EXPERTS, hidden_size=HIDDEN, intermediate_size=INTER, layer_id=0, top_k=TOP_K,
            params_dtype=torch.bfloat16, quant_config=quant_config(kind), prefix="model.layers.0.mlp.experts",
        )  # fmt: skip
        for name, parameter in made.named_parameters():
            if parameter.dim() == 3 and "scale" not in name:
                values = torch.randn(parameter.shape, dtype=torch.float32)
                if kind == "online":
                    values /= parameter.shape[-1] ** 0.5
                parameter.data.copy_(values.to(parameter.dtype))
            elif "input_scale" in name:
                parameter.data.fill_(0.02)
            elif "scale" in name:
                parameter.data.copy_((torch.rand(parameter.shape) + 0.5) / HIDDEN**0.5)
        with torch.no_grad():
            made.quant_method.process_weights_after_loading(made)
    return made


@contextmanager
def cleared() -> Iterator[None]:
    """torch.empty gives zeros inside the block."""
    import torch
    from torch.overrides import TorchFunctionMode

    swap = {torch.empty: torch.zeros, torch.empty_like: torch.zeros_like}

    class Zeroed(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return swap.get(func, func)(*args, **(kwargs or {}))

    with Zeroed():
        yield


class Steps:
    """What a model does between expert layers, reduced to what leaves things in memory: norm, an FP8 projection."""

    def __init__(self, call: Callable[[Any, Any], Any]) -> None:
        import torch

        self.torch, self.call = torch, call
        self.projection = torch.randn(HIDDEN, HIDDEN, device="cuda", dtype=torch.bfloat16) / HIDDEN**0.5

    def routes(self, tokens: int) -> Any:
        from sglang.srt.layers.moe.topk import StandardTopKOutput

        torch = self.torch
        scores = torch.rand(tokens, EXPERTS, device="cuda")
        weights = torch.softmax(torch.rand(tokens, TOP_K, device="cuda"), -1)
        return StandardTopKOutput(weights, scores.topk(TOP_K, 1).indices.int(), scores)

    def before(self, x: Any) -> Any:
        torch = self.torch
        normed = x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype)
        quantized = (normed * 8).to(torch.float8_e4m3fn)
        return x + (quantized.to(torch.bfloat16) / 8) @ self.projection

    def after(self, h: Any, out: Any) -> Any:
        return self.torch.nan_to_num((h + out).clamp(-50, 50))

    def error(self, h: Any, routes: Any, out: Any) -> float:
        with cleared():
            right = self.call(h, routes)
        return layer.relative(out, right)

    def eager(self) -> list[float]:
        torch, errors = self.torch, []
        torch.manual_seed(1)
        for tokens in BATCHES:
            x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
            for _ in range(STEPS):
                h, routes = self.before(x), self.routes(tokens)
                out = self.call(h, routes)
                errors.append(self.error(h, routes, out))
                x = self.after(h, out)
        return errors

    def replayed(self) -> list[float]:
        """The same as one CUDA graph per batch size, all in one pool, as decoding does it."""
        torch, errors = self.torch, []
        torch.manual_seed(2)
        pool, graphs = torch.cuda.graph_pool_handle(), []
        for tokens in sorted(DECODE, reverse=True):
            x = torch.randn(tokens, HIDDEN, device="cuda", dtype=torch.bfloat16)
            routes = [self.routes(tokens) for _ in range(STEPS)]
            kept: list[tuple[Any, Any]] = []

            def run(x: Any = x, routes: Any = routes, kept: Any = kept) -> None:
                kept.clear()
                for each in routes:
                    h = self.before(x)
                    out = self.call(h, each)
                    kept.append((h.clone(), out.clone()))
                    x = self.after(h, out)

            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                run()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                run()
            graphs.append((graph, x, routes, list(kept)))
        for _ in range(3):
            for graph, x, routes, kept in graphs:
                x.copy_(torch.randn_like(x))
                for each in routes:
                    fresh = self.routes(x.shape[0])
                    for old, new in zip(each, fresh, strict=True):
                        old.copy_(new)
                graph.replay()
                torch.cuda.synchronize()
                found = [(h.clone(), out.clone()) for h, out in kept]
                errors += [self.error(h, r, out) for (h, out), r in zip(found, routes, strict=True)]
        return errors


def summary(errors: list[float]) -> dict[str, Any]:
    bad = [e for e in errors if not e < WRONG]
    return {
        "calls": len(errors),
        "wrong": len(bad),
        "not_finite": sum(e != e or e == float("inf") for e in bad),
        "largest_finite": round(max((e for e in bad if e == e and e != float("inf")), default=0.0), 3),
    }


def sequence_with(series: bool) -> Any:
    """SGLang's module, and the patched copy's entry point where `series`."""
    import importlib

    module = importlib.import_module(kernels.names(kernels.root())[0])
    if series:
        module.fused_experts = patched().fused_experts  # type: ignore[attr-defined]
    return module


def patched() -> Any:
    import sglang

    files = kernels.texts(kernels.root())
    for patch in sorted((HERE.parent / "patches" / f"v{sglang.__version__}").glob("[0-9]*.patch")):
        files = kernels.apply_diff(files, patch.read_text(encoding="utf-8"), only_these=True)
    return kernels.load("series", files, kernels.root())


def judge(kind: str, runner: str, series: bool) -> dict[str, Any]:
    import torch

    row: dict[str, Any] = {"kind": kind, "runner": runner, "series": series}
    try:
        made = build(kind, runner)
        row["used"] = runners.used_runner(made, runner)

        def call(h: Any, routes: Any) -> Any:
            runners.select(runner)
            ids = routes.topk_ids.clone()
            with torch.no_grad():
                return made(h.clone(), routes._replace(topk_ids=ids))

        row["eager"] = summary(Steps(call).eager())
        row["replayed"] = summary(Steps(call).replayed())
    except Exception as error:  # a runner that cannot run this kind says why
        row["reason"] = runners.reason_of(error)
    return row


def cost(tokens: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    """Time of the layer's kernels with per-tensor FP8, half of the routes elsewhere: as installed, with the series'
    scale over routed rows, and with the buffer cleared."""
    import torch
    from sglang.srt.layers.moe import MoeRunnerConfig
    from sglang.srt.layers.moe.topk import StandardTopKOutput

    files = kernels.texts(kernels.root())
    path = next(p for p in files if p.endswith("/fused_moe.py"))
    old, new = "        intermediate_cache2 = torch.empty(", "        intermediate_cache2 = torch.zeros("
    if old not in files[path]:
        old, new = old[4:], new[4:]
    modules = {
        "installed": kernels.load("plain", files, kernels.root()),
        "rows": patched(),
        "cleared": kernels.load("zeros", files | {path: files[path].replace(old, new)}, kernels.root()),
    }
    for module in modules.values():
        kernels.set_flag(module, False)
    generator = torch.Generator(device="cuda").manual_seed(0)

    def experts(rows: int, columns: int) -> tuple[Any, Any]:
        full = torch.randn(EXPERTS, rows, columns, device="cuda", generator=generator) / columns**0.5
        scale = full.abs().amax((1, 2)) / 448
        return (full / scale[:, None, None]).to(torch.float8_e4m3fn), scale

    (w1, s1), (w2, s2) = experts(2 * INTER, HIDDEN), experts(HIDDEN, INTER)
    config = MoeRunnerConfig(
        num_experts=2 * EXPERTS, num_local_experts=EXPERTS, top_k=TOP_K, hidden_size=HIDDEN, inplace=False
    )
    for count in tokens:
        cell.reset_dynamo()
        hidden = torch.randn(count, HIDDEN, device="cuda", dtype=torch.bfloat16)
        scores = torch.rand(count, 2 * EXPERTS, device="cuda")
        ids = scores.topk(TOP_K, 1).indices.int()
        ids = torch.where(ids < EXPERTS, ids, torch.full_like(ids, -1))
        weights = torch.softmax(torch.rand(count, TOP_K, device="cuda"), -1)

        topk = StandardTopKOutput(weights, ids, scores)

        def of(module: Any, topk: Any = topk, hidden: Any = hidden) -> Callable[[], Any]:
            return lambda: module.fused_experts(
                hidden, w1, w2, topk, config, use_fp8_w8a8=True, w1_scale=s1, w2_scale=s2
            )

        calls = {name: of(module) for name, module in modules.items()}
        samples = timing.interleaved(calls, rounds=rounds, cold=True)
        same = layer.relative(calls["rows"](), calls["cleared"]())
        yield {
            "tokens": count,
            "us": {name: s.to_dict() for name, s in samples.items()},
            "rows_against_cleared": round(same, 5),
        }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--runners", nargs="+", default=list(RUNNERS))
    parser.add_argument("--series", action="store_true", help="with the patch series of this release")
    parser.add_argument("--cost", action="store_true")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8, 64, 512, 4096, 16384])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    os.environ.setdefault("SGLANG_JIT_DEEPGEMM_PRECOMPILE", "0")
    process.set_up(ranks=1 if args.cost else 2, ep=1 if args.cost else 2)
    kernels.set_flag(sequence_with(args.series), False)
    where = cell.origin(kernels.root(), "python benchmarks/repro_fp8_ep.py " + " ".join(sys.argv[1:]))
    rows = (
        cost(args.tokens, args.rounds)
        if args.cost
        else (judge(k, r, args.series) for k in args.kinds for r in args.runners)
    )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("a", encoding="utf-8") as sink:
        for row in rows:
            print(json.dumps(row), flush=True)
            sink.write(json.dumps(row | where) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
