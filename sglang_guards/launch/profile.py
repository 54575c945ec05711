"""Profiles: what the fused sum and SGLang's other runners cost or gain on one device with one SGLang source.

One JSON file per shape:

    {"schema": 2, "device": "NVIDIA H200", "sm": 90, "sglang": "0.5.15", "fingerprint": "0123456789ab",
     "shape": "E128-N384-H4096-K8-fp8", "measured": "2026-11-29", "ratios": {"64": 0.95, …}, "relaxed": {"64": 1.02, …},
     "default_us": {"64": 190.1, …}, "runners": {"cutlass": {"64": 0.9, …}}, "reasons": {"deep_gemm": "why not"}}

A ratio is the time of the default (Triton, without the flag) over the time of the other: below 1 the other is slower.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib import resources
from math import prod
from pathlib import Path
from typing import Any

SCHEMA = 2
#: Token counts of a decode step and of a prefill chunk, from and to.
DECODE, PREFILL = (1, 64), (1024, 1 << 30)
#: How the arms of the Triton runner are called in `Profile.best`.
DEFAULT, FUSED, HOTFIX = "triton", "triton, fused sum", "triton, fused sum with the hotfix"


def mean_gain(ratios: Mapping[int, float], phase: tuple[int, int]) -> float | None:
    """Geometric mean of the ratios at the token counts of a phase; None without any."""
    values = [ratio for count, ratio in ratios.items() if phase[0] <= count <= phase[1]]
    return prod(values) ** (1 / len(values)) if values else None


@dataclass(frozen=True)
class Profile:
    """Ratios by token count, as measured on `device` with the SGLang source `fingerprint`."""

    device: str
    sm: int
    sglang: str
    fingerprint: str
    shape: str
    measured: str
    ratios: Mapping[int, float]
    relaxed: Mapping[int, float] = field(default_factory=dict)
    default_us: Mapping[int, float] = field(default_factory=dict)
    runners: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    reasons: Mapping[str, str] = field(default_factory=dict)
    schema: int = SCHEMA

    def at(self, tokens: int) -> float | None:
        """The ratio at the measured token count nearest to `tokens` on a log scale; None outside a factor of two."""
        if not self.ratios or tokens < 1:
            return None
        near = min(self.ratios, key=lambda t: max(t / tokens, tokens / t))
        return self.ratios[near] if max(near / tokens, tokens / near) <= 2 else None

    @property
    def worst(self) -> tuple[int, float]:
        """(tokens, ratio) where the flag loses most or gains least."""
        return min(self.ratios.items(), key=lambda item: item[1])

    def arms(self) -> dict[str, Mapping[int, float]]:
        """Every arm's ratio by token count; the default's is 1."""
        made: dict[str, Mapping[int, float]] = {DEFAULT: dict.fromkeys(self.ratios, 1.0), FUSED: self.ratios}
        if self.relaxed:
            made[HOTFIX] = self.relaxed
        return made | dict(self.runners)

    def best(self, phase: tuple[int, int]) -> tuple[str, float] | None:
        """The fastest arm over the measured token counts of a phase and its gain over the default (geometric mean);
        None where none were measured. An arm that lacks one of the counts does not compete."""
        counts = [count for count in self.ratios if phase[0] <= count <= phase[1]]
        if not counts:
            return None
        means = {
            name: gain
            for name, ratios in self.arms().items()
            if all(count in ratios for count in counts) and (gain := mean_gain(ratios, phase)) is not None
        }
        name = max(means, key=lambda arm: means[arm])
        return name, means[name]


def cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """Where profiles lie: $XDG_CACHE_HOME/sglang-guards/profiles, by default under ~/.cache."""
    values = os.environ if env is None else env
    home = values.get("XDG_CACHE_HOME") or str(Path(values.get("HOME") or Path.home()) / ".cache")
    return Path(home) / "sglang-guards" / "profiles"


def _path(folder: Path, device: str, fingerprint: str, shape: str) -> Path:
    safe = re.sub(r"[^A-Za-z0-9._-]+", "_", f"{device}--{fingerprint}--{shape}")
    return folder / f"{safe}.json"


def save_profile(profile: Profile, folder: Path | None = None) -> Path:
    """Write the profile and return its path; an older one of the same device, source and shape is replaced."""
    path = _path(folder or cache_folder(), profile.device, profile.fingerprint, profile.shape)
    path.parent.mkdir(parents=True, exist_ok=True)
    spare = path.with_suffix(f".{os.getpid()}.tmp")
    spare.write_text(json.dumps(asdict(profile), indent=1) + "\n", encoding="utf-8")
    spare.replace(path)
    return path


def load_profile(device: str, fingerprint: str, shape: str, folder: Path | None = None) -> Profile | None:
    """The profile measured on this device with this SGLang source, else None. Never raises: a damaged file, another
    schema, or a file that says something else inside than its name is no profile."""
    try:
        path = _path(folder or cache_folder(), device, fingerprint, shape)
        profile = _parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError):
        return None
    same = profile.device == device and profile.fingerprint == fingerprint and profile.shape == shape
    return profile if same and profile.ratios else None


def _by_tokens(raw: Mapping[str, Any]) -> dict[int, float]:
    return {int(count): float(value) for count, value in raw.items()}


def _parse(raw: Mapping[str, Any]) -> Profile:
    if raw["schema"] != SCHEMA:
        raise ValueError("another schema")
    return Profile(
        device=str(raw["device"]),
        sm=int(raw["sm"]),
        sglang=str(raw["sglang"]),
        fingerprint=str(raw["fingerprint"]),
        shape=str(raw["shape"]),
        measured=str(raw["measured"]),
        ratios=_by_tokens(raw["ratios"]),
        relaxed=_by_tokens(raw.get("relaxed", {})),
        default_us=_by_tokens(raw.get("default_us", {})),
        runners={str(name): _by_tokens(ratios) for name, ratios in raw.get("runners", {}).items()},
        reasons={str(name): str(why) for name, why in raw.get("reasons", {}).items()},
    )


def measured_ratio(
    device: str, fingerprint: str, shape: str, tokens: int, folder: Path | None = None
) -> float | None:
    """Time without the flag over time with it, from a profile of exactly this device and source; None where nobody
    measured this shape near `tokens` (within a factor of two)."""
    profile = load_profile(device, fingerprint, shape, folder)
    return profile.at(tokens) if profile else None


@cache
def shipped_results() -> Mapping[str, Any]:
    """Results that ship with the package: `device`, `sglang`, and `shapes`: key -> tokens -> ratio. Made from
    benchmarks/results by benchmarks/report.py; a figure of another device than the reader's, so name it."""
    text = resources.files("sglang_guards").joinpath("data/fused_sum_h200.json").read_text(encoding="utf-8")
    loaded: Mapping[str, Any] = json.loads(text)
    return loaded
