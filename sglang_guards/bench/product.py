"""`sglang-guards bench`: measure the flag for one model on this machine and remember the answer."""

from __future__ import annotations

import datetime
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_guards.bench.shapes import MoeShape, from_config
from sglang_guards.launch.profile import Profile, save_profile

if TYPE_CHECKING:
    from sglang_guards.bench import cell
    from sglang_guards.bench.tune import Choice

#: Token counts of the product command: decode, a small batch, prefill chunks.
DEFAULT_TOKENS = (1, 16, 64, 256, 1024, 4096, 8192, 16384)

#: Longest time for compiling tiles ahead in parallel.
COMPILE_SECONDS = 240.0


class CannotMeasure(RuntimeError):
    """Why nothing could be measured here; the text ends with what to do."""


def run(
    model_config: Path,
    *,
    tp: int,
    ep: int = 1,
    dtype: str | None = None,
    tokens: Iterable[int] = DEFAULT_TOKENS,
    save: bool = True,
    progress: Callable[[MoeShape, int, dict[str, Any] | None], None] | None = None,
) -> Profile:
    """Measure the fused sum and SGLang's other runners for one rank's shard of a model on GPU 0 and store a profile in
    the user's cache.

    `model_config` is a model folder or config.json; `dtype` bf16, fp16 or fp8 overrides what it says. `progress` is
    called before (row None) and after each token count. Raises CannotMeasure without a GPU, SGLang or a usable
    config, and when a result is wrong.
    """
    shape, arms = _prepare(model_config, tp=tp, ep=ep, dtype=dtype)
    import torch

    from sglang_guards.bench import cell, layer, runners

    where = cell.origin(arms.tree, "sglang-guards bench")
    weights = layer.Weights(shape)
    measured: cell.HasCalls = arms
    try:
        measured = through_layer = runners.RunnerArms(arms, weights)
        reasons = dict(through_layer.reasons)
    except Exception as error:  # SGLang's own layer cannot be built here: its kernels can still be compared
        reasons = {"SGLang's MoE layer": runners.reason_of(error)}
    rows: dict[int, dict[str, Any]] = {}
    for count in tokens:
        if progress:
            progress(shape, count, None)
        try:
            row = cell.measure(measured, weights, count, optional=runners.CANDIDATES[shape.dtype])
        except ValueError as error:
            raise CannotMeasure(f"{shape.key} at {count} tokens: {error}") from error
        except torch.cuda.OutOfMemoryError:
            break
        rows[count] = row
        reasons |= {f"{name} at {count} tokens": why for name, why in row.get("reasons", {}).items()}
        if progress:
            progress(shape, count, row)
    speed = {
        name: {count: row["arms"][name]["speedup"] for count, row in rows.items() if name in row["arms"]}
        for name in {arm for row in rows.values() for arm in row["arms"]} - {"off", "free"}
    }
    profile = Profile(
        device=where["device"],
        sm=where["sm"],
        sglang=where["sglang"],
        fingerprint=where["fingerprint"],
        shape=shape.key,
        measured=datetime.date.today().isoformat(),
        ratios=speed.pop("on", {}),
        relaxed=speed.pop("relaxed", {}),
        default_us={count: row["arms"]["off"]["us"] for count, row in rows.items()},
        runners=dict(sorted(speed.items())),
        reasons=reasons,
    )
    if save and profile.ratios:
        save_profile(profile)
    return profile


def tune(
    model_config: Path,
    folder: Path,
    *,
    tp: int,
    ep: int = 1,
    dtype: str | None = None,
    tokens: Iterable[int] | None = None,
    fused: bool = False,
    both: bool = False,
    progress: Callable[[int, Choice], None] | None = None,
) -> list[Path]:
    """Measure the down projection's tile (`both`: the up projection's too) for one rank's shard and write SGLang's tile
    files into `folder`.

    Raises CannotMeasure as `run` does.
    """
    shape, arms = _prepare(model_config, tp=tp, ep=ep, dtype=dtype)
    from sglang_guards.bench import layer, tune

    counts, arm = list(tokens or tune.TOKENS), "on" if fused else "off"
    if (processes := min(16, (os.cpu_count() or 1) - 1)) > 1:
        tune.compile_all(shape, arm, _changes, counts, both, processes, COMPILE_SECONDS)
    try:
        found = tune.run(arms, layer.Weights(shape), arm=arm, both=both, tokens=counts, progress=progress)
    except ValueError as error:
        raise CannotMeasure(f"{shape.key}: {error}") from error
    down = {count: choice.down or choice.up for count, choice in found.items()}
    return tune.write(folder, shape, down, {c: choice.up for c, choice in found.items()} if both else None)


def _prepare(model_config: Path, *, tp: int, ep: int, dtype: str | None) -> tuple[MoeShape, cell.Arms]:
    """The shape, and this process ready to run SGLang's kernels. Raises CannotMeasure where it cannot."""
    try:
        shape = from_config(model_config, tp=tp, ep=ep, dtype=dtype)
    except ValueError as error:
        raise CannotMeasure(str(error)) from None
    if not shape.valid:
        raise CannotMeasure(f"{shape.key}: fp8 blocks of 128 do not divide this shard; SGLang refuses it too")
    try:
        import torch

        if not torch.cuda.is_available():
            raise CannotMeasure(
                "no CUDA device is visible; run this on the machine that will serve the model"
            )
        from sglang_guards.bench import cell, process

        process.set_up()
        return shape, cell.Arms(_changes())
    except (ImportError, LookupError) as error:
        raise CannotMeasure(f"SGLang is not usable here: {error}; install it in this environment") from error


def _changes() -> dict[str, Any]:
    """The relaxed arm where the installed kernel still has the line that it changes."""
    from sglang_guards.bench import cell, kernels

    try:
        kernels.relaxed(kernels.texts(kernels.root()))
    except ValueError:
        return {}
    return cell.default_changes()
