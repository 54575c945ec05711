"""The exceptions of the package: a launch that could not be checked, and one that is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_guards.report.model import Report


class CouldNotCheck(Exception):
    """Bad usage or a missing input. `message` is one sentence; `hint` says what to do, and may be empty."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class NotAccepted(CouldNotCheck):
    """This SGLang's own parser says no: a flag or a value that this release does not know."""


class LaunchRefused(ValueError):
    """The launch would corrupt results or die later. The text lists every error and ends with the verdict."""

    def __init__(self, text: str, report: Report) -> None:
        super().__init__(text)
        self.report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return (LaunchRefused, (str(self), self.report))
