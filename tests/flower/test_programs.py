"""Flower's programs as a federation on this machine finds them: the same, without what they do not need."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.flower.programs import write_programs

TELLS = """
import atexit, gc, sys
atexit.register(lambda: print(gc.isenabled(), gc.get_stats()[2]["collections"], "sqlalchemy" in sys.modules))
"""
DATABASE = {
    "flower-superexec": False,
    "flwr-clientapp": False,
    "flower-supernode": True,
    "flower-superlink": True,
}


@pytest.mark.parametrize("name", [*DATABASE, "flwr-serverapp", "flwr"])
def test_a_program_is_the_installed_one_without_garbage_or_databases_looked_for(
    tmp_path: Path, name: str
) -> None:
    ours = tmp_path / "a folder"
    write_programs(ours)
    (tmp_path / "sitecustomize.py").write_text(TELLS)

    def says(folder: Path) -> str:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "FLWR_HOME": str(tmp_path)}
        words = [str(folder / name), "--help"]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout

    *said, told = says(ours).splitlines()
    on, collections, database = told.split()
    assert said == says(Path(sys.executable).parent).splitlines()[:-1]
    assert (on, collections) == ("True", "0")
    assert database == str(DATABASE.get(name, database == "True"))
