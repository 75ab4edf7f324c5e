"""Upload slots: few clients send at the same time, so that the average codeword is complete sooner.

If all send at once on a shared line, every codeword completes at the end; one after the other, half of them
are complete (and summed) at half the time. First come, first served; a client whose stream broke during an
upload goes first when it is back. Uploads of earlier rounds, which count in a later one, have as many slots
of their own: a slow link takes none from the uploads of the present round.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Name = TypeVar("Name")


@dataclass(slots=True)
class Slots(Generic[Name]):
    """The uploads under way and the queues of those that wait.

    >>> slots = Slots(1)
    >>> slots.ask("a"), slots.ask("b"), slots.ask("c")
    (['a'], [], [])
    >>> slots.set_late(["a"])
    ['b']
    >>> slots.free("a"), slots.free("b")
    ([], ['c'])
    """

    count: int
    _waiting: OrderedDict[Name, None] = field(default_factory=OrderedDict)  # the next one first
    _late_waiting: OrderedDict[Name, None] = field(default_factory=OrderedDict)  # of earlier rounds
    _sending: set[Name] = field(default_factory=set)
    _late: set[Name] = field(default_factory=set)  # those of earlier rounds

    def ask(self, name: Name, *, first: bool = False) -> list[Name]:
        """Join the queue; return the names that may begin now."""
        queue = self._queue(name)
        if name not in self._sending and name not in queue:
            queue[name] = None
            queue.move_to_end(name, last=not first)
        return self._admit()

    def set_late(self, names: Iterable[Name]) -> list[Name]:
        """Give names of earlier rounds slots of their own; return those that may begin now."""
        for name in names:
            self._late.add(name)
            if name in self._waiting:
                del self._waiting[name]
                self._late_waiting[name] = None
        return self._admit()

    def free(self, name: Name) -> list[Name]:
        """Leave the slot or the queue; return the names that may begin now."""
        self._sending.discard(name)
        self._queue(name).pop(name, None)
        self._late.discard(name)
        return self._admit()

    def turn(self, name: Name) -> list[Name]:
        """Go to the end of the queue if another waits; return the names that may begin now."""
        queue = self._queue(name)
        if name in self._sending and queue:
            self._sending.discard(name)
            queue[name] = None
        return self._admit()

    @property
    def sending(self) -> frozenset[Name]:
        """The names that have a slot."""
        return frozenset(self._sending)

    def _queue(self, name: Name) -> OrderedDict[Name, None]:
        return self._late_waiting if name in self._late else self._waiting

    def _admit(self) -> list[Name]:
        late = len(self._sending & self._late)
        taken = (len(self._sending) - late, late)
        begins = []
        for queue, sending in zip((self._waiting, self._late_waiting), taken, strict=True):
            begins += [queue.popitem(last=False)[0] for _ in range(min(len(queue), self.count - sending))]
        self._sending.update(begins)
        return begins
