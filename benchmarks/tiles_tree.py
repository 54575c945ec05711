"""The tiles of variants/tiles_h200.json as SGLang's own files, for SGLANG_MOE_CONFIG_DIR on an H200.

python benchmarks/tiles_tree.py DEST        -> DEST/off, DEST/series: without the flag, and with the patched sum
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from sglang_guards.bench import cell, process, tune  # noqa: E402


def main() -> int:
    process.set_up()
    stored = json.loads((HERE / "variants" / "tiles_h200.json").read_text(encoding="utf-8"))
    for key, kinds in stored["shapes"].items():
        shape = cell.shape_of({"key": key, "shape": key, "dtype": key.rpartition("-")[2]})
        for folder, kind in (("off", "store"), ("series", "fused")):
            table = {
                int(count): dict(zip(stored["names"], tile, strict=True))
                for count, tile in kinds[kind].items()
            }
            up = {
                int(count): dict(zip(stored["names"], tile, strict=True))
                for count, tile in kinds.get("up", {}).items()
            }
            for path in tune.write(Path(sys.argv[1]) / folder, shape, table, up or None):
                print(path)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
