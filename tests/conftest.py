"""The fast tier (`--fast`: one release, no servers, no browser), and a loud end where no release of SGLang is here."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.preflight.releases import trees_root
from tests.cost import Cost
from tests.releases import REFERENCE, RELEASES

#: Folders whose tests start servers, build sites or run whole patch series.
_SLOW_FOLDERS = ("tests/patches/", "tests/docs/test_site.py", "tests/docs/test_browser.py", "tests/gpu/")
#: Tests of real resolution that the fast tier keeps; the others that are marked live stay out.
_SMOKE = ("tests/rules/test_commands.py",)

#: Files whose tests share nothing between releases and take a minute and more for each.
_BY_RELEASE = (
    "tests/launches/test_corpus.py",
    "tests/live/test_fuzz.py",
    "tests/live/test_faults.py",
    "tests/live/test_launchers.py",
)
#: Files that share one process of each release (`tests/live/runs.py`).
_HOOK = ("tests/live/test_auto_enable_live.py", "tests/live/test_hook_in_process.py")
#: The same for files of launches that the preflight judges (`tests/live/preflight_cases.py`).
_PREFLIGHT = ("tests/live/test_preflight_", "tests/live/test_hostile_input.py")


_GPU_FOLDER = Path(__file__).resolve().parent / "gpu"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--fast",
        action="store_true",
        help=f"the edit loop's tier: SGLang {REFERENCE} only, under three minutes",
    )
    parser.addoption(
        "--renew-snapshots",
        action="store_true",
        help="write tests/rules/snapshots anew: review the difference",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Cost(), "cost")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Without any unpacked release most tests would skip and the run would end well: say so instead. GPU tests take
    the SGLang that is installed on their machine."""
    only_gpu = all(
        _GPU_FOLDER in (path := Path(arg.partition("::")[0]).resolve(), *path.parents)
        for arg in session.config.args
    )
    if not only_gpu and not any((trees_root() / release / "sglang").is_dir() for release in RELEASES):
        raise pytest.UsageError(
            f"no release of SGLang is unpacked in {trees_root()}: run python tools/trees.py --all (or {REFERENCE})"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.xdist_group(_group(item)))
    if not config.getoption("--fast"):
        return
    kept = [item for item in items if _is_fast(item)]
    left_out = [item for item in items if not _is_fast(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


def _group(item: pytest.Item) -> str:
    """What one worker runs in a row: a file, whose tests share answers, or a long one's tests of one release."""
    file = item.nodeid.partition("::")[0]
    params = getattr(getattr(item, "callspec", None), "params", {})
    release = params.get("release", params.get("run"))
    if release and file in _HOOK:
        return f"hook-{release}"
    if file.startswith(_PREFLIGHT):
        return "preflight"
    return f"{file}-{release}" if release and file in _BY_RELEASE else file


def _is_fast(item: pytest.Item) -> bool:
    if item.nodeid.startswith(_SLOW_FOLDERS) or item.get_closest_marker("slow"):
        return False
    if _other_release(item):
        return False
    return item.get_closest_marker("live") is None or item.nodeid.startswith(_SMOKE)


def _other_release(item: pytest.Item) -> bool:
    """Whether a parameter is another release, or a case of one."""
    values = getattr(item, "callspec", None)
    params = values.params.values() if values is not None else ()
    named = (getattr(value, "release", value) for value in params)
    return any(isinstance(name, str) and name in RELEASES and name != REFERENCE for name in named)
