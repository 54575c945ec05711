"""The shell lexer against real shells: thousands of generated texts, the words that bash and dash make of them."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sglang_guards.shell import ShellError, shown
from sglang_guards.shell_expand import run

VARIABLES = {"A": "va", "B": " v  b ", "E": "", "HOME": "/h"}
#: Pieces that texts are made of. A dollar that begins nothing is left out: bash and dash differ on it.
COMMON = (
    *(
        "a",
        "b",
        "1",
        "2",
        "#",
        "#x",
        "\\\n",
        " ",
        "  ",
        "\t",
        "'",
        '"',
        "\\",
        "$A",
        "${B}",
        "$E",
        "${U:-d x}",
        '"$B"',
    ),
    *(
        "'x y'",
        "\"q 'z'\"",
        "=",
        "A=",
        "--tp",
        "--f=",
        "|",
        "&",
        "&&",
        ";",
        ">",
        "2>",
        "2>&1",
        "<",
        "\n",
        "~/x",
        "é",
    ),
    *(
        "\\$A",
        '\\"',
        '""',
        "''",
        "${A}b",
        '"${B}c"',
        "*",
        "[",
        "]",
        "?",
        "-",
        "%",
        "(",
        ")",
        '${A:+"s  t"}',
        "||",
    ),
)
BASH_ONLY = ("~", "$'a\\tb\\x41'", "{", "}", ",", "{a,b}", "&>", '$"a"')
TEXTS = 700


@pytest.mark.parametrize(("shell", "atoms"), [("bash", (*COMMON, *BASH_ONLY)), ("dash", COMMON)])
def test_the_words_are_those_of_the_real_shell(shell: str, atoms: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not on this machine")
    counts = compare(shell, atoms, TEXTS, seed=15, folder=tmp_path)
    assert counts["different"] == []
    assert counts["same"] > TEXTS // 4, counts
    print(f"{shell}: {counts['same']} texts read as the shell does, {counts['refused']} refused by the shell")


def compare(shell: str, atoms: tuple[str, ...], number: int, seed: int, folder: Path) -> dict[str, Any]:
    """Generated texts, by what came of them: same words, different words, refused by the shell, told by neither."""
    random_ = random.Random(seed)
    same, refused, untold, different = 0, 0, 0, []
    for _ in range(number):
        text = "argv " + "".join(
            random_.choice(atoms) + random_.choice(("", "", " ")) for _ in range(random_.randint(1, 9))
        )
        if shell == "dash" and re.search(r"\d(\\\n)*\d(\\\n)*[<>]", text):
            continue  # dash knows descriptors of one digit only
        theirs, no = words_of(shell, text, folder)
        try:
            ours = [c for c in run(text, VARIABLES) if c.words and c.words[0] == "argv"]
        except ShellError:
            refused += no
            untold += not no
            continue
        if no:  # we may read on where a shell stops; nobody can start such a launch
            refused += 1
        elif theirs is None or not ours or any(c.problem or c.unknown for c in ours[:1]):
            untold += 1
        elif list(ours[0].words[1:]) == theirs:
            same += 1
        else:
            different.append((text, theirs, ours[0].words))
    return {"same": same, "refused": refused, "untold": untold, "different": different}


def words_of(shell: str, text: str, folder: Path) -> tuple[list[str] | None, bool]:
    """The words of the one call of `argv` in a text, and whether the shell refuses the text."""
    out = folder / "words"
    out.write_bytes(b"")
    (folder / "in").mkdir(exist_ok=True)
    define = f'argv() {{ printf "%s\\0" "<" "$@" ">" >>{out}; }}\n'
    done = subprocess.run(
        [shell, "-c", define + text],
        cwd=folder / "in",
        env={"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", **VARIABLES},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        timeout=20,
        check=False,
    )
    for made in (folder / "in").iterdir():  # redirections
        made.unlink()
    words = out.read_bytes().decode("utf-8", "surrogateescape").split("\0")
    complaint = done.stderr.lower()
    no = any(word in complaint for word in (b"syntax error", b"unexpected", b"unterminated"))
    called_once = words.count("<") == 1 and words[0] == "<" and words[-2:] == [">", ""]
    return (words[1:-2] if called_once else None), no


def test_shown_words_are_read_back_as_they_are() -> None:
    random_ = random.Random(3)
    letters = "ab '\"\\$`#|&;<>()*?[]{}~!=\n\té—\x1b"
    for _ in range(2000):
        words = ["".join(random_.choice(letters) for _ in range(random_.randint(0, 6))) for _ in range(4)]
        (read,) = run("argv " + shown(words), {})
        assert list(read.words[1:]) == words


@pytest.mark.parametrize("text", ["a 'b", 'a "b', "a $(b", "a `b", "a ${b", "a $'b", "A=(b", "a >"])
def test_what_no_shell_takes_is_refused(text: str) -> None:
    with pytest.raises(ShellError):
        run(text, {})


def test_what_only_a_running_shell_knows_is_named() -> None:
    (read,) = run('a $(date) "$1" ${X%y} `b` $((1+2)) $Y', {})
    assert read.unknown == ("$(date)", "$1", "${X%y}", "`b`", "$((1+2))", "$Y")
    assert read.words == ("a", *read.unknown)


def test_a_variable_set_in_a_condition_is_not_known() -> None:
    *_, last = run("if x; then T=4; fi\na $T", {})
    assert last.unknown == ("$T",)
