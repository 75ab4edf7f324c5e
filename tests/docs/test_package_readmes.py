"""Test the READMEs of packages: their code runs, and they name every file."""

import re
from pathlib import Path

import pytest

import fedgc

PACKAGES = Path(fedgc.__file__).parent


@pytest.mark.parametrize("package", ["codes", "secagg", "training", "training/tasks"])
def test_readme_code_runs(package: str):
    blocks = re.findall(r"```python\n(.*?)```", (PACKAGES / package / "README.md").read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, package, "exec"), {})  # noqa: S102  the page is part of the source


@pytest.mark.parametrize("package", ["aggregators", "codecs", "codes", "gates", "secagg"])
def test_readme_names_every_file_and_no_other(package: str):
    readme = (PACKAGES / package / "README.md").read_text()
    files = {path.stem for path in (PACKAGES / package).glob("*.py")}
    assert files - {"__init__", "arrays"} <= set(re.findall(r"`(\w+)(?:\.py)?`", readme))
    assert set(re.findall(r"`(\w+)\.py`", readme)) <= files
