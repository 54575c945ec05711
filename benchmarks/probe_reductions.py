"""How fast this GPU stores, and adds with relaxed atomics, in the pattern of the fused MoE sum.

Programs write 64 rows of 128 columns of bf16; rows are random. The span is how much memory the rows lie in, so small
spans stay in L2. Prints GB/s of payload for plain stores, and for reductions as bf16 (16 bytes per thread).

    python benchmarks/probe_reductions.py
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

HIDDEN, ROWS, COLUMNS = 4096, 64, 128


@triton.jit
def touch(
    out,
    rows,
    stride,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    pid = tl.program_id(0)
    block, column = pid // BLOCKS, pid % BLOCKS
    row = tl.load(rows + block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    col = column * COLUMNS + tl.arange(0, COLUMNS)
    value = (row[:, None] + col[None, :]).to(tl.bfloat16)
    where = out + row[:, None] * stride + col[None, :]
    if ADD:
        tl.atomic_add(where, value, sem="relaxed")
    else:
        tl.store(where, value)


def main() -> int:
    total = 131072
    print(torch.cuda.get_device_name(), "payload GB/s")
    for tokens in (1024, 2048, 4096, 8192, 16384, 131072):
        out = torch.zeros(tokens, HIDDEN, dtype=torch.bfloat16, device="cuda")
        rows = torch.cat([torch.randperm(tokens, device="cuda") for _ in range(total // tokens)]).int()
        line = f"span {tokens * HIDDEN * 2 / 1e6:7.1f} MB"
        for add in (False, True):
            blocks = HIDDEN // COLUMNS
            run = lambda o=out, r=rows, a=add, b=blocks: touch[(total // ROWS * b,)](  # noqa: E731
                o, r, o.stride(0), a, ROWS, COLUMNS, b, num_warps=4
            )
            ms = triton.testing.do_bench(run, warmup=5, rep=40, return_mode="median")
            line += f"  {'reduce' if add else 'store '} {total * HIDDEN * 2 / ms / 1e6:7.0f}"
        print(line, flush=True)
    a = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    b = torch.empty_like(a)
    ms = triton.testing.do_bench(lambda: b.copy_(a), return_mode="median")
    print(f"copy {2 * a.numel() / ms / 1e6:.0f} GB/s read and written")
    ms = triton.testing.do_bench(lambda: b.zero_(), return_mode="median")
    print(f"fill {a.numel() / ms / 1e6:.0f} GB/s")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
