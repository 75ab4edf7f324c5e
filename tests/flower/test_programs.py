"""Flower's programs as a federation on this machine finds them: the same, and nothing is collected first."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.flower.programs import write_programs

TELLS = """
import atexit, gc
atexit.register(lambda: print(gc.isenabled(), gc.get_stats()[2]["collections"]))
"""


@pytest.mark.parametrize("name", ["flower-supernode", "flwr-clientapp", "flwr-serverapp", "flwr"])
def test_a_program_is_the_installed_one_and_looks_for_no_garbage_in_what_it_imports(
    tmp_path: Path, name: str
) -> None:
    ours = tmp_path / "a folder"
    write_programs(ours)
    (tmp_path / "sitecustomize.py").write_text(TELLS)

    def says(folder: Path) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "FLWR_HOME": str(tmp_path)}
        words = [str(folder / name), "--help"]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    said, (on, collections) = says(ours).splitlines()[:-1], says(ours).splitlines()[-1].split()
    assert said == says(Path(sys.executable).parent).splitlines()[:-1]
    assert (on, collections) == ("True", "0")
