"""The vectors that clients send: one after the other on each client's link, together on the server's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from fedgc.messages import Repair, Reveal
from fedgc.sim.clock.conditions import NEVER
from fedgc.sim.clock.interfaces import Terms
from fedgc.sim.clock.server_link import Pipe


@dataclass(slots=True)
class Upload:
    """A vector that is asked for: `size` in whole updates, and when it got a slot, or was asked for."""

    w: int
    command: Reveal | Repair
    size: float
    began: float


class Uploads:
    """The queues of all clients; `up_s` returns a client's seconds for a whole update, NEVER if it cannot."""

    def __init__(self, clients_w: int, terms: Terms, up_s: Callable[[int], float]) -> None:
        self.count, self.sent, self.longest = 0, 0.0, 0.0  # sent, longest: in whole updates
        self.pipe: Final = Pipe(terms.line, self._admitted)
        self._newest = 0  # the last round of which a vector was asked for
        self._terms, self._up_s = terms, up_s
        self._known: dict[int, Upload] = {}
        self._to_send: list[list[int]] = [[] for _ in range(clients_w)]  # the first is in transit

    def ask(self, now: float, w: int, command: Reveal | Repair) -> None:
        """Queue the vector that a client is asked for."""
        size = self._terms.share(command.wire, command.mix.blocks if command.mix else 1)
        self._known[self.count] = Upload(w, command, size, now)
        self._to_send[w].append(self.count)
        if command.round != self._newest:
            self._newest = max(self._newest, command.round)
            self.pipe.set_late(
                now, (f for f, each in self._known.items() if each.command.round < self._newest)
            )
        self.count += 1
        self.sent += size
        self.longest = max(self.longest, size)
        if len(self._to_send[w]) == 1:
            self._send_next(now, w)

    def ended(self, now: float) -> Iterator[Upload]:
        """Yield the vectors that are here, one by one; their clients send the next one."""
        for flow in self.pipe.ended(now):
            upload = self._known.pop(flow)
            self._to_send[upload.w].pop(0)
            self._send_next(now, upload.w)
            yield upload

    def withdraw(self, now: float, w: int, until: float = NEVER) -> None:
        """Cancel the vectors of a client for rounds up to this one."""
        gone = [flow for flow in self._to_send[w] if self._known[flow].command.round <= until]
        for flow in gone:
            self._to_send[w].remove(flow)
            self.pipe.drop(now, flow)
            del self._known[flow]
        if gone:
            self._send_next(now, w)

    def _send_next(self, now: float, w: int) -> None:
        up_s = self._up_s(w)
        if self._to_send[w] and up_s < NEVER:
            flow = self._to_send[w][0]
            self.pipe.begin(now, flow, self._known[flow].size, up_s)

    def _admitted(self, flow: int, now: float) -> None:
        """Measure an upload from its slot on, as the server does."""
        self._known[flow].began = now
