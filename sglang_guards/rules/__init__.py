"""The rule registry.

A rule is a generator that yields findings for one `Launch`. Its docstring is its documentation page (sections «What
it checks», «Why it matters», «When it hurts», «Fix»); `needs` names the facts that it may read, and reading one that
is not known skips the rule.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from sglang_guards.launch.facts import Launch
from sglang_guards.report.model import Evidence, Finding, Fix, Severity

#: Family prefix -> what the family is about. A family is one or more modules `rules/<family>*.py`, found by name.
FAMILIES: Mapping[str, str] = {
    "FMS": "fused MoE sum (--enable-fused-moe-sum-all-reduce)",
    "ARF": "FlashInfer all-reduce fusion",
    "RUN": "MoE runner backend",
    "QNT": "quantization shapes",
    "SPC": "speculative decoding",
    "BLD": "what SGLang's own constructors refuse, and what does not fit",
    "ATT": "attention backends",
    "PAR": "parallel sizes, pipeline and data parallelism, overlap",
    "DET": "deterministic inference",
    "FLG": "flags that resolution switches off, or that nothing reads",
}

Check = Callable[[Launch], Iterator[Finding]]


def _always(launch: Launch) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """One rule: identity, severity, what it may read, why it may speak."""

    id: str
    name: str
    severity: Severity
    summary: str
    needs: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    applies: Callable[[Launch], bool]
    check: Check
    doc: str

    def finding(
        self,
        *,
        flags: Iterable[str],
        cause: str,
        impact: str,
        fix: Fix | None,
        message: str | None = None,
        severity: Severity | None = None,
        evidence: Iterable[Evidence] = (),
    ) -> Finding:
        """A finding of this rule; `message` and `severity` default to the rule's own."""
        return Finding(
            id=self.id,
            name=self.name,
            severity=severity or self.severity,
            message=message or self.summary,
            flags=tuple(flags),
            cause=cause,
            impact=impact,
            fix=fix,
            evidence=(*evidence, *self.evidence),
            summary=self.summary,
            rule_severity=self.severity,
        )


_REGISTRY: dict[str, Rule] = {}


def rule(
    id: str,
    name: str,
    severity: Severity,
    *,
    summary: str,
    needs: Iterable[str],
    evidence: Iterable[Evidence],
    applies: Callable[[Launch], bool] = _always,
) -> Callable[[Callable[[Rule, Launch], Iterator[Finding]]], Rule]:
    """Register a rule. The decorated function takes ``(rule, launch)`` and yields ``rule.finding(...)``.

    `applies` is a cheap test (is the flag on?); a rule that does not apply is neither passed nor skipped.
    """

    def register(function: Callable[[Rule, Launch], Iterator[Finding]]) -> Rule:
        if id in _REGISTRY:
            raise ValueError(f"rule {id} is registered twice")

        def check(launch: Launch) -> Iterator[Finding]:
            return function(_REGISTRY[id], launch)

        doc = function.__doc__ or ""
        _REGISTRY[id] = Rule(id, name, severity, summary, tuple(needs), tuple(evidence), applies, check, doc)
        return _REGISTRY[id]

    return register


def all_rules(problems: list[str] | None = None) -> tuple[Rule, ...]:
    """Every rule, by id. A family that cannot be imported is a line in `problems` (or raises without that list)."""
    for module in pkgutil.iter_modules(__path__):
        if module.name.endswith("_common"):
            continue
        try:
            importlib.import_module(f"{__name__}.{module.name}")
        except Exception as error:
            if problems is None:
                raise
            problems.append(f"rules/{module.name}.py could not be loaded: {type(error).__name__}: {error}")
    return tuple(_REGISTRY[key] for key in sorted(_REGISTRY))
