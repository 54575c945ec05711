"""The question that the project began with, answered by the verdict table of one check, on several releases.

Can the fused MoE sum be on beside NEXTN for Qwen3.5-122B-A10B-FP8 at TP 4 with Triton attention on four RTX PRO 6000,
and what about fusion, mixed chunk, DP attention and continuous decode steps?
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import pytest

from tests.launches.checks import check_all
from tests.trees import FLAG_RELEASES, running, tree

pytestmark = pytest.mark.live

#: 0.5.13.post1 and earlier refuse speculation beside the radix cache for this model, hence --disable-radix-cache.
SEED = [
    "python", "-m", "sglang.launch_server", "--model-path", "Qwen/Qwen3.5-122B-A10B-FP8", "--tp", "4",
    "--attention-backend", "triton", "--speculative-algorithm", "NEXTN", "--speculative-num-steps", "3",
    "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4", "--disable-radix-cache",
]  # fmt: skip
ASKED = [
    "--enable-fused-moe-sum-all-reduce", "--enable-mixed-chunk", "--num-continuous-decode-steps", "4",
    "--triton-attention-reduce-in-fp32", "--schedule-policy", "lpm", "--enable-dp-attention",
]  # fmt: skip
RELEASES = running("seed", FLAG_RELEASES)
OUTCOMES = {"active", "ignored", "off", "overridden", "auto-enabled", "recommended", "unknown"}
FLAGS = {
    "--enable-fused-moe-sum-all-reduce", "--moe-runner-backend", "--speculative-moe-runner-backend",
    "--speculative-algorithm", "--moe-a2a-backend", "--disable-shared-experts-fusion", "--moe-dense-tp-size",
    "--enable-dp-attention", "--enable-mixed-chunk", "--num-continuous-decode-steps", "--schedule-policy",
    "--schedule-conservativeness", "--mem-fraction-static", "--triton-attention-reduce-in-fp32",
    "--enable-deterministic-inference",
}  # fmt: skip


@cache
def tables(release: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Rows by flag: as asked, with the flags of the question set, and on H200 in place of RTX PRO 6000."""
    launch = {"argv": SEED, "gpu": "4xRTX-PRO-6000", "model": "qwen3.5-122b-a10b-fp8"}
    launches = [launch, {**launch, "argv": SEED + ASKED}, {**launch, "gpu": "4xH200"}]
    reports = check_all(release, launches)
    for report in reports:
        assert "error" not in report, report
        assert not report["notes"], report["notes"]
    one, two, three = ({row["flag"]: row for row in report["flags"]} for report in reports)
    return one, two, three


def fusion(rows: dict[str, Any]) -> dict[str, Any]:
    """The row of all-reduce fusion, whose flag is renamed in 0.5.14."""
    found: dict[str, Any] = next(row for flag, row in rows.items() if "flashinfer-allreduce-fusion" in flag)
    return found


@pytest.mark.parametrize("release", RELEASES)
def test_every_row_is_answered_with_a_line_that_exists(release: str) -> None:
    rows, asked, _ = tables(release)
    assert set(rows) >= FLAGS
    assert {r["effect"] for r in (*rows.values(), *asked.values())} <= OUTCOMES - {"unknown"}
    for row in (*rows.values(), *asked.values()):
        assert row["why"], row
        assert re.fullmatch(r"[\w./]+\.py:\d+", row["source"]), row
        rel, _, number = row["source"].partition(":")
        root = tree(release) / "sglang"
        file = next(p for p in (root / "srt" / rel, root / rel) if p.is_file())
        assert 1 <= int(number) <= len(file.read_text(encoding="utf-8").splitlines()), row


@pytest.mark.parametrize("release", RELEASES)
def test_the_flag_beside_nextn(release: str) -> None:
    rows, asked, _ = tables(release)
    flag = "--enable-fused-moe-sum-all-reduce"
    assert rows[flag]["requested"] == "not set"
    assert rows[flag]["effect"] == "off"
    assert "target (Triton, top-8) and draft (Triton, top-8)" in rows[flag]["why"]
    assert asked[flag]["requested"] == "on"
    assert asked[flag]["effect"] == "active"
    assert "refused" not in asked[flag]["why"]
    assert rows["--speculative-algorithm"]["effect"] == "overridden"
    assert "runs as EAGLE with the checkpoint's own draft" in rows["--speculative-algorithm"]["why"]


@pytest.mark.parametrize("release", RELEASES)
def test_what_surrounds_it(release: str) -> None:
    rows, asked, hopper = tables(release)
    assert fusion(rows)["effect"] == "off"
    assert fusion(hopper)["effect"] == "auto-enabled"
    newer = release in ("0.5.19", "0.5.23")
    assert asked["--enable-mixed-chunk"]["effect"] == ("active" if newer else "overridden")
    assert asked["--enable-dp-attention"]["effect"] == "overridden"
    assert asked["--num-continuous-decode-steps"]["effect"] == "ignored"
    assert asked["--triton-attention-reduce-in-fp32"]["effect"] == "ignored"
    assert asked["--schedule-policy"]["effect"] == "overridden"
    assert "fcfs is used" in asked["--schedule-policy"]["why"]
    assert rows["--mem-fraction-static"]["effect"] == "auto-enabled"
    assert rows["--moe-runner-backend"]["why"].startswith("auto; its experts run on triton")
