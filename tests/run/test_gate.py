import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadSetting
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


def test_exchange_that_is_forced_counts_for_next_gap():
    gate = RunGate(RunConfig(gate="every", gate_period=5, rounds=30), 10)
    synced = []
    for number in range(1, 15):
        decision = gate.decide(Reports(()), None, number, number)
        if number == 3:
            assert not decision.sync
            decision = gate.decide(Reports((), forced="client a is leaving"), None, number, number)
        gate.keep()
        synced += [number] * decision.sync
    assert synced == [3, 8, 13]


def test_exchange_of_last_round_counts_if_run_goes_on():
    gate = RunGate(RunConfig(gate="every", gate_period=5, rounds=2), 10)
    for number, synced in ((1, False), (2, True)):
        assert gate.decide(Reports(()), None, number, number).sync == synced
        gate.keep()
    assert gate.write() == '["every", 0]'


@pytest.mark.parametrize("text", ["1", "[0.5, 2, 3]", '["qsr", 1]', "{}"])
def test_state_of_other_gate_or_older_version_begins_anew(text):
    gate, fresh = (RunGate(RunConfig(gate="every", gate_period=5, rounds=30), 10) for _ in range(2))
    gate.read(text)
    assert gate.write() == fresh.write()


@pytest.mark.parametrize("text", ["", "[", "9" * 5000, "[" * 10**5])
def test_damaged_state_is_refused(text):
    gate = RunGate(RunConfig(gate="every"), 10)
    with pytest.raises(BadSetting, match=rf"resume: saw a gate state of {len(text)} characters, needed JSON"):
        gate.read(text)
