"""On a GPU host without network: unpack each folder that pack.py made into SITE/<its name>, for PYTHONPATH.

    python3 install.py SITE FOLDER...        FOLDER: `common` or a release, in any order, in one call or several

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


def unpack(folder: Path, site: Path) -> int:
    """Unpack the archives of `folder` into `site`; returns how many."""
    archives = [p for p in sorted(folder.rglob("*")) if p.suffix in (".whl", ".zip")]
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
    return len(archives)


def main() -> int:
    site = Path(sys.argv[1])
    for folder in map(Path, sys.argv[2:]):
        count = unpack(folder, site / folder.name)
        print(f"{count} archives unpacked into {site / folder.name}")
        if not count:
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
