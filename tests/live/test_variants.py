"""The kernel diffs of benchmarks/variants compute what the released kernel computes, in Triton's interpreter on CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.trees import tree

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = ROOT / "benchmarks" / "variants"
SCRIPT = """
import importlib.util, inspect, json, sys, tempfile
from pathlib import Path
import torch, triton.language as tl
from sglang_guards.bench import kernels

root, diffs = Path(sys.argv[1]), [Path(p).read_text() for p in sys.argv[2:]]
files = kernels.texts(root)
for diff in diffs:
    files = kernels.apply_diff(files, diff)
path = Path(tempfile.mkdtemp()) / "changed_kernels.py"
path.write_text(files[kernels.file_of(kernels.names(root)[1])])
spec = importlib.util.spec_from_file_location("changed_kernels", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)

M, K, N, E, TOPK, BLOCK = 9, 32, 80, 8, 4, 16
gen = torch.Generator().manual_seed(0)
ids = torch.stack([torch.randperm(E, generator=gen)[:TOPK] for _ in range(M)]).int()
weights = torch.rand(M, TOPK, generator=gen)
a = torch.randn(M * TOPK, K, generator=gen).half()
b = (torch.randn(E, N, K, generator=gen) / K**0.5).half()
slots, owners = [], []
for expert in range(E):  # moe_align_block_size: rows by expert, padded to blocks
    rows = (ids.flatten() == expert).nonzero().flatten().tolist()
    for start in range(0, len(rows), BLOCK):
        part = rows[start : start + BLOCK]
        slots += part + [M * TOPK] * (BLOCK - len(part))
        owners.append(expert)
used = len(slots)
slots += [M * TOPK] * (3 * BLOCK)  # spare blocks, as SGLang allocates them
owners += [0, 0, 0]
slots, owners = torch.tensor(slots, dtype=torch.int32), torch.tensor(owners, dtype=torch.int32)
rows = list(enumerate(ids.flatten().tolist()))
reference = torch.stack([(a[r].float() @ b[e].float().T) * weights.flatten()[r] for r, e in rows])
reference = reference.view(M, TOPK, N).sum(1)

def launch(out, **extra):
    known = inspect.signature(module.invoke_fused_moe_kernel).parameters
    values = dict(A=a, B=b, bias=None, C=out, A_scale=None, B_scale=None, B_zp=None, topk_weights=weights, topk_ids=ids,
        sorted_token_ids=slots, expert_ids=owners, num_tokens_post_padded=torch.tensor([used], dtype=torch.int32),
        mul_routed_weight=True, top_k=1, compute_type=tl.float16, use_fp8_w8a8=False, use_int8_w8a8=False,
        use_int8_w8a16=False, use_int4_w4a16=False, per_channel_quant=False, filter_expert=False, router_topk=TOPK,
        config=dict(BLOCK_SIZE_M=BLOCK, BLOCK_SIZE_N=16, BLOCK_SIZE_K=16, GROUP_SIZE_M=2)) | extra
    module.invoke_fused_moe_kernel(**{k: v for k, v in values.items() if k in known})

found = {}
for band in (None, 1, 2, 3, 5, 7):
    if band is not None:
        if not hasattr(module, "_fused_sum_band"):
            continue
        module._fused_sum_band = lambda out, block_n, band=band: band
    out = torch.zeros(M + 4, N, dtype=torch.float16)
    out[M:] = 7
    launch(out[:M], fuse_sum_all_reduce=True)
    found[f"band {band}"] = [float((out[:M].float() - reference).abs().max()), bool((out[M:] == 7).all())]
if "clear_out" in inspect.signature(module.invoke_fused_moe_kernel).parameters:
    for rows in (1, M, 700):  # less than a program's share, and more than one program's
        guarded = torch.full((rows + 2, N), 7.0, dtype=torch.float16)
        routes = torch.zeros(M, TOPK, N, dtype=torch.float16)
        launch(routes, clear_out=guarded[:rows])
        error = float((routes.float().sum(1) - reference).abs().max())
        found[f"clear {rows}"] = [max(error, float(guarded[:rows].abs().max())), bool((guarded[rows:] == 7).all())]
print(json.dumps(found))
"""


@pytest.mark.parametrize("release", sorted(p.name for p in VARIANTS.iterdir() if p.is_dir()))
def test_every_band_and_every_clearing_is_right(release: str) -> None:
    root = tree(release)
    env = dict(os.environ, TRITON_INTERPRET="1", HF_HUB_OFFLINE="1", PYTHONPATH=f"{ROOT}{os.pathsep}{root}")
    diffs = [str(p) for p in sorted((VARIANTS / release).glob("*.diff"))]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(root), *diffs],
        capture_output=True,
        text=True,
        env=env,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) >= {"band None", "band 1", "band 3", "band 7", "clear 1", "clear 700"}
    assert all(error < 6e-3 and untouched for error, untouched in found.values()), found
