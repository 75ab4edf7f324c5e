"""Test that temporary folders of killed processes are removed, and no others."""

import subprocess
import sys
from pathlib import Path

from fedgc.processes.temporary_folder import temporary_folder

MAKER = """
import sys
from pathlib import Path
from fedgc.processes.temporary_folder import temporary_folder

with temporary_folder("fedgc-x-", Path(sys.argv[1])) as folder:
    (folder / "file").write_text("large")
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_folder_of_killed_process_is_removed_by_next_one(tmp_path: Path):
    with subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        left = Path(maker.stdout.readline().strip())
        with temporary_folder("fedgc-x-", tmp_path) as other:
            assert left.exists(), "its process lives"
            maker.kill()
            maker.wait()
            with temporary_folder("fedgc-x-", tmp_path) as folder:
                assert set(tmp_path.iterdir()) == {other, folder}
    assert list(tmp_path.iterdir()) == []


def test_folder_of_another_kind_is_kept(tmp_path: Path):
    mine = tmp_path / "fedgc-y-mine"
    mine.mkdir()
    (tmp_path / "fedgc-x-link").symlink_to(mine)
    with temporary_folder("fedgc-x-", tmp_path):
        pass
    assert mine.exists()
