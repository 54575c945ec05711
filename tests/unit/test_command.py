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
        ("sudo -E -u serve A=b python -m sglang.launch_server --tp 4", 8, False),
        ("time -p nice -n 5 nice -10 ionice -c2 sglang serve --tp 4", 11, True),
        ("numactl -N 0 --membind=0 -C 0-3 sglang serve --tp 4", 8, True),
        ("taskset -c 0-3 timeout -k 5 1h stdbuf -oL -e L sglang serve --tp 4", 13, True),
        ("setsid -w exec -a name sglang serve --tp 4", 7, True),
        ("conda run -n sg --no-capture-output sglang serve --tp 4", 7, True),
        ("uv run --with sglang==0.5.14 --frozen sglang serve --tp 4", 7, True),
        ("poetry run python -m sglang.launch_server --tp 4", 5, False),
        ("srun --gres=gpu:8 -N 1 --exclusive sglang serve --tp 4", 7, True),
        ("python -m sglang serve --tp 4", 4, True),
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
        (["docker", "run", "lmsysorg/sglang"], "decided by its own entry point"),
        (["docker", "compose", "up"], "starts with 'docker compose', which holds no launch"),
        (["docker", "run", "--rm"], "names no image"),
        (["kubectl", "exec", "pod"], "starts with 'kubectl'"),
        (["bash", "serve.sh"], "run through 'bash', from a file"),
        (["bash", "-c", "ls"], "'ls' is not a launch of SGLang"),
        (["sudo"], "nothing follows 'sudo'"),
        (["env", "A=1", "-u", "B", "sglang", "serve"], "env takes its options before the assignments"),
        (["G --x\nsglang serve --tp 4\nsglang serve --tp 8"], "holds 2 launches, at lines 2, 3"),
        (["sglang serve --tp 4 \\\n # why\n --ep 4"], "the shell ends the launch before line 3: --ep begins"),
        (["sglang serve --tp 4\n --ep 4"], "the shell ends the launch before line 2: --ep begins"),
        (["sglang serve --x {a,b}"], "bash expands the braces"),
        (["sglang serve --x 'a"], "a single quote is not closed"),
        (["sglang serve <"], "names no file"),
        (["ssh host sglang serve"], "starts with 'ssh'"),
        (["sglang", "serve", "--tp", "4", "&&", "ls"], "shell operator '&&'"),
        (["sglang", "serve", "|", "tee", "log"], "shell operator '|'"),
        (["python -m sglang.launch_server --tp '4"], "cannot be split"),
        (["env", "--split-string=x", "sglang", "serve"], "env --split-string=x in front of the command"),
    ],
)
def test_what_is_no_launch_is_one_sentence(typed: list[str], says: str) -> None:
    with pytest.raises(CouldNotCheck) as caught:
        command_line.parse(typed)
    assert says in caught.value.message
    assert "\n" not in caught.value.message


G = "python -m sglang.launch_server --tp 4"


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (f"{G} --served-model-name foo#1 --ep 4", ["--served-model-name", "foo#1", "--ep", "4"]),
        (
            f"{G} --api-key ab#cd --revision a#b # a comment --ep 4",
            ["--api-key", "ab#cd", "--revision", "a#b"],
        ),
        (f"{G} --served-model-name a|tee log", ["--served-model-name", "a"]),
        (f"{G} --lora-paths a=/b >log 2>&1 &", ["--lora-paths", "a=/b"]),
        (f"{G} --lora-paths a=/b;", ["--lora-paths", "a=/b"]),
        (f"{G} --lora-paths a=/b\nwait", ["--lora-paths", "a=/b"]),
        (f"{G} --max-running-requests 1\\\n28", ["--max-running-requests", "128"]),
        (f"{G} --served-model-name 'a\\\nb'", ["--served-model-name", "a\\\nb"]),
        (f"{G} --served-model-name 2 >log", ["--served-model-name", "2"]),
        (f"bash -c '{G} --ep 4'", ["--ep", "4"]),
        (f"N=m; {G} --served-model-name $N-${{EP:-4}}", ["--served-model-name", "m-4"]),
        (f"ARGS=(--ep 4 --x 'a b')\n{G} \"${{ARGS[@]}}\"", ["--ep", "4", "--x", "a b"]),
        (f"if true; then\n  {G} --ep 4\nfi", ["--ep", "4"]),
        (f"cat > f <<EOF\n{G}\nEOF\n{G} --ep 4", ["--ep", "4"]),
    ],
)
def test_words_are_those_of_a_shell(text: str, args: list[str]) -> None:
    assert list(command_line.parse([text], {}).args) == ["--tp", "4", *args]


@pytest.mark.parametrize(
    ("before", "use"),
    [
        ('A=(--ep 4)\nif [ -n "$X" ]; then A+=(--trust-remote-code); fi\nA+=(--x)', '"${A[@]}"'),
        ('F="--ep 4"; if true; then F+=" --x"; fi; F+=" --y"', "$F"),
    ],
)
def test_what_hangs_on_a_branch_stays_unknown_when_more_is_added(before: str, use: str) -> None:
    read = command_line.parse([f"{before}\n{G} {use}"], {})
    assert read.args == ("--tp", "4", use.strip('"'))
    assert read.unknown == (use.strip('"'),)


def test_a_variable_that_is_not_set_stays_and_is_named() -> None:
    read = command_line.parse([f"{G} --served-model-name $NAME --port $PORT"], {"PORT": "1"})
    assert read.args[2:] == ("--served-model-name", "$NAME", "--port", "1")
    assert read.unknown == ("$NAME",)


def test_what_the_command_sets_for_itself() -> None:
    read = command_line.parse([f"export A=1 B=2\nC=3\nunset Z\nD=4 {G}"], {"Z": "z", "K": "k"})
    assert read.environment({"Z": "z", "K": "k"}) == {"A": "1", "B": "2", "D": "4", "K": "k"}
    assert read.argv[:3] == ("A=1", "B=2", "D=4")
    sudo = command_line.parse(["A=1", "sudo", "B=2", "sglang", "serve"])
    assert sudo.environment({}) == {"B": "2"}
    assert "sudo does not pass on A" in sudo.notes[0]
    kept = command_line.parse(["A=1", "sudo", "-E", "sglang", "serve"])
    assert kept.environment({}) == {"A": "1"}


def test_a_container_sees_its_own_variables_gpus_and_folders() -> None:
    read = command_line.parse(
        ["docker", "run", "-itd", "--gpus", '"device=2,3"', "-e", "A=b", "--env=C", "-v", "/data/m:/m:ro", "-p1:1",
         "--shm-size", "32g", "lmsysorg/sglang:v0.5.15", "python3", "-m", "sglang.launch_server", "--model-path", "/m"]
    )  # fmt: skip
    assert read.args == ("--model-path", "/m")
    assert read.devices == "2,3"
    assert read.mounts == (("/m", "/data/m"),)
    assert read.environment({"SGLANG_X": "1", "HOME": "/h"}) == {"HOME": "/h", "A": "b"}
    assert read.places == ("that of the image lmsysorg/sglang:v0.5.15",)


def test_one_of_several_launches_by_number() -> None:
    text = f"{G} --ep 1\n{G} --ep 2"
    assert command_line.parse([text], {}, nth=2).args[-1] == "2"
    with pytest.raises(CouldNotCheck, match="no launch number 3"):
        command_line.parse([text], {}, nth=3)


def test_the_shown_command_can_be_pasted() -> None:
    words = ("A=b c", "sglang", "serve", "--x", '{"a": "it\'s"}')
    assert command_line.parse([shell.shown(words)]).argv == words
