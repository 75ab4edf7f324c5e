"""Check every transition of every round in a test against the transition table."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedgc.messages import Command, Event
from fedgc.round.machine import TABLE, Round, State


@contextmanager
def checked_transitions() -> Iterator[set[tuple[State, type, State]]]:
    """Check `Round.handle` as long as this is open; yield the transitions that were seen."""
    handle = Round.handle
    seen: set[tuple[State, type, State]] = set()

    def checked(self: Round, event: Event) -> tuple[Command, ...]:
        before = self.state
        commands = handle(self, event)
        transition = TABLE[before].get(type(event))
        allowed = {before} if transition is None else {before, *transition.to}
        assert self.state in allowed, f"{type(event).__name__} led from {before} to {self.state}"
        seen.add((before, type(event), self.state))
        return commands

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Round, "handle", checked)
        yield seen
