"""Keep secrets out of every output: by the name of the flag or variable, and by the shape of the text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "***"
_SECRET_WORDS = frozenset(
    {"password", "passwd", "secret", "secrets", "token", "credential", "credentials", "apikey"}
)
_KEY_BEFORE = frozenset({"api", "admin", "access", "secret", "private", "auth"})
_URL_LOGIN = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")
_URL_QUERY = re.compile(
    r"(?i)([?&](?:[\w-]*(?:token|secret|signature|password|api_?key|credential)[\w-]*|sig)=)[^&\s'\"]+"
)
_JSON_PAIR = re.compile(r"""(["'])([\w.-]+)\1(\s*:\s*)(["'])((?:(?!\4).)+)\4""")
#: Shorter values would blot out parts of ordinary words.
_SHORTEST = 4


def is_secret(name: str) -> bool:
    """Whether a flag, field, variable or JSON key holds a secret: ``--admin-api-key`` does, ``--max-total-tokens`` not."""
    words = [w for w in re.split(r"[^a-z0-9]+", name.lower()) if w]
    if any(word in _SECRET_WORDS for word in words):
        return True
    return any(a in _KEY_BEFORE and b in ("key", "keys") for a, b in itertools.pairwise(words))


def secrets_in(
    argv: Sequence[str], env: Mapping[str, str], facts: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Every secret value in a command, in its environment and among resolved server args, longest first."""
    found: list[str] = [value for name, value in env.items() if is_secret(name)]
    for at, word in enumerate(argv):
        name, sign, value = word.partition("=")
        if not is_secret(name):
            continue
        if sign:
            found.append(value)
        elif name.startswith("-") and at + 1 < len(argv) and not argv[at + 1].startswith("--"):
            found.append(argv[at + 1])
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
    """A command without secrets; a secret flag's value is hidden however short it is."""
    known = tuple(secrets)
    shown = []
    hide = False
    for word in argv:
        name, sign, _ = word.partition("=")
        secret = is_secret(name) and (name.startswith("-") or bool(sign))
        if hide and not word.startswith("--"):
            shown.append(HIDDEN)
        elif secret and sign:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(text(word, known))
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
