"""Sixteen small refactorings of SGLang, each as an edit of a real release, that misled probes before.

`held` names what must not have changed to another certain answer; `told` what a changed behaviour must have changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sglang_guards.source.tree import Source
from tests.mutation.edits import (
    Place,
    Texts,
    body_into_closure,
    body_into_helper,
    every_if_to_match,
    moved_to_another_file,
)

FUSED_MOE = "sglang/srt/layers/moe/moe_runner/triton_utils/fused_moe.py"
KERNELS = "sglang/kernels/ops/moe/fused_moe_triton_kernels.py"
FIELDS = "sglang/srt/arg_groups/fields/exec_.py"
ENGINE = "sglang/srt/entrypoints/engine.py"


@dataclass(frozen=True)
class Refactoring:
    name: str
    release: str
    edit: Callable[[Source], Texts]
    #: probe -> the answers that are right after the edit; None is always right.
    right: Mapping[str, bool | tuple[str, ...] | None]


def replaced(source: Source, rel: str, *pairs: tuple[str, str]) -> Texts:
    """The file with passages exchanged; each must be there, so that no edit edits nothing."""
    text = source.text(rel) or ""
    for old, new in pairs:
        assert old in text, (rel, old)
        text = text.replace(old, new)
    return {rel: text}


def around(source: Source, rel: str, word: str) -> Place:
    text = source.text(rel) or ""
    return Place(rel, text, text.count("\n", 0, text.index(word)) + 2)


def combine(edit: Callable[[Place], Texts | None]) -> Callable[[Source], Texts]:
    def change(source: Source) -> Texts:
        return edit(around(source, FUSED_MOE, "    if no_combine:\n        pass\n")) or {}

    return change


def gate_into_helper(source: Source) -> Texts:
    text = source.text(FUSED_MOE) or ""
    found = re.search(r"    use_fused_moe_sum_all_reduce = \(\n(?P<test>(?:        .*\n)+)    \)\n", text)
    assert found
    given = "no_combine, defer_sum, topk, use_int8_w8a16, use_int4_w4a16"
    helper = f"def _sum_can_be_fused({given}):\n    return (\n{found['test']}    )\n\n\n"
    text = text.replace(found[0], f"    use_fused_moe_sum_all_reduce = _sum_can_be_fused({given})\n")
    at = text.index("def _fused_moe_kernel_sequence(")
    return {FUSED_MOE: text[:at] + helper + text[at:]}


def flag_under_an_alias(source: Source) -> Texts:
    changed = {}
    for rel in (
        FIELDS,
        "sglang/srt/arg_groups/field_order.py",
        FUSED_MOE,
        "sglang/srt/layers/moe/paged_experts/method.py",
    ):
        text = (source.text(rel) or "").replace("enable_fused_moe_sum_all_reduce", "sum_experts_in_the_gemm")
        if rel == FIELDS:
            head = "    sum_experts_in_the_gemm: A[\n        bool,\n"
            assert head in text
            start = text.index(head) + len(head)
            stop = text.index("    ] = False\n", start)
            spelled = '        Arg(help="As before.", aliases=["--enable-fused-moe-sum-all-reduce"]),\n'
            text = text[:start] + spelled + text[stop:]
        changed[rel] = text
    return changed


def list_elsewhere(source: Source) -> Texts:
    place = around(source, "sglang/srt/arg_groups/overrides.py", "\n_FLASHINFER_ALLREDUCE_FUSION_ARCHS")
    return moved_to_another_file(place) or {}


def guard_into_callee(source: Source) -> Texts:
    guard = "        if not (c_sorted or FUSE_SWIGLU or FUSE_ADD_TO_OUTPUT or FUSE_SUM_ALL_REDUCE):\n"
    return replaced(
        source,
        KERNELS,
        (
            "def write_zeros_to_output(\n    c_ptr,",
            "def write_zeros_to_output(\n    keep: tl.constexpr,\n    c_ptr,",
        ),
        (
            "    compute_type,\n):\n    accumulator",
            "    compute_type,\n):\n    if keep:\n        return\n    accumulator",
        ),
        (
            f"{guard}            write_zeros_to_output(\n",
            "        if True:\n            write_zeros_to_output(\n"
            "                c_sorted or FUSE_SWIGLU or FUSE_ADD_TO_OUTPUT or FUSE_SUM_ALL_REDUCE,\n",
        ),
    )


def add_in_helper(source: Source) -> Texts:
    head = "@triton.jit\ndef write_zeros_to_output("
    helper = '@triton.jit\ndef _add(ptrs, value, mask):\n    tl.atomic_add(ptrs, value, mask=mask, sem="relaxed")\n\n\n'
    add = "tl.atomic_add(c_ptrs, accumulator, mask=c_mask)"
    return replaced(source, KERNELS, (add, "_add(c_ptrs, accumulator, c_mask)"), (head, helper + head))


def new_runner(source: Source) -> Texts:
    last = "        else:\n            backend = MoeRunnerBackend.TRITON\n        self.runner = MoeRunner("
    new = (
        "        elif get_moe_runner_backend().is_auto() and get_platform().is_sm90:\n"
        "            backend = MoeRunnerBackend.GLUON\n"
    )
    return replaced(source, "sglang/srt/layers/quantization/unquant.py", (last, new + last))


def core_bypassed(source: Source) -> Texts:
    head = "    def run_moe_core(self, dispatch_output: DispatchOutput) -> CombineInput:\n"
    bypass = "        if self.offloaded:\n            return self._run_elsewhere(dispatch_output)\n"
    return replaced(source, "sglang/srt/layers/moe/fused_moe_triton/layer.py", (head, head + bypass))


def launcher_calls(new: str) -> Callable[[Source], Texts]:
    return lambda source: replaced(source, ENGINE, ("        server_args.check_server_args()\n", new))


GATE = {
    "gate_found": True,
    "gate_checks_experts_filtered": False,
    "combine_covers_cuda": True,
    "combine_covers_hip": False,
    "combine_covers_xpu": False,
}
FILTERED = "    out_slice = None\n    if use_fused_moe_sum_all_reduce:\n"
REFACTORINGS = (
    Refactoring("m04 combine by match", "0.5.23", combine(every_if_to_match), GATE),
    Refactoring("m07 gate in a helper", "0.5.23", gate_into_helper, GATE),
    Refactoring("m10 flag under an alias", "0.5.23", flag_under_an_alias, {"flag_exists": True, **GATE}),
    Refactoring("m11 list in another module", "0.5.23", list_elsewhere, {}),
    Refactoring("m16 another runner under auto", "0.5.23", new_runner, {"unquant_auto_is_triton": None}),
    Refactoring("m17 core bypassed", "0.5.23", core_bypassed, {"layer_runs_quant_method": None}),
    Refactoring("m21b guard in the callee", "0.5.23", guard_into_callee, {"zero_store_guarded": True}),
    Refactoring(
        "m22a add in a helper", "0.5.23", add_in_helper, {"fused_add_found": True, "fused_add_relaxed": True}
    ),
    Refactoring(
        "m26 launcher calls another method",
        "0.5.23",
        launcher_calls("        server_args.validate()\n"),
        {"launcher_calls_validator": False},
    ),
    Refactoring(
        "m27 launcher calls a function",
        "0.5.23",
        launcher_calls("        check_server_args(server_args)\n"),
        {"launcher_calls_validator": False},
    ),
    Refactoring(
        "m43 store renamed",
        "0.5.22",
        lambda s: replaced(s, KERNELS, ("write_zeros_to_output", "clear_rows")),
        {"zero_store_guarded": False},
    ),
    Refactoring(
        "m44 group by update",
        "0.5.23",
        lambda s: replaced(
            s,
            "sglang/srt/layers/flashinfer_comm_fusion.py",
            ('create_kw["group"] = device_group', "create_kw.update(group=device_group)"),
        ),
        {"fusion_passes_group": True},
    ),
    Refactoring("m47 combine one helper deeper", "0.5.23", combine(body_into_helper), GATE),
    Refactoring("m48 combine in a nested function", "0.5.23", combine(body_into_closure), GATE),
    Refactoring(
        "m50 filtered experts by match",
        "0.5.22",
        lambda s: replaced(
            s,
            FUSED_MOE,
            (
                FILTERED,
                "    match filter_expert:\n        case True:\n            use_fused_moe_sum_all_reduce = False\n"
                + FILTERED,
            ),
        ),
        {**GATE, "gate_checks_experts_filtered": True},
    ),
    Refactoring(
        "m51 filtered experts by walrus",
        "0.5.22",
        lambda s: replaced(
            s,
            FUSED_MOE,
            (
                FILTERED,
                "    if use_fused_moe_sum_all_reduce := use_fused_moe_sum_all_reduce and not filter_expert:\n"
                "        pass\n" + FILTERED,
            ),
        ),
        {**GATE, "gate_checks_experts_filtered": True},
    ),
)
