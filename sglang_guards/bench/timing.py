"""Interleaved timing of CUDA graphs: every round runs each arm once, so drift of clocks hits all arms alike."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Sample:
    """Microseconds of one call: median and the 20th and 80th percentile over `n` rounds."""

    us: float
    p20: float
    p80: float
    n: int

    def to_dict(self) -> dict[str, float]:
        return {k: round(v, 2) for k, v in asdict(self).items()}


def capture(call: Callable[[], Any], repeat: int = 1) -> Any:
    """A CUDA graph of `repeat` calls, after one warm call."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            call()
    return graph


def interleaved(
    calls: Mapping[str, Callable[[], Any]], *, rounds: int, cold: bool, repeat: int = 1
) -> dict[str, Sample]:
    """Times of each call. With `cold` a buffer of twice the L2 cache is written before every sample, outside the
    timed part, and each sample is one call; else `repeat` calls follow each other and share what stays in L2."""
    import torch

    event: Any = torch.cuda.Event
    repeat = 1 if cold else repeat
    l2 = int(getattr(torch.cuda.get_device_properties(0), "L2_cache_size", 0) or 64 << 20)
    flush = torch.empty(2 * l2, dtype=torch.int8, device="cuda") if cold else None
    graphs = {name: capture(call, repeat) for name, call in calls.items()}
    pairs: list[tuple[str, Any, Any]] = []
    names = list(graphs)
    for number in range(rounds + 1):  # the first round warms up and is dropped
        for name in names if number % 2 else reversed(names):
            start, end = event(enable_timing=True), event(enable_timing=True)
            if flush is not None:
                flush.zero_()
            start.record()
            graphs[name].replay()
            end.record()
            if number:
                pairs.append((name, start, end))
    torch.cuda.synchronize()
    times: dict[str, list[float]] = {name: [] for name in names}
    for name, start, end in pairs:
        times[name].append(start.elapsed_time(end) * 1e3 / repeat)
    return {name: _sample(values) for name, values in times.items()}


def _sample(values: list[float]) -> Sample:
    ordered = sorted(values)
    low, high = round(0.2 * (len(ordered) - 1)), round(0.8 * (len(ordered) - 1))
    return Sample(statistics.median(ordered), ordered[low], ordered[high], len(ordered))


def peak_bytes(call: Callable[[], Any]) -> int:
    """Most device memory that one call holds above what was there before it."""
    import torch

    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = call()
    torch.cuda.synchronize()
    del result
    return int(torch.cuda.max_memory_allocated() - before)


def device_state() -> dict[str, Any]:
    """Name, SM, driver, clocks, power and throttle reasons of GPU 0, as far as they can be read."""
    import subprocess

    import torch

    major, minor = torch.cuda.get_device_capability(0)
    state: dict[str, Any] = {"device": torch.cuda.get_device_name(0), "sm": major * 10 + minor}
    fields = ("driver_version", "clocks.sm", "clocks.mem", "power.draw", "clocks_event_reasons.active")
    try:
        line = subprocess.run(
            ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"],
            capture_output=True, text=True, timeout=20, check=True,
        ).stdout  # fmt: skip
        state |= dict(zip(fields, (part.strip() for part in line.split(",")), strict=False))
    except (OSError, subprocess.SubprocessError):
        pass
    return state
