"""One launch of SGLang as immutable facts, each with the place it came from.

Names are dotted. The ones that are collected:

- ``args.<field>``: a server arg after SGLang's own resolution;
- ``model.<name>``, ``draft_model.<name>``: from the checkpoint's config (see `model_facts`);
- ``gpu.platform`` (cuda, hip, xpu, musa, npu, cpu, mps, other), ``gpu.name``, ``gpu.sm`` (90 for compute capability
  9.0), ``gpu.count`` (per node), ``gpu.memory_gib``;
- ``lora.enabled``, ``lora.target_modules`` (names without gate/up split, or ``["all"]``).

And the ones that are derived when asked for:

- ``source.<probe>``: what the installed SGLang's source says (see `source`);
- ``target.<name>``, ``draft.<name>``: which runner the MoE layers get (see `moe_layers`);
- ``packages.<name>``: installed version of a package that SGLang calls, or None.

``fusion.backend`` and ``fusion.contract`` (see `fusion`) name what a rule was missing when the source could not tell.

A fact that is not known is missing, which is not the same as None (an unset server arg is None, and so is one that the
installed SGLang does not have).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

from sglang_guards.launch import moe_layers
from sglang_guards.launch.fact import Fact, MissingFact
from sglang_guards.source.probes.args_resolution import declared_as
from sglang_guards.source.tree import Source, Unknown

__all__ = ["Fact", "Launch", "MissingFact"]

#: Packages whose installed version decides something.
PACKAGES = (
    "flashinfer-python",
    "flashinfer-jit-cache",
    "flashinfer-cubin",
    "sgl-kernel",
    "sglang-kernel",
    "triton",
)


@dataclass(frozen=True, eq=False)
class Launch:
    """Facts of one launch. Read with ``launch["args.ep_size"]``, which raises `MissingFact` for an unknown one."""

    facts: Mapping[str, Fact]
    argv: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    #: field of ServerArgs -> the flag as the user typed it, such as ``--tp 4``.
    typed: Mapping[str, str] = field(default_factory=dict)
    source: Source | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "facts", MappingProxyType(dict(self.facts)))

    @cached_property
    def _derived(self) -> dict[str, Mapping[str, Fact]]:
        return {}

    def fact(self, name: str) -> Fact:
        """The fact with its origin. Raises `MissingFact` when it is not known."""
        if name in self.facts:
            return self.facts[name]
        prefix, _, rest = name.partition(".")
        if prefix == "source":
            return self.answer(rest)
        if prefix == "args" and self._flags is not None and rest not in self._flags:
            if (other := self._under_another_name(rest)) is not None:
                return self.fact(f"args.{other}")
            return Fact(None, "default", "this SGLang has no such flag")
        if prefix in _DERIVERS:
            if prefix not in self._derived:
                self._derived[prefix] = _DERIVERS[prefix](self)
            if name in self._derived[prefix]:
                return self._derived[prefix][name]
        raise MissingFact(name)

    @cached_property
    def _flags(self) -> frozenset[str] | None:
        """The server args that the installed source declares."""
        return None if self.source is None else self.source.flags()

    def _under_another_name(self, field: str) -> str | None:
        """The field that this SGLang fills from the flag's spelling, None where it has no such spelling."""
        try:
            return None if self.source is None else declared_as(self.source, field)
        except Unknown:
            raise MissingFact(f"args.{field}") from None

    def answer(self, probe: str, **arguments: str) -> Fact:
        """What the installed source answers to a probe. Raises `MissingFact` where it could not be understood."""
        if self.source is not None:
            answer = self.source.ask(probe, **arguments)
            if answer.value is not None:
                return Fact(answer.value, "source", answer.where or "")
        raise MissingFact(f"source.{question(probe, arguments)}")

    def unrecorded(self) -> Launch:
        """The launch itself, where reading it shall not count as deciding."""
        return self

    def __getitem__(self, name: str) -> Any:
        return self.fact(name).value

    def get(self, name: str, default: Any = None) -> Any:
        """The value, or `default` when the fact is not known."""
        try:
            return self[name]
        except MissingFact:
            return default

    def where(self, name: str) -> str:
        """The place that decided a fact, without the leading ``sglang/``; empty when there is none."""
        try:
            return self.fact(name).where.removeprefix("sglang/srt/").removeprefix("sglang/")
        except MissingFact:
            return ""

    def flag(self, field_name: str) -> str:
        """The flag as typed, or its long spelling with the value it has."""
        if field_name in self.typed:
            return self.typed[field_name]
        name = "--" + field_name.replace("_", "-")
        value = self.get(f"args.{field_name}")
        return name if value is None or isinstance(value, bool) else f"{name} {value}"

    def given(self, field_name: str) -> bool:
        """Whether the user set this server arg."""
        known = self.facts.get(f"args.{field_name}")
        return field_name in self.typed or (known is not None and known.origin == "given")


def question(probe: str, arguments: Mapping[str, str]) -> str:
    """A probe with its arguments, as it is named in a report."""
    given = ", ".join(f"{name}={value}" for name, value in sorted(arguments.items()))
    return f"{probe}({given})" if given else probe


def _layers(which: str) -> Callable[[Launch], Mapping[str, Fact]]:
    def derive(launch: Launch) -> Mapping[str, Fact]:
        return moe_layers.facts(launch, which)

    return derive


def _packages(launch: Launch) -> Mapping[str, Fact]:
    from importlib import metadata

    facts = {}
    for name in PACKAGES:
        try:
            facts[f"packages.{name}"] = Fact(metadata.version(name), "machine")
        except metadata.PackageNotFoundError:
            facts[f"packages.{name}"] = Fact(None, "machine")
    return facts


_DERIVERS: Mapping[str, Callable[[Launch], Mapping[str, Fact]]] = {
    "target": _layers("target"),
    "draft": _layers("draft"),
    "packages": _packages,
}
