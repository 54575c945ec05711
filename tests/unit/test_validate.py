from __future__ import annotations

import os
from pathlib import Path

from sglang_guards.hook.validate import LATE_OFF, _write_report, late_fields, typed_flags
from sglang_guards.report.model import Finding, Fix, Report, Severity

FIELDS = (
    "model_path",
    "tp_size",
    "ep_size",
    "enable_fused_moe_sum_all_reduce",
    "enable_flashinfer_allreduce_fusion",
)


def test_flags_are_reported_as_typed() -> None:
    typed = typed_flags(
        ["x", "--tp", "4", "--ep-size=2", "--enable-fused-moe-sum", "--unknown", "7", "--"], FIELDS
    )
    assert typed == {
        "tp_size": "--tp 4",
        "ep_size": "--ep-size=2",
        "enable_fused_moe_sum_all_reduce": "--enable-fused-moe-sum",
    }


def test_an_ambiguous_prefix_is_left_alone() -> None:
    assert typed_flags(["--enable-f"], FIELDS) == {}


def finding(**fix: object) -> Finding:
    return Finding("FMS101", "x", Severity.ERROR, "x", fix=Fix("x", fix) if fix else None)


def test_only_the_late_decisions_are_written() -> None:
    assert late_fields(finding(enable_fused_moe_sum_all_reduce=None)) == ("enable_fused_moe_sum_all_reduce",)
    assert late_fields(finding(ep_size=1)) == ()
    assert late_fields(finding(enable_fused_moe_sum_all_reduce=None, ep_size=1)) == ()
    assert late_fields(finding(flashinfer_allreduce_fusion_backend="trtllm")) == ()
    assert late_fields(finding()) == ()
    fusion = ("enable_flashinfer_allreduce_fusion", "flashinfer_allreduce_fusion_backend")
    assert late_fields(finding(enable_flashinfer_allreduce_fusion=None)) == fusion
    assert late_fields(finding(enforce_disable_flashinfer_allreduce_fusion=True)) == fusion
    assert late_fields(finding(enforce_disable_flashinfer_allreduce_fusion=True, ep_size=1)) == ()


def test_every_late_decision_is_an_off_switch() -> None:
    assert all(value in (None, False) for value in LATE_OFF.values())


def test_the_report_is_private_and_leaves_nothing_behind(tmp_path: Path) -> None:
    _write_report(str(tmp_path / "report.json"), Report())
    assert oct((tmp_path / "report.json").stat().st_mode & 0o777) == "0o600"
    (tmp_path / "folder").mkdir()
    _write_report(str(tmp_path / "folder"), Report())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "report.json"]
    (tmp_path / "link").symlink_to(tmp_path / "report.json")
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for name in ("link", "pipe"):
        _write_report(str(tmp_path / name), Report())
    os.close(reader)
    assert not (tmp_path / "link").is_symlink()  # the link is replaced, never what it points to
    assert (tmp_path / "pipe").is_fifo()
