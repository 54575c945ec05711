"""Launch commands: what is understood, and one sentence for everything that is not."""

from __future__ import annotations

import pytest

from sglang_guards import shell
from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight import command_line


@pytest.mark.parametrize(
    ("typed", "prefix", "serve"),
    [
        ("python -m sglang.launch_server --tp 4", 3, False),
        ("python3 -m sglang.launch_server --tp 4", 3, False),
        ("/opt/venv/bin/python3.12 -u -W ignore -m sglang.launch_server --tp 4", 6, False),
        ("python -msglang.launch_server --tp 4", 2, False),
        ("python -m sglang_guards.launch_server --tp 4", 3, False),
        ("python /src/sglang/launch_server.py --tp 4", 2, False),
        ("sglang serve --tp 4", 2, True),
        ("/usr/local/bin/sglang serve --tp 4", 2, True),
        ("SGLANG_USE_AITER=1 sglang serve --tp 4", 3, True),
        ("nohup env -u HF_TOKEN A=b python -m sglang.launch_server --tp 4", 8, False),
    ],
)
def test_the_forms_of_a_launch(typed: str, prefix: int, serve: bool) -> None:
    read = command_line.parse(typed.split())
    assert read.args == ("--tp", "4")
    assert len(read.prefix) == prefix
    assert read.serve is serve
    assert read.argv == tuple(typed.split())


def test_one_quoted_text_is_split_as_a_shell_would() -> None:
    read = command_line.parse(
        ["python -m sglang.launch_server \\\n  --json-model-override-args '{\"a b\": 1}'"]
    )
    assert read.args == ("--json-model-override-args", '{"a b": 1}')


def test_assignments_and_env_change_the_environment() -> None:
    read = command_line.parse(["A=1", "env", "-u", "GONE", "B=2", "sglang", "serve", "--tp", "1"])
    assert read.environment({"GONE": "x", "KEPT": "y"}) == {"KEPT": "y", "A": "1", "B": "2"}
    assert command_line.parse(["env", "-i", "B=2", "sglang", "serve"]).environment({"KEPT": "y"}) == {
        "B": "2"
    }


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ([], "is empty"),
        (["   "], "is empty"),
        (["A=b"], "environment assignments only"),
        (["ls", "-l"], "'ls' is not a launch of SGLang"),
        (["vllm", "serve", "x"], "'vllm' is not a launch of SGLang"),
        (["sglang", "generate"], "'sglang generate' does not start a server"),
        (["sglang"], "does not start a server"),
        (["python", "-m", "vllm.entrypoints"], "runs vllm.entrypoints, not SGLang's server"),
        (["python", "app.py"], "runs app.py, not SGLang's server"),
        (["python"], "runs no module"),
        (["python", "-m"], "runs no module"),
        (
            ["torchrun", "--nproc_per_node", "4", "-m", "sglang.launch_server"],
            "SGLang starts its own workers",
        ),
        (["docker", "run", "lmsysorg/sglang"], "starts with 'docker'"),
        (["kubectl", "exec", "pod"], "starts with 'kubectl'"),
        (["bash", "-c", "sglang serve"], "run through 'bash'"),
        (["sglang", "serve", "--tp", "4", "&&", "ls"], "shell operator '&&'"),
        (["sglang", "serve", "|", "tee", "log"], "shell operator '|'"),
        (["python -m sglang.launch_server --tp '4"], "cannot be split"),
        (["env", "--chdir=/", "sglang", "serve"], "env --chdir=/ in front of the command"),
    ],
)
def test_what_is_no_launch_is_one_sentence(typed: list[str], says: str) -> None:
    with pytest.raises(CouldNotCheck) as caught:
        command_line.parse(typed)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


def test_the_shown_command_can_be_pasted() -> None:
    words = ("A=b c", "sglang", "serve", "--x", '{"a": "it\'s"}')
    assert command_line.parse([shell.shown(words)]).argv == words
