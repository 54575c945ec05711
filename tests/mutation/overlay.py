"""A real SGLang tree with some files changed in memory: what a probe would read after an edit."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence

from sglang_guards.source.tree import Answer, Code, Items, Source, find_probe


class Edited(Source):
    """`base` with other texts for some files, and optionally one name spelled otherwise in every file."""

    def __init__(
        self, base: Source, texts: Mapping[str, str] | None = None, rename: tuple[str, str] | None = None
    ) -> None:
        super().__init__(base.root)
        self._base = base
        self._edits = dict(texts or {})
        self._rename = rename
        #: Files that were asked for, present or not.
        self.read: set[str] = set()

    def data(self, rel: str) -> bytes | None:
        self.read.add(rel)
        if rel in self._edits:
            return self._edits[rel].encode()
        if self._rename is None:
            known = self._base.text(rel) if rel in self._base._texts else None
            return known.encode() if known is not None else self._base.data(rel)
        data = self._base.data(rel)
        old, new = self._rename
        if data is None or old.encode() not in data:
            return data
        return re.sub(rf"(?<![\w\"']){old}\b".encode(), new.encode(), data)

    def text(self, rel: str) -> str | None:
        self.read.add(rel)
        if rel in self._edits or self._rename is not None:
            return super().text(rel)
        return self._base.text(rel)

    def lines(self, rel: str) -> Sequence[str]:
        self.read.add(rel)
        return super().lines(rel) if rel in self._edits or self._rename else self._base.lines(rel)

    def maybe(self, candidates: str | Sequence[str], qualname: str) -> Code | None:
        """Pieces of files that are as they were are cut out and parsed once for all edits."""
        rel = self.first(*([candidates] if isinstance(candidates, str) else candidates))
        same = rel is not None and rel not in self._edits and self._unchanged(rel)
        return self._base.maybe(rel or "", qualname) if same else super().maybe(candidates, qualname)

    def _unchanged(self, rel: str) -> bool:
        return self._rename is None or self._rename[0] not in (self._base.text(rel) or "")

    def exists(self, rel: str) -> bool:
        return rel in self._edits or super().exists(rel)

    def files(self, folder: str, pattern: str) -> Sequence[str]:
        new = [
            rel
            for rel in self._edits
            if rel.startswith(f"{folder}/") and fnmatch.fnmatch(rel.removeprefix(f"{folder}/"), pattern)
        ]
        return sorted({*super().files(folder, pattern), *new})


def value(answer: Answer | Items) -> bool | tuple[str, ...] | None:
    return answer.value if isinstance(answer, Answer) else answer.values


def fresh(source: Source, name: str, arguments: Mapping[str, str]) -> Answer | Items:
    """The answer of a probe or a list, whichever it is."""
    find_probe(name)
    return source._run(name, arguments)
