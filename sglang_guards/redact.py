"""Keep secrets out of every output: by the name of the flag, variable or key, and by the structure of the text.

`text` is the gate that every text passes on its way out; it also takes out what would steer a terminal.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sglang_guards.characters import CONTROL

if TYPE_CHECKING:
    from sglang_guards.report.model import Finding, Report

HIDDEN = "***"
_SECRET_WORDS = frozenset(
    {"password", "passwd", "secret", "secrets", "token", "credential", "credentials", "apikey", "creds"}
    | {"pass", "passphrase", "authorization", "bearer", "pat", "jwt", "cookie", "cookies", "passcode"}
)
_SECRET_ENDS = ("password", "passwd", "passphrase")
_KEY_BEFORE = frozenset(
    {"api", "admin", "access", "secret", "private", "auth", "encryption", "signing", "account"}
)
#: Parts of a variable's name that say secret there, but not in a flag or field.
_ENV_WORDS = frozenset(
    {"auth", "key", "keys", "pw", "pwd", "cred", "sas", "tokens", "apikeys", "passwords", "session"}
)
#: Beside ``tokens`` these count tokens of text.
_COUNTS = frozenset(
    {"max", "min", "num", "total", "per", "limit", "budget", "prefill", "draft", "context", "n"}
)
_NOT_SECRET = frozenset({"pwd", "oldpwd", "ssh_auth_sock", "session", "xdg_session_type", "desktop_session"})
#: Keys of a URL's query or fragment.
_QUERY_WORDS = _SECRET_WORDS | {
    "key",
    "auth",
    "pwd",
    "pw",
    "sig",
    "signature",
    "sas",
    "code",
    "session",
    "tokens",
}
_DASHES = "-\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe58\ufe63\uff0d"
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^\s'\"<>]+")
_BARE_LOGIN = re.compile(r"(?<![\w/@.-])[\w.+-]+:[^\s@/'\"=]+@(?!sha\d+:)(?=[\w.\[-])")
_QUERY = re.compile(r"([?&#;])([\w.%-]+)=([^&#\s'\";]*)")
_JSON_KEY = re.compile(r"""(\\*["'])([\w.\- ]+)\1\s*:\s*""")
_PAIR_NAME = re.compile(r"(?<![\w?&#-])(-{0,2}[A-Za-z][\w.-]*)=")
_PAIR_VALUE = re.compile(r"\"[^\"]*\"|'[^']*'|[^\s;,&'\"]+")
#: SGLang's flags that take a secret -> their shortest beginning that argparse takes for nothing else.
_SECRET_FLAGS = {"--api-key": "--ap", "--admin-api-key": "--ad", "--ssl-keyfile-password": "--ssl-keyfile-"}
#: Shorter values would blot out parts of ordinary words.
_SHORTEST = 4
_NO_SECRETS = frozenset({"none", "null", "true", "false", HIDDEN})


@functools.lru_cache(maxsize=4096)
def _parts(name: str) -> tuple[str, ...]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name)  # accessToken is two words
    return tuple(w for w in re.split(r"[^a-z0-9]+", spaced.lower()) if w)


@functools.lru_cache(maxsize=4096)  # a start-up asks for each server arg several times
def is_secret(name: str) -> bool:
    """Whether a flag, field or JSON key is secret: ``--admin-api-key`` is, ``--max-total-tokens`` is not."""
    words = _parts(name)
    if any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words):
        return True
    if "pwd" in words[1:]:  # MYSQL_PWD; PWD itself is a folder
        return True
    if name.isupper() and words[-1:] == ("key",):  # an environment variable such as AZURE_KEY
        return True
    return any(a in _KEY_BEFORE and b in ("key", "keys") for a, b in itertools.pairwise(words))


def is_secret_env(name: str) -> bool:
    """The same for an environment variable, by the parts of its name."""
    words = _parts(name)
    if name.lower() in _NOT_SECRET:
        return False
    if "tokens" in words and (_COUNTS & set(words) or words[0] in ("sglang", "sgl")):
        return False
    return is_secret(name) or bool(_ENV_WORDS & set(words))


def is_secret_flag(name: str) -> bool:
    """The same for a flag as typed: ``--api-k`` is the beginning of one, ``--api-kye`` was meant to be one."""
    if is_secret(name):
        return True
    flag = _canonical(name) if name[:1] in _DASHES and name else name.lower()
    return any(
        flag.startswith(shortest)
        and (secret.startswith(flag) or difflib.SequenceMatcher(None, flag, secret).ratio() > 0.85)
        for secret, shortest in _SECRET_FLAGS.items()
    )


def _canonical(name: str) -> str:
    """``-api-key`` and ``—api_key`` as they were meant: ``--api-key``."""
    return "--" + name.lstrip(_DASHES).lower().replace("_", "-")


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word[0] in _DASHES and not word[1:2].isdigit()


def env_secrets(env: Mapping[str, str]) -> dict[str, str]:
    """The variables whose values are secret, or hold a secret by their structure."""
    return {k: v for k, v in env.items() if v and (is_secret_env(k) or any(True for _ in _inside(v)))}


def secrets_in(
    argv: Sequence[str], env: Mapping[str, str], facts: Mapping[str, Any] | None = None
) -> tuple[str, ...]:
    """Every secret value in a command, in its environment and among resolved server args, longest first.

    A command may be one quoted text; a secret flag makes all words up to the next flag secret.
    """
    found: list[str] = []
    for name, value in env.items():
        found += [value] if is_secret_env(name) else _inside(value)
    typed = [part for word in argv for part in (_split(word) if " " in word or "\n" in word else [word])]
    for word, hidden in zip(typed, _hidden(typed), strict=True):
        if hidden is not None:
            found.append(word[len(hidden) :].strip("'\""))
        found += _inside(word)
    for name, value in (facts or {}).items():
        if is_secret(name):
            found += _leaves(value)
    kept = {v for v in found if len(v) >= _SHORTEST and v.lower() not in _NO_SECRETS}
    return tuple(sorted(kept, key=lambda v: (-len(v), v)))


def _split(word: str) -> list[str]:
    """The words of a command given as one text; by blanks where no shell could read it."""
    from sglang_guards import shell  # few launches need it, and a server waits

    try:
        raws = [w for command in shell.commands(word) for w in command.words]
        return [w for raw in raws for w in ("".join(p.text for p in raw.parts), raw.raw) if w]
    except shell.ShellError:
        return word.split()


def _hidden(words: Sequence[str]) -> Iterator[str | None]:
    """For each word the part before its secret (empty: the word is one), or None where it has none."""
    after = 0  # words since a secret flag; 0: none
    for word in words:
        if after and not (word.startswith("--") if after == 1 else _is_flag(word)):
            after += 1
            yield ""
            continue
        after = 0
        name, sign, _ = word.partition("=")
        glued = next((f for f in _SECRET_FLAGS if _is_flag(word) and _canonical(word).startswith(f)), None)
        if (
            sign
            and (
                (_is_flag(word) and is_secret_flag(name))
                or (name.isidentifier() and name.isascii() and is_secret_env(name))
            )
        ) or (sign and re.fullmatch(r"[\w.-]+", name) and is_secret(name)):
            yield f"{name}="
        elif glued and (rest := _canonical(word)[len(glued) :]) and rest[0] not in "-=":
            after = 1  # ``--api-key:x`` or ``--api-keyx``, and what follows
            yield word[: len(word) - len(rest) + (rest[0] == ":")]
        else:
            if not sign and re.fullmatch(rf"[{_DASHES}]*[\w-]+", word):
                after = int(is_secret_flag(word) if _is_flag(word) else is_secret(word))
            yield None


def words(argv: Sequence[str], secrets: Iterable[str] = ()) -> tuple[str, ...]:
    """A command without secrets; a secret flag's values are hidden however short they are."""
    known = tuple(secrets)
    return tuple(
        _shapes(word, known) if hidden is None else f"{_shapes(hidden, known)}{HIDDEN}"
        for word, hidden in zip(argv, _hidden(argv), strict=True)
    )


def text(value: str, secrets: Iterable[str] = ()) -> str:
    """`value` without secrets and without what would steer a terminal."""
    return printable(_shapes(value, secrets))


def printable(value: str) -> str:
    """`value` with control characters and marks that reorder text spelled out."""
    return CONTROL.sub(lambda m: _escaped(m[0]), value)


def _escaped(c: str) -> str:
    return f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}"


def _shapes(value: str, secrets: Iterable[str]) -> str:
    """The known secrets, and those told by the structure of the text: URLs, ``key=value`` pairs, JSON."""
    for secret in secrets:
        value = value.replace(secret, HIDDEN)
    for start, end, shown in reversed(list(_places(value))):
        value = value[:start] + shown + value[end:]
    return value


def _inside(value: str) -> list[str]:
    """The secrets that the structure of a text tells."""
    return [part for start, end, _ in _places(value) for part in _bare(value[start:end])]


def _bare(value: str) -> list[str]:
    """A hidden stretch of text, and the texts in it where it is JSON."""
    quoted = re.findall(r"[\"']([^\"']{4,})[\"']", value)
    return [value.strip("'\""), *quoted]


def _places(value: str) -> Iterator[tuple[int, int, str]]:
    """Stretches to hide: (start, end, what stands there instead), in order and apart from each other."""
    if ":" not in value and "=" not in value:  # each of them has one or the other
        return
    found = [*_in_urls(value), *_in_pairs(value), *_in_json(value)]
    last = 0
    for start, end, shown in sorted(found, key=lambda f: (f[0], -f[1])):
        if start >= last and value[start:end] != shown:
            yield start, end, shown
            last = end


def _in_urls(value: str) -> Iterator[tuple[int, int, str]]:
    for url in _URL.finditer(value):
        begin = url.start() + url[0].index("://") + 3
        login = _login(value[begin : url.end()])
        if login:
            yield begin, begin + login, HIDDEN
    for bare in _BARE_LOGIN.finditer(value):
        if not value[: bare.start()].endswith("://"):
            yield bare.start(), bare.end() - 1, HIDDEN
    for query in _QUERY.finditer(value):
        if (query[1] != ";" and query[3] and _QUERY_WORDS & set(_parts(query[2]))) or is_secret(query[2]):
            yield query.start(3), query.end(3), HIDDEN


def _login(rest: str) -> int:
    """How long the login at the beginning of a URL's rest is: up to the last ``@``, also when it holds a slash."""
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    _, colon, port = authority.partition(":")
    if "@" in authority or (colon and not port.isdigit() and not authority.startswith("[")):
        return rest.rfind("@") if "@" in rest else 0
    return 0


def _in_pairs(value: str) -> Iterator[tuple[int, int, str]]:
    """``Password=…;`` and ``HF_TOKEN=…``."""
    for name in _PAIR_NAME.finditer(value):
        secret = is_secret(name[1]) or (name[1].isupper() and is_secret_env(name[1]))
        if secret and (pair := _PAIR_VALUE.match(value, name.end())):
            yield pair.start(), pair.end(), HIDDEN


def _in_json(value: str) -> Iterator[tuple[int, int, str]]:
    """The whole value behind a secret key, of whatever type; to the end of the text where it is cut off."""
    last = 0
    for key in _JSON_KEY.finditer(value):
        if key.start() < last or not is_secret(key[2]):
            continue
        end = _value_end(value, key.end())
        raw = value[key.end() : end]
        if raw.strip().lower() in ("null", "none", "true", "false", "") or raw.strip("'\"\\") == "":
            continue
        quote = key[1]
        yield key.end(), end, f"{quote}{HIDDEN}{quote}"
        last = end


def _value_end(value: str, at: int) -> int:
    depth, quote = 0, ""
    while at < len(value):
        c = value[at]
        if quote:
            if c == "\\" and not value.startswith(quote, at):
                at += 2
                continue
            if value.startswith(quote, at):
                at += len(quote) - 1
                quote = ""
                if depth == 0:
                    return at + 1
        elif c in "\"'":
            quote = c
        elif c == "\\" and value[at + 1 : at + 2] in ('"', "'"):  # JSON inside a JSON text
            quote = value[at : at + 2]
            at += 1
        elif c in "[{":
            depth += 1
        elif c in "]}" or (c in ",\n" and depth == 0):
            if depth == 0:
                return at
            depth -= 1
            if depth == 0:
                return at + 1
        at += 1
    return len(value)


def _leaves(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [leaf for v in value.values() for leaf in _leaves(v)]
    if isinstance(value, (list, tuple)):
        return [leaf for v in value for leaf in _leaves(v)]
    return [] if value is None or isinstance(value, bool) else [str(value)]


def tree(value: Any, secrets: Iterable[str] = ()) -> Any:
    """The same for every text inside dicts and lists; values under secret keys are hidden whole."""
    known = tuple(secrets)
    if isinstance(value, str):
        return text(value, known)
    if isinstance(value, Mapping):
        return {
            text(str(k), known): HIDDEN if is_secret(str(k)) and _leaves(v) else tree(v, known)
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
        flags=tuple(map(printable, words(finding.flags, secrets))),
        fix=finding.fix and replace(finding.fix, text=text(finding.fix.text, secrets)),
    )


def _fact(name: str, shown: Mapping[str, Any], secrets: Sequence[str]) -> Mapping[str, Any]:
    hidden = is_secret(name) and shown.get("value") not in (None, True, False, "")
    return {**tree(shown, secrets), **({"value": HIDDEN} if hidden else {})}
