"""The rule registry: how a rule is declared, and how it is judged on one launch."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sglang_guards.launch.facts import Launch, MissingFact
from sglang_guards.report.model import Evidence, Finding, Severity
from sglang_guards.rules.violation import Violation

#: Family prefix -> what the family is about. A family is one or more modules of this folder.
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
    "SGL": "SGLang's own refusals",
}

Check = Callable[[Launch], Iterator[Finding]]


@dataclass(frozen=True)
class Ask:
    """A probe, and for a probe that takes arguments the fact that each one is read from."""

    probe: str
    arguments: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        given = ", ".join(f"{name}={fact}" for name, fact in self.arguments)
        return f"{self.probe}({given})" if given else self.probe

    def of(self, launch: Launch) -> tuple[bool, str]:
        """The answer for this launch and its place. Raises MissingFact where it is not known."""
        fact = launch.answer(self.probe, **{name: str(launch[value]) for name, value in self.arguments})
        return bool(fact.value), fact.where


def ask(probe: str, **arguments: str) -> Ask:
    """A probe with arguments, for `source`: ``ask("method_defined", architecture="model.architecture")``."""
    return Ask(probe, tuple(sorted(arguments.items())))


#: What a rule's `source` may be: probes with the answer under which a violation is one, or several such by name.
#: Keys are names of probes or `Ask`s, values True or False; or names of cases, values such mappings.
Declared = Mapping[Any, Any]


@dataclass(frozen=True)
class Case:
    """Answers of the installed source that must all hold for a violation to be one."""

    answers: tuple[tuple[Ask, bool], ...]
    #: What tells this case from the rule's others.
    note: str = ""

    def places(self, launch: Launch) -> tuple[str, ...] | None:
        """Where the source decides; None where one answer differs. Raises MissingFact where one is not known."""
        places, missing = [], None
        for question, wanted in self.answers:
            try:
                value, where = question.of(launch)
            except MissingFact as unknown:
                missing = missing or unknown
                continue
            if value is not wanted:
                return None
            places.append(where)
        if missing is not None:
            raise missing
        return tuple(dict.fromkeys(place for place in places if place))


def _always(launch: Launch) -> bool:
    return True


@dataclass(frozen=True)
class Rule:
    """One rule: identity, severity, what the source must answer, why it may speak."""

    id: str
    name: str
    severity: Severity
    summary: str
    evidence: tuple[Evidence, ...]
    applies: Callable[[Launch], bool]
    check: Check
    doc: str
    #: What the installed source must answer; empty for a rule that asks it nothing, or asks in its function.
    cases: tuple[Case, ...] = ()
    #: The probe that must answer True for the question to arise in a release (its row of the release table).
    only_if: str | None = None
    #: Whether it judges a launch that SGLang itself refused, of which nothing is resolved.
    of_refused: bool = False

    def findings(self, launch: Launch) -> tuple[Finding, ...] | None:
        """What the rule says, None where it does not apply. Raises MissingFact where it cannot be decided.

        A source that is known to be right settles a rule whatever else is not known.
        """
        try:
            return tuple(self.check(launch)) if self.applies(launch) else None
        except MissingFact:
            if self.cases and all(_differs(case, launch) for case in self.cases):
                return ()
            raise

    def of_violations(self, launch: Launch, violations: Iterable[Violation]) -> Iterator[Finding]:
        """The findings of those violations for which the source answers as declared.

        One that cannot be told does not hide one that can; when none holds for certain, the missing fact is raised.
        """
        certain, missing = False, None
        for violation in violations:
            case = self._case(violation)
            try:
                places = case.places(launch) if case is not None else ()
            except MissingFact as unknown:
                missing = missing or unknown
                continue
            if places is not None:
                certain = True
                yield self._of(violation, launch, tuple(map(_short, places)))
        if missing is not None and not certain:
            raise missing

    def _case(self, violation: Violation) -> Case | None:
        if violation.case is None:
            return self.cases[0] if len(self.cases) == 1 and not self.cases[0].note else None
        return next(case for case in self.cases if case.note == violation.case)

    def _of(self, violation: Violation, launch: Launch, places: tuple[str, ...]) -> Finding:
        quiet = launch.unrecorded()  # spelling flags decides nothing
        said = any(place in violation.cause for place in places)
        cause = violation.cause if said or not places else f"{violation.cause} ({places[0]})"
        decided = (Evidence("source", place) for place in places)
        return Finding(
            id=self.id,
            name=self.name,
            severity=violation.severity or self.severity,
            message=violation.message or self.summary,
            flags=violation.shown_flags(quiet),
            cause=cause,
            impact=violation.impact,
            fix=None if violation.fix is None else violation.fix.fix(quiet),
            evidence=(*violation.evidence, *decided, *self.evidence),
            summary=self.summary,
            rule_severity=self.severity,
        )


def _short(place: str) -> str:
    return place.removeprefix("sglang/srt/").removeprefix("sglang/")


def _differs(case: Case, launch: Launch) -> bool:
    try:
        return case.places(launch) is None
    except MissingFact:
        return False


def _cases(source: Declared) -> tuple[Case, ...]:
    """One case without a name, or one for each named mapping."""
    named: dict[str, dict[Ask, bool]] = {}
    for key, value in source.items():
        if isinstance(value, Mapping):
            named[str(key)] = {_asked(question): wanted for question, wanted in value.items()}
        else:
            named.setdefault("", {})[_asked(key)] = value
    return tuple(Case(tuple(answers.items()), note) for note, answers in named.items())


def _asked(question: str | Ask) -> Ask:
    return question if isinstance(question, Ask) else Ask(question)


_REGISTRY: dict[str, Rule] = {}


def rule(
    id: str,
    name: str,
    severity: Severity,
    *,
    summary: str,
    source: Declared | None = None,
    reports: Iterable[Evidence] = (),
    measured: Iterable[str] = (),
    applies: Callable[[Launch], bool] = _always,
    only_if: str | None = None,
    of_refused: bool = False,
) -> Callable[[Callable[[Launch], Iterator[Violation]]], Rule]:
    """Register a rule. The decorated function takes a launch and yields `Violation`s; its docstring is the rule's page.

    `source` maps probes to the answer under which a violation is one (``{"zero_store_guarded": False}``), or names
    several such mappings, one of which a violation picks as its `case`. From it follow the evidence line, the skip
    where the source could not be read, and the row of the release table, where `only_if` names the probe without
    which the question does not arise. A probe with arguments is written ``ask("probe", argument="fact")``.

    `applies` is a cheap test (is the flag on?); a rule that does not apply is neither passed nor skipped, and one
    whose `applies` reads an unknown fact is skipped. Read the flag first, the model after it.

    `reports` and `measured` say where the claim comes from.
    """
    cases = _cases(source or {})
    claimed = (*reports, *(Evidence("measured", text) for text in measured))

    def register(function: Callable[[Launch], Iterator[Violation]]) -> Rule:
        if id in _REGISTRY:
            raise ValueError(f"rule {id} is registered twice")

        def check(launch: Launch) -> Iterator[Finding]:
            return _REGISTRY[id].of_violations(launch, function(launch))

        _REGISTRY[id] = Rule(
            id=id,
            name=name,
            severity=severity,
            summary=summary,
            evidence=claimed,
            applies=applies,
            check=check,
            doc=function.__doc__ or "",
            cases=cases,
            only_if=only_if,
            of_refused=of_refused,
        )
        return _REGISTRY[id]

    return register


def all_rules(problems: list[str] | None = None) -> tuple[Rule, ...]:
    """Every rule, by id. A module that cannot be imported is a line in `problems` (or raises without that list)."""
    package = importlib.import_module(__package__)
    for module in pkgutil.iter_modules(package.__path__):
        try:
            importlib.import_module(f"{__package__}.{module.name}")
        except Exception as error:
            if problems is None:
                raise
            problems.append(f"rules/{module.name}.py could not be loaded: {type(error).__name__}: {error}")
    return tuple(_REGISTRY[key] for key in sorted(_REGISTRY))
