import re
from pathlib import Path

import numpy as np

import fedgc.codecs

README = Path(fedgc.codecs.__file__).with_name("README.md").read_text()


def test_readme_codec_works():
    names: dict[str, object] = {"__name__": "ward"}
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102  the page is part of the source
    codec = names["Largest"](share=0.4)
    vector = np.float32([1, -5, 2, 4, 0])
    data = codec.encode(vector, np.random.default_rng(0))
    assert data.nbytes == codec.expected(5) == 16
    assert codec.decode(data, 5).tolist() == [0, -5, 0, 4, 0]
