"""What hostile and unlucky input did, on real SGLang: each reproduction, and what it must do now."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.launches.checks import MODELS, ROOT
from tests.live.preflight_cases import cli, environment, run
from tests.trees import tree

pytestmark = pytest.mark.live
RELEASE = "0.5.15"
MODEL = MODELS / "qwen3-30b-a3b-bf16"
G = f"python -m sglang.launch_server --model-path {MODEL} --tp 4"
FB = "--ep-size 4 --enable-fused-moe-sum-all-reduce"
BAD = "FMS101"


def changed(tmp_path: Path, name: str, **changes: Any) -> str:
    """A launch of the model with keys of its config changed (None: left out)."""
    config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
    kept = {k: v for k, v in (config | changes).items() if not (k in changes and v is None)}
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(kept), encoding="utf-8")
    return G.replace(str(MODEL), str(tmp_path / name))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    tmp = tmp_path_factory.mktemp("hostile")
    pipe = "|tee log"
    texts = {
        "plain": f"{G} {FB}",
        "1 hash in a word": f"{G} --served-model-name foo#1 {FB}",
        "1 hash in a key": f"{G} --api-key ab#cd {FB}",
        "1 hash in a URL": f"{G} --otlp-traces-endpoint http://h:1/#x {FB}",
        "1 hash in a revision": f"{G} --revision a#b {FB}",
        "1 a real comment": f"{G} # {FB}",
        "2 fewer GPUs": f"CUDA_VISIBLE_DEVICES=0,1 {G}",
        "2 enough GPUs": f"CUDA_VISIBLE_DEVICES=4,5,6,7 {G}",
        "3 PYTHONPATH": f"PYTHONPATH={tree('0.5.11')} {G} {FB}",
        "3 interpreter": f"/opt/other/bin/python -m sglang.launch_server --model-path {MODEL} --tp 4 {FB}",
        "4 comment line": f"{G} \\\n  # why\n  {FB}",
        "5 glued pipe": f"{G} {FB} --served-model-name a{pipe}",
        "5 glued redirection": f"{G} {FB} --lora-paths a=/b >log",
        "5 next line": f"{G} {FB} --lora-paths a=/b\nwait",
        "6 continued number": f"{G} {FB} --max-running-requests 1\\\n28",
        "7 no expert count": f"{changed(tmp, 'count', num_experts=None)} {FB}",
        "7 no top-k": f"{changed(tmp, 'topk', num_experts_per_tok=None)} {FB}",
        "17 huge TP": f"{G.replace('--tp 4', '--tp 99999999999999999999')} {FB}",
        "17 huge EP": f"{G} --ep-size 99999999999999999999",
        "20 nested": changed(tmp, "nested", x=nested(900)),
        "20 nested less": changed(tmp, "less", x=nested(90)),
        "variable": f"{G} {FB} --served-model-name $NOBODY_SET_THIS",
        "variable as a number": f"{G.replace('--tp 4', '--tp $NOBODY_SET_THIS')} {FB}",
        "free number": f"{G} {FB} --port $NOBODY_SET_THIS --node-rank ${{NOR_THIS}}",
        "caller's words": f'exec {G} {FB} "$@"',
        "words for bash": f"bash -c '{G} \"$@\"' name {FB}",
        "HF_HOME": f"HF_HOME={hub(tmp)} {G.replace(str(MODEL), 'some/model')} {FB}",
        "no HF_HOME": f"{G.replace(str(MODEL), 'some/model')} {FB}",
        "python -m sglang": f"python -m sglang serve --model-path {MODEL}",
        "docker": f"docker run --gpus 2 -v {MODEL}:/m lmsysorg/sglang:v{RELEASE} python3 -m sglang.launch_server "
        f"--model-path /m --tp 4 {FB}",
        "wrappers": f"A=1 sudo -E nohup numactl -N 0 taskset -c 0-3 timeout 1h {G} {FB} > log 2>&1 &",
    }
    cases = [{"argv": [text], "gpu": "8xH200"} for text in texts.values()]
    return dict(zip(texts, run(RELEASE, cases), strict=True))


def hub(tmp_path: Path) -> Path:
    """A folder for HF_HOME whose cache has the model's config as some/model."""
    home = tmp_path / "hf"
    repo = home / "hub" / "models--some--model"
    for folder in (repo / "refs", repo / "snapshots" / "abc"):
        folder.mkdir(parents=True)
    (repo / "refs" / "main").write_text("abc", encoding="utf-8")
    (repo / "snapshots" / "abc" / "config.json").write_bytes((MODEL / "config.json").read_bytes())
    return home


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def ids(answer: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in answer.get("findings", ())}


JUDGED = (
    *(
        "plain",
        "1 hash in a word",
        "1 hash in a key",
        "1 hash in a URL",
        "1 hash in a revision",
        "3 interpreter",
    ),
    *(
        "5 glued pipe",
        "5 glued redirection",
        "5 next line",
        "6 continued number",
        "7 no expert count",
        "7 no top-k",
    ),
    *("17 huge TP", "variable", "docker", "wrappers"),
    *("free number", "caller's words", "words for bash", "HF_HOME"),
)


@pytest.mark.parametrize("name", JUDGED)
def test_it_is_judged_as_the_shell_would_start_it(answers: dict[str, dict[str, Any]], name: str) -> None:
    assert BAD in ids(answers[name]), answers[name]


def test_a_real_comment_is_none_of_the_launch(answers: dict[str, dict[str, Any]]) -> None:
    assert BAD not in ids(answers["1 a real comment"])


def test_the_gpus_that_the_command_leaves_itself(answers: dict[str, dict[str, Any]]) -> None:
    assert "PAR107" in ids(answers["2 fewer GPUs"])
    assert answers["2 fewer GPUs"]["notes"][0] == "CUDA_VISIBLE_DEVICES=0,1 leaves the launch 2 of 8 GPUs"
    assert answers["2 enough GPUs"]["verdict"] == "pass"
    assert "PAR107" in ids(answers["docker"])


def test_which_sglang_is_judged(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["3 PYTHONPATH"]["target"]["sglang"] == "0.5.11"
    assert BAD in ids(answers["3 PYTHONPATH"])
    assert (
        "another SGLang than the one judged: that of /opt/other/bin/python"
        in answers["3 interpreter"]["notes"][0]
    )
    assert "has no __main__" in answers["python -m sglang"]["error"]


def test_flags_behind_a_comment_line_are_refused(answers: dict[str, dict[str, Any]]) -> None:
    assert (
        "ends the launch before line 3: --ep-size begins a command of its own"
        in answers["4 comment line"]["error"]
    )


def test_the_corrected_command_has_the_joined_number(answers: dict[str, dict[str, Any]]) -> None:
    corrected = answers["6 continued number"]["corrected"]
    assert corrected[corrected.index("--max-running-requests") + 1] == "128"
    assert "log" not in answers["5 glued pipe"]["corrected"]


def test_huge_numbers_end(answers: dict[str, dict[str, Any]]) -> None:
    for name in ("17 huge TP", "17 huge EP"):
        assert answers[name]["verdict"] == "fail"
        assert not [note for note in answers[name]["notes"] if "stopped after" in note]


def test_our_recursion_is_not_sglangs_refusal(answers: dict[str, dict[str, Any]]) -> None:
    assert "nested more than 100 levels deep" in answers["20 nested"]["error"]
    assert answers["20 nested less"]["verdict"] == "pass"


def test_variables_that_are_not_set(answers: dict[str, dict[str, Any]]) -> None:
    assert any("$NOBODY_SET_THIS is not set here" in note for note in answers["variable"]["notes"])
    assert "$NOBODY_SET_THIS is not set here" in answers["variable as a number"]["hint"]


def test_a_number_that_decides_nothing_need_not_be_known(answers: dict[str, dict[str, Any]]) -> None:
    found = answers["free number"]
    said = [note for note in found["notes"] if "no rule reads it" in note]
    assert [note.partition(":")[0] for note in said] == ["--port $NOBODY_SET_THIS", "--node-rank ${NOR_THIS}"]
    assert not any("judged as written" in note for note in found["notes"])
    assert found["corrected"][-4:] == ["--port", "$NOBODY_SET_THIS", "--node-rank", "${NOR_THIS}"]
    assert any("take the quotes away" in note for note in found["notes"])


def test_what_a_caller_adds_is_said_to_be_unknown(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["caller's words"]["unknown"] == ["what a caller adds by $@: the command is judged without"]
    assert answers["words for bash"]["unknown"] == []


def test_the_cache_is_the_one_that_the_command_names(answers: dict[str, dict[str, Any]]) -> None:
    assert answers["HF_HOME"]["launch"]["facts"]["args.model_path"]["value"] == "some/model"
    assert "this machine's Hugging Face cache" in answers["no HF_HOME"]["error"]


def test_not_a_number_is_json(tmp_path: Path) -> None:
    words = ["--", *G.split(), "--mem-fraction-static", "nan"]
    done = cli(RELEASE, "check", "--gpu", "8xH200", "--format", "json", *words, COLUMNS="0")
    assert done.returncode in (0, 1)
    json.loads(done.stdout, parse_constant=pytest.fail)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("after", [0.7, 4.0])
def test_a_signal_leaves_nothing_behind(number: signal.Signals, after: float, tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "sglang_guards", "check", "--gpu", "8xH200", "--", *G.split()],
        env=environment(RELEASE) | {"TMPDIR": str(tmp_path)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(after)
    os.killpg(started.pid, number)
    _, err = started.communicate(timeout=60)
    assert "Traceback" not in err or after < 1, err  # before `main` Python itself speaks
    left = [path for path in tmp_path.iterdir() if path.name.startswith("sglang-guards")]
    deadline = time.monotonic() + 10
    while left and time.monotonic() < deadline:  # the worker may be a moment behind
        time.sleep(0.2)
        left = [path for path in left if path.exists()]
    assert left == []
