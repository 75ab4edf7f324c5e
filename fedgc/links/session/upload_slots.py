"""Upload slots: few clients send at the same time, so that each codeword is whole sooner.

With all of them at once on a shared line every codeword ends last; one after the other, half of them are
whole (and added) at half the time. First come, first served; who lost its stream in mid-upload comes first
when it is back.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Name = TypeVar("Name")


@dataclass(slots=True)
class Slots(Generic[Name]):
    """Who sends, who waits.

    >>> slots = Slots(1)
    >>> slots.ask("a"), slots.ask("b")
    (['a'], [])
    >>> slots.free("a")
    ['b']
    """

    count: int
    _waiting: deque[Name] = field(default_factory=deque)
    _sending: set[Name] = field(default_factory=set)

    def ask(self, name: Name, *, first: bool = False) -> list[Name]:
        """Queue up; return who may begin now."""
        if name not in self._sending and name not in self._waiting:
            (self._waiting.appendleft if first else self._waiting.append)(name)
        return self._admit()

    def free(self, name: Name) -> list[Name]:
        """Leave the slot or the queue; return who may begin now."""
        self._sending.discard(name)
        if name in self._waiting:
            self._waiting.remove(name)
        return self._admit()

    def turn(self, name: Name) -> list[Name]:
        """Go to the end of the queue where somebody waits; return who may begin now."""
        if name in self._sending and self._waiting:
            self._sending.discard(name)
            self._waiting.append(name)
        return self._admit()

    @property
    def sending(self) -> frozenset[Name]:
        """Who has a slot."""
        return frozenset(self._sending)

    def held(self) -> tuple[Name, ...]:
        """Return who has a slot or waits for one."""
        return (*self._sending, *self._waiting)

    def _admit(self) -> list[Name]:
        begins = []
        while self._waiting and len(self._sending) < self.count:
            begins.append(self._waiting.popleft())
            self._sending.add(begins[-1])
        return begins
