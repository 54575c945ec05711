"""MkDocs hooks: pages that live elsewhere in the repository, links that leave docs/, the rules' navigation.

CONTRIBUTING.md and patches/README.md stay where people look for them on GitHub; the site shows the same text, with
relative links turned to the site's page or to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from sglang_guards.rules import FAMILIES

ROOT = Path(__file__).resolve().parents[1]
REPOSITORY = "https://github.com/sglang-guards/sglang-guards/blob/main"
#: File of the repository -> page of the site.
BROUGHT_IN = {"CONTRIBUTING.md": "contributing.md", "patches/README.md": "patches.md"}
_LINK = re.compile(r"(?<!\\)\]\((?!\w+:|#|/)([^)\s#]+)(#[^)\s]*)?\)")


def retarget(text: str, origin: str, page: str) -> str:
    """The text of file `origin` of the repository as page `page` of the site: relative links still lead there."""

    def turned(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[1]))
        anchor = found[2] or ""
        on_site = BROUGHT_IN.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        on_site = "index.md" if path == "README.md" else on_site
        if on_site is not None:
            return f"]({posixpath.relpath(on_site, posixpath.dirname(page) or '.')}{anchor})"
        if (ROOT / path).exists():
            return f"]({REPOSITORY}/{path}{anchor})"
        return found[0]  # leads nowhere: the strict build says so

    return _LINK.sub(turned, text)


def on_config(config: Any) -> Any:
    """Every rule's page in the navigation, by family."""
    rules = next(entry for entry in config.nav if "Rules" in entry)["Rules"]
    for family in (*FAMILIES, "SGL"):
        if pages := sorted((ROOT / "docs" / "rules").glob(f"{family}*.md")):
            rules.append({family: [{page.stem: f"rules/{page.name}"} for page in pages]})
    config.watch += [str(ROOT / name) for name in BROUGHT_IN]
    return config


def on_files(files: Files, *, config: Any) -> Files:
    """The pages from elsewhere; data files are for the generators, not for readers."""
    for file in list(files):
        if file.src_uri.startswith("data/"):
            files.remove(file)
    for origin, page in BROUGHT_IN.items():
        text = (ROOT / origin).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=retarget(text, origin, page)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links of a page in docs/ that leave it."""
    if page.file.src_uri in BROUGHT_IN.values():
        return markdown
    return retarget(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
