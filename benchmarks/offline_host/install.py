"""On a GPU host without network: unpack what pack.py made into one folder for PYTHONPATH.

    python3 install.py SITE FOLDER...        FOLDER: `core` or `rest`, in any order, in one call or several

Wheels are unpacked as they are (no dependency is resolved; the host brings torch, triton and numpy). flashinfer
imports `cuda.tile`, a compiler package that the MoE path never calls; a module that accepts everything stands in.
"""

from __future__ import annotations

import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STAND_IN = '''\
"""Accepts any use and does nothing: kernels written in this language are never launched here."""


class Anything:
    def __init__(self, *args, **kwargs):
        pass

    def __call__(self, *args, **kwargs):
        return self

    def __getattr__(self, name):
        return Anything()

    def __getitem__(self, item):
        return self

    def __class_getitem__(cls, item):
        return cls


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return Anything
'''


def main() -> int:
    site = Path(sys.argv[1])
    archives = [
        p for folder in sys.argv[2:] for p in sorted(Path(folder).rglob("*")) if p.suffix in (".whl", ".zip")
    ]
    if not archives:
        print(f"nothing to unpack in {' '.join(sys.argv[2:])}", file=sys.stderr)
        return 1
    tile = site / "cuda" / "tile"
    tile.mkdir(parents=True, exist_ok=True)
    (tile / "__init__.py").write_text(STAND_IN, encoding="utf-8")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: zipfile.ZipFile(path).extractall(site), archives))
    for data in site.glob("*.data"):  # wheels keep some files aside: move what belongs beside the packages
        for kind in ("purelib", "platlib"):
            for item in (data / kind).glob("*") if (data / kind).is_dir() else ():
                target = site / item.name
                if not target.exists():
                    item.rename(target)
    print(f"{len(archives)} archives unpacked into {site}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
