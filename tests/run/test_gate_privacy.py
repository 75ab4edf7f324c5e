import pytest

from fedgc.config import RunConfig
from fedgc.gates import Report, Reports
from fedgc.run.gate import RunGate

GATES = ("every", "pace", "qsr", "loss-change")


@pytest.mark.parametrize("name", GATES)
def test_gate_of_private_run_decides_without_reports(name):
    """Two cohorts with other losses and norms get the same decisions, for the same reasons."""
    config = RunConfig(gate=name, gate_period=2, gate_budget=0.3, rounds=30, privacy_noise=1.0)
    calm, wild = (RunGate(config, 10) for _ in range(2))
    for number in range(1, 31):
        found = []
        for gate, scale in ((calm, 1.0), (wild, 9.0**number)):
            report = Report("a", 4, 50, scale, scale)
            left = 30 - number
            found.append(gate.decide(Reports((report,), rounds_left=left), None, number, number))
            gate.keep()
        assert found[0] == found[1]
