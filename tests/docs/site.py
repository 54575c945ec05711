"""The built site as the tests see it: every page's links, sources and anchors."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

ROOT = Path(__file__).resolve().parents[2]
#: Where `site_url` puts the site below its host; report.DOCS_URL counts on it.
BASE = "/sglang-guards/"


def build(into: Path) -> Path:
    """`mkdocs build --strict` into the folder `into`/sglang-guards, which is returned."""
    site = into / BASE.strip("/")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return site


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value is not None}
        self.anchors |= {found[name] for name in ("id", "name") if name in found}
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        elif tag == "link" and found.get("rel") not in ("canonical", "prev", "next"):
            self.loads.append(found.get("href", ""))
        elif "src" in found:
            self.loads.append(found["src"])


@dataclass
class Page:
    """One HTML file. `links` and `loads` are absolute: a path on this site, or a URL elsewhere."""

    path: str
    links: list[str]
    loads: list[str]
    anchors: set[str]


@dataclass
class Site:
    folder: Path
    missing: list[str] = field(default_factory=list)

    @cached_property
    def pages(self) -> dict[str, Page]:
        """URL path -> page, for every HTML file of the site itself."""
        found = {}
        for file in sorted(self.folder.rglob("*.html")):
            if "assets" in file.relative_to(self.folder).parts:
                continue
            rel = file.relative_to(self.folder).as_posix()
            path = BASE + (rel.removesuffix("index.html") if rel.endswith("index.html") else rel)
            reader = _Reader()
            reader.feed(file.read_text(encoding="utf-8"))
            links = [urljoin(path, link) for link in reader.links]
            found[path] = Page(path, links, [urljoin(path, load) for load in reader.loads], reader.anchors)
        return found

    def file(self, path: str) -> Path:
        """The file that a server sends for an URL path."""
        rel = unquote(path).removeprefix(BASE)
        return self.folder / (rel + "index.html" if rel == "" or rel.endswith("/") else rel)

    def broken(self, page: Page) -> list[str]:
        """Links and sources of a page that lead nowhere on this site; links to other hosts are not followed."""
        wrong = []
        for url in (*page.links, *page.loads):
            parts = urlsplit(url)
            if parts.scheme in ("http", "https", "mailto"):
                continue
            if not parts.path.startswith(BASE) or not self.file(parts.path).is_file():
                wrong.append(url)
                continue
            target = self.pages.get(parts.path)
            if parts.fragment and target is not None and unquote(parts.fragment) not in target.anchors:
                wrong.append(url)
        return wrong
