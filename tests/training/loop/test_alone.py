"""Test a script that no client has started: it trains by itself."""

import re

import pytest
import torch

import fedgc
from fedgc.errors import BadTask, EdgeFailed
from fedgc.training.loop.environment import VARIABLE


def test_steps_pass_once_over_loader_and_count():
    fed = fedgc.join(torch.nn.Linear(2, 1))
    assert not fed.joined
    assert [(batch, fed.global_step) for batch in fed.steps(["a", "b", "c"])] == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
    ]
    assert fed.global_step == 3


def test_step_counts_after_first_call():
    fed = fedgc.join(torch.nn.Linear(2, 1))
    assert [(fed.step(), fed.global_step) for _ in range(3)] == [(True, 0), (True, 1), (True, 2)]


def test_client_settings_are_empty_or_unreadable(monkeypatch):
    assert fedgc.client_settings() == fedgc.join(torch.nn.Linear(2, 1)).client == {}
    monkeypatch.setenv(VARIABLE, "{")
    with pytest.raises(EdgeFailed, match=r"FEDGC_CLIENT: saw '\{', which no client of fedgc writes"):
        fedgc.client_settings()


def test_several_optimizers_are_refused():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(BadTask, match="saw a list as optimizer, needed one of torch's"):
        fedgc.join(model, optimizer=[optimizer, optimizer])


@pytest.mark.parametrize("samples", ["lots", [3], 0])
def test_number_of_samples_is_checked_by_name(samples: object):
    with pytest.raises(BadTask, match=rf"fedgc.join: saw samples={re.escape(repr(samples))}, needed "):
        fedgc.join(torch.nn.Linear(2, 1), samples=samples)
