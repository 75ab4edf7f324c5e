"""Test which events of other rounds a round refuses."""

from dataclasses import replace

import pytest

from fedgc.messages import Refuse
from tests.coded_round import begun, planned, progress


@pytest.mark.parametrize(("round_", "answers", "counted"), [(0, [], 0), (2, [Refuse], 1)])
def test_progress_of_earlier_round_is_passed_over(round_: int, answers: list[type], counted: int):
    """It has crossed the command that closed its round."""
    machine, clients = begun(planned(4, 8, replicas=3, blocks=1))
    client, chunk = "client 1", clients.queue["client 1"][0]
    said = machine.handle(replace(progress(client, chunk), round=round_))
    assert [type(each) for each in said] == answers
    assert machine.statistics.refused[machine.plan.clients.index(client)] == counted
