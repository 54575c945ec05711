"""Help that fits a screen, completion that works in real shells, and trouble told in the format asked for."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from sglang_guards.cli.completion import script
from sglang_guards.cli.main import main
from sglang_guards.cli.parser import parser

COMMANDS = ("check", "diff", "rules", "explain", "headers", "doctor", "legacy-hook", "completion")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_fits_80_by_24(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as stopped:
        main([*filter(None, [command]), "--help"])
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def bash_offers(*words: str) -> list[str]:
    """What bash puts into COMPREPLY behind these words."""
    typed = " ".join(f"'{word}'" for word in words)
    code = (
        f"{script('bash', parser())}\n"
        f"COMP_WORDS=({typed}); COMP_CWORD={len(words) - 1}; _sglang_guards; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "--norc", "-u"], input=code, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes() -> None:
    assert set(bash_offers("sglang-guards", "")) == {*COMMANDS, "bench", "--help", "--version"}
    assert bash_offers("sglang-guards", "check", "--fail") == ["--fail-on"]
    assert bash_offers("sglang-guards", "check", "--format", "s") == ["sarif"]
    assert "8xH200" in bash_offers("sglang-guards", "check", "--gpu", "8xH")
    assert bash_offers("sglang-guards", "explain", "FMS30") == ["FMS301", "FMS302", "FMS303"]
    assert bash_offers("sglang-guards", "legacy-hook", "in") == ["install"]
    assert bash_offers("sglang-guards", "diff", "--fail-on", "n") == ["never"]
    assert "pyproject.toml" in bash_offers("sglang-guards", "diff", "pyproj")
    assert bash_offers("sglang-guards", "check", "--", "--fail") == []


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not on this machine")
def test_zsh_loads_it() -> None:
    code = (
        f'autoload -Uz compinit; compinit -u -D\n{script("zsh", parser())}\nprint -- "$_comps[sglang-guards]"'
    )
    done = subprocess.run(["zsh", "-f"], input=code, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("_sglang_guards", "")


def test_every_option_is_in_both_scripts() -> None:
    options = {"--gpu", "--model-config", "--launch-file", "--all-releases", "--strict", "--fail-on"}
    for shell in ("bash", "zsh"):
        assert all(option in script(shell, parser()) for option in options)


@pytest.mark.parametrize("form", ["json", "github", "sarif"])
def test_trouble_is_told_in_the_format_asked_for(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    launch = ["python", "-m", "elsewhere", "--api-key", "sk-secret-1", "--api-k=sk-secret-2"]
    assert main(["check", f"--format={form}", "--gpu", "sk-secret-1", "--", *launch]) == 2
    said = capsys.readouterr()
    assert "sk-secret" not in said.out + said.err
    assert "error: " in said.err
    if form == "github":
        assert said.out.startswith("::error title=sglang-guards could not check::")
    else:
        assert isinstance(json.loads(said.out), dict)


def test_all_releases_has_text_and_json_only(capsys: pytest.CaptureFixture[str]) -> None:
    launch = ["python", "-m", "sglang.launch_server", "--model-path", "x"]
    assert main(["check", "--all-releases", "--format", "sarif", "--gpu", "1xH100", "--", *launch]) == 2
    assert "--all-releases has no --format sarif" in capsys.readouterr().err


def test_a_near_miss_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 2
    assert "hint: did you mean check? see sglang-guards --help" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_ascii_output_shows_the_rules_escaped(form: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sglang_guards", "rules", "--format", form],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "FMS101" in done.stdout
