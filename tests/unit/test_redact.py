"""No secret leaves, and ordinary words stay readable."""

from __future__ import annotations

import pytest

from sglang_guards import redact


@pytest.mark.parametrize(
    "name",
    ["--api-key", "--admin-api-key", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "api_key",
     "--ssl-keyfile-password", "OPENAI_API_KEY"],
)  # fmt: skip
def test_secret_names(name: str) -> None:
    assert redact.is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["--max-total-tokens", "--speculative-num-draft-tokens", "--tokenizer-path", "--skip-tokenizer-init",
     "--ssl-keyfile", "--max-prefill-tokens", "--tp", "--kv-cache-dtype", "--served-model-name"],
)  # fmt: skip
def test_ordinary_names(name: str) -> None:
    assert not redact.is_secret(name)


def test_words_of_a_command() -> None:
    argv = [
        "HF_TOKEN=hf_abcdef",
        "sglang",
        "serve",
        "--api-key",
        "k",
        "--admin-api-key=adminkey",
        "--max-total-tokens",
        "9",
    ]
    found = redact.secrets_in(argv, {"HF_TOKEN": "hf_abcdef"})
    assert redact.words(argv, found) == (
        "HF_TOKEN=***", "sglang", "serve", "--api-key", "***", "--admin-api-key=***", "--max-total-tokens", "9",
    )  # fmt: skip
    assert redact.text("key hf_abcdef and adminkey", found) == "key *** and ***"


@pytest.mark.parametrize(
    ("shown", "hidden"),
    [
        ("s3://user:pw@host/m", "pw"),
        ("https://user@host/m", "user"),
        ("https://host/m?X-Amz-Signature=abc123&x=1", "abc123"),
        ('{"token": "t0psecret", "n": 1}', "t0psecret"),
        ("{'api_key': 't0psecret'}", "t0psecret"),
    ],
)
def test_secrets_by_their_shape(shown: str, hidden: str) -> None:
    assert hidden not in redact.text(shown)
    assert redact.HIDDEN in redact.text(shown)


def test_text_without_secrets_is_left_alone() -> None:
    for line in ("--served-model-name a:b", "https://host/a?n=1", "tcp://10.0.0.1:5000", '{"top_k": "8"}'):
        assert redact.text(line) == line


def test_trees() -> None:
    value = {"a": ["x sekret y"], "api_key": "zz", "n": 3}
    assert redact.tree(value, ("sekret",)) == {"a": ["x *** y"], "api_key": "***", "n": 3}


@pytest.mark.parametrize(
    "flag", ["--api-key", "--api-k", "--api", "--ap", "--admin-api-ke", "--api-kye", "--apikey", "--api_key"]
)
def test_flags_that_hold_a_secret_however_they_are_typed(flag: str) -> None:
    assert redact.is_secret_flag(flag)
    assert redact.words([flag, "x"]) == (flag, "***")


@pytest.mark.parametrize("flag", ["--ssl-keyfile", "--port", "--model-path", "--a", "-a", "api"])
def test_flags_that_hold_none(flag: str) -> None:
    assert not redact.is_secret_flag(flag)


def test_all_words_behind_a_secret_flag_and_a_quoted_command_are_secret() -> None:
    assert redact.secrets_in(["--api-key", "first", "second", "--tp", "4"], {}) == ("second", "first")
    assert redact.secrets_in(["python -m x --api-key 'sk-quoted'"], {}) == ("sk-quoted",)


def test_a_url_with_a_login_and_a_signed_query() -> None:
    assert redact.words(["http://user:hidden@host:1?token=hidden"]) == ("http://***@host:1?token=***",)


@pytest.mark.parametrize(
    "name", ["PGPASSWORD", "MYSQL_PWD", "REDIS_PASS", "GITHUB_PAT", "AZURE_KEY", "accessToken"]
)
def test_more_names_of_secrets(name: str) -> None:
    assert redact.is_secret(name)


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "PATH", "--max-total-tokens", "tokenizer_path", "key"])
def test_names_that_are_no_secrets(name: str) -> None:
    assert not redact.is_secret(name)
