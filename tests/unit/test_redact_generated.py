"""Secrets in every place where an operator may put one, against every output that a report or a trouble has."""

from __future__ import annotations

import io
import json

import pytest

from sglang_guards import redact
from sglang_guards.cli.main import main
from sglang_guards.report import text as rendered
from sglang_guards.report.model import Finding, Ignored, Report, Severity
from tests.unit.reports import report

#: Shapes of secrets: letters, digits alone, and with what URLs, shells and JSON read specially.
SECRETS = ("hf_S3cretS3cret", "48151623", "p@ss/w0rd", "a=b=c+d/e==", "sk-$ec'ret")
FLAGS = (
    "--api-key",
    "--admin-api-key",
    "--ssl-keyfile-password",
    "--api-k",
    "--api-kye",
    "-api-key",
    "—api-key",
)
FLAGS_TOO = (
    "--api_key",
    "--API-KEY",
    "–admin-api-key",
    "--apikey",
    "api-key",
    "--password",
    "-token",
    "--hf-token",
)
VARIABLES = (
    *(
        "HF_TOKEN",
        "HF_TOKENS",
        "MY_PW",
        "MYSQL_PWD",
        "REDISCLI_AUTH",
        "BASIC_AUTH",
        "DOCKER_AUTH_CONFIG",
        "CREDS",
    ),
    *(
        "COOKIE",
        "JWT",
        "Azure_Key",
        "AZURE_KEY",
        "PGPASSWORD",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_PAT",
        "MY_CREDENTIALS",
    ),
)
KEYS = ("token", "secret", "password", "api_key", "accessToken", "authorization")
QUERIES = ("token", "key", "auth", "pwd", "jwt", "sig", "X-Amz-Signature", "access_token", "api-key", "code")


def places(secret: str) -> dict[str, list[str]]:
    """Name of the place -> the words of a command with `secret` there."""
    found = {f"{flag} word": [flag, secret] for flag in (*FLAGS, *FLAGS_TOO)}
    found |= {f"{flag} sign": [f"{flag}={secret}"] for flag in (*FLAGS, *FLAGS_TOO)}
    found |= {f"{flag} two words": [flag, "first", secret] for flag in FLAGS}
    found |= {f"{flag} glued": [f"{flag}:{secret}"] for flag in ("--api-key", "-api-key")}
    found |= {f"variable {name}": [f"{name}={secret}", "sglang"] for name in VARIABLES}
    found |= {f"docker {name}": ["docker", "run", "-e", f"{name}={secret}"] for name in VARIABLES[:3]}
    for key in KEYS:
        for shape in (secret, [secret], {"a": secret}, [{"b": [secret]}]):
            found[f"JSON {key} {type(shape).__name__}{len(str(shape))}"] = [
                "--json-model-override-args",
                json.dumps({"x": {key: shape}}),
            ]
    if secret.isdigit():
        found |= {f"JSON {key} number": ["--x", f'{{"{key}": {secret}}}'] for key in KEYS}
    if "/" not in secret and "'" not in secret:
        found |= {f"URL {scheme}": [f"{scheme}://u:{secret}@h:1/p"] for scheme in ("http", "s3", "redis")}
        found["login without a scheme"] = (
            [f"u:{secret}@h:5"] if "@" not in secret and "=" not in secret else ["x"]
        )
    found["URL login with a slash and at signs"] = [f"http://u:p@{secret.replace(chr(39), '')}@h/p"]
    if not set(secret) & set("&#;'"):
        found |= {f"query {q}": [f"http://h/p?a=1&{q}={secret}"] for q in QUERIES}
        found |= {f"fragment {q}": [f"http://h/p#{q}={secret}"] for q in QUERIES}
        found["connection string"] = ["--x", f"Server=h;Password={secret};Timeout=5"]
    return found


CASES = [(secret, name, words) for secret in SECRETS for name, words in places(secret).items()]


def needles(secret: str) -> tuple[str, ...]:
    return (secret, json.dumps(secret)[1:-1], secret.replace("'", "'\"'\"'"), secret.replace("'", ""))


def outputs(words: list[str]) -> dict[str, str]:
    """Everything that may be shown of a launch with these words: the report in each format, and a trouble's text."""
    argv = ["python", "-m", "sglang.launch_server", *words, "--tp", "4"]
    known = redact.secrets_in(argv, {})
    line = " ".join(argv)
    finding = Finding("FMS101", "x", Severity.ERROR, f"told: {line}", tuple(argv), line, line, None)
    full = report(
        finding,
        argv=tuple(argv),
        corrected=tuple(argv),
        notes=(line,),
        ignored=(Ignored("X", Severity.ERROR, line),),
        facts={
            "args.x": {"value": words, "from": "given"},
            "args.y": {"value": {"k": line}, "from": "given"},
        },
    )
    safe = redact.report(full, known)
    made = {name: rendered.other(name, safe) for name in ("github", "sarif")}
    out = io.StringIO()
    rendered.text(safe, rendered.console(out), verbose=True)
    return made | {
        "text": out.getvalue(),
        "json": rendered.to_json(safe),
        "log": "\n".join(rendered.log_lines(safe)),
        "refusal": rendered.refusal(safe),
        "trouble": redact.text(f"unrecognized arguments: {line}", known),
    }


@pytest.mark.parametrize("secret", SECRETS)
def test_no_secret_in_any_output(secret: str) -> None:
    shown = []
    for name, words in places(secret).items():
        for form, text in outputs(words).items():
            flat = text.replace("\n", "").replace("  ", "")
            shown += [f"{name} in {form}" for needle in needles(secret) if needle in text or needle in flat]
    assert shown == []
    print(f"secrets: {len(places(secret)) * 7} places and outputs, none told it")


def test_the_cases_are_many() -> None:
    assert len(CASES) * 7 > 3000


@pytest.mark.parametrize("name", VARIABLES)
def test_a_variable_of_the_environment_is_never_told(name: str) -> None:
    assert redact.text("it says S3cretS3cret", redact.secrets_in([], {name: "S3cretS3cret"})) == "it says ***"
    inside = redact.secrets_in(
        [], {"CONN_STR": "Server=x;Password=S3cretS3cret;b=1", "URL": "redis://u:pw123456@h"}
    )
    assert redact.text("S3cretS3cret u:pw123456", inside) == "*** ***"


@pytest.mark.parametrize(
    "words",
    [
        ["-api-key", "S3cretS3cret"],
        ["—api-key", "S3cretS3cret"],
        ["--api-key", "-S3cretS3cret"],
        ["api-key=S3cretS3cret"],
    ],
)
@pytest.mark.parametrize("form", ["text", "json", "github", "sarif"])
def test_a_refused_command_does_not_tell_its_secret(
    words: list[str], form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--format", form, "--gpu", "8xH200", "--", "vllm", "serve", *words]) == 2
    assert "S3cret" not in "".join(capsys.readouterr())


ORDINARY = (
    *(
        "--max-total-tokens 9",
        "--speculative-num-draft-tokens 4",
        "--tokenizer-path /a/b",
        "--ssl-keyfile /k",
    ),
    *(
        "tcp://10.0.0.1:5000",
        "http://h:8000/@scope/p@1",
        "repo/image:v1@sha256:abc",
        "a:b",
        "[::1]:5000",
        '{"top_k": 8}',
    ),
    *(
        "TOKENIZERS_PARALLELISM=0",
        "SGLANG_MAX_TOKENS=4096",
        "https://github.com/a/b/issues/1#issuecomment-2",
        "key",
    ),
)


@pytest.mark.parametrize("words", ORDINARY)
def test_ordinary_words_stay(words: str) -> None:
    assert redact.words(words.split(), redact.secrets_in(words.split(), {})) == tuple(words.split())


def test_nothing_steers_a_terminal() -> None:
    evil = "Qwen\x1b[2J\x1b]0;t\x07\x9b1m\u202eX\x7f\r"
    made = Report(
        findings=(Finding("X", "x", Severity.ERROR, evil, (evil,), evil, evil, None),),
        argv=(evil,),
        corrected=(evil,),
        notes=(evil,),
        facts={"model.architecture": {"value": evil, "from": "config"}},
    )
    safe = redact.report(made, ())
    out = io.StringIO()
    rendered.text(safe, rendered.console(out), verbose=True)
    everything = [out.getvalue(), rendered.to_json(safe), rendered.refusal(safe), *rendered.log_lines(safe)]
    everything += [rendered.other(name, safe) for name in ("github", "sarif")]
    for text in everything:
        steering = [
            c for c in text if c not in "\n\t" and (ord(c) < 32 or 127 <= ord(c) < 160 or c == "\u202e")
        ]
        assert steering == []
