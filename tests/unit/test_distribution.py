"""The distribution that a tree belongs to: SGLang's own or a fork, also where one lies over the other."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_guards.source import distribution


def tree(site: Path, text: str = "x = 1\n") -> Path:
    root = site / "sglang"
    (root / "srt").mkdir(parents=True, exist_ok=True)
    (root / "srt" / "server_args.py").write_text(text, encoding="utf-8")
    return root


def info(site: Path, name: str, version: str, size: int | None, *requires: str) -> None:
    folder = site / f"{name}-{version}.dist-info"
    folder.mkdir()
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\n# text\nName: other\n",
        encoding="utf-8",
    )
    record = "" if size is None else f"sglang/srt/server_args.py,sha256=x,{size}\n"
    (folder / "RECORD").write_text(f"a.py,,\n{record}", encoding="utf-8")


@pytest.fixture(autouse=True)
def fresh() -> None:
    distribution.owner.cache_clear()


def test_sglangs_own(tmp_path: Path) -> None:
    root = tree(tmp_path)
    info(tmp_path, "sglang", "0.5.23", 6, "flashinfer_python[cu13]==0.7.2", "transformers==5.19.0")
    info(tmp_path, "sglang_guards", "0.1.0", None)
    found = distribution.owner(root)
    assert found is not None
    assert (str(found), found.is_fork) == ("sglang 0.5.23", False)
    assert found.pin("flashinfer-python") == "0.7.2"
    assert found.pin("torch") is None
    assert distribution.upgrade(root, "0.5.23") == "upgrade to SGLang 0.5.23"


def test_a_fork(tmp_path: Path) -> None:
    root = tree(tmp_path)
    info(tmp_path, "lsglang", "1.6.5", 6, 'transformers==4.0; extra == "old"', "transformers==5.19.0")
    found = distribution.owner(root)
    assert found is not None
    assert (str(found), found.is_fork, found.pin("transformers")) == ("lsglang 1.6.5", True, "5.19.0")
    assert "upgrade lsglang" in distribution.upgrade(root, "0.5.23")


def test_a_fork_of_any_name(tmp_path: Path) -> None:
    root = tree(tmp_path)
    info(tmp_path, "fast_server", "2.0", 6)
    assert distribution.owner(root) is None, "nothing says that it brings sglang"
    distribution.owner.cache_clear()
    (tmp_path / "fast_server-2.0.dist-info" / "top_level.txt").write_text("sglang\n")
    assert str(distribution.owner(root)) == "fast_server 2.0"


def test_of_two_the_one_whose_file_it_is(tmp_path: Path) -> None:
    root = tree(tmp_path, "fork = True\n")
    info(tmp_path, "lsglang", "1.6.5", len("fork = True\n"))
    info(tmp_path, "sglang", "0.5.23", 6)
    assert str(distribution.owner(root)) == "lsglang 1.6.5"


def test_a_checkout_has_none(tmp_path: Path) -> None:
    assert distribution.owner(tree(tmp_path)) is None
    assert distribution.upgrade(tmp_path / "sglang", "0.5.23") == "upgrade to SGLang 0.5.23"
