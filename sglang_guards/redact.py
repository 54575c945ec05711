"""Keep secrets out of every output: by the name of the flag or variable, and by the shape of the text."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_guards.report.model import Finding, Report

HIDDEN = "***"
_SECRET_WORDS = frozenset(
    {"password", "passwd", "secret", "secrets", "token", "credential", "credentials", "apikey"}
    | {"pass", "passphrase", "authorization", "bearer", "pat"}
)
_SECRET_ENDS = ("password", "passwd", "passphrase")
_KEY_BEFORE = frozenset({"api", "admin", "access", "secret", "private", "auth"})
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_URL_QUERY = re.compile(
    r"(?i)([?&](?:[\w-]*(?:token|secret|signature|password|api_?key|access_?key|credential)[\w-]*|sig)=)[^&\s'\"]+"
)
_JSON_PAIR = re.compile(r"""(["'])([\w.-]+)\1(\s*:\s*)(["'])((?:(?!\4).)+)\4""")
#: SGLang's flags that take a secret -> their shortest beginning that argparse takes for nothing else.
_SECRET_FLAGS = {"--api-key": "--ap", "--admin-api-key": "--ad", "--ssl-keyfile-password": "--ssl-keyfile-"}
#: Shorter values would blot out parts of ordinary words.
_SHORTEST = 4


def is_secret(name: str) -> bool:
    """Whether a flag, field, variable or JSON key is secret: ``--admin-api-key`` is, ``--max-total-tokens`` is not."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # accessToken is two words
    words = [w for w in re.split(r"[^a-z0-9]+", spaced.lower()) if w]
    if any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words):
        return True
    if "pwd" in words[1:]:  # MYSQL_PWD; PWD itself is a folder
        return True
    if name.isupper() and words[-1:] == ["key"]:  # an environment variable such as AZURE_KEY
        return True
    return any(a in _KEY_BEFORE and b in ("key", "keys") for a, b in itertools.pairwise(words))


def is_secret_flag(name: str) -> bool:
    """The same for a flag as typed: ``--api-k`` is the beginning of one, ``--api-kye`` was meant to be one."""
    if is_secret(name):
        return True
    flag = name.lower().replace("_", "-")
    return any(
        flag.startswith(shortest)
        and (secret.startswith(flag) or difflib.SequenceMatcher(None, flag, secret).ratio() > 0.85)
        for secret, shortest in _SECRET_FLAGS.items()
    )


def secrets_in(
    argv: Sequence[str], env: Mapping[str, str], facts: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Every secret value in a command, in its environment and among resolved server args, longest first.

    A command may be one quoted text; a secret flag makes all words up to the next flag secret.
    """
    found: list[str] = [value for name, value in env.items() if is_secret(name)]
    typed = [part for word in argv for part in (word.split() if " " in word and "--" in word else [word])]
    hide = False
    for word in typed:
        name, sign, value = word.partition("=")
        if hide and not word.startswith("--"):
            found.append(word.strip("'\""))
            continue
        hide = name.startswith("--") and is_secret_flag(name) and not sign
        if sign and is_secret_flag(name):
            found.append(value.strip("'\""))
    for name, value in (facts or {}).items():
        if isinstance(value, str) and is_secret(name):
            found.append(value)
    kept = {v for v in found if len(v) >= _SHORTEST and v.lower() not in ("none", "null", "true", "false")}
    return tuple(sorted(kept, key=lambda v: (-len(v), v)))


def text(value: str, secrets: Iterable[str] = ()) -> str:
    """`value` without secrets: the known ones, logins and signed queries in URLs, secret keys in JSON."""
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    value = _URL_LOGIN.sub(HIDDEN, value)
    value = _URL_QUERY.sub(rf"\1{HIDDEN}", value)
    return _JSON_PAIR.sub(
        lambda m: f"{m[1]}{m[2]}{m[1]}{m[3]}{m[4]}{HIDDEN}{m[4]}" if is_secret(m[2]) else m[0], value
    )


def words(argv: Sequence[str], secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """A command without secrets; a secret flag's values are hidden however short they are."""
    known = tuple(secrets)
    shown = []
    hide = False
    for word in argv:
        name, sign, _ = word.partition("=")
        if hide and not word.startswith("--"):
            shown.append(HIDDEN)
            continue
        secret = is_secret_flag(name) and (name.startswith("-") or bool(sign))
        shown.append(f"{text(name, known)}={HIDDEN}" if secret and sign else text(word, known))
        hide = secret and not sign
    return tuple(shown)


def tree(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same for every text inside dicts and lists; values under secret keys are hidden whole."""
    known = tuple(secrets)
    if isinstance(value, str):
        return text(value, known)
    if isinstance(value, Mapping):
        return {
            k: HIDDEN if is_secret(str(k)) and isinstance(v, str) else tree(v, known)
            for k, v in value.items()
        }
    if isinstance(value, (list, tuple)):
        return type(value)(tree(v, known) for v in value)
    return value


def report(found: Report, secrets: Sequence[str]) -> Report:
    """A report without secrets in any text that a person or a program may see."""
    return replace(
        found,
        argv=words(found.argv, secrets),
        corrected=None if found.corrected is None else words(found.corrected, secrets),
        findings=tuple(_finding(finding, secrets) for finding in found.findings),
        facts={name: _fact(name, shown, secrets) for name, shown in found.facts.items()},
        flags=tuple(
            replace(r, requested=text(r.requested, secrets), why=text(r.why, secrets)) for r in found.flags
        ),
        notes=tuple(text(line, secrets) for line in found.notes),
        ignored=tuple(replace(entry, reason=text(entry.reason, secrets)) for entry in found.ignored),
    )


def _finding(finding: Finding, secrets: Sequence[str]) -> Finding:
    return replace(
        finding,
        message=text(finding.message, secrets),
        cause=text(finding.cause, secrets),
        impact=text(finding.impact, secrets),
        flags=words(finding.flags, secrets),
        fix=finding.fix and replace(finding.fix, text=text(finding.fix.text, secrets)),
    )


def _fact(name: str, shown: Mapping[str, Any], secrets: Sequence[str]) -> Mapping[str, Any]:
    hidden = is_secret(name) and shown.get("value") not in (None, True, False, "")
    return {**tree(shown, secrets), **({"value": HIDDEN} if hidden else {})}
