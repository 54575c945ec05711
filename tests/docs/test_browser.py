"""The site in a headless browser without a network: search finds a rule, plots are seen, nothing is asked elsewhere."""

from __future__ import annotations

import functools
import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.docs.site import BASE

pytest.importorskip("material", reason="the extra docs is not installed: pip install '.[docs]'")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on this machine: apt-get install chromium"
)

#: Opens a page in a frame, waits until `ready` says so, and posts what `tell` returns to the server.
_LOOKER = """<!doctype html><iframe id=f width=1200 height=900 src="%(url)s"></iframe><script>
const frame = document.getElementById("f"), began = Date.now();
const ready = w => %(ready)s, tell = w => %(tell)s;
const post = x => fetch("/told", {method: "POST", body: JSON.stringify(x)});
(function look() {
  const w = frame.contentWindow;
  try {
    if (w.location.href !== "about:blank" && w.document.readyState === "complete" && ready(w))
      return post({found: tell(w), asked: w.performance.getEntriesByType("resource").map(e => e.name)});
  } catch (e) { if (Date.now() - began > 30000) return post({error: String(e)}); }
  if (Date.now() - began > 30000) return post({error: "not ready after 30 s", text: w.document.body.innerText});
  setTimeout(look, 100);
})();
</script>"""


class _Handler(SimpleHTTPRequestHandler):
    looker = ""
    told: queue.Queue[dict[str, Any]]

    def do_GET(self) -> None:
        if self.path != "/look.html":
            super().do_GET()
            return
        body = self.looker.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.told.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def root(built: Path) -> Path:
    """What the server's root is: the site lies below it, as on its host."""
    return built.parent


@contextmanager
def served(root: Path, handler: type[_Handler]) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(root)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


def look(root: Path, profile: Path, url: str, ready: str, tell: str) -> Any:
    """What `tell` (JavaScript on a window `w`) says of a page once `ready` holds; every request stayed here."""

    class Handler(_Handler):
        looker = _LOOKER % {"url": url, "ready": ready, "tell": tell}
        told = queue.Queue()

    with served(root, Handler) as host:
        # No name but this host's address resolves: a page that needs another host fails here.
        browser = subprocess.Popen(
            [
                str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                f"--user-data-dir={profile}", "--no-first-run", "--disable-background-networking",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1", "--remote-debugging-port=0",
                f"{host}/look.html",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            told = Handler.told.get(timeout=90)
        finally:
            browser.terminate()
            browser.wait(timeout=20)
        assert "error" not in told, told
        assert not [name for name in told["requested"] if not name.startswith((host, "data:", "blob:"))], told
        return told["found"]


def test_search_finds_a_rule(root: Path, tmp_path: Path) -> None:
    found = look(
        root,
        tmp_path,
        f"{BASE}?q=FMS101",
        "w.document.querySelector('.md-search-result__link')",
        "[...w.document.querySelectorAll('.md-search-result__link')].map(a => a.getAttribute('href'))",
    )
    assert any("rules/FMS101/" in link for link in found), found


def test_search_finds_nothing_for_nonsense(root: Path, tmp_path: Path) -> None:
    meta = "w.document.querySelector('.md-search-result__meta').innerText"
    said = look(root, tmp_path, f"{BASE}?q=zzqqxxyy", f"{meta}.startsWith('No ')", meta)
    assert said.startswith("No matching documents")


def test_plots_are_seen(root: Path, tmp_path: Path) -> None:
    images = "[...w.document.querySelectorAll('article img')]"
    found = look(
        root,
        tmp_path,
        f"{BASE}results/",
        f"{images}.every(i => i.complete)",
        f"{images}.map(i => [i.getAttribute('src'), i.naturalWidth, i.clientWidth])",
    )
    assert len(found) >= 4
    assert all(natural > 100 and shown > 100 for _, natural, shown in found), found


def test_the_matrix_is_drawn(root: Path, tmp_path: Path) -> None:
    cells = "w.document.querySelectorAll('td .tt-hit[title]').length"
    found = look(root, tmp_path, f"{BASE}releases/", f"{cells} > 0", cells)
    assert found > 100
