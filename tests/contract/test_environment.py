"""Boolean environment variables: the same truth as the installed SGLang's own readers, run from its text."""

from __future__ import annotations

import ast
import functools
import logging
import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from sglang_guards.launch.environment import ENVIRON, env_bool
from tests.contract.tables import source
from tests.trees import RELEASES

#: Variables that this project reads.
NAMES = ("SGLANG_USE_AITER", "SGLANG_USE_SGL_XPU", "SGLANG_SHARED_EXPERT_TP1", "SGLANG_USE_MODELSCOPE")
WORDS = ("1", "0", "true", "TRUE", "yes", "y", "on", "no", "", "2", " true", "t")
READERS = ("sglang/srt/utils/common.py", "sglang/srt/utils.py")


@functools.cache
def readers(release: str) -> tuple[Callable[[str], bool], Callable[[str], bool]]:
    """SGLang's `EnvBool.parse` and `get_bool_env_var`, as functions of the text in the environment."""
    tree = source(release)
    scope: dict[str, Any] = {
        "os": os,
        "logger": logging.getLogger("sglang"),
        "Any": Any,
        "warnings": warnings,
    }
    scope["_warned_bool_env_var_keys"] = set()
    plain = tree.function(READERS, "get_bool_env_var").node
    parse = tree.function(ENVIRON, "EnvBool.parse").node
    module = ast.Module([plain, parse], [])
    exec(compile(ast.fix_missing_locations(module), "sglang", "exec"), scope)  # the release's own lines

    def declared(word: str) -> bool:
        try:
            return bool(scope["parse"](None, word))
        except ValueError:
            return False  # the default of every variable that is read here

    def read(word: str) -> bool:
        os.environ["SGLANG_GUARDS_TEST_WORD"] = word
        try:
            return bool(scope["get_bool_env_var"]("SGLANG_GUARDS_TEST_WORD"))
        finally:
            del os.environ["SGLANG_GUARDS_TEST_WORD"]

    return declared, read


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", NAMES)
def test_words_are_read_as_sglang_reads_them(release: str, name: str) -> None:
    tree = source(release)
    declared, read = readers(release)
    line = tree.line(ENVIRON, rf"^ +{name} = EnvBool\(")
    reader = read if line is None else declared
    found = {word: env_bool({name: word}, name, tree) for word in WORDS}
    assert found == {word: reader(word) for word in WORDS}
    assert env_bool({}, name, tree) is False
