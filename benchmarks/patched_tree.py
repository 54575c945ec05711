"""A copy of an installed SGLang with this project's patch series, for PYTHONPATH. The installed files stay as they are.

    python benchmarks/patched_tree.py SITE DEST        SITE holds sglang/; DEST gets one that links to it

Unchanged files are symbolic links. Files that a patch adds are left out (they are tests).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sglang_guards.bench.kernels import apply_diff  # noqa: E402
from sglang_guards.source.tree import Source  # noqa: E402


def series_of(version: str) -> list[str]:
    """The texts of the patches for one release, in order."""
    return [
        p.read_text(encoding="utf-8")
        for p in sorted((HERE.parent / "patches" / f"v{version}").glob("[0-9]*.patch"))
    ]


def build(site: Path, dest: Path, version: str | None = None) -> list[str]:
    """Make DEST and return the changed paths. Raises ValueError where a patch does not fit or none exists."""
    release = version or Source(site / "sglang").version
    patches = series_of(release)
    if not patches:
        raise ValueError(f"no patch series for SGLang {release}")
    for folder, _, names in os.walk(site / "sglang"):
        here = dest / Path(folder).relative_to(site)
        here.mkdir(parents=True, exist_ok=True)
        for name in names:
            if not name.endswith(".pyc") and not (here / name).exists():
                (here / name).symlink_to(Path(folder).resolve() / name)
    paths = {p for text in patches for p in re.findall(r"^\+\+\+ b/python/(\S+)", text, re.MULTILINE)}
    files = {
        path: (site / path).read_text(encoding="utf-8") for path in sorted(paths) if (site / path).is_file()
    }
    for text in patches:
        files = apply_diff(files, text, only_these=True)
    for path, text in files.items():
        (dest / path).unlink(missing_ok=True)
        (dest / path).write_text(text, encoding="utf-8")
    for info in site.glob("sglang-*.dist-info"):
        if not (dest / info.name).exists():
            (dest / info.name).symlink_to(info.resolve())
    return sorted(files)


if __name__ == "__main__":
    print("\n".join(build(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve(), *sys.argv[3:4])))
