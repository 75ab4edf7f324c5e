"""Test files that are written whole or not at all."""

import os
from contextlib import suppress
from pathlib import Path

from fedgc.files import SHARED, whole


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_file_is_replaced_whole_and_has_its_mode(tmp_path: Path):
    path, before = tmp_path / "place.json", os.umask(0o022)
    try:
        for mode, seen in ((0o600, 0o600), (SHARED, 0o644)):
            with whole(path, mode, synced=True) as part:
                part.write_text(f"{mode}")
                assert path.exists() == (mode == SHARED), "the old content, until the new one is whole"
            assert (path.read_text(), mode_of(path)) == (f"{mode}", seen)
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [path]


def test_failed_write_keeps_old_content(tmp_path: Path):
    path = tmp_path / "place.json"
    path.write_text("old")
    with suppress(OSError), whole(path) as part:
        part.write_text("new")
        raise OSError("the disk is full")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_readable_file_at_temporary_name_is_not_written_to(tmp_path: Path):
    path, elsewhere = tmp_path / "key", tmp_path / "elsewhere"
    (tmp_path / f".key.{os.getpid()}.part").symlink_to(elsewhere)
    with whole(path) as part:
        part.write_text("secret")
    assert (path.read_text(), mode_of(path), path.is_symlink()) == ("secret", 0o600, False)
    assert not elsewhere.exists()
