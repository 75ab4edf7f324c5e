"""Test how a local federation finds Flower's programs and limits what they start."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from fedgc.deploy.flower_programs import write_programs

TELLS = """
import atexit, gc, sys
def tell():
    of_programs = [name for name in sys.modules if name.rpartition(".")[0] in {packages}]
    print(gc.isenabled(), gc.get_stats()[2]["collections"], *of_programs)
atexit.register(tell)
"""
HOMES = {
    "flower-superexec": "flwr.supercore.cli", "flower-superlink": "flwr.superlink.cli",
    "flower-supernode": "flwr.supernode.cli", "flwr-clientapp": "flwr.supernode.cli",
    "flwr-serverapp": "flwr.superlink.cli",
}  # fmt: skip


@pytest.mark.parametrize("name", [*HOMES, "flwr"])
def test_installed_program_is_found_without_its_neighbors(tmp_path: Path, name: str) -> None:
    ours = tmp_path / "a folder"
    write_programs(ours)
    (tmp_path / "sitecustomize.py").write_text(TELLS.format(packages=set(HOMES.values())))

    def says(folder: Path) -> list[str]:
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "FLWR_HOME": str(tmp_path)}
        words = [str(folder / name), "--help"]
        return subprocess.run(
            words, env=environment, capture_output=True, text=True, check=True
        ).stdout.splitlines()

    *said, told = says(ours)
    *installed, other = says(Path(sys.executable).parent)
    assert said == installed
    on, collections, *of_programs = told.split()
    assert (on, collections) == ("True", "0")
    if name in HOMES:
        assert of_programs == [f"{HOMES[name]}.{name.replace('-', '_')}"]
        assert len(other.split()[2:]) > 1, "the installed one has neighbours"


def test_child_process_does_not_restart_program(tmp_path: Path) -> None:
    write_programs(tmp_path)
    for program in tmp_path.iterdir():
        assert runpy.run_path(str(program), run_name="__mp_main__")["__name__"] == "__mp_main__"
