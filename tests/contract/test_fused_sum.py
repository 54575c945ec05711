"""The fused MoE sum in every release. Expectations are from the source audit and from reading the trees."""

from __future__ import annotations

import pytest

from tests.contract.tables import (
    Table,
    answers,
    check_places,
    expected,
    from_release,
    line_of,
    registered,
    source,
)
from tests.trees import FLAG_RELEASES, RELEASES

#: 0.5.9 has no such flag: there is no gate to ask about, and the kernel has no FUSE_SUM_ALL_REDUCE.
TABLE: Table = {
    "flag_exists": {"0.5.9": False, "0.5.10": True},
    "gate_found": {"0.5.9": False, "0.5.10": True},
    "gate_checks_top_k": {"0.5.9": None, "0.5.10": True},
    "gate_checks_no_combine": {"0.5.9": None, "0.5.10": True},
    "gate_checks_weight_only": {"0.5.9": None, "0.5.10": True},
    "gate_checks_defer_sum": {"0.5.9": None, "0.5.10": False, "0.5.23": True},
    "gate_checks_lora_hooks": {"0.5.9": None, "0.5.10": False},
    "gate_checks_experts_filtered": {"0.5.9": None, "0.5.10": False},
    "gate_checks_platform": {"0.5.9": None, "0.5.10": False},
    "gate_checks_deterministic": {"0.5.9": None, "0.5.10": False},
    # the combine: only the CUDA branch tests the flag, and MUSA joined it in 0.5.11
    "combine_covers_cuda": {"0.5.9": None, "0.5.10": True},
    "combine_covers_hip": {"0.5.9": None, "0.5.10": False},
    "combine_covers_xpu": {"0.5.9": None, "0.5.10": False},
    "combine_covers_musa": {"0.5.9": None, "0.5.10": False, "0.5.11": True},
    "combine_covers_other": {"0.5.9": None, "0.5.10": False},
    "cache3_skipped_with_flag": {"0.5.9": None, "0.5.10": False},
    # the kernel
    "zero_store_guarded": {"0.5.9": None, "0.5.10": False, "0.5.23": True},
    "fused_add_found": {"0.5.9": None, "0.5.10": True},
    "fused_add_relaxed": {"0.5.9": None, "0.5.10": False},
    # who comes by the gate: in 0.5.10 only fused_experts, from 0.5.11 one sequence for all
    "runner_core_through_gate": {"0.5.9": None, "0.5.10": False, "0.5.11": True},
    "lora_runner_through_gate": {"0.5.9": None, "0.5.10": False, "0.5.11": True},
    # validation that is there already
    "paged_experts_exists": {"0.5.9": False, "0.5.23": True},
    "paged_experts_rejects_flag": {"0.5.9": False, "0.5.23": True},
    "validator_present": {"0.5.9": False},
}

#: Lines read by hand in the wheels: the gate, the fused add, and the `if` around the zero store (in 0.5.10 nothing
#: but the branch for expert -1 is around it).
GATE_LINE = {
    "0.5.10": 471, "0.5.11": 459, "0.5.12": 470, "0.5.13": 470, "0.5.14": 490, "0.5.15": 490, "0.5.16": 502,
    "0.5.17": 533, "0.5.18": 560, "0.5.19": 585, "0.5.20": 585, "0.5.21": 589, "0.5.22": 620, "0.5.23": 634,
}  # fmt: skip
FUSED_ADD_LINE = {"0.5.10": 613, "0.5.11": 625, "0.5.13": 637, "0.5.18": 694, "0.5.19": 702, "0.5.23": 720}
ZERO_STORE_LINE = {
    "0.5.10": 440, "0.5.11": 446, "0.5.13": 445, "0.5.18": 452, "0.5.19": 460, "0.5.23": 462,
}  # fmt: skip
FIELD_LINE = {
    "0.5.10": 675, "0.5.11": 704, "0.5.12": 777, "0.5.13": 809, "0.5.14": 2024, "0.5.15": 1509, "0.5.16": 1631,
    "0.5.17": 1930, "0.5.18": 1986, "0.5.19": 1982, "0.5.20": 631, "0.5.21": 706, "0.5.22": 769, "0.5.23": 832,
}  # fmt: skip


def test_every_probe_has_an_expectation() -> None:
    assert set(TABLE) == registered("fused_sum", "fused_sum_kernel")


@pytest.mark.parametrize("release", RELEASES)
def test_answers(release: str) -> None:
    assert answers(TABLE, source(release)) == expected(TABLE, release)


@pytest.mark.parametrize("release", RELEASES)
def test_places_exist(release: str) -> None:
    tree = source(release)
    check_places({probe: tree.ask(probe) for probe in TABLE}, tree)


@pytest.mark.parametrize("release", FLAG_RELEASES)
def test_places_are_the_deciding_lines(release: str) -> None:
    tree = source(release)
    lines = {
        "flag_exists": from_release(FIELD_LINE, release),
        "gate_found": from_release(GATE_LINE, release),
        "fused_add_relaxed": from_release(FUSED_ADD_LINE, release),
        "zero_store_guarded": from_release(ZERO_STORE_LINE, release),
    }
    found = {probe: (tree.ask(probe).where or "").rpartition(":")[2] for probe in lines}
    assert found == {probe: str(line) for probe, line in lines.items()}


@pytest.mark.parametrize("release", FLAG_RELEASES)
@pytest.mark.parametrize(
    ("probe", "token"),
    [
        ("flag_exists", "enable_fused_moe_sum_all_reduce"),
        ("gate_found", "use_fused_moe_sum_all_reduce = ("),
        ("combine_covers_hip", "intermediate_cache3"),
        ("combine_covers_xpu", "intermediate_cache3"),
        ("combine_covers_other", "intermediate_cache3"),
        ("cache3_skipped_with_flag", "intermediate_cache3 ="),
        ("fused_add_found", "tl.atomic_add("),
        ("zero_store_guarded", "if "),
    ],
)
def test_places_name_what_they_are_about(release: str, probe: str, token: str) -> None:
    tree = source(release)
    where = tree.ask(probe).where
    assert where is not None
    line = line_of(tree, where)
    if probe == "cache3_skipped_with_flag" and release.startswith("0.5.10"):
        token = "cache["  # a view of the buffer that the first GEMM uses
    assert token in line


def test_an_absent_flag_is_said_to_be_absent() -> None:
    answer = source("0.5.9").ask("zero_store_guarded")
    assert answer.value is None
    assert answer.detail == "the flag does not exist"
