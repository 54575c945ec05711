"""What `check` must never do, on real SGLang: reach the network, run a checkpoint's code, show a secret.

All command lines run in one process (plus its helpers), without a network where the kernel lets us take it away.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launches.checks import MODELS, ROOT, environment
from tests.live.runs import FLAG, hooked

RELEASE = "0.5.15"
MODEL = MODELS / "qwen3-30b-a3b-bf16"
SERVER = ["python", "-m", "sglang.launch_server"]
CHECK = ["check", "--gpu", "4xH100"]
FORMATS = ("text", "json", "github", "sarif")
IN_EVERY_FORMAT = ("passes", "fails", "url", "mistyped")
SECRETS = tuple(f"sk-{n}-hidden" for n in range(12))
#: What a checkpoint may bring: importing it leaves a trace.
EVIL = "import pathlib\npathlib.Path(__file__).with_name('ran').touch()\nclass EvilConfig: pass\nclass Evil: pass\n"
AUTO_MAP = {
    "AutoConfig": "evil.EvilConfig",
    "AutoModelForCausalLM": "evil.Evil",
    "AutoTokenizer": ["evil.Evil", None],
}


@dataclass
class Runs:
    """Answers by name of the command line, what the seal wrote, and where checkpoints with code lie."""

    answers: dict[str, tuple[int, str, str]]
    seal: list[str]
    evil: list[Path]
    offline: bool


def evil_checkpoint(folder: Path, **changes: str) -> Path:
    folder.mkdir()
    config = (
        json.loads((MODEL / "config.json").read_text(encoding="utf-8")) | {"auto_map": AUTO_MAP} | changes
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"auto_map": AUTO_MAP}), encoding="utf-8")
    (folder / "evil.py").write_text(EVIL, encoding="utf-8")
    return folder


def config_file(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def network_lines() -> dict[str, list[str]]:
    """Launches whose model, draft or adapter is not on this machine."""
    here = [*SERVER, "--model-path", str(MODEL), "--tp", "4"]
    draft = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "nobody/no-draft"]
    return {
        "hub": [*CHECK, "--", *SERVER, "--model-path", "nobody/no-model"],
        "modelscope": [*CHECK, "--", "SGLANG_USE_MODELSCOPE=1", *SERVER, "--model-path", "nobody/no-model"],
        "url": [*CHECK, "--", *SERVER, "--model-path", "https://example.com/model"],
        "s3": [*CHECK, "--", *SERVER, "--model-path", "s3://bucket/model"],
        "draft": [*CHECK, "--", *here, *draft],
        "adapter": [*CHECK, "--", *here, "--enable-lora", "--lora-paths", "a=nobody/no-adapter"],
        "nodes": [
            *CHECK,
            "--",
            *here,
            "--nnodes",
            "2",
            "--node-rank",
            "1",
            "--dist-init-addr",
            "example.com:5000",
        ],
    }


def evil_lines(folders: list[Path]) -> dict[str, list[str]]:
    """Checkpoints with code, given in every way, with the operator's consent to run it."""
    known, unknown = map(str, folders)
    trust = "--trust-remote-code"
    draft = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", known]
    return {
        "evil path": [*CHECK, "--", *SERVER, "--model-path", known, trust],
        "evil config": [*CHECK, "--model-config", known, "--", *SERVER, "--model-path", "a/b", trust],
        "evil unknown": [*CHECK, "--", *SERVER, "--model-path", unknown, trust],
        "evil draft": [*CHECK, "--", *SERVER, "--model-path", str(MODEL), *draft, trust],
    }


def secret_lines(tmp: Path) -> dict[str, list[str]]:
    """A secret in every place where an operator may put one, in launches that pass, fail and cannot be checked."""
    s = SECRETS
    here = [*SERVER, "--model-path", str(MODEL), "--tp", "4"]
    good = config_file(tmp / "good.yaml", f"api-key: {s[3]}\nadmin-api-key: {s[4]}\n")
    bad = config_file(tmp / "bad.yaml", f"api-key: [{s[3]}, {s[4]}]\n")
    broken = config_file(tmp / "broken.yaml", f"api-key: {s[3]}\n  admin-api-key: {s[4]}: [\n")
    override = json.dumps({"api_key": s[6], "nested": {"token": s[6]}})
    launches = {
        "passes": [*here, "--api-key", s[0], f"--admin-api-key={s[1]}"],
        "fails": [f"HF_TOKEN={s[2]}", *here, FLAG, "--enable-deterministic-inference", "--api-key", s[0]],
        "prefix": [*here, "--api-k", s[0], f"--admin-api-ke={s[1]}"],
        "config": [*here, "--config", good],
        "url": [*here, "--otlp-traces-endpoint", f"http://user:{s[5]}@collector:4317?token={s[5]}"],
        "json": [*here, "--json-model-override-args", override],
        "refused": [*here, "--api-key", s[0], "--ssl-keyfile", "/k", "--ssl-keyfile-password", s[7]],
        "unknown flag": [*here, "--no-such-flag", "--api-key", s[0]],
        "too many words": [*here, "--api-key", s[0], s[8]],
        "too many in config": [*here, "--config", bad],
        "broken config": [*here, "--config", broken],
        "mistyped": [*here, "--api-kye", s[9]],
        "mistyped with sign": [*here, f"--apikey={s[9]}"],
        "another program": ["python", "-m", "elsewhere", "--api-key", s[0]],
        "one text": [f"python -m elsewhere --api-key {s[0]} --admin-api-key='{s[1]}'"],
        "model is a secret url": [*SERVER, "--model-path", f"https://user:{s[10]}@example.com/m"],
    }
    return {
        f"secret {name} {form}": [
            *CHECK,
            "--format",
            form,
            *(["-v"] if form == "text" else []),
            "--",
            *launch,
        ]
        for name, launch in launches.items()
        for form in (FORMATS if name in IN_EVERY_FORMAT else FORMATS[:2])
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    tmp = tmp_path_factory.mktemp("security")
    evil = [evil_checkpoint(tmp / "known"), evil_checkpoint(tmp / "unknown", model_type="evil_moe")]
    lines = network_lines() | evil_lines(evil) | secret_lines(tmp)
    seal = tmp / "seal"
    env = environment(
        RELEASE, SGLANG_GUARDS_TEST_SEAL=str(seal), ADMIN_TOKEN=SECRETS[11], HF_HOME=str(tmp / "hf")
    )
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent / "sealed"), env["PYTHONPATH"]])
    # Without these, what keeps the hub out is ours alone.
    env = {k: v for k, v in env.items() if not k.startswith(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))}
    apart = ["unshare", "-n"] if shutil.which("unshare") and _may_unshare() else []
    done = subprocess.run(
        [*apart, sys.executable, "-m", "tests.live.cli_runs"],
        input=json.dumps(list(lines.values())),
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answers = {name: tuple(answer) for name, answer in zip(lines, json.loads(done.stdout), strict=True)}
    return Runs(answers, seal.read_text(encoding="utf-8").splitlines(), evil, bool(apart))


def _may_unshare() -> bool:
    return subprocess.run(["unshare", "-n", "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.live
def test_nothing_reaches_the_network(runs: Runs) -> None:
    sealed = {line for line in runs.seal if line.startswith("sealed ")}
    assert len(sealed) >= 2, "the seal must have been in the command and in its helper"
    assert [line for line in runs.seal if line not in sealed] == []
    codes = {name: runs.answers[name][0] for name in network_lines()}
    assert codes == {"hub": 2, "modelscope": 2, "url": 2, "s3": 2, "draft": 0, "adapter": 0, "nodes": 0}, [
        runs.answers[name] for name in codes
    ]


@pytest.mark.live
def test_a_checkpoints_code_never_runs(runs: Runs) -> None:
    assert [folder / "ran" for folder in runs.evil if (folder / "ran").exists()] == []
    assert runs.answers["evil path"][0] == 0, runs.answers["evil path"]
    assert runs.answers["evil config"][0] == 0
    # A model type that transformers lacks is judged from the JSON's own fields, still without the checkpoint's code.
    assert runs.answers["evil unknown"][0] == 0, runs.answers["evil unknown"]


def test_the_planted_code_would_leave_a_trace(tmp_path: Path) -> None:
    folder = evil_checkpoint(tmp_path / "known")
    subprocess.run([sys.executable, "-c", "import evil"], cwd=folder, check=True)
    assert (folder / "ran").exists()


@pytest.mark.live
def test_no_output_shows_a_secret(runs: Runs) -> None:
    shown = {
        name: secret
        for name, (_, out, err) in runs.answers.items()
        for secret in SECRETS
        if secret in out or secret in err
    }
    assert shown == {}
    codes = {
        name.split(" ", 1)[1]: answer[0] for name, answer in runs.answers.items() if name.startswith("secret")
    }
    assert {codes[f"passes {form}"] for form in FORMATS} == {0}
    assert {codes[f"fails {form}"] for form in FORMATS} == {1}
    assert {codes[f"mistyped {form}"] for form in FORMATS} == {2}
    assert "***" in runs.answers["secret fails json"][1]
    assert all(
        json.loads(out) for name, (_, out, _) in runs.answers.items() if name.endswith((" json", " sarif"))
    )


@pytest.mark.live
def test_the_hook_keeps_secrets_too_and_its_report_is_private(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text("{}", encoding="utf-8")
    report.chmod(0o644)
    argv = ["--model-path", str(MODEL), "--tp", "4", FLAG, "--enable-deterministic-inference"]
    secrets = ["--api-key", SECRETS[0], f"--admin-api-key={SECRETS[1]}"]
    env = {
        "SGLANG_GUARDS_REPORT": str(report),
        "HF_TOKEN": SECRETS[2],
        "SGLANG_GUARDS_IGNORE": f"RUN={SECRETS[2]}",
    }
    answer = hooked(RELEASE, [{"argv": [*argv, *secrets], "gpu": "4xH100", "env": env}])[0]
    written = report.read_text(encoding="utf-8")
    assert answer["raised"] is not None
    assert json.loads(written)["launch"]["facts"]["args.api_key"]["value"] == "***"
    assert [s for s in SECRETS if s in written or s in json.dumps(answer)] == []
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
