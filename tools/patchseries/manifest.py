"""patches/manifest.toml: which series is for which release, what it must give, what each patch settles."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.toml import tomllib

PATCHES = Path(__file__).resolve().parents[2] / "patches"
TESTS = "test/"
PACKAGE = "python/sglang/"
_RELEASE = re.compile(r"^\d+\.\d+\.\d+(\.post\d+)?$")
HEADER = """\
# Written by `python tools/patches.py refresh`; checked by `python tools/patches.py check --all`.
# base and tree are git tree ids of exactly the files that the series touches, before and after it.
# shape names how that SGLang resolves its arguments; the CI checks one series per shape.
"""


@dataclass(frozen=True)
class Patch:
    """One file of a series, with what its trailers say."""

    path: Path
    rules: tuple[str, ...]
    forwarded: str

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @property
    def subject(self) -> str:
        return header(self.text, "Subject").removeprefix("[PATCH] ")

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(re.findall(r"^diff --git a/(\S+) b/", self.text, re.MULTILINE))

    @property
    def only_tests(self) -> bool:
        return all(name.startswith(TESTS) for name in self.files)


@dataclass(frozen=True)
class Series:
    name: str
    releases: tuple[str, ...]
    tag: str
    shape: str
    base: str
    tree: str
    patches: tuple[Patch, ...]

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that the series touches, new ones included."""
        return tuple(sorted({name for patch in self.patches for name in patch.files}))

    @property
    def package_files(self) -> tuple[str, ...]:
        return tuple(name for name in self.files if name.startswith(PACKAGE))

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(sorted({rule for patch in self.patches for rule in patch.rules}))


def header(text: str, name: str) -> str:
    """A mail header or trailer of a patch, continuation lines joined; empty where it is missing."""
    head = text.split("\n---\n", 1)[0]
    found = re.search(rf"^{name}: (.*(?:\n .*)*)", head, re.MULTILINE)
    return re.sub(r"\n ", " ", found[1]).strip() if found else ""


def rules_of(text: str) -> tuple[str, ...]:
    named = [rule.strip() for rule in header(text, "Guard-Rule").split(",")]
    return tuple(rule for rule in named if rule and rule != "none")


def read_patch(path: Path) -> Patch:
    text = path.read_text(encoding="utf-8")
    return Patch(path, rules_of(text), header(text, "Forwarded"))


def load(folder: Path = PATCHES) -> list[Series]:
    """Every series of the manifest, oldest release first."""
    data = tomllib.loads((folder / "manifest.toml").read_text(encoding="utf-8"))
    return [
        Series(
            name=entry["name"],
            releases=tuple(entry["releases"]),
            tag=entry["tag"],
            shape=entry["shape"],
            base=entry["base"],
            tree=entry["tree"],
            patches=tuple(
                Patch(folder / entry["name"] / p["file"], tuple(p["rules"]), p["forwarded"])
                for p in entry["patch"]
            ),
        )
        for entry in data["series"]
    ]


def dump(every: Iterable[Series], folder: Path = PATCHES) -> None:
    lines = [HEADER]
    for one in sorted(every, key=lambda series: order(series.releases[-1])):
        lines += [
            "[[series]]",
            f'name = "{one.name}"',
            f"releases = {_list(one.releases)}",
            f'tag = "{one.tag}"',
            f'shape = "{one.shape}"',
            f'base = "{one.base}"',
            f'tree = "{one.tree}"',
            "",
        ]
        for patch in one.patches:
            lines += [
                "[[series.patch]]",
                f'file = "{patch.path.name}"',
                f"rules = {_list(patch.rules)}",
                f'forwarded = "{patch.forwarded}"',
                "",
            ]
    (folder / "manifest.toml").write_text("\n".join(lines), encoding="utf-8")


def _list(items: Iterable[str]) -> str:
    return "[" + ", ".join(f'"{item}"' for item in items) + "]"


def order(release: str) -> tuple[int, ...]:
    """Sort key of a release: 0.5.15 < 0.5.15.post1 < 0.5.16."""
    return tuple(int(part.removeprefix("post")) for part in release.split("."))


def shape(release: str) -> str:
    """How a release resolves ServerArgs, which decides where the validation sits."""
    if not _RELEASE.match(release):
        raise ValueError(f"{release!r} is no release of SGLang")
    steps = (
        ((0, 5, 15), "init-chain"),
        ((0, 5, 18), "init-chain-declared"),
        ((0, 5, 19), "pipeline-method"),
        ((0, 5, 20), "arg-groups"),
    )
    return next((name for end, name in steps if order(release) < end), "arg-groups-run-hook")


def selected(every: list[Series], names: Iterable[str]) -> list[Series]:
    """Series by name, tag or release."""
    chosen = []
    for name in names:
        found = [one for one in every if name in (one.name, one.tag, *one.releases)]
        if not found:
            known = ", ".join(one.name for one in every)
            raise ValueError(f"there is no series {name!r}; there are {known}")
        chosen += found
    return chosen


def for_ci(every: list[Series]) -> list[Series]:
    """The oldest, the first of every shape, the newest."""
    firsts = {one.shape: one for one in reversed(every)}
    names = {every[0].name, every[-1].name, *(one.name for one in firsts.values())}
    return [one for one in every if one.name in names]
