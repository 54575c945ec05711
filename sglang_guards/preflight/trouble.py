"""Why a launch command could not be checked, in a sentence, with what helps."""

from __future__ import annotations

from collections.abc import Sequence

from sglang_guards import source
from sglang_guards.errors import CouldNotCheck, NotAccepted
from sglang_guards.preflight import command_line as command
from sglang_guards.preflight import model_types, options, releases
from sglang_guards.preflight.messages import Answer


def could_not(
    answer: Answer, cmd: command.Command, table: Sequence[options.Option], installed: source.Source
) -> CouldNotCheck:
    kind, message = answer["kind"], str(answer.get("message", ""))
    if kind == "usage":
        return _bad_usage(message, cmd, table, installed)
    if kind == "config":
        return CouldNotCheck(f"--config cannot be used: {message}", "correct the YAML file")
    if kind == "model":
        return CouldNotCheck(message, str(answer.get("hint", "")))
    if answer.get("model_type"):
        return model_types.could_not(str(answer["model_type"]), message, installed)
    if kind == "timeout":
        return CouldNotCheck(message, "run the check again; report it if it stays so")
    return CouldNotCheck(
        f"the launch could not be resolved here: {message}",
        _last_log_line(answer) if kind == "died" else str(answer.get("hint", "")),
    )


def _last_log_line(answer: Answer) -> str:
    lines = [line for line in str(answer.get("log") or "").splitlines() if line.strip()]
    return f"SGLang's last line was: {lines[-1].strip()}" if lines else ""


def _bad_usage(
    message: str, cmd: command.Command, table: Sequence[options.Option], installed: source.Source
) -> NotAccepted:
    unknown = message.partition("unrecognized arguments: ")[2].split()
    flag = next((word.partition("=")[0] for word in unknown if word.startswith("--")), None)
    if message.startswith("ambiguous option: "):
        word = message.removeprefix("ambiguous option: ").split()[0].partition("=")[0]
        return NotAccepted(
            f"SGLang {installed.version} does not know {word}: {message}",
            releases.that_have(word, installed.version),
        )
    if flag is None:
        return NotAccepted(f"SGLang {installed.version} does not accept this command: {message}")
    in_file = "" if any(word.partition("=")[0] == flag for word in cmd.args) else " (from the --config file)"
    return NotAccepted(
        f"SGLang {installed.version} does not know {flag}{in_file}",
        releases.help_with(flag, installed.version, table),
    )
