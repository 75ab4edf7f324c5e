"""The sessions of a run in several processes: one link for the driver, whatever their number.

Each receiver is a process with a listener of its own. It carries the TLS, the lines and the pieces of its
clients, and checks and decodes their vectors, which reach the driver in shared memory. The driver adds them
one after the other, as with one process, so a sum does not depend on the number of receivers, only on the
order in which the vectors are whole. Where a process ends, its clients are lost and come back, and another
process takes its place. It starts in the thread that heard of the end, so that nothing else waits for it.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from fedgc.codecs.model_change import ModelChange
from fedgc.config import RunConfig
from fedgc.config.receivers import receivers_of
from fedgc.errors import EdgeFailed, FedgcError, NotNow
from fedgc.links.byte_counts import Accounts, Amounts
from fedgc.links.frames import Invitation
from fedgc.links.links import SessionLink
from fedgc.links.pieces import Numbers, Vector, packed
from fedgc.links.quotas import Bucket, Pause
from fedgc.links.receivers.receiver import Reactions, Receiver
from fedgc.links.receivers.shared_arrays import SharedArrays, form_of
from fedgc.links.receivers.terms import ReceiverTerms, config_of
from fedgc.links.session.server import Listener
from fedgc.links.session.sessions import Surroundings
from fedgc.links.session.streams import allowed_files
from fedgc.messages import Announced, Codeword, Joined, LinkEvent, Lost, ToClient
from fedgc.processes.available import available_memory

MOST_STARTS: Final = 20.0  # of processes in the place of others at once,
STARTS_PER_S: Final = 1 / 600  # and in a long run
FIRST_PAUSE_S: Final = 1.0  # before another attempt, where a process could not start
LONGEST_PAUSE_S: Final = 60.0


@dataclass(frozen=True, slots=True, eq=False)
class _Model:
    """The last model and its change, in memory that is shared with the receivers."""

    version: int
    vector: Numbers
    change: ModelChange | None


class Receivers:
    """All receivers of a run, with the interface of a listener."""

    def __init__(
        self, config: RunConfig, run: str, count: int, emit: Callable[[LinkEvent], None], around: Surroundings
    ) -> None:
        """`emit` is called in threads of this class, in one at a time."""
        allowed_files()  # each vector comes as a file
        self._emit, self._around = emit, around
        self._tokens: dict[bytes, Receiver] = {}  # of invitations that are out,
        self._begun: set[bytes] = set()  # and of those with which a session began
        self._arrays = SharedArrays(around.scratch.folder, available=available_memory)
        self._reactions = Reactions(self._heard, self._begun.add, self._excluded, self._ended)
        self._terms = [
            ReceiverTerms(config_of(config, place, count), run, around.scratch.folder)
            for place in range(count)
        ]
        self._accounts: dict[str, Accounts] = {}
        self._receivers = [Receiver(terms, around, self._reactions, self._accounts) for terms in self._terms]
        self._owners: dict[str, Receiver] = {}  # of clients: where they joined last
        self._present: set[str] = set()
        self._lying: dict[tuple[str, int, int], Receiver] = {}  # codewords
        self._order = threading.Lock()  # of the events of all receivers; `emit` may wait for other locks
        self._changing = threading.Lock()  # held while all are told something
        self._length = 0, 0  # of vectors, and how many of their numbers are those of buffers
        self._model: _Model | None = None
        self._starts = Bucket(STARTS_PER_S, MOST_STARTS)
        self._left = count  # places that are not given up
        self._over = threading.Event()
        around.quotas.told = lambda *excluded: self._excluded(None, *excluded)

    # ---- their life

    def start(self) -> str:
        """Start all processes; return the address of the first."""
        try:
            for each in self._receivers:
                each.launch()
            for each in self._receivers:
                each.begin()
        except FedgcError:
            self.close("the server could not begin")
            raise
        return self._receivers[0].address

    def close(self, reason: str, *, complete: bool = False) -> None:
        """Say goodbye to every client and stop."""
        with self._changing:
            self._over.set()
        for each in self._receivers:
            each.close(reason, complete=complete)
        for each in self._receivers:
            each.wait()

    def dismiss(self, reason: str) -> None:
        """Say goodbye to every client without waiting: the process may end at any moment."""
        for each in self._receivers:
            each.tell("dismiss", reason)

    def _ended(self, receiver: Receiver) -> None:
        """Lose the clients of a process that has ended, and start another in its place."""
        if self._over.is_set() or not receiver.is_open:
            return
        receiver.wait()
        with self._order:
            lost = [client for client in self._present if self._owners[client] is receiver]
            for client in lost:
                self._present.discard(client)
                self._emit(Lost(self._around.clock(), client))
        what = "a receiver has ended, and another takes its place: clients that are lost until they come back"
        self._around.log.warning("%s: %d", what, len(lost))
        place, pause_s = self._receivers.index(receiver), FIRST_PAUSE_S
        while self._may_start() and not self._begun_at(place, pause_s):
            self._over.wait(pause_s)
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _may_start(self) -> bool:
        with self._changing:
            if self._over.is_set():
                return False
            if may := self._starts.take(1.0, self._around.clock()):
                return may
            self._left -= 1
        self._around.log.error("a receiver has ended too often: %d are left", self._left)
        return False

    def _begun_at(self, place: int, pause_s: float) -> bool:
        """Start a process at a place, while no other call waits; return whether clients can connect to it."""
        began = Receiver(self._terms[place], self._around, self._reactions, self._accounts)
        try:
            began.launch()
            with self._changing:
                if self._over.is_set():
                    raise EdgeFailed("the run is over")
                self._receivers[place] = began
                self._tell_all(began)
            began.begin()
        except FedgcError as error:
            if not self._over.is_set():
                self._around.log.warning("a receiver cannot start; again in %g s: %s", pause_s, error)
            began.close("it could not begin", complete=False)
            began.wait()
            return False
        return True

    def _tell_all(self, receiver: Receiver) -> None:
        """Tell a process that starts what the others know."""
        receiver.tell("expect", *self._length)
        for excluded in self._around.quotas.pauses().items():
            receiver.tell("note", *excluded)
        if self._model is not None:
            self._publish_to(receiver, self._model)

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes."""
        return tuple(each.pid for each in self._receivers)

    # ---- invitations

    def invite(self) -> Invitation:
        """Return a new invitation for one client, to the receiver that has fewest.

        Raises:
            NotNow: No receiver answers; others take their places.
            EdgeFailed: No other does.
        """
        living = [each for each in self._receivers if each.is_open]
        for receiver in sorted(living, key=lambda each: each.invited):
            with suppress(EdgeFailed):
                invitation = receiver.invite()
                self._tokens[invitation.token] = receiver
                return invitation
        if not self._left:
            count = len(self._receivers)
            raise EdgeFailed(f"links.receivers: all {count} have ended, and others in their places too often")
        raise NotNow("links.receivers: none serves at the moment")

    def serves(self, invitation: Invitation) -> bool:
        """Whether the receiver of this invitation still answers."""
        receiver = self._tokens.get(invitation.token)
        return receiver is not None and receiver.answers

    def opened(self, invitation: Invitation) -> bool:
        """Whether a session began with this invitation."""
        return invitation.token in self._begun

    def cancel(self, invitation: Invitation, reason: str) -> bool:
        """Void an invitation, and end its session for a reason; return whether it had opened one."""
        opened = self.opened(invitation)
        if (receiver := self._tokens.pop(invitation.token, None)) is not None:
            self._begun.discard(invitation.token)
            receiver.invited -= 1
            receiver.tell("cancel", invitation, reason)
        return opened

    # ---- for the driver, from any thread

    def expect(self, numbers: int, buffers: int = 0) -> None:
        """Take vectors of this length from now on; a model is published after it is known."""
        with self._changing:
            self._length = numbers, buffers
            for each in self._receivers:
                each.tell("expect", *self._length)

    def publish(self, version: int, vector: Vector, change: ModelChange | None = None) -> None:
        """Make a model available, and its change; all receivers share one copy."""
        if change is not None:
            change = replace(change, data=self._arrays.copy_of(change.data))
        model = _Model(version, self._arrays.copy_of(packed(vector)), change)
        with self._changing:
            self._model = model
            for each in self._receivers:
                self._publish_to(each, model)

    def _publish_to(self, receiver: Receiver, model: _Model) -> None:
        vectors = [model.vector]
        change = None
        if model.change is not None:
            vectors.append(model.change.data)
            change = model.change.part, model.change.wire, form_of(model.change.data)
        files = [self._arrays.descriptor_of(each) for each in vectors]
        receiver.tell("publish", model.version, form_of(model.vector), change, descriptors=files)

    def send(self, command: ToClient) -> None:
        """Queue a command for its client; does nothing if the client is not connected."""
        if (owner := self._owners.get(command.client)) is not None:
            owner.tell("send", command)

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return an announced codeword, once."""
        receiver = self._lying.get((client, round_, attempt))
        if receiver is None:
            raise EdgeFailed(f"codeword of {client}, round {round_}, attempt {attempt}: it is not here")
        return receiver.take(client, round_, attempt)

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Free an announced codeword: another may come in its place."""
        if (receiver := self._lying.pop((client, round_, attempt), None)) is not None:
            receiver.forget(client, round_, attempt)

    def settle(self, client: str) -> Amounts:
        """Return a client's byte amounts since the last call, as far as they were told."""
        accounts = self._accounts.get(client)
        return Amounts() if accounts is None else accounts.settle()

    def name(self, client: str) -> str:
        """Return the display name of a client."""
        owner = self._owners.get(client)
        return "" if owner is None else owner.names.get(client, "")

    def link(self, _: str) -> str:
        """Return the name of this link."""
        return "session"

    def clients(self) -> tuple[str, ...]:
        """Return the clients that have a session now."""
        with self._order:
            return tuple(self._present)

    def exclude(self, client: str, reason: str) -> None:
        """Lose a client; it is admitted again after a pause."""
        owner = self._owners.get(client)
        if owner is not None and owner.is_open:
            owner.tell("exclude", client, reason)
        elif owner is not None:  # it has ended with the client's session
            self._around.exclude(client, self.name(client), reason)

    # ---- what receivers say, in their threads

    def _heard(self, receiver: Receiver, event: LinkEvent) -> None:
        """Pass on an event; those of a session that its client has left for another receiver are dropped."""
        client: Final = getattr(event, "client", "")
        with self._order:
            owner = self._owners.get(client)
            if isinstance(event, Announced | Joined):
                self._came(receiver, event)
            elif owner is not receiver:
                if isinstance(event, Codeword):
                    receiver.forget(client, event.round, event.attempt)
                return
            elif isinstance(event, Lost):
                self._present.discard(client)
            elif isinstance(event, Codeword):
                self._lying[client, event.round, event.attempt] = receiver
            self._emit(event)

    def _came(self, receiver: Receiver, event: Announced | Joined) -> None:
        client = event.client
        if client in self._present and self._owners[client] is not receiver:
            self._present.discard(client)
            self._emit(Lost(event.now, client))
        self._owners[client] = receiver
        if isinstance(event, Joined):
            self._present.add(client)

    def _excluded(self, by: Receiver | None, client: str, pause: Pause) -> None:
        """Tell the other receivers of a client that is excluded."""
        with self._changing:
            for each in self._receivers:
                if each is not by:
                    each.tell("note", client, pause)


def session_link(
    config: RunConfig, run: str, emit: Callable[[LinkEvent], None], around: Surroundings
) -> SessionLink:
    """Make the link that serves sessions: a listener in this process, or several receivers."""
    count = receivers_of(config)
    return (
        Listener(config, run, 0, emit, around) if count == 1 else Receivers(config, run, count, emit, around)
    )
