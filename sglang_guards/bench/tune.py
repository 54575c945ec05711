"""`sglang-guards bench --tune DIR`: a tile of its own for the down projection, measured on this GPU.

SGLang gives the down projection the tile of the up projection unless there is a file `…_down.json` beside that of the
up projection. This measures whole layers with each candidate and writes both files into DIR, for SGLANG_MOE_CONFIG_DIR.
The variable replaces SGLang's own folder, so DIR must hold the files of every model that the server loads.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sglang_guards.bench import cell, kernels, layer, timing
from sglang_guards.bench.shapes import BLOCK, MoeShape

Tile = dict[str, int]
#: Token counts that a file is made for; SGLang takes the nearest.
TOKENS = (1, 16, 64, 128, 256, 512, 2048, 8192, 16384)
#: More accumulators per thread than this do not fit into registers.
MAX_ACCUMULATORS = 128


def candidates(rows: int, dtype: str) -> list[Tile]:
    """Tiles of the down projection for a row block of `rows`, without those that spill."""
    made = []
    for columns in (64, 128, 256):
        for depth in (128,) if dtype == "fp8" else (64, 128):
            for warps in (4, 8):
                for stages in (2, 3, 4):
                    if rows * columns // (32 * warps) > MAX_ACCUMULATORS or (rows <= 32 and warps == 8):
                        continue
                    if columns == 256 and (rows <= 32 or dtype == "fp8"):
                        continue  # one scale per 128 columns; and few rows leave most of a wide tile idle
                    made.append(
                        {
                            "BLOCK_SIZE_M": rows,
                            "BLOCK_SIZE_N": columns,
                            "BLOCK_SIZE_K": depth,
                            "GROUP_SIZE_M": 16,
                            "num_warps": warps,
                            "num_stages": stages,
                        }
                    )
    return made


def up_tile(module: Any, shape: MoeShape, tokens: int) -> Tile:
    """The tile that SGLang gives the up projection of this shape."""
    quant, block = ("fp8_w8a8", [BLOCK, BLOCK]) if shape.dtype == "fp8" else (None, None)
    w1 = (shape.experts, 2 * shape.inter, shape.hidden)
    w2 = (shape.experts, shape.hidden, shape.inter)
    chosen: Tile = module.try_get_optimal_moe_config(w1, w2, shape.top_k, quant, tokens, block_shape=block)
    return dict(chosen)


def run(
    arms: cell.Arms,
    weights: layer.Weights,
    *,
    fused: bool,
    tokens: Iterable[int] = TOKENS,
    progress: Callable[[int, Tile | None, float], None] | None = None,
    rounds: int = 7,
) -> dict[int, Tile]:
    """The best tile by token count, of whole layers with the flag on (`fused`) or off; counts where the up projection's
    own tile is best get that one. Raises ValueError when a tile's result is wrong."""
    shape = weights.shape
    arms.add_tuned("tune", "on" if fused else "off", {shape.key: {}})
    module = arms.modules.pop("tune")
    plain = arms.modules["on" if fused else "off"]
    best: dict[int, Tile] = {}
    for count in tokens:
        own = up_tile(plain, shape, count)
        batch = layer.Batch(weights, count)
        reference = batch.call(plain).clone()
        graphs: dict[str, Callable[[], Any]] = {"own": lambda batch=batch: batch.call(plain)}  # type: ignore[misc]
        tiles = candidates(own["BLOCK_SIZE_M"], shape.dtype)
        for number, tile in enumerate(tiles):
            call = _with(module, shape.key, tile, batch)
            try:
                error = layer.relative(call(), reference)
            except Exception:  # out of shared memory or registers: no candidate
                continue
            if not error < cell.TOLERANCE[shape.dtype]:
                raise ValueError(f"the tile {tile} gives a wrong result ({error:.2g} from the default's)")
            graphs[str(number)] = call
        samples = timing.interleaved(graphs, rounds=rounds, cold=True)
        name = min(samples, key=lambda key: samples[key].us)
        best[count] = own if name == "own" else tiles[int(name)]
        if progress:
            progress(count, None if name == "own" else best[count], samples["own"].us / samples[name].us)
    return best


def _with(module: Any, key: str, tile: Tile, batch: layer.Batch) -> Callable[[], Any]:
    """A call of the layer whose down projection has this tile."""

    def call() -> Any:
        module.down_tiles[key] = {batch.tokens: tile}
        return batch.call(module)

    return call


def write(
    folder: Path, shape: MoeShape, down: Mapping[int, Tile], up: Mapping[int, Tile] | None
) -> list[Path]:
    """Write the two files where SGLANG_MOE_CONFIG_DIR=`folder` makes SGLang look for them; `up` None leaves the up
    projection to SGLang's default."""
    import triton

    config = _config_module()
    name = config.get_config_file_name
    quant, block = ("fp8_w8a8", [BLOCK, BLOCK]) if shape.dtype == "fp8" else (None, None)
    target = folder / "configs" / f"triton_{triton.__version__.replace('.', '_')}"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for is_down, table in ((False, up), (True, down)):
        if table:
            path = target / name(shape.experts, shape.inter, quant, block, down_moe=is_down)
            path.write_text(json.dumps({str(k): v for k, v in sorted(table.items())}, indent=1) + "\n")
            written.append(path)
    return written


def up_table(shape: MoeShape) -> dict[int, Tile] | None:
    """SGLang's file for the up projection of this shape, which DIR must hold as well; None where it has none."""
    quant, block = ("fp8_w8a8", BLOCK) if shape.dtype == "fp8" else (None, 0)
    found = _config_module().get_moe_configs(shape.experts, shape.inter, quant, block, block)
    return None if found is None else {int(count): dict(tile) for count, tile in found.items()}


def _config_module() -> Any:
    sequence = kernels.names(kernels.root())[0]
    return importlib.import_module(f"{sequence.rpartition('.')[0]}.fused_moe_triton_config")
