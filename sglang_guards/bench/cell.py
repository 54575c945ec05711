"""One cell of the benchmark: a shape at a token count, every arm checked first and then timed side by side."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from sglang_guards.bench import kernels, layer, timing
from sglang_guards.bench.shapes import MoeShape
from sglang_guards.source.fingerprint import fingerprint

#: Largest relative error against fp32 that still counts as right.
TOLERANCE = {"fp8": 0.08, "bf16": 0.02, "fp16": 0.01}
#: Most tokens whose fp32 reference is computed (each costs top-k dequantized experts).
REFERENCE_TOKENS = 8


class Arms:
    """The copies of SGLang's fused-MoE modules to compare. `off` and `on` are as installed; `free` leaves out the sum
    (the bound); others come from `changes`, a name -> function that edits the two files' texts."""

    def __init__(
        self,
        changes: Mapping[str, Callable[[kernels.Texts], kernels.Texts]] | None = None,
        tree: Path | None = None,
    ) -> None:
        self.tree = tree or kernels.root()
        self.changes = dict(changes or {})
        self.only: dict[str, frozenset[str]] = {}
        files = kernels.texts(self.tree)
        self.modules: dict[str, ModuleType] = {}
        for name, flag, change in [
            ("off", False, None),
            ("on", True, None),
            ("free", False, kernels.without_combine),
            *((name, True, change) for name, change in (changes or {}).items()),
        ]:
            tag = "bench_" + "".join(c if c.isalnum() else "_" for c in name)
            self.modules[name] = kernels.load(tag, change(files) if change else files, self.tree)
            kernels.set_flag(self.modules[name], flag)

    def add_tuned(
        self,
        name: str,
        like: str,
        tiles: Mapping[str, Mapping[int, Mapping[str, int]]],
        up: Mapping[str, Mapping[int, Mapping[str, int]]] | None = None,
    ) -> None:
        """An arm like `like`, with tiles of its own for the down projection, and with `up` for the up projection too:
        shape key -> tokens -> config. Shapes without an entry have no such arm."""
        files = kernels.texts(self.tree)
        change = self.changes.get(like)
        module = kernels.load(f"bench_{name}", change(files) if change else files, self.tree)
        kernels.set_flag(module, like not in ("off", "free"))
        kernels.set_tiles(module, tiles, up)
        self.modules[name] = module
        self.only[name] = frozenset(tiles)

    def calls(self, batch: layer.Batch) -> dict[str, Callable[[], Any]]:
        """The arms that apply to this shape, each as a call."""
        key = batch.weights.shape.key
        return {
            name: _bind(batch, module)
            for name, module in self.modules.items()
            if name not in self.only or key in self.only[name]
        }


def _bind(batch: layer.Batch, module: ModuleType) -> Callable[[], Any]:
    return lambda: batch.call(module)


def warm(arms: Arms, batch: layer.Batch) -> None:
    """Run every arm once, so that its kernels are compiled."""
    for call in arms.calls(batch).values():
        call()


class HasCalls(Protocol):
    """What offers arms for a batch: Arms here, or runners.RunnerArms."""

    def calls(self, batch: layer.Batch) -> dict[str, Callable[[], Any]]: ...


def measure(
    arms: HasCalls,
    weights: layer.Weights,
    tokens: int,
    *,
    rounds: int = 11,
    cold: bool = True,
    routing: str = "uniform",
    optional: Container[str] = (),
) -> dict[str, Any]:
    """One result row: times, errors and memory by arm, the bound and the share of it that each arm reaches.

    Raises ValueError when an arm's result is wrong; such a cell is never timed. An arm in `optional` that fails or is
    wrong is left out instead, and `reasons` says why.
    """
    torch, shape = weights.torch, weights.shape
    batch = layer.Batch(weights, tokens, routing=routing)
    calls = arms.calls(batch)
    reasons: dict[str, str] = {}
    rows = (
        torch.linspace(0, tokens - 1, min(tokens, REFERENCE_TOKENS), device=batch.hidden.device)
        .long()
        .unique()
    )
    reference = batch.reference(rows)
    results: dict[str, dict[str, Any]] = {}
    plain = calls["off"]().clone()
    for name, call in list(calls.items()):
        if name == "free":
            results[name] = {}
            continue
        try:
            results[name] = _checked(name, call, rows, reference, plain, TOLERANCE[shape.dtype])
        except Exception as failure:
            if name not in optional:
                raise
            del calls[name]
            reasons[name] = " ".join(f"{type(failure).__name__}: {failure}".split())[:300]
    del plain
    repeat = max(1, min(50, 20000 // max(1, tokens)))
    samples = timing.interleaved(calls, rounds=rounds, cold=cold, repeat=repeat)
    off, free = samples["off"].us, samples["free"].us
    for name, sample in samples.items():
        results[name] |= sample.to_dict()
        results[name]["speedup"] = round(off / sample.us, 4)
        if off > free and name not in ("off", "free"):
            results[name]["share_of_bound"] = round((off - sample.us) / (off - free), 3)
    return {
        "shape": shape.name,
        "key": shape.key,
        "dtype": shape.dtype,
        "tokens": tokens,
        "routing": routing,
        "l2": "cold" if cold else "warm",
        "flops": shape.flops(tokens),
        "bytes_off": shape.bytes_moved(tokens, fused=False),
        "bytes_fused": shape.bytes_moved(tokens, fused=True),
        "cache3_bytes": shape.cache3_bytes(tokens),
        "arms": results,
        **({"reasons": reasons} if reasons else {}),
    }


def _checked(
    name: str, call: Callable[[], Any], rows: Any, reference: Any, plain: Any, tolerance: float
) -> dict[str, Any]:
    """Accuracy, repeatability and memory of one arm. Raises ValueError where its result is wrong."""
    import torch

    got = call()
    error, against = layer.relative(got[rows], reference), layer.relative(got, plain)
    if not error < tolerance or not against < 0.03:
        raise ValueError(
            f"{name} is wrong: error {error:.3g} against fp32, {against:.3g} against the default"
        )
    return {
        "error": round(error, 6),
        "vs_off": round(against, 6),
        "repeats": bool(torch.equal(got, call())),
        "peak_bytes": timing.peak_bytes(call),
    }


def reset_dynamo() -> None:
    """The unfused path compiles its sum for up to 32 tokens; after another size it would be recompiled with
    dynamic shapes and be much slower. Before each cell of up to 32 tokens it is compiled for exactly that count,
    the best that the default can have."""
    import torch

    torch._dynamo.reset()


def origin(tree: Path, command: str) -> dict[str, Any]:
    """Where a row comes from: date, versions, device, source fingerprint, command."""
    import datetime

    import torch
    import triton

    from sglang_guards.source.tree import Source

    source = Source(tree / "sglang")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
        "sglang": source.version,
        "fingerprint": fingerprint(source),
        "torch": str(torch.__version__),
        "triton": str(triton.__version__),
        "cuda": str(torch.version.cuda),
        "command": command,
        **timing.device_state(),
    }


def default_changes() -> dict[str, Callable[[kernels.Texts], kernels.Texts]]:
    """The arm that needs nothing beside the package: the one-line change of the run-time fix."""
    return {"relaxed": kernels.relaxed}


def shape_of(row: Mapping[str, Any]) -> MoeShape:
    """The shape that a stored row was measured on."""
    parts = dict(zip(("E", "N", "H", "K"), (p[1:] for p in row["key"].split("-")[:4]), strict=True))
    return MoeShape(
        row["shape"], int(parts["E"]), int(parts["N"]), int(parts["H"]), int(parts["K"]), row["dtype"]
    )
