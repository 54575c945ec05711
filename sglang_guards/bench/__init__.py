"""Measure the fused MoE sum on this machine, and read what was measured before.

Nothing here imports torch, triton or SGLang at module level, so the rules may ask freely:

    measured_ratio(device, fingerprint, shape, tokens)   this machine's own profile, else None
    shipped_results()                                    what ships with the package, its device named
    load_profile(device, fingerprint, shape)             the whole profile, None where nobody measured
    run(model_config, tp=4)                              measure now (needs a GPU and an installed SGLang)
"""

from __future__ import annotations

from sglang_guards.bench.product import run
from sglang_guards.bench.profile import Profile, load_profile, measured_ratio, save_profile, shipped_results
from sglang_guards.bench.shapes import DEFAULT_SHAPES, MoeShape

__all__ = [
    "DEFAULT_SHAPES",
    "MoeShape",
    "Profile",
    "load_profile",
    "measured_ratio",
    "run",
    "save_profile",
    "shipped_results",
]
