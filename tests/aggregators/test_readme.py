import re
from pathlib import Path

import numpy as np
import pytest

import fedgc.aggregators
from fedgc.errors import BadSetting

README = Path(fedgc.aggregators.__file__).with_name("README.md").read_text()


def test_readme_rule_works():
    names: dict[str, object] = {"__name__": "ward"}
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102  the page is part of the source
    rule = names["SignMean"](step=0.5)
    with pytest.raises(BadSetting, match="saw step=0, needed more than 0"):
        names["SignMean"](step=0)
    for client, update in enumerate(([1, -1, 1], [2, -3, -1], [-9, 0, 4])):
        rule.add(f"client {client}", 1.0, np.array(update, np.float32))
    assert rule.result().tolist() == [0.5, -0.5, 0.5]
