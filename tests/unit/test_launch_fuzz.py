"""Generated wrappers, texts and YAML: the launch inside is found word for word, or one sentence says why not."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from sglang_guards import shell
from sglang_guards.errors import CouldNotCheck
from sglang_guards.preflight import command_line, launch_file

WRAPPERS = (
    *(
        "nohup",
        "setsid -w",
        "time -p",
        "nice -n 5",
        "nice -10",
        "ionice -c 2 -n 7",
        "stdbuf -oL -e L",
        "exec",
    ),
    *(
        "numactl -N 0 -m 0",
        "numactl --cpunodebind=0 --membind 0",
        "taskset -c 0-3",
        "taskset 0xff",
        "timeout 5m",
    ),
    *(
        "timeout -k 5 --signal=TERM 1h",
        "sudo -E -u me",
        "sudo -n",
        "env A=1",
        "env -u B C=2",
        "env -i PATH=/bin",
    ),
    *(
        "conda run -n x",
        "mamba run -p /x --no-capture-output",
        "uv run",
        "uv run --with a --frozen",
        "poetry run",
    ),
    *(
        "srun -N 1 --gres=gpu:8",
        "docker run --rm -it -e A=b image",
        "docker run --gpus all -v a:b i",
        "podman exec c",
    ),
    *("chrt -f 10", "unbuffer", "doas -u me", "command"),
)
LAUNCHERS = ("python -m sglang.launch_server", "/x/bin/python3.11 -u -m sglang.launch_server", "sglang serve")
VALUES = (
    "4",
    "a b",
    "a#b",
    '{"a": 1}',
    "it's",
    "$",
    "-1",
    "é",
    "*",
    "a|b",
    "",
    "x=y",
    "\\",
    "\n",
    "~",
    "{a,b}",
    ">",
)
NUMBER = 1500


def arguments(random_: random.Random) -> list[str]:
    return [
        word
        for n in range(random_.randint(0, 4))
        for word in (f"--flag-{n}", *random_.choices(VALUES, k=random_.randint(0, 2)))
    ]


def test_any_chain_of_wrappers_is_looked_through() -> None:
    random_ = random.Random(1)
    for _ in range(NUMBER):
        front = " ".join(random_.choices(WRAPPERS, k=random_.randint(0, 4)))
        args = arguments(random_)
        words = [*front.split(), *random_.choice(LAUNCHERS).split(), *args]
        operators = ("|", ">")
        if not any(word in operators for word in words):
            assert list(command_line.parse(words, {}).args) == args, words
        text = shell.shown(words) + random_.choice(
            ("", " &", " > log 2>&1 &", ";", " # end", "\n", " | tee log", " 2>e")
        )
        read = command_line.parse([text], {})
        assert list(read.args) == args, text
        again = f"bash -c {shell.shown([text])}"
        assert list(command_line.parse([again], {}).args) == args, again
    print(f"wrappers: {3 * NUMBER} commands read word for word")


@pytest.mark.parametrize("kind", ["compose", "kubernetes"])
def test_yaml_around_a_launch(kind: str, tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    random_ = random.Random(2)
    for _ in range(NUMBER // 5):
        args = [a.replace("$", "$$") for a in arguments(random_)]
        words = ["python3", "-m", "sglang.launch_server", *args]
        cut = random_.randint(0, 3)
        if kind == "compose":
            service: dict[str, Any] = {
                "image": "i",
                "entrypoint": words[:cut] or None,
                "command": words[cut:],
            }
            document: Any = {"services": {"a": {"image": "x"}, "b": service}}
        else:
            container = {"name": "b", "image": "i", "command": words[:cut], "args": words[cut:]}
            document = {
                "spec": {"template": {"spec": {"containers": [{"name": "a", "command": ["x"]}, container]}}}
            }
        file = tmp_path / "launch.yaml"
        file.write_text(yaml.safe_dump(document, default_flow_style=random_.random() < 0.5), encoding="utf-8")
        read = launch_file.read(file, {})
        assert [a.replace("$", "$$") for a in read.args] == args
    print(f"{kind}: {NUMBER // 5} files read word for word")


def odd(random_: random.Random, depth: int = 0) -> Any:
    """YAML that has the right words in wrong places."""
    words = (
        *(
            "services",
            "containers",
            "command",
            "args",
            "env",
            "environment",
            "image",
            "name",
            "deploy",
            "limits",
        ),
        *(
            "resources",
            "volumes",
            "entrypoint",
            "devices",
            "sglang",
            "serve",
            "sglang serve --tp 4",
            "$(X)",
            "${X",
        ),
    )
    if depth > 4 or random_.random() < 0.3:
        return random_.choice((*words, 1, 1.5, None, True, [], {}, float("nan"), "'"))
    if random_.random() < 0.4:
        return [odd(random_, depth + 1) for _ in range(random_.randint(0, 3))]
    return {random_.choice((*words, 1, None)): odd(random_, depth + 1) for _ in range(random_.randint(0, 4))}


def test_odd_yaml_and_odd_texts_end_in_one_sentence(tmp_path: Path) -> None:
    yaml = pytest.importorskip("yaml")
    random_ = random.Random(3)
    refused, said = 0, list[str]()
    scraps = (
        "sglang",
        " ",
        "serve",
        "--tp",
        "\n",
        "'",
        '"',
        "\\",
        "$(",
        ")",
        "${",
        "}",
        "`",
        "|",
        "&",
        "<<",
        "(",
        "if",
        "\0",
    )
    for number in range(NUMBER):
        file = tmp_path / ("x.yaml" if number % 2 else "x.sh")
        if number % 4 == 3:
            file.write_bytes(json.dumps(odd(random_), allow_nan=True).encode()[: random_.randint(0, 80)])
        elif number % 4 == 1:
            file.write_text(yaml.safe_dump(odd(random_)), encoding="utf-8")
        else:
            file.write_text("".join(random_.choices(scraps, k=random_.randint(0, 15))), encoding="utf-8")
        try:
            launch_file.read(file, {})
        except CouldNotCheck as error:
            refused += 1
            said.append(error.message)
    assert refused > NUMBER // 2
    assert all(message and "\n" not in message for message in said)
    print(f"odd files: {NUMBER} files, {refused} refused in one sentence, none crashed")
