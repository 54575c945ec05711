"""The public names of the package, and what importing it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import sglang_guards
from sglang_guards.errors import LaunchRefused
from sglang_guards.preflight import check
from sglang_guards.report.model import Report


def test_every_public_name_is_there() -> None:
    assert {
        name: getattr(sglang_guards, name).__name__ for name in sglang_guards.__all__ if name != "__version__"
    } == {name: name for name in sglang_guards.__all__ if name != "__version__"}
    assert (sglang_guards.check, sglang_guards.Report, sglang_guards.LaunchRefused) == (
        check,
        Report,
        LaunchRefused,
    )


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'checks'"):
        _ = sglang_guards.checks


def test_importing_the_package_imports_nothing_else_of_it() -> None:
    code = "import sys, sglang_guards; print(sorted(m for m in sys.modules if m.startswith('sglang')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['sglang_guards']"
