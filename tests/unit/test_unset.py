"""Words that only the running shell knows."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

from sglang_guards.preflight import command_line, options, unset
from tests.releases import RELEASES
from tests.trees import tree

PACKAGE = Path(unset.__file__).parents[1]


def table() -> tuple[options.Option, ...]:
    parser = argparse.ArgumentParser()
    for name in ("--port", "--nccl-port", "--tp"):
        parser.add_argument(name, type=int)
    return options.table(parser, ())


def of(text: str) -> command_line.Command:
    return command_line.parse([text], {"SET": "1"})


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        ("sglang serve m --port $P --tp 4", {"port": "--port $P"}),
        ("sglang serve m --port=$P", {"port": "--port=$P"}),
        (
            "sglang serve m --port ${P}0 --nccl-port $Q",
            {"port": "--port ${P}0", "nccl_port": "--nccl-port $Q"},
        ),
        ("sglang serve m --tp $P", {}),
        ("sglang serve m --port $SET --tp $P", {}),
        ("sglang serve m --port '$P'", {}),
    ],
)
def test_only_flags_that_decide_nothing_are_left_out(text: str, left_out: dict[str, str]) -> None:
    assert unset.free(of(text), table()) == left_out


@pytest.mark.parametrize("word", ['"$@"', "$@", '"$*"'])
def test_a_callers_words_are_left_out_and_said(word: str) -> None:
    cmd = of(f"sglang serve m --tp 4 {word}")
    assert unset.known_args(cmd) == ["m", "--tp", "4"]
    assert len(unset.not_judged(cmd)) == 1
    assert unset.notes(cmd, ()) == []


def test_text_that_looks_like_a_callers_words_is_text() -> None:
    cmd = of("sglang serve m --served-model-name '$@'")
    assert unset.known_args(cmd)[-1] == "$@"
    assert unset.not_judged(cmd) == ()


def test_bash_hands_its_words_on() -> None:
    cmd = of("""bash -c 'sglang serve m "$@" --tp 4' name --port 1""")
    assert cmd.args == ("m", "--port", "1", "--tp", "4")
    assert not cmd.unknown


def test_no_rule_reads_a_free_field() -> None:
    rooms = ("rules", "launch", "judge.py", "hook", "report")
    files = [
        f
        for room in rooms
        for f in ([PACKAGE / room] if room.endswith(".py") else (PACKAGE / room).rglob("*.py"))
    ]
    assert len(files) > 30
    names = re.compile(rf"args\.({'|'.join(unset.FREE)})\b")
    assert not [f"{f.name}: {m[0]}" for f in files for m in names.finditer(f.read_text(encoding="utf-8"))]


def test_every_free_field_is_one_of_the_newest_sglang() -> None:
    from sglang_guards import source

    found = source.find(tree(RELEASES[-1]))
    assert found is not None
    flags = found.flags()
    assert flags is not None
    assert flags >= unset.FREE
