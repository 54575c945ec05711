"""Copies of real trees, edited by hand: what a fix, a fork or a damaged install would look like to the probes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.contract.tables import FUSED_MOE, KERNEL, Copy, answers, source
from tests.contract.test_fused_sum import TABLE
from tests.trees import running

GATE_TAIL = "        and (topk > 2)\n"
GUARD_0_5_15 = "if not FUSE_ADD_TO_OUTPUT and not (FUSE_SUM_ALL_REDUCE and LORA_PRESERVE_BASE):"
BRANCH = "    if filter_expert and off_experts == -1:\n"
ADD = "tl.atomic_add(c_ptrs, accumulator, mask=c_mask)"
RELEASES = running("edited")


@pytest.fixture
def edited(tmp_path: Path) -> Copy:
    return Copy("0.5.15", tmp_path)


def in_sum_kernel(text: str, old: str, new: str) -> str:
    """Replace a passage of `fused_moe_kernel`; the GPTQ/AWQ kernel before it has a branch of the same text."""
    head, _, kernel = text.partition("def fused_moe_kernel(")
    assert kernel.count(old) == 1
    return f"{head}def fused_moe_kernel({kernel.replace(old, new)}"


# -- the zero store ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "guard",
    [
        "if not FUSE_ADD_TO_OUTPUT and not FUSE_SUM_ALL_REDUCE:",
        "if not (FUSE_ADD_TO_OUTPUT or FUSE_SUM_ALL_REDUCE):",
        "if FUSE_ADD_TO_OUTPUT or FUSE_SUM_ALL_REDUCE:\n            return\n        else:",
        "if FUSE_SUM_ALL_REDUCE is False and not FUSE_ADD_TO_OUTPUT:",
    ],
)
def test_a_guarded_zero_store_is_seen(edited: Copy, guard: str) -> None:
    assert edited.ask("zero_store_guarded").value is False
    edited.edit(KERNEL, GUARD_0_5_15, guard)
    assert edited.ask("zero_store_guarded").value is True


def test_an_unconditional_zero_store_is_seen_and_so_is_its_guard(tmp_path: Path) -> None:
    copy = Copy("0.5.10", tmp_path)
    assert copy.ask("zero_store_guarded").value is False
    leave = f"{BRANCH}        if FUSE_SUM_ALL_REDUCE:\n            return\n"
    copy.rewrite(KERNEL, lambda text: in_sum_kernel(text, BRANCH, leave))
    assert copy.ask("zero_store_guarded").value is True


def test_a_guard_that_only_looks_like_one_is_none(edited: Copy) -> None:
    edited.edit(KERNEL, GUARD_0_5_15, "if not FUSE_ADD_TO_OUTPUT and FUSE_SUM_ALL_REDUCE:")
    assert edited.ask("zero_store_guarded").value is False


def test_a_guard_by_something_unknown_is_not_guessed(edited: Copy) -> None:
    edited.edit(KERNEL, GUARD_0_5_15, "if not FUSE_ADD_TO_OUTPUT and not SOMETHING_NEW:")
    assert edited.ask("zero_store_guarded").value is None


def test_a_branch_that_goes_on_to_the_product_is_not_called_guarded(edited: Copy) -> None:
    def fall_through(text: str) -> str:
        start = text.index("        " + GUARD_0_5_15)
        stop = text.index("        return\n", start)
        return text[:start] + "        pass\n" + text[stop + len("        return\n") :]

    edited.rewrite(KERNEL, fall_through)
    assert edited.ask("zero_store_guarded").value is None


def test_another_store_in_the_branch_counts(edited: Copy) -> None:
    edited.edit(
        KERNEL,
        GUARD_0_5_15,
        "tl.store(c_ptr, 0.0)\n        if not FUSE_ADD_TO_OUTPUT and not FUSE_SUM_ALL_REDUCE:",
    )
    assert edited.ask("zero_store_guarded").value is False


# -- the fused add -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "value"),
    [
        (', sem="relaxed"', True),
        (', sem="release"', False),
        (', sem="acq_rel"', False),
        (", sem=ORDER", None),
    ],
)
def test_the_memory_order_of_the_fused_add(edited: Copy, order: str, value: bool | None) -> None:
    edited.edit(KERNEL, ADD, ADD[:-1] + order + ")")
    assert edited.ask("fused_add_relaxed").value is value


def test_a_fused_add_that_is_gone(edited: Copy) -> None:
    edited.edit(KERNEL, ADD, "tl.store(c_ptrs, accumulator, mask=c_mask)")
    assert edited.ask("fused_add_found").value is False
    assert edited.ask("fused_add_relaxed").value is None


# -- the gate ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize(
    ("condition", "probe"),
    [
        ("(not hooks)", "gate_checks_lora_hooks"),
        ("(hooks is None)", "gate_checks_lora_hooks"),
        ("(not (hooks and hooks.after_down))", "gate_checks_lora_hooks"),
        ("(not filter_expert)", "gate_checks_experts_filtered"),
        ("(_is_cuda or _is_musa)", "gate_checks_platform"),
        ("(not is_batch_invariant_mode_enabled())", "gate_checks_deterministic"),
        ("(not get_server_args().enable_deterministic_inference)", "gate_checks_deterministic"),
    ],
)
def test_a_condition_added_to_the_gate(tmp_path: Path, release: str, condition: str, probe: str) -> None:
    copy = Copy(release, tmp_path)
    assert copy.ask(probe).value is False
    copy.edit(FUSED_MOE, GATE_TAIL, f"{GATE_TAIL}        and {condition}\n")
    assert copy.ask(probe).value is True
    changed = {
        name
        for name, value in answers(TABLE, copy.source()).items()
        if value != source(release).ask(name).value
    }
    platforms = {"combine_covers_hip", "combine_covers_xpu", "combine_covers_other"}
    assert changed == {probe} | (platforms if probe == "gate_checks_platform" else set())


def test_a_gate_that_is_taken_back_later(edited: Copy) -> None:
    edited.edit(
        FUSED_MOE,
        "    out_slice = None\n",
        "    if hooks is not None:\n        use_fused_moe_sum_all_reduce = False\n    out_slice = None\n",
    )
    assert edited.ask("gate_checks_lora_hooks").value is True
    assert edited.ask("gate_found").value is True


def test_a_combine_that_takes_what_the_hooks_added(edited: Copy) -> None:
    """The delta is in the unfused buffer: a combine that adds it only where there are hooks considers them."""
    fused = "        if use_fused_moe_sum_all_reduce:\n"
    add = (
        "            if hooks is not None:\n                out_slice.add_(intermediate_cache3.sum(dim=1))\n"
    )
    edited.edit(FUSED_MOE, fused, fused + add)
    assert edited.ask("gate_checks_lora_hooks").value is True
    assert edited.ask("combine_covers_cuda").value is True


def test_a_combine_that_reads_the_buffer_in_any_case(edited: Copy) -> None:
    fused = "        if use_fused_moe_sum_all_reduce:\n"
    edited.edit(FUSED_MOE, fused, fused + "            out_slice.add_(intermediate_cache3.sum(dim=1))\n")
    assert edited.ask("gate_checks_lora_hooks").value is None
    assert edited.ask("combine_covers_cuda").value is False


def test_a_gate_that_lost_its_top_k(edited: Copy) -> None:
    edited.edit(FUSED_MOE, GATE_TAIL, "")
    assert edited.ask("gate_checks_top_k").value is False
    assert edited.ask("gate_checks_no_combine").value is True


def test_an_unknown_condition_settles_only_what_is_settled_without_it(edited: Copy) -> None:
    edited.edit(FUSED_MOE, GATE_TAIL, f"{GATE_TAIL}        and some_new_mode()\n")
    assert edited.ask("gate_found").value is None
    assert edited.ask("gate_checks_top_k").value is None  # at top-k 3 the gate may be off as well
    assert edited.ask("gate_checks_no_combine").value is True
    assert edited.ask("gate_checks_lora_hooks").value is None
    assert edited.ask("combine_covers_hip").value is None
    assert edited.ask("combine_covers_cuda").value is True
    assert edited.ask("zero_store_guarded").value is False


def test_a_gate_in_a_helper_is_not_guessed(edited: Copy) -> None:
    def move(text: str) -> str:
        start = text.index("    use_fused_moe_sum_all_reduce = (")
        stop = text.index("    )\n", start) + len("    )\n")
        gate = text[start:stop]
        call = "    use_fused_moe_sum_all_reduce = _fuses(no_combine, topk, use_int8_w8a16, use_int4_w4a16)\n"
        head = "def _fuses(no_combine, topk, use_int8_w8a16, use_int4_w4a16):\n"
        helper = f"{head}{gate}    return use_fused_moe_sum_all_reduce\n\n\n"
        text = text[:start] + call + text[stop:]
        at = text.index("def _fused_moe_kernel_sequence(")
        return text[:at] + helper + text[at:]

    edited.rewrite(FUSED_MOE, move)
    for probe in (
        name for name in TABLE if name.startswith(("gate_", "combine_", "cache3_", "lora_", "runner_"))
    ):
        answer = edited.ask(probe)
        assert answer.value is None, probe
        assert answer.detail
    assert edited.ask("zero_store_guarded").value is False


def test_a_comment_about_the_flag_is_no_gate(edited: Copy) -> None:
    edited.edit(
        FUSED_MOE,
        "def fused_experts_impl(",
        "# see enable_fused_moe_sum_all_reduce\n\n\ndef fused_experts_impl(",
    )
    assert answers(TABLE, edited.source()) == answers(TABLE, source("0.5.15"))


def test_a_gate_that_is_read_twice_is_not_guessed(edited: Copy) -> None:
    edited.edit(
        FUSED_MOE,
        "def fused_experts_impl(",
        "def other(args):\n    return args.enable_fused_moe_sum_all_reduce\n\n\ndef fused_experts_impl(",
    )
    assert edited.ask("gate_found").value is None


# -- the combine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("release", ["0.5.15", "0.5.18", "0.5.22"])
def test_a_fixed_hip_branch(tmp_path: Path, release: str) -> None:
    copy = Copy(release, tmp_path)
    fused = "        if use_fused_moe_sum_all_reduce:\n            out_slice.mul_(routed_scaling_factor)\n        el"

    def fix(text: str) -> str:
        start = text.index("    if no_combine:\n        pass\n")
        at = text.index("    elif _is_hip:\n        if ", start) + len("    elif _is_hip:\n")
        return text[:at] + fused + text[at:].removeprefix("        ")

    copy.rewrite(FUSED_MOE, fix)
    assert copy.ask("combine_covers_hip").value is True
    assert copy.ask("combine_covers_xpu").value is False
    assert copy.ask("gate_checks_platform").value is False


def test_the_flag_tested_before_the_platforms(edited: Copy) -> None:
    edited.edit(
        FUSED_MOE,
        "    if no_combine:\n        pass\n    elif",
        "    if no_combine:\n        pass\n    elif use_fused_moe_sum_all_reduce:\n"
        "        out_slice.mul_(routed_scaling_factor)\n    elif",
    )
    found = {
        name: edited.ask(f"combine_covers_{name}").value for name in ("cuda", "hip", "xpu", "musa", "other")
    }
    assert set(found.values()) == {True}


def test_the_combine_in_its_own_function_is_followed(tmp_path: Path) -> None:
    copy = Copy("0.5.23", tmp_path)
    copy.edit(
        FUSED_MOE,
        "    if no_combine:\n        pass\n    elif",
        "    if no_combine or use_fused_moe_sum_all_reduce:\n        pass\n    elif",
    )
    assert copy.ask("combine_covers_hip").value is True
    copy.edit(
        FUSED_MOE,
        "        use_fused_moe_sum_all_reduce=use_fused_moe_sum_all_reduce,\n        out_slice",
        "        out_slice",
    )
    assert copy.ask("combine_covers_hip").value is False


def test_a_buffer_that_is_no_longer_allocated(edited: Copy) -> None:
    old = "    intermediate_cache3 = torch.empty(\n"
    edited.edit(
        FUSED_MOE, old, old.replace("torch.empty(", "None if use_fused_moe_sum_all_reduce else torch.empty(")
    )
    assert edited.ask("cache3_skipped_with_flag").value is True


# -- a validator that is there already ---------------------------------------------------------------------


def test_a_handler_of_the_same_name_is_found(edited: Copy) -> None:
    path = edited.root / "sglang/srt/server_args.py"
    text = path.read_text(encoding="utf-8")
    name = "    def _handle_fused_moe_sum_all_reduce(self):\n        pass\n\n    def check_server_args(self):"
    path.write_text(text.replace("    def check_server_args(self):", name), encoding="utf-8")
    answer = edited.ask("validator_present")
    assert answer.value is True
    assert answer.where is not None


# -- damage ------------------------------------------------------------------------------------------------


def test_windows_line_ends_change_nothing(edited: Copy) -> None:
    for name in (FUSED_MOE, KERNEL, "triton.py"):
        edited.rewrite(name, lambda text: text.replace("\n", "\r\n"))
    found = edited.source()
    assert {name: found.ask(name) for name in TABLE} == {name: source("0.5.15").ask(name) for name in TABLE}


def test_a_file_that_is_missing(edited: Copy) -> None:
    edited.file(KERNEL).unlink()
    answer = edited.ask("zero_store_guarded")
    assert (answer.value, answer.where) == (None, None)
    assert "fused_moe_kernel" in answer.detail
    assert edited.ask("gate_found").value is True
    edited.file(FUSED_MOE).unlink()
    assert edited.ask("gate_found").value is None
    assert edited.ask("lora_runner_through_gate").value is None


@pytest.mark.parametrize("name", [FUSED_MOE, KERNEL])
def test_a_file_with_a_syntax_error(edited: Copy, name: str) -> None:
    at = {FUSED_MOE: "    out_slice = None\n", KERNEL: "    pid = tl.program_id(axis=0)\n"}[name]
    edited.rewrite(name, lambda text: text.replace(at, at + "    ) = (\n"))
    probe = {FUSED_MOE: "gate_found", KERNEL: "zero_store_guarded"}[name]
    answer = edited.ask(probe)
    assert (answer.value, answer.where) == (None, None)
    assert answer.detail.startswith("cannot be parsed")


def test_a_file_that_is_no_text(edited: Copy) -> None:
    edited.file(KERNEL).write_bytes(bytes(range(256)) * 64)
    assert edited.ask("zero_store_guarded").value is None


def test_a_folder_where_a_file_should_be(edited: Copy) -> None:
    path = edited.file(FUSED_MOE)
    path.unlink()
    path.mkdir()
    assert edited.ask("gate_found").value is None


def test_prose_with_text_at_the_margin_is_read_past(edited: Copy) -> None:
    edited.edit(
        FUSED_MOE, "    out_slice = None\n", '    """\nA note at the margin.\n"""\n    out_slice = None\n'
    )
    found = edited.source()
    assert answers(TABLE, found) == answers(TABLE, source("0.5.15"))
