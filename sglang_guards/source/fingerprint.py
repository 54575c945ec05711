"""One short name for the code that decides the fused sum, so that a measurement is used for equal code only."""

from __future__ import annotations

import hashlib

from sglang_guards.source.probes import fused_sum_gate
from sglang_guards.source.tree import Source

_FILES = (fused_sum_gate.SEQUENCE_FILES, fused_sum_gate.KERNEL_FILES, fused_sum_gate.RUNNER_FILES)


def fingerprint(source: Source) -> str:
    """Twelve hex digits over the files that decide the fused sum; equal trees give equal digits."""
    digest = hashlib.sha256()
    for candidates in _FILES:
        rel = source.first(*candidates)
        digest.update(f"{rel}\0{source.text(rel) if rel else ''}\0".encode())
    return digest.hexdigest()[:12]
