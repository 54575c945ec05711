"""Every probe against every edit: which answers an edit changed, and which of these are wrong."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from sglang_guards.source.tree import PROBES, Source, find_probe
from tests.mutation.edits import EDITS, Place, Texts
from tests.mutation.overlay import Edited, fresh, value

#: Probes that read a whole folder; asked only about edits of a place that they cite themselves.
WIDE = frozenset(
    {"models_full_contract", "triton_attention_reduce_in_fp32_read", "num_continuous_decode_steps_read"}
)
#: Probes whose question is whether a name exists: renaming it changes the fact.
ABOUT = {
    "has_resolve_once": "resolve_once",
    "has_resolving_view": "resolving_view",
    "has_declare_resolution": "declare_resolution",
    "has_declare_late_resolution": "declare_late_resolution",
    "check_server_args_exists": "check_server_args",
    "auto_enable_pass_exists": "_flashinfer_allreduce_fusion_auto_enable",
}
#: Names that other packages call, so that renaming them is no refactoring.
_FIXED = frozenset({"forward", "main", "run", "apply"})


#: What probes with arguments are asked about.
_ASKED = {
    "architecture": "DeepseekV3ForCausalLM",
    "decoder": "DeepseekV2DecoderLayer",
    "layer": "DeepseekV2DecoderLayer",
    "backend": "triton",
    "sm": "90",
    "a2a": "deepep",
    "algorithm": "EAGLE",
    "method": "Fp8MoEMethod",
    "kind": "fp8",
}


def _arguments(name: str) -> dict[str, str] | None:
    """Arguments for a probe, None where it wants one that is not listed."""
    wanted = list(inspect.signature(PROBES[name].fn).parameters)[1:]
    return {word: _ASKED[word] for word in wanted} if set(wanted) <= set(_ASKED) else None


@dataclass(frozen=True)
class Change:
    """An answer that an edit changed."""

    probe: str
    edit: str
    place: str
    before: object
    after: object

    @property
    def wrong(self) -> bool:
        """Unknown may become certain only where the edit made it so, which keeping the behaviour never does."""
        return self.after is not None

    def __str__(self) -> str:
        return f"{self.edit} at {self.place}: {self.probe} {self.before} -> {self.after}"


@dataclass
class Result:
    asked: int = 0
    edits: int = 0
    changes: list[Change] = None  # type: ignore[assignment]

    @property
    def wrong(self) -> list[Change]:
        return [change for change in self.changes if change.wrong]


class Suite:
    """One release: what its probes answer, and which files each of them reads."""

    def __init__(self, base: Source) -> None:
        self.base = base
        find_probe("no such probe")
        self.arguments: dict[str, dict[str, str]] = {}
        self.answers: dict[str, object] = {}
        self.where: dict[str, str | None] = {}
        self.reads: dict[str, set[str]] = {}
        for name in PROBES:
            if name == "models_full_contract":
                continue
            arguments = _arguments(name)
            if arguments is None:
                continue
            watched = Edited(base)
            answer = fresh(watched, name, self.arguments.setdefault(name, arguments))
            self.answers[name], self.where[name] = value(answer), answer.where
            self.reads[name] = watched.read

    def places(self) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for where in filter(None, self.where.values()):
            rel, _, line = where.rpartition(":")
            text = self.base.text(rel) if line.isdigit() else None
            if text is not None:
                found.setdefault(where, Place(rel, text, int(line)))
        return found

    def readers(self, files: set[str]) -> list[str]:
        return [name for name, read in self.reads.items() if name not in WIDE and read & files]

    def compare(self, edited: Source, edit: str, place: str, names: list[str]) -> list[Change]:
        changes = []
        for name in names:
            after = value(fresh(edited, name, self.arguments[name]))
            if after != self.answers[name]:
                changes.append(Change(name, edit, place, self.answers[name], after))
        return changes

    def preserving(self, part: int = 0, parts: int = 1) -> Iterator[tuple[str, str, Texts]]:
        """(edit, place, new texts) of every generic edit at every cited line, each text once."""
        seen: set[tuple[str, ...]] = set()
        for where, place in itertools.islice(self.places().items(), part, None, parts):
            for name, edit in EDITS.items():
                texts = edit(place)
                key = tuple(texts.values()) if texts else ()
                if (
                    texts
                    and key not in seen
                    and any(self.base.text(rel) != text for rel, text in texts.items())
                ):
                    seen.add(key)
                    yield name, where, texts

    def renames(self) -> dict[str, str]:
        """Functions and classes around the cited lines -> a place that names them."""
        found: dict[str, str] = {}
        for where, place in self.places().items():
            for node in place.chain:
                name = getattr(node, "name", None)
                if isinstance(name, str) and not name.startswith("__") and name not in _FIXED:
                    found.setdefault(name, where)
        return found

    def run(self, part: int = 0, parts: int = 1) -> Result:
        """All edits, or every `parts`-th one from `part` on."""
        result = Result(changes=[])
        for edit, where, texts in self.preserving(part, parts):
            names = self.readers(set(texts))
            own = [name for name in WIDE if self.where.get(name) == where]
            result.asked += len(names) + len(own)
            result.edits += 1
            result.changes += self.compare(Edited(self.base, texts), edit, where, names + own)
        files = {rel for name, read in self.reads.items() if name not in WIDE for rel in read}
        for name, where in itertools.islice(self.renames().items(), part, None, parts):
            holding = {rel for rel in files if name in (self.base.text(rel) or "")}
            names = [probe for probe in self.readers(holding) if ABOUT.get(probe) != name]
            edited = Edited(self.base, rename=(name, f"{name}_Renamed"))
            result.asked += len(names)
            result.edits += 1
            result.changes += self.compare(edited, f"rename {name}", where, names)
        return result
