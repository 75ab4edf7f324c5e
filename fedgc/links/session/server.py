"""The server side of all sessions: a TLS server in a thread of its own.

One Flower message invites a client (address, certificate, one-time token); the client opens one stream and
keeps it for many rounds. Events of clients go to the driver's queue; the driver's commands are queued for the
client and survive broken streams. A client is lost when it stays away for longer than the grace time.
"""

import asyncio
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, Final

from fedgc.codecs.model_change import ModelChange
from fedgc.config import RunConfig
from fedgc.errors import BadVector, FedgcError, Unexpected
from fedgc.guards import guarded
from fedgc.links.byte_counts import Amounts
from fedgc.links.frames import Invitation, Offer, StreamId
from fedgc.links.pieces import CHANGE, Numbers, Packed, Source, Vector, offer_of, packed
from fedgc.links.session.admission import Admission
from fedgc.links.session.certificate import authority_at, fingerprint, make_certificate, server_context
from fedgc.links.session.options import advertised, ping_s
from fedgc.links.session.peer import Published
from fedgc.links.session.sessions import SessionTable, Surroundings
from fedgc.links.session.streams import Streams
from fedgc.messages import LinkEvent, ToClient

START_S: Final = 30.0
GOODBYE_S: Final = 2.0  # for goodbyes to arrive; clients answer by closing their streams
SECRET_BYTES: Final = 32
TOGETHER: Final = 64  # events that the driver is given at once
AHEAD: Final = 32  # whole codewords that nobody has taken; the listener waits while there are more,
AHEAD_S: Final = 0.25  # so long at most, and not again before the driver has taken some


class Listener:
    """The listener of a run: start it, invite clients, send commands, read events."""

    def __init__(
        self,
        config: RunConfig,
        run: str,
        numbers: int,
        emit: Callable[[LinkEvent], None],
        around: Surroundings,
    ) -> None:
        """`numbers` is the length of the model's vector; `emit` is called in the listener's thread."""
        self._config = config
        self._around = around
        self._certificate = make_certificate(around.wall())
        self._authority = authority_at(config.authority)
        self._admission = Admission(run, fingerprint(self._certificate.public), config.session_lease_s)
        self._emit = emit
        self._sessions = SessionTable(config, numbers, self._admission, self._hear, around)
        self._streams = Streams(self._sessions, around, config.grace_s, server_context(self._certificate))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedgc-listener", daemon=True)
        self._freeing: asyncio.Task[None] | None = None  # asyncio itself holds only a weak reference
        self._address = ""
        self._heard: list[LinkEvent] = []
        self._keeps_up = threading.Event()  # whether the driver takes codewords as they come
        self._keeps_up.set()
        self._calls: deque[Callable[[], None]] = deque()  # of other threads
        self._is_called = False

    # ---- for the driver, from any thread

    def start(self) -> str:
        """Bind and serve; return the address that clients connect to."""
        self._thread.start()
        self._address = self._wait(self._serve_at(self._config.bind))
        known_by = fingerprint(self._certificate.public).hex()
        self._around.audit("key", "server", f"sessions at {self._address}, certificate {known_by}")
        return self._address

    def close(self, reason: str, *, complete: bool = False) -> None:
        """Say goodbye to every client and stop."""
        if self._thread.is_alive():
            self._wait(self._stop(reason, complete))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
        self._loop.close()

    def dismiss(self, reason: str) -> None:
        """Say goodbye to every client without waiting: the process may end at any moment."""
        self._call(self._sessions.dismiss, reason)

    def invite(self) -> Invitation:
        """Return a new invitation for one client."""
        token = self._around.entropy(SECRET_BYTES)
        self._admission.expect(token)
        public, run = self._certificate.public, self._admission.run
        return Invitation(self._address, public, token, run, self._authority)

    def serves(self, _: Invitation) -> bool:
        """Whether what made this invitation still answers; its process is this one."""
        return True

    def opened(self, invitation: Invitation) -> bool:
        """Whether a session began with this invitation."""
        return self._admission.opened(invitation.token)

    def cancel(self, invitation: Invitation, reason: str) -> bool:
        """Void an invitation, and end its session for a reason; return whether it had opened one."""
        opened = self.opened(invitation)
        self._call(self._sessions.cancel, invitation.token, reason)
        return opened

    def expect(self, numbers: int, buffers: int = 0) -> None:
        """Take vectors of this length from now on; a model is published after it is known."""
        self._sessions.expect(numbers, buffers)

    def publish(self, version: int, vector: Vector, change: ModelChange | None = None) -> None:
        """Make a model available, and its change; each is packed once and shared by all clients."""
        model = Published(*_offered(StreamId("model", version), packed(vector)))
        if change is not None:
            model = replace(model, change=_offered(StreamId("model", version, CHANGE), change.data))
        self._call(self._sessions.publish, version, model)

    def send(self, command: ToClient) -> None:
        """Queue a command for its client; does nothing if the client is not connected."""
        self._call(self._sessions.send, command)

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return an announced codeword, once."""
        codeword = self._sessions.uploads.take(client, StreamId("codeword", round_, attempt))
        if self.untaken <= AHEAD // 2:
            self._keeps_up.set()
        return codeword

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Free an announced codeword: another may come in its place."""
        self._call(self._sessions.uploads.forget, client, StreamId("codeword", round_, attempt))

    def settle(self, client: str) -> Amounts:
        """Return a client's byte amounts since the last call."""
        return self._sessions.accounts(client).settle()

    def name(self, client: str) -> str:
        """Return the display name of a client."""
        return self._sessions.name(client)

    def link(self, _: str) -> str:
        """Return the name of this link."""
        return "session"

    def exclude(self, client: str, reason: str) -> None:
        """Lose a client; it is admitted again after a pause."""
        self._call(self._sessions.exclude, client, reason)

    def clients(self) -> tuple[str, ...]:
        """Return the clients that have a session now."""
        return tuple(self._sessions.peers)

    @property
    def untaken(self) -> int:
        """The number of whole codewords that nobody has taken."""
        return self._sessions.uploads.untaken

    @property
    def refused(self) -> Counter[str]:
        """How many refusals there were, by kind of error."""
        return self._sessions.refusals.counts

    def _call(self, function: Callable[..., None], *given: object) -> None:
        """Call a function in the listener's thread, after the calls before it; one wake carries several."""
        self._calls.append(partial(function, *given))
        if not self._is_called:
            self._is_called = True
            self._loop.call_soon_threadsafe(self._carry_out)

    # ---- the listener's thread

    def _hear(self, event: LinkEvent) -> None:
        """Emit an event after those of other streams: the driver wakes once for many of them."""
        if not self._heard:
            self._loop.call_soon(self._emit_heard)
        self._heard.append(event)
        if len(self._heard) >= TOGETHER:
            self._emit_heard()

    def _emit_heard(self) -> None:
        """Emit what was heard; where the driver does not keep up, wait for it: memory is limited."""
        heard, self._heard = self._heard, []
        for event in heard:
            client = getattr(event, "client", "")
            try:
                with guarded("an event of a session", client):
                    self._emit(event)
            except BadVector as error:  # of a codeword for which there is no room
                self._sessions.uploads.not_taken(event, error)
            except FedgcError as error:
                self._sessions.refusals.count(error, client)
        if self.untaken > AHEAD and self._keeps_up.is_set():
            self._keeps_up.clear()
            if self.untaken > AHEAD // 2:  # `take` will set it again
                self._keeps_up.wait(AHEAD_S)

    def _carry_out(self) -> None:
        self._is_called = False  # before the first: what is added from now on may need another wake
        while self._calls:
            self._loop.call_soon(self._calls.popleft())

    def _wait(self, coroutine: Any) -> Any:  # noqa: ANN401  what the coroutine returns
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(START_S)

    async def _serve_at(self, bind: str) -> str:
        port = self._streams.listen(bind)
        self._freeing = asyncio.create_task(self._free_stalled())
        return advertised(self._config.advertise, bind, port)

    async def _free_stalled(self) -> None:
        """Take upload slots from stalled clients, while the listener serves."""
        while True:
            await asyncio.sleep(ping_s(self._config.grace_s))
            try:
                with guarded("the queue of uploads"):
                    self._sessions.uploads.free_stalled(self._config.grace_s)
            except Unexpected as error:
                self._sessions.refusals.count(error)

    async def _stop(self, reason: str, complete: bool) -> None:
        self._streams.refuse_new()
        self._sessions.dismiss(reason, complete=complete)
        end = self._loop.time() + GOODBYE_S
        while self._loop.time() < end and any(peer.stream for peer in self._sessions.peers.values()):
            await asyncio.sleep(0.01)
        self._streams.close()
        if self._freeing is not None:
            self._freeing.cancel()
            await asyncio.gather(self._freeing, return_exceptions=True)


def _offered(stream: StreamId, vector: Packed) -> tuple[Offer, Source]:
    source = Source(vector)
    return offer_of(stream, source), source
