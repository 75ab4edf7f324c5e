"""The driver's side of Flower: invites every node to a session, and again when its session has ended.

In a thread of its own, because a call of the grid takes tens of milliseconds; it calls the grid about
twice a second, which is also how a stopped run is noticed. A node that vanished is forgotten; a reply,
good or bad, means that the node is free: it is invited anew, after a pause that grows while its sessions
end without having lived. Errors come from the SuperLink itself, so a reply is told by what it replies to.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from logging import INFO, WARNING, Logger
from typing import Final

from flwr.app import Message
from flwr.serverapp import Grid

from fedgc.flower.invitation import RECORD, invite
from fedgc.flower.listener import Listener
from fedgc.flower.wire import Invitation

POLL_S: Final = 0.5
JOIN_S: Final = 1.0  # a call of the grid may hang for longer: the thread is a daemon
SHORT_S: Final = 10.0  # a session that ended sooner did not live
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


@dataclass(slots=True)
class _Guest:
    message: str = ""  # the id of the message that is out, if one is
    invitation: Invitation | None = None
    invited: float = 0.0
    pause_s: float = FIRST_PAUSE_S
    next: float = 0.0


class Doorman:
    """Start it, stop it; `ended` is told why the grid can no longer be called."""

    def __init__(
        self, grid: Grid, listener: Listener, ttl_s: float, clock: Callable[[], float], log: Logger
    ) -> None:
        self._grid = grid
        self._listener = listener
        self._ttl_s = ttl_s
        self._clock = clock
        self._log = log
        self._guests: dict[int, _Guest] = {}
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, ended: Callable[[str], None]) -> None:
        """Begin to invite."""
        self._thread = threading.Thread(target=self._keep, args=(ended,), name="fedgc-doorman", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Invite nobody any more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _keep(self, ended: Callable[[str], None]) -> None:
        while not self._over.wait(POLL_S):
            try:
                self._round()
            except Exception as error:  # the edge to Flower: a stopped run, a SuperLink that is gone
                if not self._over.is_set():
                    ended(f"Flower's grid: {type(error).__name__}: {error}".splitlines()[0])
                return

    def _round(self) -> None:
        nodes = set(self._grid.get_node_ids())
        for gone in self._guests.keys() - nodes:
            self._forget(self._guests.pop(gone))
        out = {guest.message: guest for guest in self._guests.values() if guest.message}
        if out:
            for reply in self._grid.pull_messages(list(out)):
                if guest := out.get(reply.metadata.reply_to_message_id):
                    self._replied(guest, reply)
        now = self._clock()
        due = [node for node in nodes if self._due(node, now)]
        if due:
            self._invite(due, now)

    def _due(self, node: int, now: float) -> bool:
        guest = self._guests.setdefault(node, _Guest())
        return not guest.message and now >= guest.next

    def _invite(self, nodes: list[int], now: float) -> None:
        messages = []
        for node in nodes:
            guest = self._guests[node]
            guest.invitation, guest.invited = self._listener.invite(), now
            messages.append(invite(guest.invitation, node, self._ttl_s))
        for node, message in zip(nodes, self._grid.push_messages(messages), strict=True):
            self._guests[node].message = message or ""

    def _forget(self, guest: _Guest) -> None:
        if guest.invitation is not None:
            self._listener.cancel(guest.invitation)

    def _replied(self, guest: _Guest, reply: Message) -> None:
        now = self._clock()
        self._forget(guest)
        lived = now - guest.invited >= SHORT_S
        guest.pause_s = FIRST_PAUSE_S if lived else min(2 * guest.pause_s, LONGEST_PAUSE_S)
        guest.next = now + guest.pause_s
        guest.message = ""
        if reply.has_error():
            self._log.log(WARNING, "a session failed: code %d, %s", reply.error.code, reply.error.reason)
        else:
            self._log.log(INFO, "a session ended: %s", reply.content[RECORD]["ended"])
