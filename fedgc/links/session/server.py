"""The server side of all sessions: a gRPC server over TLS in a thread of its own.

One Flower message invites a client (address, certificate, one-time token); the client opens one stream and
keeps it for many rounds. Events of clients go to the driver's queue; the driver's commands are queued for the
client and survive broken streams. A client is lost when it stays away for longer than the grace time.
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

import grpc
import grpc.aio

from fedgc.codecs.model_change import ModelChange
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, NotAdmitted, Refused, Unexpected
from fedgc.guards import guarded
from fedgc.links import frames as wire
from fedgc.links.byte_counts import Amounts
from fedgc.links.frames import Challenge, Denied, Invitation, Offer, StreamId, Welcome
from fedgc.links.pieces import CHANGE, Numbers, Packed, Source, Vector, offer_of, packed
from fedgc.links.session.admission import Admission
from fedgc.links.session.certificate import authority_at, fingerprint, make_certificate
from fedgc.links.session.options import QUIET, advertised, ping_s, server_options
from fedgc.links.session.peer import Peer, Published
from fedgc.links.session.sessions import SessionTable, Surroundings
from fedgc.messages import WIRE_VERSION, LinkEvent, ToClient

START_S: Final = 30.0
GOODBYE_S: Final = 2.0  # for goodbyes to arrive; clients answer by closing their streams
SETTLE_S: Final = 0.05  # gRPC reports the end of cancelled calls to the loop, which must still exist
SECRET_BYTES: Final = 32
MOST_UNAUTHENTICATED: Final = 1024  # streams without a hello (50 kB each); one more ends the oldest of them
NO_HELLO: Final = "no hello in time"


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
        self._sessions = SessionTable(config, numbers, self._admission, emit, around)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fedgc-listener", daemon=True)
        self._server: grpc.aio.Server | None = None
        self._freeing: asyncio.Task[None] | None = None  # asyncio itself holds only a weak reference
        self._address = ""
        self._unauthenticated: dict[asyncio.Timeout, None] = {}  # streams without a hello, oldest first

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
        self._loop.call_soon_threadsafe(self._sessions.dismiss, reason)

    def invite(self) -> Invitation:
        """Return a new invitation for one client."""
        token = self._around.entropy(SECRET_BYTES)
        self._admission.expect(token)
        public, run = self._certificate.public, self._admission.run
        return Invitation(self._address, public, token, run, self._authority)

    def opened(self, invitation: Invitation) -> bool:
        """Whether a session began with this invitation."""
        return self._admission.opened(invitation.token)

    def cancel(self, invitation: Invitation) -> bool:
        """Void an invitation; return whether it had opened a session."""
        return self._admission.cancel(invitation.token)

    def expect(self, numbers: int) -> None:
        """Take vectors of this length from now on; a model is published after it is known."""
        self._sessions.expect(numbers)

    def publish(self, version: int, vector: Vector, change: ModelChange | None = None) -> None:
        """Make a model available, and its change; each is packed once and shared by all clients."""
        model = Published(*_offered(StreamId("model", version), packed(vector)))
        if change is not None:
            model = replace(model, change=_offered(StreamId("model", version, CHANGE), change.data))
        self._loop.call_soon_threadsafe(self._sessions.publish, version, model)

    def send(self, command: ToClient) -> None:
        """Queue a command for its client; does nothing if the client is not connected."""
        self._loop.call_soon_threadsafe(self._sessions.send, command)

    def take(self, client: str, round_: int, attempt: int) -> Numbers:
        """Return an announced codeword, once."""
        return self._sessions.uploads.take(client, StreamId("codeword", round_, attempt))

    def forget(self, client: str, round_: int, attempt: int) -> None:
        """Free an announced codeword: another may come in its place."""
        self._loop.call_soon_threadsafe(
            self._sessions.uploads.forget, client, StreamId("codeword", round_, attempt)
        )

    def amounts(self, client: str, round_: int) -> Amounts:
        """Return the byte amounts of a client in a round."""
        return self._sessions.accounts(client).of(round_)

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
        self._loop.call_soon_threadsafe(self._sessions.exclude, client, reason)

    def clients(self) -> tuple[str, ...]:
        """Return the clients that have a session now."""
        return tuple(self._sessions.peers)

    @property
    def refused(self) -> Counter[str]:
        """How many refusals there were, by kind of error."""
        return self._sessions.refusals.counts

    # ---- the listener's thread

    def _wait(self, coroutine: Any) -> Any:  # noqa: ANN401  what the coroutine returns
        future: Future[Any] = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(START_S)

    async def _serve_at(self, bind: str) -> str:
        self._server = grpc.aio.server(options=server_options(self._config.grace_s))
        method = grpc.stream_stream_rpc_method_handler(self._converse)
        service, name = wire.METHOD.strip("/").split("/")
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, {name: method}),)
        )
        credentials = grpc.ssl_server_credentials([(self._certificate.private, self._certificate.public)])
        try:
            port = self._server.add_secure_port(bind, credentials)
        except RuntimeError as error:
            raise BadSetting(f"setting links.bind: cannot listen at {bind!r} ({error})") from error
        await self._server.start()
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
        self._sessions.dismiss(reason, complete=complete)
        end = self._loop.time() + GOODBYE_S
        while self._loop.time() < end and any(peer.stream for peer in self._sessions.peers.values()):
            await asyncio.sleep(0.01)
        if self._server is not None:
            await self._server.stop(0.2)
        conversations = asyncio.all_tasks() - {asyncio.current_task()}
        for each in conversations:
            each.cancel()
        await asyncio.gather(*conversations, return_exceptions=True)
        await asyncio.sleep(SETTLE_S)

    async def _converse(self, _: object, context: Any) -> None:  # noqa: ANN401  grpc has no types
        """Serve one stream, from its challenge to its end."""
        try:
            peer, welcome = await self._admitted(context)
        except (Refused, TimeoutError) as error:
            self._sessions.refusals.count(error)
            await self._turn_away(context, error)
            return
        stream = peer.stream
        tasks: list[asyncio.Task[None]] = []
        try:
            await context.write(wire.encode(welcome))
            with guarded("a session", peer.client):
                self._sessions.uploads.resume(peer)
            tasks.append(asyncio.create_task(self._write(peer, stream, context)))
            tasks.append(asyncio.create_task(self._watch(peer, stream, asyncio.current_task())))
            while peer.stream is stream and await self._read(peer, context):
                pass
            if peer.over:
                with contextlib.suppress(TimeoutError):  # it may not read
                    await asyncio.wait_for(tasks[0], self._config.grace_s)
        except Refused as error:  # a peer whose lines are out of step: no new stream helps
            self._sessions.refusals.count(error, peer.client)
            self._sessions.lose(peer)
            await context.write(wire.encode(Denied(str(error))))
        finally:
            for task in tasks:
                task.cancel()
            self._sessions.left(peer, stream, self._loop.call_later)

    async def _turn_away(self, context: Any, error: Refused | TimeoutError) -> None:  # noqa: ANN401
        """Deny a client; one that said no hello in time is not denied: on a busy machine it tries again."""
        if isinstance(error, TimeoutError):
            await context.abort(grpc.StatusCode.UNAVAILABLE, NO_HELLO)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.grace_s):
                await context.write(wire.encode(Denied(str(error))))

    @contextlib.asynccontextmanager
    async def _hello_timeout(self) -> AsyncIterator[None]:
        """Limit the wait for a hello to the grace time, and to less if too many other streams wait."""
        if len(self._unauthenticated) >= MOST_UNAUTHENTICATED:
            oldest = next(iter(self._unauthenticated))
            del self._unauthenticated[oldest]
            oldest.reschedule(self._loop.time())
        async with asyncio.timeout(self._config.grace_s) as limit:
            self._unauthenticated[limit] = None
            try:
                yield
            finally:
                self._unauthenticated.pop(limit, None)

    async def _admitted(self, context: Any) -> tuple[Peer, Welcome]:  # noqa: ANN401  grpc.aio has no types
        nonce = self._around.entropy(SECRET_BYTES)
        async with self._hello_timeout():  # for a peer that neither reads nor writes
            await context.write(wire.encode(Challenge(WIRE_VERSION, nonce)))
            frame = await context.read()
        if frame is grpc.aio.EOF:
            raise NotAdmitted("the stream ended before its hello")
        with guarded("a session's hello"):
            return self._sessions.admit(wire.decode_hello(frame), nonce)

    async def _read(self, peer: Peer, context: Any) -> bool:  # noqa: ANN401  grpc.aio has no types
        """Take in a message, and keep none while the next one is awaited; return False at the end."""
        message = await context.read()
        if message is grpc.aio.EOF:
            return False
        self._sessions.arrived(peer, message)
        return True

    async def _write(self, peer: Peer, stream: object, context: Any) -> None:  # noqa: ANN401  grpc.aio has no types
        while peer.stream is stream:
            message = peer.flow.next_message()
            if message is None:
                peer.wake.clear()
                await peer.wake.wait()
            else:
                await context.write(message)
        if peer.over:
            await context.write(wire.encode(Denied(peer.over)))

    async def _watch(self, peer: Peer, stream: object, reader: "asyncio.Task[None] | None") -> None:
        """Ping, and end a stream after too long a silence."""
        grace_s, quiet = self._config.grace_s, 0
        while peer.stream is stream and quiet < QUIET:
            peer.flow.ping()
            peer.wake.set()
            before = peer.heard_at
            await asyncio.sleep(ping_s(grace_s))
            quiet = quiet + 1 if peer.heard_at == before else 0
        if reader is not None:
            reader.cancel()


def _offered(stream: StreamId, vector: Packed) -> tuple[Offer, Source]:
    source = Source(vector)
    return offer_of(stream, source), source
