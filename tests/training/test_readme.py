import re
from pathlib import Path

import fedgc.training

README = Path(fedgc.training.__file__).with_name("README.md")


def test_readme_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})  # noqa: S102  our own text
