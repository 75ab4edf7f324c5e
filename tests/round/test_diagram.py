"""Test the transition table and its generated diagram."""

import re

import pytest

from docs.generate import mermaid
from fedgc.messages import Command, Loaded
from fedgc.round.collecting import Collecting
from fedgc.round.machine import TABLE, Round, State
from fedgc.round.masked.round import MaskedRound
from tests.coded_round import begun, planned
from tests.transitions import checked_transitions


def test_every_handler_exists():
    for row in TABLE.values():
        for transition in row.values():
            name = transition.handler.removeprefix("collecting.")
            owner = MaskedRound if name == transition.handler else Collecting
            assert callable(getattr(owner, name))


def test_every_state_is_entered_and_left():
    assert set(TABLE) == set(State)
    after = {state: {to for each in row.values() for to in each.to} for state, row in TABLE.items()}
    assert not after[State.CLOSED]
    reached, todo = set(), {State.WORKING}
    while todo:
        state = todo.pop()
        reached.add(state)
        todo |= after[state] - reached
    assert reached == set(State)
    assert all(State.CLOSED in after[state] for state in set(State) - {State.CLOSED})


def test_diagram_draws_table():
    lines = mermaid().splitlines()
    assert lines[:2] == ["stateDiagram-v2", "    [*] --> WORKING"]
    drawn = {
        (first, second, kind)
        for line in lines
        if (found := re.fullmatch(r"    (\w+) --> (\w+): (.+)", line))
        for first, second, kinds in [found.groups()]
        for kind in kinds.split(", ")
    }
    table = {
        (state.name, to.name, kind.__name__)
        for state, row in TABLE.items()
        for kind, each in row.items()
        for to in each.to
        if to is not state
    }
    assert drawn == table


def test_transition_outside_table_is_detected(monkeypatch):
    machine, _ = begun(planned(2, 2, replicas=2, blocks=1))

    def handler(_: object, event: Loaded) -> list[Command]:
        machine.state = State.UNMASKING
        return []

    monkeypatch.setattr(Round, "_loaded", handler)
    with checked_transitions(), pytest.raises(AssertionError, match="Loaded led from"):
        machine.handle(Loaded(1.0, "client 0", 0))
