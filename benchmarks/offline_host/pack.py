"""Pack a real SGLang for a GPU host without network: two folders, each small enough for one transfer.

    python benchmarks/offline_host/pack.py DEST [--sglang 0.5.15]        -> DEST/core, DEST/rest (60 MiB each at most)

Then on the host, in this order or apart:  python3 install.py SITE core rest  and  export PYTHONPATH=SITE:CHECKOUT

The host is x86-64 Linux with CPython 3.12 and brings torch 2.11 (CUDA 13), triton 3.6, numpy, pillow and requests.
The pins below are what SGLang 0.5.15 asks for; other releases need others. sglang-kernel is cut down to what the
Triton paths need: FlashAttention 3, FlashMLA and the SM100 build are nearly all of its 600 MB, so start servers with
--attention-backend triton.
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
PLATFORMS = ("2_34", "2_28", "2_27", "2_26", "2_24", "2_17")
CORE = ("flashinfer-python==0.6.12", "llguidance==0.7.30")
KERNEL = "sglang-kernel==0.4.4"
LEFT_OUT = ("flash_ops.abi3.so", "flashmla_ops.abi3.so", "/sm100/")
REST = """
transformers==5.12.1 tokenizers==0.22.2 kernels==0.14.1 torchao==0.17.0 pydantic==2.14.4 pydantic-core==2.50.5
openai==2.6.1 apache-tvm-ffi==0.1.11 compressed-tensors==0.20.1 torch-memory-saver==0.0.10 outlines==0.1.11
outlines-core==0.1.26 openai-harmony==0.0.4 quack-kernels==0.6.5 sgl-deep-gemm==0.1.4 anthropic fastapi
starlette uvicorn watchfiles python-multipart orjson msgspec pyzmq setproctitle partial-json-parser pybase64
interegular lark diskcache airportsdata gguf annotated-types typing-inspection jiter distro sniffio
docstring-parser easydict dill multiprocess loguru jsonschema referencing rpds-py nest-asyncio cuda-python
opentelemetry-api ipython traitlets decorator jedi parso prompt-toolkit wcwidth stack-data executing asttokens
pure-eval matplotlib-inline pexpect ptyprocess
""".split()  # noqa: SIM905


def fetch(folder: Path, names: Iterable[str]) -> None:
    """Wheels for the host's Python, without their dependencies."""
    tags = [f"--platform=manylinux_{tag}_x86_64" for tag in PLATFORMS]
    tags += [f"--platform={tag}_x86_64" for tag in ("manylinux2014", "manylinux1")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--python-version=3.12", "--implementation=cp", *tags, "-d", str(folder)]
    for name in names:
        subprocess.run([*command, name], check=True)


def cut(wheel: Path, target: Path) -> None:
    """Copy a wheel without the members that LEFT_OUT names."""
    with (
        zipfile.ZipFile(wheel) as old,
        zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new,
    ):
        for name in old.namelist():
            if not any(part in name for part in LEFT_OUT):
                new.writestr(name, old.read(name))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("dest", type=Path)
    parser.add_argument("--sglang", default="0.5.15")
    args = parser.parse_args()
    core, rest = args.dest / "core", args.dest / "rest"
    for folder in (core, rest):
        folder.mkdir(parents=True, exist_ok=True)
    fetch(core, (f"sglang=={args.sglang}", *CORE))
    with tempfile.TemporaryDirectory() as spare:
        fetch(Path(spare), (KERNEL,))
        cut(next(Path(spare).glob("*.whl")), core / "sglang-kernel-cut.zip")
    fetch(rest, REST)
    for folder in (core, rest):
        size = sum(p.stat().st_size for p in folder.iterdir()) / 2**20
        print(
            f"{folder}: {size:.0f} MiB" + (" (over 60 MiB: too large for one transfer)" if size > 60 else "")
        )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
