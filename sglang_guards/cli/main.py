"""The command line: ``sglang-guards check | diff | rules | explain | doctor | bench | …``.

Exit codes: 0 nothing to stop for; 1 findings at or above --fail-on (for `doctor`: the hook is not active); 2 could
not check. The report goes to stdout, trouble to stderr.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from sglang_guards import redact
from sglang_guards.cli.parser import EXAMPLE, parser
from sglang_guards.errors import CouldNotCheck
from sglang_guards.report import text, unknown
from sglang_guards.report.model import Report, Severity


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None:  # closed by the caller
        return _unwritable("it is closed")
    _never_fail_on_a_letter()
    if argv is None:
        _end_in_order()
    try:
        code = _run(words)
        sys.stdout.flush()
        return code
    except CouldNotCheck as error:
        return _trouble(error.message, error.hint, words)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader went away
        sys.stderr.close()
        return 0
    except Exception as error:  # noqa: BLE001 - a fault of ours is a message with its place and exit 2
        if isinstance(error, OSError) and error.errno in _NO_OUTPUT:
            return _unwritable(str(error))
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{frame.filename.rpartition('/')[2]}:{frame.lineno}"
        message = f"internal error at {place}: {type(error).__name__}: {error}"
        return _trouble(message, "this is a fault of sglang-guards; report it with the command", words)
    finally:
        if argv is None:  # a caller in this process may check again, with the same worker
            _clean_up()


def _end_in_order() -> None:
    """A request to end runs what removes scratch folders and ends the worker, as Ctrl-C does."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(ValueError):  # not the main thread
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)


def _clean_up() -> None:
    """End the workers now, not at exit, where a further Ctrl-C would print a traceback."""
    client = sys.modules.get("sglang_guards.preflight.worker_client")
    if client is None or threading.current_thread() is not threading.main_thread():
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        client.close_all()
    finally:
        signal.signal(signal.SIGINT, before)


def _never_fail_on_a_letter() -> None:
    """An output that is ASCII shows other letters escaped, in place of no report at all."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


#: What writing to a full or broken standard output raises.
_NO_OUTPUT = (errno.ENOSPC, errno.EBADF, errno.EIO)


def _unwritable(why: str) -> int:
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  (the interpreter flushes it at exit)
    print(f"error: standard output cannot be written: {why}", file=sys.stderr)
    return 2


def _trouble(message: str, hint: str, words: Sequence[str]) -> int:
    """Say why nothing was checked: on stderr for people, on stdout in the format that was asked for."""
    secrets = redact.secrets_in(words, redact.env_secrets(os.environ))
    message, hint = redact.text(message, secrets), redact.text(hint, secrets)
    form = _format(words)
    if form != "text":
        print(text.failure(form, message, hint))
    print(f"error: {message}" + (f"\nhint: {hint}" if hint else ""), file=sys.stderr)
    return 2


def _format(words: Sequence[str]) -> str:
    """The format asked for, also where the rest of the command could not be parsed."""
    own = words[: words.index("--")] if "--" in words else words
    for at, word in enumerate(own):
        name, sign, value = word.partition("=")
        wanted = value if sign else next(iter(own[at + 1 : at + 2]), "")
        if name == "--format" and wanted in text.FORMATS:
            return wanted
    return "text"


def _run(words: list[str]) -> int:
    if words[:1] == ["bench"]:  # argparse's REMAINDER does not take a flag as its first word
        return _bench(words[1:])
    own, launch = words, list[str]()
    if "--" in words:
        cut = words.index("--")
        own, launch = words[:cut], words[cut + 1 :]
    made = parser()
    args = made.parse_args(own)
    if args.what is None:
        made.print_help()
        return 2
    if args.what == "check":
        if args.launch and "--" in words:
            raise CouldNotCheck(
                "a part of the launch stands before -- and a part behind it",
                f"options come first, then --, then the whole launch: {EXAMPLE}",
            )
        return _check(args, [*args.launch, *launch])
    if args.what == "bench":
        return _bench([*args.rest, *launch])
    if launch:
        raise CouldNotCheck(f"sglang-guards {args.what} takes no launch command", f"did you mean: {EXAMPLE}")
    if args.what == "rules":
        return _rules(args.format)
    if args.what == "headers":
        return _headers(args.folder)
    if args.what == "explain":
        return _explain(args.id)
    if args.what == "diff":
        from sglang_guards.cli import diff

        return diff.run(args.a, args.b, args.format, args.fail_on)
    if args.what == "completion":
        from sglang_guards.cli import completion

        print(completion.script(args.shell, parser()))
        return 0
    if args.what == "legacy-hook":
        return _legacy_hook(args.action)
    from sglang_guards.cli import doctor

    return doctor.run(args.format)


def _legacy_hook(action: str) -> int:
    from sglang_guards import legacy

    try:
        print(legacy.install() if action == "install" else legacy.remove())
    except OSError as error:
        raise CouldNotCheck(
            f"{legacy.pth_path()} could not be changed: {error}", "run it as the owner"
        ) from error
    return 0


def _headers(folder: str) -> int:
    from sglang_guards.build import headers

    try:
        tensors = headers.of_folder(Path(folder).expanduser())
    except headers.BadHeaders as error:
        raise CouldNotCheck(str(error), "give the folder of a complete checkpoint") from None
    if not tensors:
        raise CouldNotCheck(f"{folder} holds no safetensors", "give the folder of the checkpoint")
    print(headers.to_json(tensors))
    return 0


def _check(args: argparse.Namespace, launch: list[str]) -> int:
    from sglang_guards.preflight import launch_check

    if launch and launch[0].startswith("--"):
        raise CouldNotCheck(
            f"unknown option {launch[0]}", f"options come first, the launch after --: {EXAMPLE}"
        )
    _misplaced(launch)
    if not launch and not args.launch_file:
        raise CouldNotCheck("the launch command is empty", f"give it after --: {EXAMPLE}")
    if args.all_releases:
        from sglang_guards.preflight import all_releases, command_line, launch_file

        if not launch:
            launch = list(launch_file.read(args.launch_file, os.environ, args.nth).argv)
        elif args.nth is not None:
            launch = list(command_line.parse(launch, nth=args.nth).argv)

        return all_releases.run(launch, args)
    report = launch_check.check(
        launch,
        gpu=args.gpu,
        model_config=args.model_config,
        launch_file=None if launch else args.launch_file,
        nth=args.nth,
        build=not args.no_build,
        load_plugins=args.plugins,
        side_effects=bool(args.verbose),
    )
    if args.format == "text":
        text.text(report, text.console(), verbose=args.verbose)
    else:
        print(
            text.to_json(report)
            if args.format == "json"
            else text.other(args.format, report, args.launch_file)
        )
    return exit_code(report, args.fail_on, strict=args.strict)


#: Options of `check` that SGLang does not have: behind the launch they were meant for us.
_OURS = (
    "--plugins",
    "--gpu",
    "--fail-on",
    "--strict",
    "--all-releases",
    "--launch-file",
    "--nth",
    "--model-config",
)


def _misplaced(launch: Sequence[str]) -> None:
    one_text = bool(launch) and any(c.isspace() for c in launch[0])
    for word in launch[1:]:
        name = word.partition("=")[0]
        if name in _OURS or (one_text and name in ("--format", "-v", "--verbose")):
            raise CouldNotCheck(
                f"{name} stands behind the launch", f"options of check come before it: {EXAMPLE}"
            )
    if one_text and len(launch) > 1:
        raise CouldNotCheck(
            "the launch is one text in quotes, and more words follow it",
            "put all of it in the quotes, or none",
        )


def exit_code(report: Report, fail_on: str = "error", *, strict: bool = False) -> int:
    """1 when a finding is at or above `fail_on`, or `strict` and a rule could not be decided; else 0.

    `unknown` means an error, or anything that could not be judged.
    """
    if fail_on == "unknown":
        return int(bool(report.errors) or unknown.anything(report))
    if fail_on == "never":
        return 0
    if any(finding.severity.rank <= Severity(fail_on).rank for finding in report.findings):
        return 1
    return int(strict and bool(report.skipped))


def _rules(form: str) -> int:
    from sglang_guards.rules import all_rules

    rules = all_rules()
    if form == "json":
        rows = [
            {
                "id": rule.id,
                "name": rule.name,
                "severity": rule.severity.value,
                "summary": rule.summary,
                "source": [
                    {"case": case.note, "answers": {str(question): value for question, value in case.answers}}
                    for case in rule.cases
                ],
                "evidence": [{"kind": e.kind, "ref": e.ref} for e in rule.evidence],
            }
            for rule in rules
        ]
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    table = [(rule.id, rule.severity.value, rule.summary) for rule in rules]
    text.table_of(table, ("id", "severity", "what"), text.console())
    return 0


def _explain(rule_id: str) -> int:
    from sglang_guards.rules import all_rules

    wanted = rule_id.upper()
    to = text.console()
    found = next((rule for rule in all_rules() if wanted in (rule.id, rule.name.upper())), None)
    if found is None:
        raise CouldNotCheck(f"there is no rule {rule_id!r}", "sglang-guards rules lists them")
    to.print(f"{found.id} · {found.name} · {found.severity.value}", style="bold", soft_wrap=True)
    to.print("\n" + text.page(found.doc, min(to.width, 100)), soft_wrap=True)
    if found.evidence:
        to.print("\n## Evidence", soft_wrap=True)
        for evidence in found.evidence:
            to.print(f"- {evidence.kind}: {evidence.ref}", soft_wrap=True)
    return 0


def _bench(rest: list[str]) -> int:
    try:
        module = importlib.import_module("sglang_guards.bench.cli")
    except ImportError as error:
        raise CouldNotCheck(
            f"bench is not available here: {error}", "it needs torch, triton and a GPU"
        ) from None
    return int(module.main(rest))


if __name__ == "__main__":
    sys.exit(main())
