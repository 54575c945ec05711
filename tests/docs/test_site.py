"""The documentation site: it builds without a warning, no link is broken, every rule is reached."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sglang_guards.report.model import DOCS_URL
from sglang_guards.rules import all_rules
from tests.docs.site import BASE, ROOT, Page, Site

pytest.importorskip("material", reason="the extra docs is not installed: pip install '.[docs]'")

from tools.mkdocs_hooks import REPOSITORY, retarget

RULES = BASE + "rules/"


@pytest.fixture(scope="module")
def site(built: Path) -> Site:
    return Site(built)


def test_no_link_and_no_anchor_is_broken(site: Site) -> None:
    assert len(site.pages) > 8 + len(all_rules())
    wrong = {path: broken for path, page in site.pages.items() if (broken := site.broken(page))}
    assert not wrong


def test_a_broken_link_would_be_found(site: Site) -> None:
    page = Page(BASE, [BASE + "nowhere/", BASE + "flags/#nowhere", BASE + "flags/"], [BASE + "no.png"], set())
    assert site.broken(page) == [BASE + "nowhere/", BASE + "flags/#nowhere", BASE + "no.png"]


def test_links_into_the_repository_lead_to_files(site: Site) -> None:
    prefix = f"{REPOSITORY}/"
    paths = {
        link.removeprefix(prefix).partition("#")[0]
        for page in site.pages.values()
        for link in page.links
        if link.startswith(prefix)
    }
    assert "patches/manifest.toml" in paths
    assert not {path for path in paths if not (ROOT / path).exists()}


def test_every_rule_is_reached_from_the_index(site: Site) -> None:
    reached = {urlsplit(link).path for link in site.pages[RULES].links}
    for name in (rule.id for rule in all_rules()):
        path = urlsplit(f"{DOCS_URL}/{name}/").path
        assert path == f"{RULES}{name}/", "findings link to this address"
        assert path in site.pages, name
        assert path in reached, name


def test_every_page_is_reached_from_the_start(site: Site) -> None:
    seen, todo = set(), [BASE]
    while todo:
        path = todo.pop()
        if path in seen or path not in site.pages:
            continue
        seen.add(path)
        todo += [urlsplit(link).path for link in site.pages[path].links if not urlsplit(link).netloc]
    assert set(site.pages) - seen == {BASE + "404.html"}


def test_nothing_is_loaded_from_another_host(site: Site) -> None:
    for page in site.pages.values():
        assert not [url for url in page.loads if urlsplit(url).netloc], page.path
    for sheet in site.folder.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        assert "url(http" not in text, sheet
        assert "@import" not in text, sheet


def test_plots_are_pictures(site: Site) -> None:
    made = set((ROOT / "docs" / "plots").glob("*.png"))
    shown = {site.file(urlsplit(u).path) for u in site.pages[BASE + "results/"].loads if u.endswith(".png")}
    assert {path.name for path in shown} - {"favicon.png"} == {path.name for path in made}
    for path in shown:
        data = path.read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n", path
        assert min(struct.unpack(">II", data[16:24])) >= 32, path


def test_search_knows_every_rule(site: Site) -> None:
    index = json.loads((site.folder / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].partition("#")[0] for entry in index["docs"] if entry["text"]}
    assert places >= {f"rules/{rule.id}/" for rule in all_rules()}


@pytest.mark.parametrize(
    ("text", "origin", "page", "wanted"),
    [
        ("[a](manifest.toml)", "patches/README.md", "patches.md", f"[a]({REPOSITORY}/patches/manifest.toml)"),
        ("[a](patches/README.md#apply)", "CONTRIBUTING.md", "contributing.md", "[a](patches.md#apply)"),
        ("[a](docs/rules/index.md)", "CONTRIBUTING.md", "contributing.md", "[a](rules/index.md)"),
        ("[a](../../CONTRIBUTING.md)", "docs/rules/X.md", "rules/X.md", "[a](../contributing.md)"),
        ("[a](../releases.md)", "docs/rules/X.md", "rules/X.md", "[a](../releases.md)"),
        ("![a](plots/b.png)", "docs/results.md", "results.md", "![a](plots/b.png)"),
        ("[a](no/such.md)", "CONTRIBUTING.md", "contributing.md", "[a](no/such.md)"),
        ("[a](https://b.c/d) [e](#f)", "CONTRIBUTING.md", "contributing.md", "[a](https://b.c/d) [e](#f)"),
    ],
)
def test_a_link_is_turned_to_where_its_target_is(text: str, origin: str, page: str, wanted: str) -> None:
    assert retarget(text, origin, page) == wanted


def test_data_files_are_not_published(site: Site) -> None:
    assert not (site.folder / "data").exists()
    assert (ROOT / "docs" / "data" / "probes.json").is_file()


def test_no_path_of_a_machine_is_published(site: Site) -> None:
    home = str(Path.home())
    for path in site.pages:
        text = site.file(path).read_text(encoding="utf-8")
        assert str(ROOT) not in text, path
        assert len(home) < 6 or home not in text, path
