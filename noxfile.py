"""Sessions for developers: `nox -l` lists them. All but `pure` run inside the environment that tools/env.sh makes."""

from __future__ import annotations

import sys

import nox

nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "tests"]


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, ruff-format, mypy, generated docs up to date."""
    session.run(sys.executable, "-m", "ruff", "check", ".")
    session.run(sys.executable, "-m", "ruff", "format", "--check", ".")
    session.run(sys.executable, "-m", "mypy")
    session.run("lint-imports")
    session.run(sys.executable, "tools/docs.py", "--check")


@nox.session
def tests(session: nox.Session) -> None:
    """What CI runs."""
    session.run(sys.executable, "-m", "pytest", *session.posargs)


@nox.session(venv_backend="virtualenv", python=["3.10", "3.12"])
def pure(session: nox.Session) -> None:
    """The tests that run nothing of SGLang, on the other Pythons that pyproject.toml claims."""
    session.install("-e", ".[dev]")
    session.run("python", "-m", "pytest", "-q", "tests/unit", *session.posargs)


@nox.session
def matrix(session: nox.Session) -> None:
    """Every release, the slow tests included."""
    session.run(sys.executable, "tools/trees.py", "--all")
    session.run(
        sys.executable, "-m", "pytest", "-m", "not gpu", *session.posargs, env={"SGLANG_GUARDS_MATRIX": "all"}
    )


@nox.session
def patches(session: nox.Session) -> None:
    """Every patch series on its release."""
    session.run(sys.executable, "tools/trees.py", "--all")
    session.run(sys.executable, "tools/patches.py", "check", "--all")


@nox.session
def docs(session: nox.Session) -> None:
    """Generated pages, then the site in site/ (what `tests/docs` checks)."""
    session.run(sys.executable, "tools/docs.py")
    session.run(sys.executable, "-m", "mkdocs", "build", "--strict", env={"NO_MKDOCS_2_WARNING": "1"})
