"""Compiles the down projection of the fused sum ahead of time, without a GPU, and counts what its adds became.

    python benchmarks/inspect_kernel.py TREE [--sm 90 100 120] [--series | --diffs FILE...]

TREE holds sglang/. Prints one JSON line per architecture and state (as installed, changed): atomics in the PTX, the
SASS instructions they became, fences, registers. As shipped an add is MEMBAR, ATOMG and CCTL.IVALL; relaxed it is REDG.
"""

from __future__ import annotations

import argparse
import ast
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sglang_guards.bench import kernels  # noqa: E402
from sglang_guards.source.tree import Source  # noqa: E402

TILE = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 128, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 16}
POINTERS = {
    "a_ptr": "*fp8e4nv", "b_ptr": "*fp8e4nv", "c_ptr": "*bf16", "a_scale_ptr": "*fp32", "b_scale_ptr": "*fp32",
    "topk_weights_ptr": "*fp32", "sorted_token_ids_ptr": "*i32", "expert_ids_ptr": "*i32",
    "num_tokens_post_padded_ptr": "*i32",
}  # fmt: skip
#: Block-quantized FP8 down projection with the fused sum; a parameter that a release lacks is left out.
CONSTANTS: dict[str, Any] = {
    "a_desc": None, "b_desc": None, "bias_ptr": None, "add_mask_ptr": None, "clear_ptr": None, "clear_numel": 0,
    "clear_share": 0, "group_n": 128, "group_k": 128, "MUL_ROUTED_WEIGHT": True, "top_k": 1, "use_fp8_w8a8": True,
    "use_int8_w8a8": False, "use_int8_w8a16": False, "per_channel_quant": False, "even_Ks": True, "c_sorted": False,
    "filter_expert": False, "swap_ab": False, "FUSE_ADD_TO_OUTPUT": False, "MASK_OUTPUT": False,
    "FUSE_SUM_ALL_REDUCE": True, "LORA_PRESERVE_BASE": False, "ROUTER_TOPK": 8, "FUSE_SWIGLU": False, "USE_GDC": False,
    "GDC_EARLY": False, "A_OUTPUT_SLICES": 1, "A_OUTPUT_SLICE_WIDTH": 0, "A_OUTPUT_SLICE_K": 0, "stride_ak": 1,
    "stride_bk": 1, "stride_cn": 1,
}  # fmt: skip


def kernel_module(text: str, folder: Path, name: str) -> ModuleType:
    """The kernel and its helper alone, so that nothing of SGLang is imported."""
    lines = text.splitlines(keepends=True)
    source = "import triton\nimport triton.language as tl\n\n\n"
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name in ("write_zeros_to_output", "fused_moe_kernel"):
            source += (
                "".join(lines[min(d.lineno for d in node.decorator_list) - 1 : node.end_lineno]) + "\n\n"
            )
    path = folder / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(str(path))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(kernel: Any, sm: int) -> Any:
    """The kernel's binary for one architecture."""
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = CONSTANTS | TILE | {"compute_type": tl.bfloat16}
    signature: dict[str, str] = {}
    aligned: dict[tuple[int], list[list[object]]] = {}
    names = [parameter.name for parameter in kernel.params]
    for place, name in enumerate(names):
        if name in constants:
            signature[name] = "constexpr"
        else:
            signature[name] = POINTERS.get(name, "i32")
            if name != "band":
                aligned[(place,)] = [["tt.divisibility", 16]]
    fixed = {(names.index(name),): value for name, value in constants.items() if name in names}
    source = ASTSource(fn=kernel, signature=signature, constexprs=fixed, attrs=aligned)
    return triton.compile(source, target=GPUTarget("cuda", sm, 32), options={"num_warps": 4, "num_stages": 2})


def described(binary: Any, folder: Path) -> dict[str, Any]:
    """What to know about the adds of one binary."""
    import triton

    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    sass = subprocess.run([str(tool), "-sass", str(cubin)], capture_output=True, text=True, check=True).stdout
    usage = subprocess.run(
        [str(tool), "-res-usage", str(cubin)], capture_output=True, text=True, check=True
    ).stdout
    words = re.findall(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d+ )?([A-Z][A-Z0-9_.]+)", sass, re.MULTILINE)
    kept = Counter(w for w in words if re.match(r"REDG|ATOMG|MEMBAR|CCTL|ERRBAR", w))
    registers = re.search(r"REG:(\d+)", usage)
    return {
        "ptx": dict(Counter(re.findall(r"\b(?:atom|red)\.\S+", binary.asm["ptx"]))),
        "sass": dict(sorted(kept.items())),
        "registers": int(registers[1]) if registers else None,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path)
    parser.add_argument("--sm", type=int, nargs="+", default=[90, 100, 120])
    parser.add_argument("--series", action="store_true", help="change it with the patch series (the default)")
    parser.add_argument("--diffs", type=Path, nargs="+", help="change it with these diffs instead")
    args = parser.parse_args()
    import triton

    release = Source(args.tree / "sglang").version
    files = kernels.texts(args.tree)
    changed = dict(files)
    for patch in args.diffs or sorted((HERE.parent / "patches" / f"v{release}").glob("[0-9]*.patch")):
        changed = kernels.apply_diff(changed, patch.read_text(encoding="utf-8"), only_these=True)
    path = kernels.file_of(kernels.names(args.tree)[1])
    for state, texts in (("installed", files), ("diffs" if args.diffs else "series", changed)):
        folder = Path(tempfile.mkdtemp())
        module = kernel_module(texts[path], folder, f"kernel_{state}")
        for sm in args.sm:
            row = {"sglang": release, "state": state, "sm": sm, "triton": triton.__version__}
            print(json.dumps(row | described(compiled(module.fused_moe_kernel, sm), folder)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
