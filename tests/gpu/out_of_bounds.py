"""For compute-sanitizer: one down projection with filtered experts, its output at the end of its own allocation.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.gpu.out_of_bounds on

`off` and `series` must be clean; `on` reports invalid global writes where the store of zeros is not guarded.
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
    problem = problems.Problem("bf16", 1024, 8, filtered=True)
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
