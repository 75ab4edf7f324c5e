import re
from pathlib import Path

import fedgc.gates
from fedgc.gates import GateSettings, Reports

README = Path(fedgc.gates.__file__).with_name("README.md").read_text()


def test_readme_gate_works():
    names: dict[str, object] = {"__name__": "ward"}
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102  the page is part of the source
    gate = names["Warm"].make(GateSettings(rounds=9, period=2), first=1)
    state, syncs = gate.init(), []
    for _ in range(5):
        state, decision = gate.step(state, Reports(()))
        syncs.append(decision.sync)
    assert syncs == [True, False, True, False, True]
