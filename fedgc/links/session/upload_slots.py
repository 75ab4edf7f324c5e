"""Upload slots: few clients send at the same time, so that the average codeword is complete sooner.

If all send at once on a shared line, every codeword completes at the end; one after the other, half of them
are complete (and summed) at half the time. First come, first served; a client whose stream broke during an
upload goes first when it is back.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Name = TypeVar("Name")


@dataclass(slots=True)
class Slots(Generic[Name]):
    """The uploads under way and the queue of those that wait.

    >>> slots = Slots(1)
    >>> slots.ask("a"), slots.ask("b")
    (['a'], [])
    >>> slots.free("a")
    ['b']
    """

    count: int
    _waiting: OrderedDict[Name, None] = field(default_factory=OrderedDict)  # the next one first
    _sending: set[Name] = field(default_factory=set)

    def ask(self, name: Name, *, first: bool = False) -> list[Name]:
        """Join the queue; return the names that may begin now."""
        if name not in self._sending and name not in self._waiting:
            self._waiting[name] = None
            self._waiting.move_to_end(name, last=not first)
        return self._admit()

    def free(self, name: Name) -> list[Name]:
        """Leave the slot or the queue; return the names that may begin now."""
        self._sending.discard(name)
        self._waiting.pop(name, None)
        return self._admit()

    def turn(self, name: Name) -> list[Name]:
        """Go to the end of the queue if another waits; return the names that may begin now."""
        if name in self._sending and self._waiting:
            self._sending.discard(name)
            self._waiting[name] = None
        return self._admit()

    @property
    def sending(self) -> frozenset[Name]:
        """The names that have a slot."""
        return frozenset(self._sending)

    def _admit(self) -> list[Name]:
        begins = []
        while self._waiting and len(self._sending) < self.count:
            begins.append(self._waiting.popitem(last=False)[0])
            self._sending.add(begins[-1])
        return begins
