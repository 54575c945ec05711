# ruff: noqa: E501, C408, PT018 -- tables of arms are read across
"""Times the down projection of fused MoE alone, over epilogues and tile orders.

Where the fused sum wins or loses is decided in one kernel, so this sweep launches that kernel (taken from the
SGLang tree named by --tree, with the edits below made to a copy) on one rank's shapes and compares pipelines:

    off      store into [tokens * top_k, hidden], then moe_sum_reduce        what SGLang does without the flag
    bound    store only                                                      a combine that costs nothing
    X        add into the output (clearing it is arm `zero`)                 the fused sum, variant X
    splitN   N column bands, each stored and then reduced while in L2        deterministic, bitwise equal to off

Arms of X: `relaxed` is SGLang's own tile order with relaxed atomics; `cols C gM` walks bands of C columns, within a band
groups of M row blocks; `fp32` and `int32` accumulate in those types; `wide`/`first` are cache hints on the loads of A.

Run:  python benchmarks/sweep_down_kernel.py --tree SITE --out DIR [--quick]
Device memory: up to 8 GB. Time: about two minutes, half of it compilation in parallel processes.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import multiprocessing as mp
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KERNEL_FILES = (
    "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe_triton_kernels.py",
    "sglang/kernels/ops/moe/fused_moe_triton_kernels.py",
)
KERNELS = ("write_zeros_to_output", "fused_moe_kernel", "_moe_sum_reduce_kernel")
SHAPES = {  # one rank's shard: experts, intermediate per rank, hidden, top-k
    "Qwen3-235B-A22B-tp4": (128, 384, 4096, 8),
    "Qwen3.5-122B-A10B-tp4": (256, 256, 3072, 8),
    "Qwen3.5-397B-A17B-tp4": (512, 256, 4096, 10),
}
CELLS = (
    ("Qwen3-235B-A22B-tp4", "fp8"),
    ("Qwen3-235B-A22B-tp4", "bf16"),
    ("Qwen3.5-122B-A10B-tp4", "fp8"),
    ("Qwen3.5-122B-A10B-tp4", "bf16"),
    ("Qwen3.5-397B-A17B-tp4", "bf16"),
)
TOKENS = (8192, 16384, 2048, 32768, 512, 128)
STORE, ACQ_REL, RELAXED, FP32, INT32, SPLIT = 3, 0, 1, 4, 5, 6
EDITS = (
    (
        "    ROUTER_TOPK: tl.constexpr,\n):",
        """    ROUTER_TOPK: tl.constexpr,
    band,
    group,
    BANDED: tl.constexpr,
    EPI: tl.constexpr,
    A_POLICY: tl.constexpr,
    B_POLICY: tl.constexpr,
):""",
    ),
    (
        "    pid_n = (pid % num_pid_in_group) // group_size_m\n",
        """    pid_n = (pid % num_pid_in_group) // group_size_m
    if BANDED:
        in_band = num_pid_m * band
        first_n = (pid // in_band) * band
        width = min(num_pid_n - first_n, band)
        inside = pid % in_band
        first_m = inside // (group * width) * group
        rows = min(num_pid_m - first_m, group)
        inside = inside % (group * width)
        pid_m = first_m + inside % rows
        pid_n = first_n + inside // rows
""",
    ),
    (
        "            a = tl.load(\n                a_ptrs,\n                mask=token_mask[:, None],\n                other=0.0,\n            )\n",
        "            a = tl.load(a_ptrs, mask=token_mask[:, None], other=0.0, eviction_policy=A_POLICY)\n",
    ),
    ("            b = tl.load(b_ptrs)\n", "            b = tl.load(b_ptrs, eviction_policy=B_POLICY)\n"),
    (
        "    accumulator = accumulator.to(compute_type)\n",
        "    if EPI < 4:\n        accumulator = accumulator.to(compute_type)\n",
    ),
    (
        "        tl.atomic_add(c_ptrs, accumulator, mask=c_mask)\n",
        """        if EPI == 0:
            tl.atomic_add(c_ptrs, accumulator, mask=c_mask)
        elif EPI == 5:
            tl.atomic_add(c_ptrs, (accumulator * 1048576.0).to(tl.int32), mask=c_mask, sem="relaxed")
        else:
            tl.atomic_add(c_ptrs, accumulator, mask=c_mask, sem="relaxed")
""",
    ),
)


def load_kernels(tree: Path, folder: Path) -> tuple[Any, Any]:
    """The real `fused_moe_kernel` with EDITS, as a module of its own (Triton reads its source from the file)."""
    source = next((tree / f).read_text() for f in KERNEL_FILES if (tree / f).exists())
    lines = source.splitlines(keepends=True)
    text = "import triton\nimport triton.language as tl\n\n\n"
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name in KERNELS:
            first = min(d.lineno for d in node.decorator_list)
            text += "".join(lines[first - 1 : node.end_lineno]) + "\n\n"
    for old, new in EDITS:
        if text.count(old) != 1:
            raise SystemExit(f"the kernel changed: {text.count(old)} matches of {old!r}")
        text = text.replace(old, new)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "swept_kernel.py"
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    spec = importlib.util.spec_from_file_location("swept_kernel", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fused_moe_kernel, module._moe_sum_reduce_kernel


def base_config(tree: Path, experts: int, inter: int, tokens: int, dtype: str) -> dict[str, int]:
    """What SGLang picks for these shapes on an H200 (newest shipped file, else its built-in default)."""
    suffix = ",dtype=fp8_w8a8,block_shape=[128, 128]" if dtype == "fp8" else ""
    name = f"E={experts},N={inter},device_name=NVIDIA_H200{suffix}.json"
    root = next((tree / f).parent / "configs" for f in KERNEL_FILES if (tree / f).exists())
    for version in sorted(
        root.glob("triton_*"), key=lambda p: [int(x) for x in p.name[7:].split("_")], reverse=True
    ):
        if (version / name).exists():
            table = {int(k): v for k, v in json.loads((version / name).read_text()).items() if k.isdigit()}
            return dict(table[min(table, key=lambda m: abs(m - tokens))])
    if dtype == "fp8":
        return dict(
            BLOCK_SIZE_M=64, BLOCK_SIZE_N=128, BLOCK_SIZE_K=128, GROUP_SIZE_M=32, num_warps=4, num_stages=3
        )
    if tokens <= experts:
        return dict(
            BLOCK_SIZE_M=16, BLOCK_SIZE_N=32, BLOCK_SIZE_K=64, GROUP_SIZE_M=1, num_warps=4, num_stages=3
        )
    return dict(BLOCK_SIZE_M=64, BLOCK_SIZE_N=64, BLOCK_SIZE_K=32, GROUP_SIZE_M=8, num_warps=4, num_stages=3)


TUNE_TOKENS = (64, 128, 512, 2048, 8192, 16384)
Arm = tuple[
    int, int, int, str, dict[str, int]
]  # epilogue, band in N tiles (0: SGLang's order), group, hint, config


def arms(config: dict[str, int], tokens: int, dtype: str, hidden: int) -> dict[str, Arm]:
    """What to time, by name."""
    n, g = config["BLOCK_SIZE_N"], config["GROUP_SIZE_M"]
    out: dict[str, Arm] = {
        "bound": (STORE, 0, g, "", config),
        "acq_rel": (ACQ_REL, 0, g, "", config),
        "relaxed": (RELAXED, 0, g, "", config),
    }
    if tokens >= 2048:
        for cols in (256, 512, 1024, 2048):
            for group in sorted({4, 16, 64}):
                out[f"c{cols}g{group}"] = (RELAXED, cols // n, group, "", config)
        for group in (4, 16, 64, 256):
            out[f"g{group}"] = (RELAXED, hidden // n, group, "", config)
            out[f"store g{group}"] = (STORE, hidden // n, group, "", config)
        out["c512g16 A first"] = (RELAXED, 512 // n, 16, "evict_first", config)
        out["c1024g16 A first"] = (RELAXED, 1024 // n, 16, "evict_first", config)
        out["fp32 c512g16"] = (FP32, 512 // n, 16, "", config)
        out["int32 c512g16"] = (INT32, 512 // n, 16, "", config)
        for parts in (2, 4, 8, 16):
            if hidden % (parts * 128) == 0 and hidden // parts >= n:
                out[f"split{parts}"] = (SPLIT, parts, g, "", config)
    stages = max(2, min(config["num_stages"], -(-384 // config["BLOCK_SIZE_K"])))
    tuned = [(n, config["BLOCK_SIZE_K"], config["num_warps"], s) for s in (2, 3)]
    tuned += (
        [(128, 128, 8, 3), (128, 128, 4, 3)]
        if dtype == "fp8"
        else [(128, 64, 8, 3), (128, 64, 8, 4), (256, 64, 8, 3)]
    )
    for bn, bk, warps, stages in dict.fromkeys(tuned):
        other = dict(config, BLOCK_SIZE_N=bn, BLOCK_SIZE_K=bk, num_warps=warps, num_stages=stages)
        if other == config:
            continue
        tag = f"n{bn}k{bk}w{warps}s{stages}"
        out[f"bound {tag}"] = (STORE, 0, g, "", other)
        out[f"relaxed {tag}"] = (RELAXED, 0, g, "", other)
        if tokens >= 8192:
            out[f"c512g16 {tag}"] = (RELAXED, 512 // bn, 16, "", other)
    return out


def tune_arms(config: dict[str, int], dtype: str) -> dict[str, Arm]:
    """Tile shapes and pipeline depths for the down projection; the row block is the up projection's."""
    g, rows = config["GROUP_SIZE_M"], config["BLOCK_SIZE_M"]
    out: dict[str, Arm] = {"bound": (STORE, 0, g, "", config), "relaxed": (RELAXED, 0, g, "", config)}
    for bn in (64, 128, 256):
        for bk in (128,) if dtype == "fp8" else (64, 128):
            for warps in (4,) if rows <= 32 else (4, 8):
                for stages in (2, 3, 4):
                    if bn * rows // warps > 4096 or (rows <= 32 and bn == 256):
                        continue  # more accumulators than registers
                    other = {
                        **config,
                        "GROUP_SIZE_M": 16,
                        "BLOCK_SIZE_N": bn,
                        "BLOCK_SIZE_K": bk,
                        "num_warps": warps,
                        "num_stages": stages,
                    }
                    out[f"bound n{bn}k{bk}w{warps}s{stages}"] = (STORE, 0, g, "", other)
                    out[f"relaxed n{bn}k{bk}w{warps}s{stages}"] = (RELAXED, 0, g, "", other)
    return out


def align(ids: Any, block: int, experts: int) -> tuple[Any, Any, Any]:
    """moe_align_block_size in plain torch, tokens ascending within an expert."""
    import torch

    flat = ids.flatten().long()
    counts = torch.bincount(flat, minlength=experts)
    padded = (counts + block - 1) // block * block
    ends = padded.cumsum(0)
    total = flat.numel() + (experts + 1) * (block - 1)
    total = (total + 127) // 128 * 128
    slots = torch.full((total,), flat.numel(), dtype=torch.int32, device=flat.device)
    order = flat.argsort(stable=True)
    rank = torch.arange(flat.numel(), device=flat.device) - (counts.cumsum(0) - counts)[flat[order]]
    slots[(ends - padded)[flat[order]] + rank] = order.int()
    blocks = torch.arange(0, total, block, device=flat.device)
    owner = torch.searchsorted(ends, blocks, right=True).clamp(max=experts - 1).int()
    return slots, owner, ends[-1:].int()


class Problem:
    """Tensors of one (shape, dtype, tokens), and the launches of every pipeline on them."""

    def __init__(
        self, kernels: tuple[Any, Any], shape: tuple[int, int, int, int], dtype: str, tokens: int
    ) -> None:
        import torch

        self.torch, self.dtype = torch, dtype
        self.kernel, self.reducer = kernels
        self.experts, self.inter, self.hidden, self.topk = shape
        self.tokens = tokens
        g = torch.Generator(device="cuda").manual_seed(tokens)
        rows = tokens * self.topk
        rand = lambda *s: torch.randn(*s, device="cuda", generator=g)  # noqa: E731
        self.ids = rand(tokens, self.experts).topk(self.topk, dim=1).indices.int()
        self.weights = torch.softmax(rand(tokens, self.topk), 1)
        self.scales: tuple[Any, Any] = (None, None)
        a = rand(rows, self.inter)
        b = torch.empty(
            self.experts,
            self.hidden,
            self.inter,
            device="cuda",
            dtype=torch.float8_e4m3fn if dtype == "fp8" else torch.bfloat16,
        )
        for e in range(self.experts):
            b[e] = (rand(self.hidden, self.inter) / self.inter**0.5).to(b.dtype)
        if dtype == "fp8":
            self.a = a.to(torch.float8_e4m3fn)
            self.scales = (
                torch.rand(rows, self.inter // 128, device="cuda", generator=g) + 0.5,
                torch.rand(self.experts, self.hidden // 128, self.inter // 128, device="cuda", generator=g)
                + 0.5,
            )
        else:
            self.a = a.bfloat16()
        self.b = b
        self.cache3 = torch.empty(rows, self.hidden, device="cuda", dtype=torch.bfloat16)
        self.out = torch.empty(tokens, self.hidden, device="cuda", dtype=torch.bfloat16)
        self.out32 = torch.empty(tokens, self.hidden, device="cuda", dtype=torch.float32)
        self.aligned: dict[int, Any] = {}

    def launch(self, arm: Arm, c: Any = None, columns: slice = slice(None)) -> None:
        import triton
        import triton.language as tl

        epi, band, group, hint, config = arm
        m = config["BLOCK_SIZE_M"]
        if m not in self.aligned:
            self.aligned[m] = align(self.ids, m, self.experts)
        slots, owner, npp = self.aligned[m]
        if c is None:
            c = {STORE: self.cache3, FP32: self.out32, INT32: self.out32.view(self.torch.int32)}.get(
                epi, self.out
            )
        sa, sb = self.scales
        fp8 = self.dtype == "fp8"
        b = self.b[:, columns]
        if fp8 and columns != slice(None):
            sb = sb[:, columns.start // 128 : columns.stop // 128]
        grid = (triton.cdiv(slots.shape[0], m) * triton.cdiv(b.shape[1], config["BLOCK_SIZE_N"]),)
        self.kernel[grid](
            self.a, None, b, None, None, c, sa, sb, self.weights, slots, owner, npp, None,
            b.shape[1], self.inter, slots.shape[0], self.ids.numel(),
            self.a.stride(0), 1, b.stride(0), 1, b.stride(1), 0, 0, c.stride(0), 1,
            sa.stride(0) if fp8 else 0, sa.stride(1) if fp8 else 0,
            sb.stride(0) if fp8 else 0, sb.stride(2) if fp8 else 0, sb.stride(1) if fp8 else 0,
            128 if fp8 else 0, 128 if fp8 else 0,
            MUL_ROUTED_WEIGHT=True, top_k=1, compute_type=tl.bfloat16, use_fp8_w8a8=fp8, use_int8_w8a8=False,
            use_int8_w8a16=False, per_channel_quant=False, even_Ks=self.inter % config["BLOCK_SIZE_K"] == 0,
            c_sorted=False, filter_expert=False,
            swap_ab=fp8 and m < 64 and config["BLOCK_SIZE_N"] >= 64, FUSE_ADD_TO_OUTPUT=False,
            MASK_OUTPUT=False, LORA_PRESERVE_BASE=False, FUSE_SUM_ALL_REDUCE=epi not in (STORE, SPLIT),
            ROUTER_TOPK=self.topk, band=band, group=group, BANDED=band > 0 and epi != SPLIT, EPI=epi, A_POLICY=hint,
            B_POLICY="", **config,
        )  # fmt: skip

    def reduce(self, c: Any, out: Any) -> None:
        """out = c.sum(1) in fp32, through the same Triton kernel that SGLang uses on ROCm."""
        import triton

        block = min(1024, triton.next_power_of_2(c.shape[2]))
        self.reducer[(c.shape[0], triton.cdiv(c.shape[2], block))](
            c, *c.stride(), out, *out.stride(), c.shape[0], self.topk, c.shape[2], 1.0, BLOCK_M=1, BLOCK_DIM=block, NUM_STAGE=1, num_warps=4,
        )  # fmt: skip

    def pipeline(self, arm: Arm) -> Any:
        epi, parts = arm[0], arm[1]
        if epi != SPLIT:
            return lambda: self.launch(arm)
        width = self.hidden // parts
        scratch = self.cache3.flatten()[: self.tokens * self.topk * width].view(-1, width)

        def run() -> None:
            for start in range(0, self.hidden, width):
                self.launch(arm, scratch, slice(start, start + width))
                self.reduce(scratch.view(self.tokens, self.topk, width), self.out[:, start : start + width])

        return run


def compile_some(tree: str, folder: str, jobs: list[tuple[str, tuple[int, int, int, int], Arm]]) -> None:
    """In a process of its own: compile by launching on 16 tokens."""
    import torch

    torch.cuda.init()
    kernels = load_kernels(Path(tree), Path(folder))
    for dtype, shape, arm in jobs:
        try:
            Problem(kernels, (16, *shape[1:]), dtype, 16).pipeline(arm)()
            torch.cuda.synchronize()
        except Exception as error:  # out of shared memory: the arm is left out of the sweep as well
            print("compile", arm, f"{type(error).__name__}: {error}"[:160], file=sys.stderr)


def graph_of(run: Any, repeat: int) -> Any:
    import torch

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            run()
    return graph


def once(graph: Any, repeat: int) -> float:
    """Microseconds of one run."""
    import torch

    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    graph.replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e3 / repeat


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="folder that holds sglang/")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tokens", type=int, nargs="+", default=list(TOKENS))
    parser.add_argument(
        "--tune", action="store_true", help="tile shapes of the down projection instead of epilogues"
    )
    parser.add_argument("--seconds", type=float, default=240, help="stop starting cells after this long")
    parser.add_argument("--processes", type=int, default=min(14, os.cpu_count() or 1))
    args = parser.parse_args()
    began = time.time()
    folder = Path(tempfile.gettempdir()) / "sglang-guards-sweep"
    plan = []
    for tokens in TUNE_TOKENS if args.tune else args.tokens:
        for name, dtype in CELLS:
            config = base_config(args.tree, SHAPES[name][0], SHAPES[name][1], tokens, dtype)
            plan.append(
                (
                    name,
                    dtype,
                    tokens,
                    tune_arms(config, dtype) if args.tune else arms(config, tokens, dtype, SHAPES[name][2]),
                )
            )
    jobs: dict[str, Any] = {}
    for name, dtype, _, table in plan:
        for arm in table.values():
            epi, band, group, hint, config = arm
            even = SHAPES[name][1] % config["BLOCK_SIZE_K"] == 0
            special = [min(band, 2), band % 16 == 0, group == 1, group % 16 == 0] if epi != SPLIT else [band]
            key = json.dumps([dtype, SHAPES[name][3], epi, special, hint, even, config], sort_keys=True)
            jobs.setdefault(key, (dtype, SHAPES[name], arm))
    load_kernels(args.tree, folder)
    todo = list(jobs.values())
    context = mp.get_context("spawn")
    workers = [
        context.Process(target=compile_some, args=(str(args.tree), str(folder), todo[i :: args.processes]))
        for i in range(args.processes)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(150)
        if worker.is_alive():
            worker.terminate()
    print(f"compiled {len(todo)} kernels in {time.time() - began:.0f} s", flush=True)

    import torch

    try:
        from sgl_kernel import moe_sum_reduce
    except ImportError:
        moe_sum_reduce = None
    kernels = load_kernels(args.tree, folder)
    args.out.mkdir(parents=True, exist_ok=True)
    sink = (args.out / "sweep.jsonl").open("a")
    for name, dtype, tokens, table in plan:
        if time.time() - began > args.seconds:
            print("out of time: cells left out", flush=True)
            break
        problem = Problem(kernels, SHAPES[name], dtype, tokens)
        runs = {arm: problem.pipeline(spec) for arm, spec in table.items()}
        store = runs["bound"]

        def off(store: Any = store, p: Problem = problem) -> None:
            store()
            if moe_sum_reduce is not None:
                moe_sum_reduce(p.cache3.view(p.tokens, p.topk, p.hidden), p.out, 1.0)
            else:
                torch.sum(p.cache3.view(p.tokens, p.topk, p.hidden), dim=1, out=p.out)

        runs = {"off": off, **runs, "zero": lambda p=problem: p.out.zero_()}
        graphs, errors = {}, {}
        reference = None
        for arm, run in runs.items():
            try:
                problem.out.zero_()
                problem.out32.zero_()
                run()
                torch.cuda.synchronize()
                if arm == "off":
                    reference = problem.out.float().clone()
                elif arm in table and table[arm][0] != STORE:
                    result = {
                        FP32: problem.out32,
                        INT32: problem.out32.view(torch.int32).float() / 1048576.0,
                    }.get(table[arm][0], problem.out)
                    errors[arm] = float((result.float() - reference).norm() / reference.norm())
                repeat = (
                    (4 if tokens <= 1024 else 1)
                    if args.tune
                    else 2
                    if tokens >= 8192
                    else 8
                    if tokens >= 512
                    else 20
                )
                graphs[arm] = (graph_of(run, repeat), repeat)
            except Exception as error:
                print(name, dtype, tokens, arm, f"{type(error).__name__}: {error}"[:200], flush=True)
        samples: dict[str, list[float]] = {arm: [] for arm in graphs}
        for _ in range(5 if args.tune else 7):
            for arm, (graph, repeat) in graphs.items():
                samples[arm].append(once(graph, repeat))
        med = {arm: statistics.median(v) for arm, v in samples.items()}
        for arm, value in med.items():
            row = dict(shape=name, dtype=dtype, tokens=tokens, arm=arm, us=round(value, 2), p20=round(sorted(samples[arm])[1], 2),
                       p80=round(sorted(samples[arm])[-2], 2), vs_off=round(med["off"] / value, 4), error=errors.get(arm),
                       config=table[arm][4] if arm in table else None, device=torch.cuda.get_device_name())  # fmt: skip
            sink.write(json.dumps(row) + "\n")
        sink.flush()
        line = " ".join(f"{a.replace('relaxed', 'rlx')}={v:.0f}" for a, v in med.items())
        bad = {a: f"{e:.1e}" for a, e in errors.items() if not e < 1e-2}
        print(f"{name[:12]} {dtype} M={tokens}: {line} {'BAD ' + str(bad) if bad else ''}", flush=True)
        del problem, runs, graphs
        torch.cuda.empty_cache()
    print(f"done in {time.time() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
