"""`sglang-guards bench --tune DIR`: a tile of its own for the down projection, measured on this GPU.

SGLang gives the down projection the tile of the up projection unless there is a file `…_down.json` beside that of the
up projection. This measures whole layers with each candidate and writes both files into DIR, for SGLANG_MOE_CONFIG_DIR.
The variable replaces SGLang's own folder, so DIR must hold the files of every model that the server loads.
With `--both` the up projection's tile is chosen first, in the same way: worth it where SGLang has no file for a shape
and takes its default tile.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_guards.bench import cell, kernels, layer, process, timing
from sglang_guards.bench.shapes import BLOCK, MoeShape

Tile = dict[str, int]
#: Tiles of the (up, down) projection; None is SGLang's choice.
Pair = tuple[Tile | None, Tile | None]
#: Makes the changed kernels of `cell.Arms`, in the process that needs them.
Changes = Callable[[], dict[str, Callable[[kernels.Texts], kernels.Texts]]]
#: (number, of how many): every so manieth candidate.
Share = tuple[int, int]
#: Token counts that a file is made for; SGLang takes the nearest.
TOKENS = (1, 16, 64, 128, 256, 512, 2048, 8192, 16384)
#: So many tiles of the up projection are tried with every tile of the down projection.
BEST_UPS = 3
#: More accumulators per thread than this do not fit into registers.
MAX_ACCUMULATORS = 128


@dataclass(frozen=True)
class Choice:
    """The best tiles at one token count; `down` None is the up projection's own. `gain`: time before over after."""

    up: Tile
    down: Tile | None
    gain: float


def candidates(rows: int, dtype: str) -> list[Tile]:
    """Tiles of a projection for a row block of `rows`, without those that spill."""
    made = []
    # One scale per 128 rows; with many rows a deep tile of 16-bit values was never the best on an H200.
    depths = (128,) if dtype == "fp8" else (64, 128) if rows <= 32 else (64,)
    for columns in (64, 128, 256):
        for depth in depths:
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


def up_candidates(own: Tile, shape: MoeShape, tokens: int) -> list[Tile]:
    """Tiles of the up projection: with the row block of SGLang's choice, and with larger ones that experts can fill."""
    rows_of_expert = tokens * shape.top_k / shape.experts
    rows = {own["BLOCK_SIZE_M"]} | {block for block in (16, 64, 128) if rows_of_expert >= block / 2}
    return [tile for block in sorted(rows) for tile in candidates(block, shape.dtype)]


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
    arm: str,
    both: bool = False,
    tokens: Iterable[int] = TOKENS,
    progress: Callable[[int, Choice], None] | None = None,
    rounds: int = 7,
) -> dict[int, Choice]:
    """The best tiles by token count, of whole layers of `arm` («off», «on», …): the down projection's, and with `both`
    the up projection's before it. Raises ValueError when a tile's result is wrong."""
    shape = weights.shape
    arms.add_tuned("tune", arm, {shape.key: {}})
    module = arms.modules.pop("tune")
    plain = arms.modules[arm]
    found: dict[int, Choice] = {}
    for count in tokens:
        batch = layer.Batch(weights, count)
        own = up_tile(plain, shape, count)
        ups: list[Tile | None] = [None]
        if both:
            ranked, _ = _ranked(
                module, plain, batch, [(tile, None) for tile in up_candidates(own, shape, count)], rounds
            )
            ups += [up for up, _ in ranked[:BEST_UPS]]
        pairs: list[Pair] = [
            (up, down) for up in ups for down in (None, *candidates((up or own)["BLOCK_SIZE_M"], shape.dtype))
        ]
        ranked, gains = _ranked(module, plain, batch, pairs[1:], rounds)  # the first pair is the arm as it is
        up, down = ranked[0] if ranked and gains[0] > 1 else (None, None)
        found[count] = Choice(up or own, down, max(1.0, gains[0] if gains else 1.0))
        if progress:
            progress(count, found[count])
    return found


def _ranked(
    module: Any, plain: Any, batch: layer.Batch, pairs: list[Pair], rounds: int
) -> tuple[list[Pair], list[float]]:
    """The pairs that run, fastest first, and how much faster each is than the arm as it is."""
    shape = batch.weights.shape
    reference = batch.call(plain).clone()
    calls: dict[str, Callable[[], Any]] = {"own": lambda: batch.call(plain)}
    for number, pair in enumerate(pairs):
        call = with_tiles(module, shape.key, pair, batch)
        try:
            error = layer.relative(call(), reference)
        except Exception:  # out of shared memory or registers: no candidate
            continue
        if not error < cell.TOLERANCE[shape.dtype]:
            raise ValueError(f"the tiles {pair} give a wrong result ({error:.2g} from the default's)")
        calls[str(number)] = call
    samples = timing.interleaved(calls, rounds=rounds, cold=True)
    order = sorted((name for name in samples if name != "own"), key=lambda name: samples[name].us)
    return [pairs[int(name)] for name in order], [samples["own"].us / samples[name].us for name in order]


def with_tiles(module: Any, key: str, pair: Pair, batch: layer.Batch) -> Callable[[], Any]:
    """A call of the layer with these tiles."""
    up, down = pair

    def call() -> Any:
        module.up_tiles = {key: {batch.tokens: up}} if up else {}
        module.down_tiles = {key: {batch.tokens: down}} if down else {}
        return batch.call(module)

    return call


def compile_ahead(
    shape: MoeShape, arm: str, changes: Changes, tokens: Iterable[int], both: bool, share: Share
) -> None:
    """In a process of its own: run part of the candidates once each, which fills Triton's cache on disk."""
    process.set_up()
    arms = cell.Arms(changes())
    arms.add_tuned("tune", arm, {shape.key: {}})
    module = arms.modules["tune"]
    weights = layer.Weights(shape)
    number, of = share
    for count in tokens:
        batch = layer.Batch(weights, count)
        own = up_tile(arms.modules[arm], shape, count)
        ups = up_candidates(own, shape, count) if both else []
        rows = sorted({own["BLOCK_SIZE_M"], *(tile["BLOCK_SIZE_M"] for tile in ups)})
        pairs: list[Pair] = [(up, None) for up in ups]
        pairs += [
            (own | {"BLOCK_SIZE_M": block}, down) for block in rows for down in candidates(block, shape.dtype)
        ]
        for pair in pairs[number::of]:
            with contextlib.suppress(
                Exception
            ):  # a candidate that does not fit is left out when it is measured
                with_tiles(module, shape.key, pair, batch)()


def compile_all(
    shape: MoeShape,
    arm: str,
    changes: Changes,
    tokens: Iterable[int],
    both: bool,
    processes: int,
    seconds: float,
) -> None:
    """Compile the candidates in parallel, for at most so long; what is missing then is compiled while measuring."""
    context = multiprocessing.get_context("spawn")
    counts = list(tokens)
    workers = [
        context.Process(target=compile_ahead, args=(shape, arm, changes, counts, both, (number, processes)))
        for number in range(processes)
    ]
    end = time.monotonic() + seconds
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(max(1.0, end - time.monotonic()))
        if worker.is_alive():
            worker.terminate()


def paired(up: Mapping[int, Tile], down: Mapping[int, Tile]) -> dict[int, Tile]:
    """The down projection's tiles at the token counts of `up`: the nearest one, or that of `up` where the row blocks
    differ. SGLang looks both files up by the nearest count, and up to 0.5.13 asserts that the row blocks are equal."""
    found = {}
    for count, tile in up.items():
        nearest = down[min(down, key=lambda known: abs(known - count))]
        found[count] = dict(nearest if nearest["BLOCK_SIZE_M"] == tile["BLOCK_SIZE_M"] else tile)
    return found


def write(
    folder: Path, shape: MoeShape, down: Mapping[int, Tile], up: Mapping[int, Tile] | None = None
) -> list[Path]:
    """Write both files where SGLANG_MOE_CONFIG_DIR=`folder` makes SGLang look for them, with the same token counts.
    `up` None: the tiles that SGLang has for the up projection, from its file or its default."""
    import triton

    config = _config_module()
    if up is None:
        up = {count: up_tile(config, shape, count) for count in {*down, *_counts_of_file(config, shape)}}
    name = config.get_config_file_name
    quant, block = ("fp8_w8a8", [BLOCK, BLOCK]) if shape.dtype == "fp8" else (None, None)
    target = folder / "configs" / f"triton_{triton.__version__.replace('.', '_')}"
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for is_down, table in ((False, up), (True, paired(up, down))):
        path = target / name(shape.experts, shape.inter, quant, block, down_moe=is_down)
        path.write_text(json.dumps({str(k): v for k, v in sorted(table.items())}, indent=1) + "\n")
        written.append(path)
    return written


def _counts_of_file(config: Any, shape: MoeShape) -> list[int]:
    """The token counts of SGLang's file for the up projection of this shape; none where it has no file."""
    quant, block = ("fp8_w8a8", BLOCK) if shape.dtype == "fp8" else (None, 0)
    return [
        int(count) for count in config.get_moe_configs(shape.experts, shape.inter, quant, block, block) or ()
    ]


def _config_module() -> Any:
    sequence = kernels.names(kernels.root())[0]
    return importlib.import_module(f"{sequence.rpartition('.')[0]}.fused_moe_triton_config")
