"""The argparse parser of the command line; help texts fit a screen of 80 × 24."""

from __future__ import annotations

import argparse
import difflib
import re
from typing import NoReturn

from sglang_guards import __version__
from sglang_guards.errors import CouldNotCheck
from sglang_guards.report import text

EXAMPLE = "sglang-guards check --gpu 8xH200 -- python -m sglang.launch_server --model-path …"
FAIL_ON = ("error", "warning", "info", "never")
SHELLS = ("bash", "zsh")


class Parser(argparse.ArgumentParser):
    """Bad usage is an exception like every other trouble, so that it is told in the format asked for."""

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(.*?)' \(choose from (.*)\)", message)
        near = difflib.get_close_matches(wrong[1], re.findall(r"[\w-]+", wrong[2]), n=1) if wrong else []
        hint = f"did you mean {near[0]}? " if near else ""
        raise CouldNotCheck(f"{self.prog}: {message}", f"{hint}see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """All commands. Words after ``--`` are the launch and are cut off before parsing."""
    top = Parser(
        prog="sglang-guards",
        description="Checks an SGLang launch before a GPU is touched.",
        epilog=f"example: {EXAMPLE}",
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"sglang-guards {__version__}")
    commands = top.add_subparsers(dest="what", metavar="command", parser_class=Parser)

    def add(name: str, about: str, *, add_help: bool = True) -> argparse.ArgumentParser:
        said = f"{about[:1].upper()}{about[1:]}."
        return commands.add_parser(name, help=about, description=said, allow_abbrev=False, add_help=add_help)

    _check(add("check", "check a launch command"))
    _diff(add("diff", "what changed between two JSON reports"))
    rules = add("rules", "list the rules")
    rules.add_argument("--format", choices=("text", "json"), default="text")
    explain = add("explain", "show a rule's page")
    explain.add_argument("id", metavar="ID", help="id or name of a rule, such as FMS101")
    headers = add("headers", "print a checkpoint's tensor names and shapes, for headers.json")
    headers.add_argument("folder", metavar="FOLDER", help="the checkpoint's folder with its safetensors")
    doctor = add("doctor", "prove that the start-up hook fires here")
    doctor.add_argument("--format", choices=("text", "json"), default="text")
    legacy = add("legacy-hook", "start-up hook for SGLang 0.5.10, which loads no plugins")
    legacy.add_argument("action", choices=("install", "remove"))
    bench = add("bench", "measure the fused sum on this machine", add_help=False)
    bench.add_argument("rest", nargs=argparse.REMAINDER)
    completion = add("completion", "print a completion script for a shell")
    completion.add_argument(
        "shell", choices=SHELLS, help='load it with: eval "$(sglang-guards completion bash)"'
    )
    return top


def _check(check: argparse.ArgumentParser) -> None:
    check.usage = "sglang-guards check [options] -- launch command"
    check.epilog = (
        "Exit code: 0 nothing to stop for, 1 findings, 2 could not check. With --all-releases: 0 when at least one "
        "release is safe, 1 when none is, 2 when none could be judged."
    )
    check.add_argument(
        "--gpu", default="auto", metavar="COUNTxNAME", help="GPUs of one node; auto: this machine's"
    )
    check.add_argument("--model-config", metavar="PATH", help="config.json of a checkpoint that is not here")
    check.add_argument("--no-build", action="store_true", help="do not build the model to see what refuses")
    check.add_argument("--plugins", action="store_true", help="load the other SGLang plugins installed here")
    check.add_argument("--format", choices=text.FORMATS, default="text")
    check.add_argument(
        "--launch-file",
        metavar="FILE[:LINE]",
        default="",
        help="the launch in a script, Slurm job, compose or Kubernetes file; with a launch: where it stands",
    )
    check.add_argument(
        "--nth", type=int, metavar="N", help="which launch, where the file or text holds several"
    )
    check.add_argument(
        "--fail-on",
        choices=(*FAIL_ON, "unknown"),
        default="error",
        help="lowest severity (or unknown) with exit code 1",
    )
    check.add_argument("--strict", action="store_true", help="exit code 1 when a rule could not be decided")
    check.add_argument("--all-releases", action="store_true", help="a table: which SGLang releases are safe")
    check.add_argument(
        "-v", "--verbose", action="store_true", help="passed rules, and the verdict on every flag"
    )
    check.add_argument("launch", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _diff(diff: argparse.ArgumentParser) -> None:
    diff.description = (
        "What changed from report A to report B (check --format json). Exit code 1: new findings."
    )
    diff.add_argument("a", metavar="A.json", help="the report before; - is stdin")
    diff.add_argument("b", metavar="B.json", help="the report after; - is stdin")
    diff.add_argument("--format", choices=("text", "json"), default="text")
    diff.add_argument("--fail-on", choices=FAIL_ON, default="error", help="lowest severity with exit code 1")
