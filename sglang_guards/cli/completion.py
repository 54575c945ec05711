"""``sglang-guards completion bash|zsh``: a static completion script made from the parser.

Not shtab: tried with 1.13, it offers nothing behind `--`, where the launch stands, and no words for an argument that
takes others too (`--gpu 8xH200`, rule ids).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, field

from sglang_guards.launch.gpus import TABLE

#: Arguments that are files, by metavar.
_FILES = frozenset({"PATH", "FILE[:LINE]", "A.json", "B.json"})
#: GPUs of one node that are offered for --gpu.
_COUNTS = (1, 2, 4, 8)


@dataclass
class _Command:
    """What can be completed behind one command: options, what each option takes, and positional words."""

    name: str
    help: str
    options: dict[str, str] = field(default_factory=dict)
    #: Option or "" (positional) -> words to offer; no words mean files.
    values: dict[str, tuple[str, ...]] = field(default_factory=dict)


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for `shell`, bash or zsh."""
    commands = list(_commands(parser))
    return "\n".join((_bash if shell == "bash" else _zsh)(commands))


def _commands(parser: argparse.ArgumentParser) -> Iterator[_Command]:
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    helps = {action.dest: action.help or "" for action in subparsers._choices_actions}
    for name, sub in subparsers.choices.items():
        command = _Command(name, helps.get(name, ""))
        for action in sub._actions:
            key = action.option_strings[-1] if action.option_strings else ""
            for option in action.option_strings:
                command.options[option] = action.help or ""
            words = _words(action)
            if words is not None:
                for option in action.option_strings or [key]:
                    command.values[option] = words
        yield command


def _words(action: argparse.Action) -> tuple[str, ...] | None:
    """The words that an argument can be; empty for files, None for what cannot be known."""
    if action.choices is not None:
        return tuple(map(str, action.choices))
    if action.metavar == "COUNTxNAME":
        return ("auto", *(f"{count}x{name}" for name in TABLE for count in _COUNTS))
    if action.metavar == "ID":
        from sglang_guards.rules import all_rules

        return tuple(rule.id for rule in all_rules())
    return () if action.metavar in _FILES else None


def _bash(commands: list[_Command]) -> Iterator[str]:
    yield '# bash completion for sglang-guards; load it with: eval "$(sglang-guards completion bash)"'
    yield "_sglang_guards() {"
    yield '  local current="${COMP_WORDS[COMP_CWORD]}" previous="${COMP_WORDS[COMP_CWORD-1]}" word'
    yield "  COMPREPLY=()"
    yield '  for word in "${COMP_WORDS[@]:0:COMP_CWORD}"; do'
    yield '    [ "$word" = -- ] && { mapfile -t COMPREPLY < <(compgen -f -- "$current"); return; }'
    yield "  done"
    names = [command.name for command in commands]
    yield '  if [ "$COMP_CWORD" -eq 1 ]; then'
    yield f"    {_compgen((*names, '--help', '--version'))}; return"
    yield "  fi"
    yield '  case "${COMP_WORDS[1]} $previous" in'
    for command in commands:
        for option, words in command.values.items():
            if option:
                yield f'    "{command.name} {option}") {_compgen(words)}; return ;;'
    yield "  esac"
    yield '  case "${COMP_WORDS[1]}" in'
    for command in commands:
        offered = _compgen((*command.options, *command.values.get("", ())))
        if command.values.get("") == ():
            offered += f'; mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -f -- {_CURRENT})'
        yield f"    {command.name}) {offered} ;;"
    yield "  esac"
    yield "}"
    yield "complete -o filenames -F _sglang_guards sglang-guards"


_CURRENT = '"$current"'


def _compgen(words: tuple[str, ...]) -> str:
    how = f'-W "{" ".join(words)}"' if words else "-f"
    return f"mapfile -t COMPREPLY < <(compgen {how} -- {_CURRENT})"


def _zsh(commands: list[_Command]) -> Iterator[str]:
    yield "#compdef sglang-guards"
    yield '# zsh completion for sglang-guards; load it with: eval "$(sglang-guards completion zsh)"'
    yield "_sglang_guards() {"
    yield "  local -a commands"
    yield "  commands=("
    for command in commands:
        yield f"    {_quoted(command.name + ':' + command.help)}"
    yield "  )"
    yield "  if (( CURRENT == 2 )); then _describe command commands; return; fi"
    yield "  local cut=${words[(i)--]}"
    yield '  if (( cut < CURRENT )); then words=("${(@)words[cut+1,-1]}"); (( CURRENT -= cut )); _normal; return; fi'
    yield "  local command=${words[2]}"
    yield "  shift words; (( CURRENT-- ))"
    yield "  case $command in"
    for command in commands:
        yield f"    {command.name}) _arguments \\"
        for option, about in command.options.items():
            takes = ":value:" + _zsh_words(command.values[option]) if option in command.values else ""
            yield f"      {_quoted(f'{option}[{_plain(about)}]{takes}')} \\"
        if "" in command.values:
            yield f"      {_quoted('*:argument:' + _zsh_words(command.values['']))} \\"
        yield "      ;;"
    yield "  esac"
    yield "}"
    yield 'if [ "$funcstack[1]" = _sglang_guards ]; then _sglang_guards "$@"'
    yield "else compdef _sglang_guards sglang-guards; fi"


def _zsh_words(words: tuple[str, ...]) -> str:
    return f"({' '.join(words)})" if words else "_files"


def _plain(text: str) -> str:
    """A help text inside brackets of `_arguments`."""
    return text.replace("[", "(").replace("]", ")").replace(":", ",")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
