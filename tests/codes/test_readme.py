import re
from pathlib import Path

import pytest

import fedgc.codes

README = Path(fedgc.codes.__file__).with_name("README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_readme_code_runs(block):
    exec(compile(block, "README.md", "exec"), {})  # noqa: S102 - the page is part of the source


def test_readme_names_every_file():
    files = {path.stem for path in Path(fedgc.codes.__file__).parent.glob("*.py")} - {"__init__", "arrays"}
    assert files <= set(re.findall(r"`(\w+)`", README))
