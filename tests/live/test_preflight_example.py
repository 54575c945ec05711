"""The launch that started the project, on real releases and several GPUs."""

from __future__ import annotations

import json
import re
import shlex
from importlib import resources
from typing import Any

import jsonschema
import pytest

from tests.live.preflight_cases import EXAMPLE, LAUNCH, cli, example, run

pytestmark = pytest.mark.live
SCHEMA = json.loads(
    resources.files("sglang_guards").joinpath("schemas/report.json").read_text(encoding="utf-8")
)


def ids(report: dict[str, Any], severity: str | None = None) -> list[str]:
    return [f["id"] for f in report["findings"] if severity in (None, f["severity"])]


@pytest.fixture(scope="module")
def on_0_5_15() -> dict[str, dict[str, Any]]:
    cases = {
        "plain": example(),
        "ep": example("--ep-size", "4"),
        "b200": example(gpu="4xB200"),
        "prefix": {**example(), "argv": [*LAUNCH[:-1], "--enable-fused-moe-sum", "--ep", "4"]},
        "secret": example("--api-key", "s3cr3tkey", env={"HF_TOKEN": "hf_environment"}),
        "ignored": example("--ep-size", "4", env={"SGLANG_GUARDS_IGNORE": "FMS101=tested here"}),
        "again": example(),
    }
    return dict(zip(cases, run("0.5.15", list(cases.values())), strict=True))


def test_the_flag_is_active_and_slower_on_sm120(on_0_5_15: dict[str, dict[str, Any]]) -> None:
    report = on_0_5_15["plain"]
    assert report["verdict"] == "pass"
    assert ids(report) == ["FMS301", "FMS303"]
    assert "target and draft" in report["findings"][0]["cause"]
    assert report["launch"]["facts"]["gpu.sm"] == {"value": 120, "from": "assumed"}
    assert report["launch"]["facts"]["args.model_path"]["value"] == "Qwen/Qwen3.5-122B-A10B-FP8"
    assert report["launch"]["facts"]["draft_model.built_in"]["value"] is True
    row = next(r for r in report["flags"] if "fused-moe-sum" in r["flag"])
    assert row["effect"] == "active"


def test_expert_parallelism_is_refused_and_the_corrected_command_passes(
    on_0_5_15: dict[str, dict[str, Any]],
) -> None:
    report = on_0_5_15["ep"]
    assert ids(report, "error") == ["FMS101"]
    assert report["corrected"] == [*LAUNCH[:-1], "--ep-size", "4"]
    (again,) = run("0.5.15", [{**example(), "argv": report["corrected"]}])
    assert again["verdict"] == "pass"
    assert ids(again) == []


def test_abbreviated_flags_are_reported_and_removed_as_typed(on_0_5_15: dict[str, dict[str, Any]]) -> None:
    report = on_0_5_15["prefix"]
    assert report["findings"][0]["flags"] == ["--enable-fused-moe-sum", "--ep 4"]
    assert report["corrected"] == [*LAUNCH[:-1], "--ep", "4"]


def test_on_b200_the_flag_does_nothing(on_0_5_15: dict[str, dict[str, Any]]) -> None:
    report = on_0_5_15["b200"]
    assert "FMS201" in ids(report)
    assert "FMS301" not in ids(report)
    assert "flashinfer_trtllm" in report["findings"][0]["cause"]


def test_no_secret_leaves(on_0_5_15: dict[str, dict[str, Any]]) -> None:
    text = json.dumps(on_0_5_15["secret"])
    assert "s3cr3tkey" not in text
    assert "hf_environment" not in text
    assert on_0_5_15["secret"]["launch"]["argv"][-2:] == ["--api-key", "***"]


def test_an_ignored_finding_is_listed_with_its_reason(on_0_5_15: dict[str, dict[str, Any]]) -> None:
    report = on_0_5_15["ignored"]
    assert "FMS101" not in ids(report)
    assert {"id": "FMS101", "severity": "error", "reason": "tested here"} in report["ignored"]


def test_the_same_answer_twice(on_0_5_15: dict[str, dict[str, Any]]) -> None:
    assert on_0_5_15["again"] == on_0_5_15["plain"]


def test_every_report_follows_the_schema(on_0_5_15: dict[str, dict[str, Any]]) -> None:
    for report in on_0_5_15.values():
        jsonschema.validate(report, SCHEMA)
        assert report["notes"] == []


def test_the_text_report_and_exit_codes() -> None:
    done = cli(
        "0.5.15",
        "check",
        "--gpu",
        "4xRTX-PRO-6000",
        "--model-config",
        str(EXAMPLE),
        "--",
        *LAUNCH,
        "--ep-size",
        "4",
    )
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("sglang-guards ")
    assert "SGLang 0.5.15 (installed)" in lines[0]
    assert any("4 × RTX PRO 6000 (SM120)" in line for line in lines)
    assert any("NEXTN (EAGLE)" in line for line in lines)
    assert any(line.startswith("error[FMS101] ") for line in lines)
    assert lines[-3].startswith("FAIL  1 error, 1 warning")
    assert lines[-2] == "corrected command:"
    assert lines[-1] == "  " + " ".join([*LAUNCH[:-1], "--ep-size", "4"])
    assert "\x1b" not in done.stdout
    # A file name is one word, whatever its length.
    assert max(len(line) for line in lines[:-1] if "device_name=" not in line) <= 110


@pytest.mark.parametrize("release", ["0.5.11", "0.5.13.post1"])
def test_sglang_refuses_the_example_itself_up_to_0_5_13_post1(release: str) -> None:
    (report,) = run(release, [example()])
    assert ids(report) == ["SGL001"]
    assert "no_buffer" in report["findings"][0]["message"]
    assert report["verdict"] == "fail"
    assert report["corrected"] is None
    jsonschema.validate(report, SCHEMA)


@pytest.mark.parametrize("release", ["0.5.18", "0.5.20", "0.5.23"])
def test_the_example_on_later_releases(release: str) -> None:
    plain, ep = run(release, [example(), example("--ep-size", "4")])
    assert plain["verdict"] == "pass"
    assert ("FMS101" in ids(ep)) == (release != "0.5.23")
    for report in (plain, ep):
        jsonschema.validate(report, SCHEMA)
        assert report["notes"] == []


def test_the_report_in_the_readme_is_what_the_command_says() -> None:
    readme = (EXAMPLE.parents[1] / "README.md").read_text(encoding="utf-8")
    block = re.search(
        r"```console\n\$ sglang-guards (check .*?[^\\])\n(sglang-guards .*?)```", readme, re.DOTALL
    )
    assert block is not None
    done = cli("0.5.15", *shlex.split(block[1].replace("\\\n", " ")), COLUMNS="110")
    assert without_counts(done.stdout) == without_counts(block[2])


def without_counts(text: str) -> list[str]:
    """The words of a report but for its time and its counts of rules, which every new rule changes."""
    text = re.sub(r" · [\d.]+ s$", "", text, flags=re.MULTILINE)
    return re.sub(r" · \d+ (of \d+ rules apply|passed.*)$", "", text, flags=re.MULTILINE).split()
