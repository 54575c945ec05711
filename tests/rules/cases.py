"""The one test table of all rules: cases/<RULE>.toml, launches on which the rule fires and near misses.

A case is a command (`argv`, `gpu`, `model`: a config in tests/launches/models, `env`), resolved by the real SGLang of
its `release`, or `facts` over a named `base` of bases.toml, with the real source tree of `release` behind them (`none`
lists facts whose value is None, `given` fields that the operator typed). `also_fires` and `also_quiet` name other
rules that a command must or must not trip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from sglang_guards.judge import judge
from sglang_guards.launch.facts import Fact, Launch
from sglang_guards.report.model import Report
from sglang_guards.rules import all_rules
from sglang_guards.settings import Settings
from tests.contract.tables import source
from tests.launches.checks import check_all
from tools.toml import tomllib

HERE = Path(__file__).parent
BASES = tomllib.loads((HERE / "bases.toml").read_text(encoding="utf-8"))
RULES = {rule.id: rule for rule in all_rules()}
#: Fields that a release may call differently: fusion off is one decision.
_FUSION = ("flashinfer_allreduce_fusion_backend", "enable_flashinfer_allreduce_fusion")
_FORBIDS = "enforce_disable_flashinfer_allreduce_fusion"


@dataclass(frozen=True)
class Case:
    """One launch, and what its rule must do on it."""

    rule: str
    fires: bool
    name: str
    release: str
    argv: tuple[str, ...] = ()
    gpu: str = ""
    model: str = ""
    base: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    none: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    severity: str = ""
    also_fires: tuple[str, ...] = ()
    also_quiet: tuple[str, ...] = ()
    note: str = ""

    @property
    def id(self) -> str:
        return f"{self.rule}-{'' if self.fires else 'quiet-'}{self.name.replace(' ', '-')}"

    @property
    def command(self) -> list[str]:
        """The command as the operator types it."""
        return ["python", "-m", "sglang.launch_server", "--model-path", f"example/{self.model}", *self.argv]

    def launch(self, change: Mapping[str, Any] | None = None) -> Launch:
        """The launch of a case that is made of facts, changed by a finding's fix (None: the flag is removed)."""
        values = {**base_facts(self.base), **self.facts, **dict.fromkeys(self.none)}
        facts = {
            name: Fact(value, "given" if name.removeprefix("args.") in self.given else "resolved")
            for name, value in values.items()
        }
        facts |= {
            name: Fact(fact.value, "assumed") for name, fact in facts.items() if name.startswith("gpu.")
        }
        for name, value in _with_fusion(change or {}).items():
            removed = value is None
            facts[f"args.{name}"] = (
                Fact(BASES["removed"].get(name), "default") if removed else Fact(value, "given")
            )
            if f"typed.{name}" in facts:
                facts[f"typed.{name}"] = Fact(value, "given")
        return Launch(facts, env=self.env, source=source(self.release))


def base_facts(name: str) -> dict[str, Any]:
    """The facts of a base of bases.toml."""
    return {**BASES[name]["facts"], **dict.fromkeys(BASES[name]["none"])}


def _with_fusion(change: Mapping[str, Any]) -> dict[str, Any]:
    """The fix as resolution takes it: fusion that is forbidden is off."""
    off = change.get(_FORBIDS) or set(change) & set(_FUSION)
    return {**dict.fromkeys(_FUSION), **change} if off and "trtllm" not in change.values() else dict(change)


def _read() -> Iterator[Case]:
    for path in sorted(HERE.glob("cases/*.toml")):
        read = tomllib.loads(path.read_text(encoding="utf-8"))
        for kind in ("fires", "quiet"):
            for entry in read.pop(kind, ()):
                lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
                yield Case(rule=path.stem, fires=kind == "fires", **{**entry, **lists})
        assert not read, f"{path.name}: {', '.join(read)}"


CASES = tuple(_read())
OF_FACTS = tuple(case for case in CASES if case.base)
OF_COMMANDS = tuple(case for case in CASES if not case.base)


def judged(case: Case, change: Mapping[str, Any] | None = None) -> Report:
    """The rule's word on a case that is made of facts."""
    return judge(case.launch(change), Settings(), [RULES[case.rule]])


@cache
def reports(release: str) -> dict[str, dict[str, Any]]:
    """Reports of all commands of one release, made in one process; equal environments follow each other."""
    mine = sorted(
        (case for case in OF_COMMANDS if case.release == release), key=lambda c: (sorted(c.env), c.gpu)
    )
    launches = [
        {"argv": case.command, "gpu": case.gpu, "model": case.model, "env": dict(case.env)} for case in mine
    ]
    return dict(zip((case.id for case in mine), check_all(release, launches, timeout=1200), strict=True))
