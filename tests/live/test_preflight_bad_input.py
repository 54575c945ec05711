"""Everything an operator can get wrong: exit code 2, one clear sentence, no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from tests.live.preflight_cases import EXAMPLE, LAUNCH, cli, example, run
from tests.live.test_preflight_example import SCHEMA

pytestmark = pytest.mark.live
SERVER = ["python", "-m", "sglang.launch_server"]


def test_one_sentence_for_each(tmp_path: Path) -> None:
    config = json.loads((EXAMPLE / "config.json").read_text())
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "config.json").write_text('{"architectures": [')
    nameless = tmp_path / "nameless"
    nameless.mkdir()
    (nameless / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k != "architectures"})
    )
    (tmp_path / "empty").mkdir()
    broken = tmp_path / "broken.yaml"
    broken.write_text("tp-size: [1\n  x: {")
    listed = tmp_path / "list.yaml"
    listed.write_text("- a\n- b\n")
    unknown = tmp_path / "unknown.yaml"
    unknown.write_text("no-such-thing: 3\n")
    gpu = "4xRTX-PRO-6000"
    cases = {
        "is empty": {"argv": [], "gpu": gpu},
        "'ls' is not a launch of SGLang": {"argv": ["ls"], "gpu": gpu},
        "unknown GPU 'FOO'": example(gpu="4xFOO"),
        "does not know --no-such-flag": example("--no-such-flag", "3"),
        "does not know --no-such-thing (from the --config file)": example("--config", str(unknown)),
        "invalid int value": example("--port", "many"),
        "--reasoning-parser: invalid choice": example("--reasoning-parser", "nobody"),
        "only prints help": example("--help"),
        f"{tmp_path / 'nowhere.json'} does not exist": {
            **example(),
            "model_config": str(tmp_path / "nowhere.json"),
        },
        f"{damaged}/config.json cannot be read": {**example(), "model_config": str(damaged)},
        f"{nameless}/config.json names no architectures": {**example(), "model_config": str(nameless)},
        "model path /no/such/model does not exist": {
            "argv": [*SERVER, "--model-path", "/no/such/model"],
            "gpu": gpu,
        },
        "is neither a folder here nor in this machine's Hugging Face cache": {
            "argv": [*SERVER, "--model-path", "no-such-org/no-such-model"],
            "gpu": gpu,
        },
        "model path " + str(tmp_path / "empty"): {
            "argv": [*SERVER, "--model-path", str(tmp_path / "empty")],
            "gpu": gpu,
        },
        f"model config {damaged}": {"argv": [*SERVER, "--model-path", str(damaged)], "gpu": gpu},
        f"model config {nameless}": {"argv": [*SERVER, "--model-path", str(nameless)], "gpu": gpu},
        "arguments are required: --model-path": {"argv": SERVER, "gpu": gpu},
        "--config cannot be used: while parsing": example("--config", str(broken)),
        "--config cannot be used: Config file must contain a dictionary": example("--config", str(listed)),
        "--config cannot be used: Config file not found": example("--config", str(tmp_path / "none.yaml")),
        "--config cannot be used: No config file specified": example("--config"),
        "--model-type diffusion": {
            "argv": ["sglang", "serve", *LAUNCH[3:], "--model-type", "diffusion"],
            "gpu": gpu,
        },
    }
    answers = run("0.5.15", list(cases.values()))
    for says, answer in zip(cases, answers, strict=True):
        assert says in answer.get("error", str(answer)), says
        assert "\n" not in answer["error"]
        assert "Traceback" not in answer["error"]
    by_text = dict(zip(cases, answers, strict=True))
    offline = by_text["is neither a folder here nor in this machine's Hugging Face cache"]
    assert "--model-config" in offline["hint"]


def test_a_flag_of_another_release_names_the_release() -> None:
    (answer,) = run("0.5.11", [example("--flashinfer-allreduce-fusion-backend", "auto")])
    assert answer["error"] == "SGLang 0.5.11 does not know --flashinfer-allreduce-fusion-backend"
    assert "0.5.14" in answer["hint"]
    (older,) = run("0.5.9", [example()])
    assert older["error"] == "SGLang 0.5.9 does not know --enable-fused-moe-sum-all-reduce"
    assert "0.5.10 to " in older["hint"]


def test_a_misspelt_flag_gets_a_suggestion(tmp_path: Path) -> None:
    done = cli("0.5.15", "check", "--gpu", "4xH100", "--model-config", str(EXAMPLE), "--", *LAUNCH, "--ep-sizes", "4",
               SGLANG_GUARDS_TREES=str(tmp_path))  # fmt: skip
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr.splitlines()
        == [
            "error: SGLang 0.5.15 does not know --ep-sizes",
            "hint: did you mean --ep-size?",
        ]
        or "did you mean --ep-size" in done.stderr
    )


def test_json_at_exit_code_2() -> None:
    done = cli("0.5.15", "check", "--format", "json", "--gpu", "4xFOO", "--", *LAUNCH)
    assert done.returncode == 2
    body = json.loads(done.stdout)
    jsonschema.validate(body, SCHEMA)
    assert "FOO" in body["error"]["message"]
