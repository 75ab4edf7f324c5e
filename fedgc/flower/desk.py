"""The listener's desk: who has a seat, what they say, whose codeword comes next. No network in here.

Everything runs in the listener's thread. A seat lives as long as a device's session, over any number of
streams; frames come in from the stream that carries it now, events go out to the driver.

May import: config, errors, messages, and this room's machines (admission, seat, slots, wire) and log.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from logging import Logger
from typing import Any, Final, Protocol

from fedgc.config import RunConfig
from fedgc.errors import BadMessage, BadVector, EdgeFailed, Refused
from fedgc.flower import wire
from fedgc.flower.accounts import Accounts, Amounts
from fedgc.flower.admission import Admission
from fedgc.flower.flow import Flow
from fedgc.flower.log import LONGEST_NAME, for_people
from fedgc.flower.pieces import NUMBER, Incoming, Numbers, Vector
from fedgc.flower.refusals import Audit, Refusals, unheard
from fedgc.flower.seat import Seat
from fedgc.flower.slots import Slots
from fedgc.flower.wire import Ack, Bye, Heard, Hello, Offer, Piece, Ping, StreamId, Welcome
from fedgc.messages import LONGEST_REASON, Codeword, Event, Failed, Loaded, Lost, ToDevice, Work

SLOWEST_BYTES_S: Final = 125_000.0  # one megabit: who sends at a lower rate lets those who wait go first

Stub = tuple[str, StreamId]


class Timer(Protocol):
    """What `later` returns."""

    def cancel(self) -> None:
        """Do not call."""


@dataclass(slots=True)
class _Upload:
    """A codeword that has a slot: when it grew last, and its size at the last look at its rate."""

    moved: float
    looked: float
    size: int


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the desk may not make up itself."""

    clock: Callable[[], float]  # seconds on the driver's clock
    entropy: Callable[[int], bytes]
    wall: Callable[[], float]  # seconds since 1970, for the certificate alone
    log: Logger
    audit: Audit = unheard


class Desk:
    """All seats of one run."""

    def __init__(
        self,
        config: RunConfig,
        numbers: int,
        admission: Admission,
        emit: Callable[[Event], None],
        around: Surroundings,
    ) -> None:
        """`numbers` is the length of the model's vector."""
        self._config = config
        self._numbers = numbers
        self._admission = admission
        self._emit = emit
        self._around = around
        self._timers: dict[str, Timer] = {}
        self._models: dict[int, tuple[Offer, Vector]] = {}
        self._ready: dict[Stub, Numbers] = {}
        self._slots: Slots[Stub] = Slots(config.upload_slots)
        self._begun: dict[Stub, float] = {}
        self._uploads: dict[Stub, _Upload] = {}
        self._accounts: dict[str, Accounts] = {}
        self._names: dict[str, str] = {}
        self.seats: Final[dict[str, Seat]] = {}
        self.refusals: Final = Refusals(around.log, around.audit)

    # ---- for the driver

    def publish(self, offer: Offer, model: Vector) -> None:
        """Make a model known to later work; devices that are still sent the one before are not hurt."""
        self._models = {offer.stream.number: (offer, model)}

    def send(self, command: ToDevice) -> None:
        """Queue a command for its device, if it is here."""
        seat = self.seats.get(command.device)
        if seat is not None:
            self._tell(seat, command)

    def _tell(self, seat: Seat, command: ToDevice) -> None:
        model = self._models.get(command.version) if isinstance(command, Work) else None
        try:
            seat.command(command, model, self._around.clock())
        except BadMessage as error:
            self._deaf(seat, error)
            return
        self._give_up_unwanted(seat)

    def _deaf(self, seat: Seat, error: BadMessage) -> None:
        """Lose a device that has left too much unheard: whoever is served now has nothing to do with it."""
        self.refusals.count(error, seat.device)
        self.lose(seat)

    def take(self, device: str, stream: StreamId) -> Numbers:
        """Return a whole codeword, once, from any thread; its slot is held until we may `forget` it."""
        vector = self._ready.pop((device, stream), None)
        if vector is None:
            raise EdgeFailed(f"{stream} of {device}: it is not here")
        return vector

    def forget(self, device: str, stream: StreamId) -> None:
        """A whole codeword is in the sum, or is not wanted: another may come, and memory has room for it."""
        self._ready.pop((device, stream), None)
        self._grant(self._slots.free((device, stream)))

    def accounts(self, device: str) -> Accounts:
        """Return the byte accounts of a device."""
        return self._accounts.setdefault(device, Accounts())

    def name(self, device: str) -> str:
        """Return what a device calls itself."""
        return self._names.get(device, "")

    def dismiss(self, reason: str) -> None:
        """Say goodbye to everybody."""
        for seat in self.seats.values():
            with contextlib.suppress(BadMessage):  # one that has left too much unheard hears nothing any more
                seat.flow.channel.say(Bye(reason))
            seat.wake.set()

    # ---- coming and going

    def admit(self, hello: Hello, nonce: bytes) -> tuple[Seat, Welcome]:
        """Give a device its seat, new or kept, for a new stream; or raise NotAdmitted."""
        device = self._admission.check(hello, nonce)
        seat = self.seats.get(device)
        if self._admission.is_new(hello, device, seat):
            seat = self._new_seat(device, hello.credential)
            self._around.audit("joined", device, f"over a session, with key {hello.key.hex()}")
        elif seat is None:
            raise BadMessage("hello: a ticket without a seat")
        seat.stream = None  # the device may have left a stream that we still take for open
        self._give_up_unwanted(seat)
        try:
            seat.flow.reopen(hello.heard, hello.positions, rests=False)
        except BadMessage:  # its lines are out of step: no other stream puts that right
            self.lose(seat)
            raise
        seat.stream = object()
        seat.heard_at = self._around.clock()
        self._names[device] = for_people(hello.name, LONGEST_NAME)
        if timer := self._timers.pop(device, None):
            timer.cancel()
        return seat, Welcome(seat.ticket, self._admission.lease_s(device), seat.flow.channel.heard)

    def _new_seat(self, device: str, token: bytes) -> Seat:
        if device in self.seats:
            self.lose(self.seats[device])
        flow = Flow(
            self._config.piece_kb * 1024, self.accounts(device), lambda count: Amounts(down_bytes=count)
        )
        seat = Seat(device, self._around.entropy(32), self._numbers, flow)
        self.seats[device] = seat
        self._admission.used(token, seat)
        return seat

    def resume(self, seat: Seat) -> None:
        """Queue up again what a device was sending when its last stream broke."""
        for stream in seat.waiting():
            self._grant(self._slots.ask((seat.device, stream), first=stream in seat.flow.incoming))

    def left(self, seat: Seat, stream: object, later: Callable[[float, Callable[[], None]], Timer]) -> None:
        """A stream is over; its device may come back within the grace time."""
        if seat.stream is not stream:
            return
        seat.stream = None
        self._give_up_unwanted(seat)
        if self.seats.get(seat.device) is seat:
            self._timers[seat.device] = later(self._config.grace_s, lambda: self.lose(seat))

    def lose(self, seat: Seat) -> None:
        """Give a device up."""
        if self.seats.get(seat.device) is not seat:
            return
        del self.seats[seat.device]
        seat.stream = None
        seat.wake.set()
        if timer := self._timers.pop(seat.device, None):
            timer.cancel()
        self._give_up_unwanted(seat)
        seat.flow.withdraw(lambda _: True)  # the seat is known by its token for as long as its message is out
        self._emit(Lost(self._around.clock(), seat.device))

    # ---- what arrives

    def arrived(self, seat: Seat, frame: bytes) -> None:
        """Take a frame; raise BadMessage where the lines are out of step for good."""
        if self.seats.get(seat.device) is not seat:
            return  # it was given up, or another took its place: nothing it says counts after that
        now = seat.heard_at = self._around.clock()
        try:
            value = wire.decode(frame, wire.FROM_DEVICE, now=now, device=seat.device)
        except BadMessage as error:
            self._refuse(seat, seat.flow.accounts.round, error)
            return
        if isinstance(value, Piece):
            self._piece(seat, value, len(frame))
        else:
            seat.flow.accounts.add(Amounts(control_bytes=len(frame)))
            if value.sequence == 0 or seat.flow.channel.accept(value.sequence):
                seat.confirmed = seat.confirmed or value.sequence > 0
                self._line(seat, value.value)
        seat.wake.set()

    def _line(self, seat: Seat, value: Any) -> None:  # noqa: ANN401  a line or an event
        match value:
            case Heard(sequence):
                seat.flow.channel.confirm(sequence)
            case Ack():
                if seat.flow.acknowledged(value):
                    self._loaded(seat, value)
            case Offer():
                self._offer(seat, value)
            case Bye():
                self.lose(seat)
            case Ping():
                pass
            case _:
                self._emit(value)

    def _loaded(self, seat: Seat, ack: Ack) -> None:
        now = self._around.clock()
        seconds = now - seat.model_since
        seat.flow.accounts.add(Amounts(download_s=seconds))
        size = self._numbers * NUMBER.itemsize  # the device may say anything
        self._emit(Loaded(now, seat.device, ack.stream.number, seconds, size))

    def _offer(self, seat: Seat, offer: Offer) -> None:
        try:
            if seat.offered(offer):
                self._grant(self._slots.ask((seat.device, offer.stream)))
        except BadVector as error:
            if (seat.device, offer.stream) in self._slots.held():  # another offer of it was a good one
                self._spoilt(seat, offer.stream, error)
            else:
                seat.drop(offer.stream)
                self._refuse(seat, offer.stream.number, error)

    def _piece(self, seat: Seat, piece: Piece, size: int) -> None:
        round_ = piece.stream.number
        seat.flow.accounts.add(Amounts(up_bytes=size), round_)
        if upload := self._uploads.get((seat.device, piece.stream)):
            upload.moved = self._around.clock()
        try:
            incoming = seat.flow.take(piece)
            if incoming is not None and incoming.whole:
                self._whole(seat, incoming)
        except BadVector as error:
            self._spoilt(seat, piece.stream, error)

    def _whole(self, seat: Seat, incoming: Incoming) -> None:
        stream, now = incoming.offer.stream, self._around.clock()
        stub = (seat.device, stream)
        self._ready[stub] = seat.finished(stream)
        seconds = now - self._begun.get(stub, now)
        seat.flow.accounts.add(Amounts(upload_s=seconds), stream.number)
        self._begun.pop(stub, None)
        self._uploads.pop(stub, None)
        size = incoming.offer.size
        self._emit(Codeword(now, seat.device, stream.number, stream.attempt, seconds, size))

    def _spoilt(self, seat: Seat, stream: StreamId, error: BadVector) -> None:
        """A codeword that was to come will not: its slot is free."""
        seat.drop(stream)
        self._refuse(seat, stream.number, error)
        self._free((seat.device, stream))
        self._emit(Failed(self._around.clock(), seat.device, stream.number, str(error)[:LONGEST_REASON]))

    def _refuse(self, seat: Seat, round_: int, error: Refused) -> None:
        self.refusals.count(error, seat.device)
        seat.refuse(round_, str(error)[:LONGEST_REASON])

    # ---- slots

    def _grant(self, stubs: list[Stub]) -> None:
        for device, stream in stubs:
            seat = self.seats.get(device)
            if seat is not None and self._granted(seat, stream):
                now = self._around.clock()
                self._begun.setdefault((device, stream), now)
                self._uploads[device, stream] = _Upload(now, now, seat.flow.incoming[stream].received)
            else:
                self._grant(self._slots.free((device, stream)))

    def _granted(self, seat: Seat, stream: StreamId) -> bool:
        try:
            return seat.grant(stream)
        except BadMessage as error:
            self._deaf(seat, error)
            return False

    def _free(self, stub: Stub) -> None:
        self._begun.pop(stub, None)
        self._uploads.pop(stub, None)
        self._grant(self._slots.free(stub))

    def free_stalled(self, limit_s: float) -> None:
        """Take the slot from whoever sends nothing although its stream is open, or next to nothing.

        The first has failed; the second goes to the end of the queue, and on with what it has sent.
        """
        now = self._around.clock()
        for stub, upload in list(self._uploads.items()):
            seat = self.seats.get(stub[0])
            incoming = seat.flow.incoming.get(stub[1]) if seat is not None else None
            if seat is None or seat.stream is None or incoming is None or stub not in self._slots.sending:
                self._uploads.pop(stub, None)
            elif now - upload.moved > limit_s:
                self._stalled(seat, stub[1], now - upload.moved)
            elif now - upload.looked >= limit_s:
                trickles = incoming.received - upload.size < SLOWEST_BYTES_S * (now - upload.looked)
                upload.looked, upload.size = now, incoming.received
                self._grant(self._slots.turn(stub) if trickles else [])

    def _stalled(self, seat: Seat, stream: StreamId, seconds: float) -> None:
        error = BadVector(f"{stream}: nothing came for {seconds:.1f} s")
        try:
            self._spoilt(seat, stream, error)
        except BadMessage as unheard_of:
            self._deaf(seat, unheard_of)

    def _give_up_unwanted(self, seat: Seat) -> None:
        """Free the slots of a device that is away, and of codewords that nobody waits for any more.

        One that is whole keeps its slot until it is in the sum, or its round is over.
        """
        wanted = (*seat.waiting(), *seat.whole) if seat.stream is not None else ()
        for stub in self._slots.held():
            if stub[0] == seat.device and stub[1] not in wanted:
                self._grant(self._slots.free(stub))
        for stub in [each for each in self._begun if each[0] == seat.device]:
            if stub[1] not in seat.waiting():
                del self._begun[stub]
                self._uploads.pop(stub, None)
