"""Which patches of patches/ the installed SGLang carries, read from its source and never from its version.

All of a series but its tests, which are no part of the installed package.
"""

from __future__ import annotations

from sglang_guards.source.tree import Source

#: Probe that answers True where a patch is in (`_REFUTED`: False) -> the patch's concern, in the order of the series.
PATCHES: dict[str, str] = {
    "validator_present": "validation at start-up",
    "fusion_lists_wrappers": "all-reduce fusion for more entry classes",
    "fusion_hybrid_ep_guarded": "no all-reduce fusion across two MoE groups",
    "fused_add_relaxed": "relaxed atomics",
    "zero_store_guarded": "no zeros of filtered experts",
    "gate_checks_platform": "off where the combine ignores it",
    "gate_checks_lora_hooks": "LoRA's down-projection delta kept",
    "gate_checks_deterministic": "off in batch-invariant mode",
    "cache3_skipped_with_flag": "no unused buffer",
    "fused_sum_in_bands": "fused sum in column bands",
    "fp8_scale_reads_unwritten_rows": "FP8 scale over the rows that are read",
}
#: Named for the fault, which the patch ends.
_REFUTED = frozenset({"fp8_scale_reads_unwritten_rows"})
#: True in some releases as they are; alone they are no sign of a patched tree.
_SHIPPED = frozenset({"fusion_hybrid_ep_guarded", "zero_store_guarded"})


def applied_patches(source: Source) -> tuple[str, ...]:
    """Concerns of the patches that are in this tree; empty for a release as published."""
    found = [name for name in PATCHES if source.ask(name).value is (name not in _REFUTED)]
    return tuple(PATCHES[name] for name in found) if set(found) - _SHIPPED else ()
