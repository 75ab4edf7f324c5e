"""Test image files written by commands."""

from pathlib import Path

import pytest

from fedgc.cli.image_files import drawable, keep
from fedgc.errors import EdgeFailed, Unusable


def test_impossible_path_is_refused(tmp_path: Path):
    drawable(None, tmp_path / "new.png")
    with pytest.raises(Unusable, match="saw a folder"):
        drawable(None, tmp_path)
    with pytest.raises(Unusable, match="saw no folder"):
        drawable(tmp_path / "new.png", tmp_path / "none" / "new.png")


def test_drawing_is_written_or_disk_error_is_reported(tmp_path: Path):
    keep(tmp_path / "new.png", b"drawn")
    assert (tmp_path / "new.png").read_bytes() == b"drawn"
    with pytest.raises(EdgeFailed, match="cannot be written: Is a directory"):
        keep(tmp_path, b"drawn")
