"""The links of a run: what the driver needs of a link, and all of a run's links behind that one face.

A device is on one link at a time: the one over which it joined last. When it changes, the round hears that
it was lost and that it joined; what the other link says of it from then on is left out, save the codewords
that lie there already. So neither the run nor the driver knows which link a device uses.

May import: errors, messages, accounts, log and pieces of this room.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from logging import INFO, Logger
from typing import Final, Protocol

from fedgc.errors import EdgeFailed
from fedgc.flower.accounts import Amounts
from fedgc.flower.log import for_people
from fedgc.flower.pieces import Numbers, Vector
from fedgc.messages import LONGEST_REASON, Close, Codeword, Event, Failed, Joined, Lost, ToDevice

Emit = Callable[[Event], None]


class Link(Protocol):
    """What the driver needs of a link."""

    def publish(self, version: int, vector: Vector) -> None:
        """Make a model known to later work."""

    def send(self, command: ToDevice) -> None:
        """Tell a device something; one that is not here is told nothing."""

    def take(self, device: str, round_: int, attempt: int) -> Numbers:
        """Return a codeword that was announced by a Codeword event, once."""

    def forget(self, device: str, round_: int, attempt: int) -> None:
        """Nothing more will be done with a codeword that was announced: another may come in its place."""

    def settle(self, device: str) -> Amounts:
        """Return what this device sent and was sent since the last call."""

    def name(self, device: str) -> str:
        """Return what a device calls itself."""

    def link(self, device: str) -> str:
        """Return the name of the link that a device uses."""

    def devices(self) -> tuple[str, ...]:
        """Return the devices that are here now."""


class Links:
    """Several links as one. Make it, give each link `heard(name)` to emit to, then `add` them."""

    def __init__(self, emit: Emit, log: Logger) -> None:
        self._emit = emit
        self._log = log
        self._links: dict[str, Link] = {}
        self._owners: dict[str, str] = {}
        self._present: set[str] = set()
        self._lying: dict[tuple[str, int, int], str] = {}
        self._lock = threading.Lock()  # links speak from threads of their own

    def heard(self, link: str) -> Emit:
        """Return what the link of this name says its events to."""
        return lambda event: self._hear(link, event)

    def add(self, links: Mapping[str, Link]) -> None:
        """Use these links, by name."""
        self._links.update(links)

    def _hear(self, link: str, event: Event) -> None:
        device: Final = getattr(event, "device", "")
        with self._lock:
            if isinstance(event, Joined):
                if device in self._present and self._owners[device] != link:
                    self._emit(Lost(event.now, device))
                self._owners[device] = link
                self._present.add(device)
                self._log.log(INFO, "device %s joins over the %s link", self._called(device, link), link)
            elif self._owners.get(device) != link:  # it has moved to another link
                if isinstance(event, Codeword):
                    self._links[link].forget(device, event.round, event.attempt)
                return
            elif isinstance(event, Lost):
                self._present.discard(device)
            elif isinstance(event, Failed):  # it is logged, kept and shown
                event = replace(event, reason=for_people(event.reason, LONGEST_REASON))
            elif isinstance(event, Codeword):
                self._lying[device, event.round, event.attempt] = link
            self._emit(event)

    def _called(self, device: str, link: str) -> str:
        name = self._links[link].name(device)
        return f"{name} ({device})" if name else device

    # ---- as one link

    def publish(self, version: int, vector: Vector) -> None:
        """Make a model known on every link."""
        for link in self._links.values():
            link.publish(version, vector)

    def send(self, command: ToDevice) -> None:
        """Tell a device something over the link that it uses."""
        if isinstance(command, Close):  # what came ahead and was not wanted by now never will be
            with self._lock:
                lying = [key for key in self._lying if key[0] == command.device and key[1] <= command.round]
            for key in lying:
                self.forget(*key)
        if (owner := self._owner(command.device)) is not None:
            owner.send(command)

    def take(self, device: str, round_: int, attempt: int) -> Numbers:
        """Return a codeword from the link that has it, once."""
        with self._lock:
            link = self._lying.get((device, round_, attempt))
        if link is None:
            raise EdgeFailed(f"codeword of {device}, round {round_}, attempt {attempt}: it is not here")
        return self._links[link].take(device, round_, attempt)

    def forget(self, device: str, round_: int, attempt: int) -> None:
        """Nothing more will be done with a codeword that was announced: another may come in its place."""
        with self._lock:
            link = self._lying.pop((device, round_, attempt), None)
        if link is not None:
            self._links[link].forget(device, round_, attempt)

    def settle(self, device: str) -> Amounts:
        """Return what this device sent and was sent over any link since the last call."""
        total = Amounts()
        for link in self._links.values():
            total = total + link.settle(device)
        return total

    def name(self, device: str) -> str:
        """Return what a device calls itself."""
        owner = self._owner(device)
        return owner.name(device) if owner else ""

    def link(self, device: str) -> str:
        """Return the name of the link over which a device joined last."""
        with self._lock:
            return self._owners.get(device, "")

    def devices(self) -> tuple[str, ...]:
        """Return the devices that are here now, over whichever link."""
        with self._lock:
            return tuple(self._present)

    def _owner(self, device: str) -> Link | None:
        with self._lock:
            owner = self._owners.get(device)
        return self._links[owner] if owner is not None else None
