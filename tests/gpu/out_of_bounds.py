"""For compute-sanitizer: one down projection with filtered experts, its output at the end of its own allocation.

    compute-sanitizer --tool memcheck --kernel-name kns=fused_moe python -m tests.gpu.out_of_bounds on

The output fills 20 MiB exactly, which PyTorch's allocator takes as one block of its own. `off` and `series` must be
clean; `on` reports invalid global writes where the store of zeros is not guarded. (Without a kernel filter the tool
also reports sgl_kernel's moe_align_block_size, which fills its padding in 16-byte steps past the end of the buffer.)
"""

from __future__ import annotations

import sys


def main() -> int:
    import torch

    from tests.gpu import problems, series

    arm = sys.argv[1]
    module = series.module() if arm == "series" else problems.original()
    problems.setup()
    made = problems.experts("bf16")
    problem = problems.Problem("bf16", 20 * 2**20 // (2 * problems.HIDDEN), 8, filtered=True)
    hidden = torch.randn(problem.tokens, problems.HIDDEN, device="cuda").to(made.dtype)
    scores = torch.rand(problem.tokens, problems.EXPERTS, device="cuda")
    ids = scores.topk(problem.top_k, dim=1).indices.int()
    ids = torch.where(ids < problems.EXPERTS // 2, ids, torch.full_like(ids, -1))
    weights = torch.rand(problem.tokens, problem.top_k, device="cuda")
    with problems.flag_set(module, arm != "off"):
        problems._call(module, problem, made, hidden, weights, ids, scores)
    torch.cuda.synchronize()
    print(f"{arm}: done")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
