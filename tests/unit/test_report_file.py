"""The report file: never through a link, never waiting, whole or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from sglang_guards.hook import report_file


def test_a_plain_file_is_private_and_whole(tmp_path: Path) -> None:
    target = tmp_path / "r.json"
    target.write_text("old", encoding="utf-8")
    target.chmod(0o644)
    report_file.write(str(target), "new")
    assert target.read_text(encoding="utf-8") == "new"
    assert target.stat().st_mode & 0o777 == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_a_link_is_replaced_and_its_target_stays(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("keep", encoding="utf-8")
    victim.chmod(0o644)
    (tmp_path / "link").symlink_to(victim)
    report_file.write(str(tmp_path / "link"), "new")
    assert (victim.read_text(encoding="utf-8"), victim.stat().st_mode & 0o777) == ("keep", 0o644)
    assert not (tmp_path / "link").is_symlink()
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    report_file.write(str(tmp_path / "gone"), "new")
    assert not (tmp_path / "nowhere").exists()


def test_a_pipe_without_a_reader_ends_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    started = time.monotonic()
    with pytest.raises(OSError, match=r"No such device or address"):
        report_file.write(str(tmp_path / "pipe"), "x")
    assert time.monotonic() - started < 1


def test_a_reader_that_does_not_read_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report_file, "_PIPE_S", 0.2)
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        with pytest.raises(TimeoutError, match="does not read"):
            report_file.write(str(tmp_path / "pipe"), "x" * (1 << 20))
    finally:
        os.close(reader)


def test_a_pipe_with_a_reader_gets_all_of_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    report_file.write(str(tmp_path / "pipe"), "all of it")
    assert os.read(reader, 100) == b"all of it"
    os.close(reader)


def test_a_device_behind_a_link_where_nobody_else_may_write(tmp_path: Path) -> None:
    (tmp_path / "null").symlink_to("/dev/null")
    report_file.write(str(tmp_path / "null"), "x")
    assert (tmp_path / "null").is_symlink()
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    (shared / "null").symlink_to("/dev/null")
    with pytest.raises(PermissionError, match="everybody may write"):
        report_file.write(str(shared / "null"), "x")


@pytest.mark.parametrize("path", ["/proc/1/x.json", "/no/such/folder/x.json", "/"])
def test_what_cannot_be_written_is_an_oserror(path: str) -> None:
    with pytest.raises(
        OSError, match=r"No such file|Operation not permitted|Permission denied|it is a folder"
    ):
        report_file.write(path, "x")
