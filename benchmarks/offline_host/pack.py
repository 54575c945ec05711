"""Pack real SGLang releases for a GPU host without network, in parts that are small enough for one transfer each.

    python benchmarks/offline_host/pack.py DEST [--sglang 0.5.15 0.5.23]   -> DEST/common/1, DEST/0.5.15/1, …

Then on the host:  python3 install.py SITE DEST/common DEST/0.5.23         -> SITE/common, SITE/0.5.23
and                export PYTHONPATH=SITE/0.5.23:SITE/common:CHECKOUT

The host is x86-64 Linux with CPython 3.12 and brings torch 2.11 (CUDA 13), triton 3.6, numpy, pillow and requests.
All releases run with the sglang-kernel that was built for that torch (0.4.4), cut down to what the Triton, CUTLASS
and Marlin paths need: FlashAttention 3, FlashMLA and the SM100 build are nearly all of its 600 MB, so start servers
with --attention-backend triton. FlashInfer comes without the larger
kernels that it would compile at first use (no MoE or norm among them).
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

#: manylinux tags that the host accepts; pip matches each exactly.
PLATFORMS = ("2_34", "2_31", "2_28", "2_27", "2_26", "2_24", "2_17", "2_12")
PART_MIB = 50
KERNEL = "sglang-kernel==0.4.4"
#: Parts of wheels that are left out, by the wheel's name.
LEFT_OUT = {
    "sglang_kernel": ("flash_ops.abi3.so", "flashmla_ops.abi3.so", "/sm100/"),
    "flashinfer_python": (
        *(
            "/csrc/cake_",
            "/csrc/kda/",
            "/csrc/gdn/",
            "/csrc/experimental/",
            "/csrc/fmha_v2/",
            "/csrc/fused_moe/cake_",
        ),
        *("/csrc/fused_moe/warp_decode", "/csrc/alphamoe"),
        *("/moe_ep/kernel_src/", "/experimental/b12x/", "/experimental/sm110"),
    ),
    "sglang": (
        *("sglang/multimodal_gen/test/", "sglang/multimodal_gen/runtime/"),
        *("/rust_extensions/_bench", "/rust_extensions/_grpc", "/rust_extensions/_multimodal"),
    ),
}
#: What each release pins of its own; the newest one runs with the host's transformers.
RELEASES = {
    "0.5.15": """flashinfer-python==0.6.12 sgl-deep-gemm==0.1.4 transformers==5.12.1
        tokenizers==0.22.2 openai==2.6.1 torchao==0.17.0""".split(),  # noqa: SIM905
    "0.5.19": """flashinfer-python==0.6.18 sgl-deep-gemm==0.1.7 transformers==5.12.1
        tokenizers==0.22.2 openai==2.6.1""".split(),  # noqa: SIM905
    "0.5.23": ["flashinfer-python==0.7.2", "sgl-deep-gemm==0.2.2", "openai==2.8.0"],
}  # fmt: skip
COMMON = """
kernels==0.14.1 pydantic==2.14.4 pydantic-core==2.50.5 apache-tvm-ffi==0.1.11 compressed-tensors==0.18.0
torch-memory-saver==0.0.10 outlines==0.1.11 outlines-core==0.1.26 openai-harmony==0.0.4 quack-kernels==0.6.5
anthropic fastapi starlette uvicorn watchfiles python-multipart orjson msgspec pyzmq setproctitle
partial-json-parser pybase64 interegular lark diskcache airportsdata gguf annotated-types typing-inspection jiter
distro sniffio docstring-parser easydict dill multiprocess loguru jsonschema referencing rpds-py nest-asyncio
cuda-python opentelemetry-api ipython traitlets decorator jedi parso prompt-toolkit wcwidth stack-data executing
asttokens pure-eval matplotlib-inline pexpect ptyprocess xxhash prometheus-client pytest iniconfig pluggy pygments
pytest-xdist execnet rich markdown-it-py mdurl uvloop nvidia-ml-py xgrammar==0.2.7
""".split()  # noqa: SIM905


def fetch(folder: Path, names: Iterable[str]) -> None:
    """Wheels for the host's Python, without their dependencies."""
    tags = [f"--platform=manylinux_{tag}_x86_64" for tag in PLATFORMS]
    tags += [f"--platform={tag}_x86_64" for tag in ("manylinux2014", "manylinux2010", "manylinux1")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version=3.12", "--implementation=cp", *tags, "-d", str(folder)]
    subprocess.run([*command, *names], check=True)


def cut(wheel: Path, parts: Iterable[str]) -> None:
    """Replace a wheel by one without these members."""
    target = wheel.with_suffix(".zip")
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new,
    ):
        for name in old.namelist():
            if not any(part in name for part in parts):
                new.writestr(name, old.read(name))
    wheel.unlink()


def pack(folder: Path, names: Iterable[str]) -> None:
    """One folder of wheels, cut as LEFT_OUT says."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as spare:
        fetch(Path(spare), names)
        for wheel in Path(spare).glob("*.whl"):
            kept = wheel.rename(folder / wheel.name)
            if parts := LEFT_OUT.get(wheel.name.split("-")[0]):
                cut(kept, parts)
    split(folder)


def split(folder: Path) -> None:
    """Move the wheels into numbered parts of at most PART_MIB each."""
    sizes: list[float] = []
    for file in sorted((p for p in folder.iterdir() if p.is_file()), key=lambda p: -p.stat().st_size):
        size = file.stat().st_size / 2**20
        number = next((n for n, used in enumerate(sizes) if used + size <= PART_MIB), len(sizes))
        sizes[number:] = [*(sizes[number:] or [0.0])]
        sizes[number] += size
        part = folder / str(number + 1)
        part.mkdir(exist_ok=True)
        file.rename(part / file.name)
    print(", ".join(f"{folder}/{n + 1}: {size:.0f} MiB" for n, size in enumerate(sizes)))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dest", type=Path)
    parser.add_argument("--sglang", nargs="+", default=["0.5.15", "0.5.23"], choices=sorted(RELEASES))
    args = parser.parse_args()
    pack(args.dest / "common", [KERNEL, *COMMON])
    for release in args.sglang:
        pack(args.dest / release, [f"sglang=={release}", *RELEASES[release]])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
