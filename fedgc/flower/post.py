"""The server's end of the messages link: what goes into the next letter to each device. No Flower calls here.

A device hears nothing between its letters, so a letter asks for what is known to be wanted: the chunks of
its order that it has not reported, until its lease is over; or, when there are any, the codewords that it
owes, before all other work. What was not done within the lease is asked for again in the next letter, and
nothing more once the round is closed.

A lease bounds how long the server waits to be heard: one and a half times what the work should take by the
device's own past, and never longer than the round gives it. A letter that fails (its time to live is over,
the ClientApp died, the node is gone) makes its device lost; it is asked who it is after a pause that grows,
and comes back with what lies on its shelf.

May import: config, errors, messages, and this room's letter, accounts, desk's surroundings, log, pieces,
seat, wire.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from fedgc.errors import BadMessage, BadVector, EdgeFailed, NotAdmitted, Refused
from fedgc.flower import wire
from fedgc.flower.accounts import Accounts, Amounts
from fedgc.flower.desk import Surroundings
from fedgc.flower.letter import Answer, Letter, Shelved, codeword, introduction
from fedgc.flower.log import LONGEST_NAME, for_people
from fedgc.flower.pieces import Form, Numbers, Vector, digest_of, packed
from fedgc.flower.refusals import Refusals
from fedgc.flower.seat import form_asked
from fedgc.flower.wire import Offer, StreamId
from fedgc.messages import (
    LONGEST_REASON,
    Begin,
    Close,
    Codeword,
    Continue,
    Event,
    Failed,
    Joined,
    Lost,
    Masking,
    Open,
    Progress,
    Repair,
    Report,
    Reveal,
    Roster,
    Survivors,
    ToDevice,
    ToMember,
    Unmask,
    Work,
)

FIRST_LEASE_S: Final = 30.0  # of a device whose pace is not known
LEAST_LEASE_S: Final = 2.0
LEASE_RATIO: Final = 1.5  # of the time that the work should take
AGAIN_S: Final = 0.2  # after an answer, the round may ask for codewords: so long, work is not asked for
WAY_S: Final = 120.0  # of a letter's life, for its process to start and its words to travel
SLOWEST_BYTES_S: Final = 125_000.0  # one megabit: the slowest line whose vectors are waited for
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
PACES_KEPT: Final = 32
NONCE_BYTES: Final = 16


@dataclass(slots=True)
class _Box:
    """One node: the device behind it, what it has, what it is wanted to do."""

    device: str = ""  # empty until it has said who it is
    shelf: dict[int, str] = field(default_factory=dict)
    work: Work | None = None  # of the last round that it had a part in
    left: tuple[int, ...] = ()  # of its order: not reported yet
    asks: list[Reveal | Repair] = field(default_factory=list)
    letters: list[ToMember] = field(default_factory=list)  # of a masked exchange
    keyed: int = 0  # the round for which keys were asked for last
    expected: dict[StreamId, Form] = field(default_factory=dict)
    out: Letter | None = None
    owed: tuple[Reveal | Repair, ...] = ()  # what the letter that is out asks for
    pace_s: deque[float] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    again: float = 0.0  # when work that was left undone is asked for again
    next: float = 0.0
    pause_s: float = FIRST_PAUSE_S


class Post:
    """Every device of one run that is on the messages link; its methods may be called from any thread."""

    def __init__(self, run: str, numbers: int, emit: Callable[[Event], None], around: Surroundings) -> None:
        """`numbers` is the length of the model's vector."""
        self._run = run
        self._numbers = numbers
        self._emit = emit
        self._around = around
        self._boxes: dict[int, _Box] = {}
        self._model: tuple[int, Vector, str] | None = None
        self._ready: dict[tuple[str, StreamId], Numbers] = {}
        self._accounts: dict[str, Accounts] = {}
        self._names: dict[str, str] = {}
        self._lock = threading.RLock()  # names are asked for while an event is on its way out
        self.wanted: Final = threading.Event()  # there may be a letter to send
        self.refusals: Final = Refusals(around.log, around.audit)

    # ---- for the driver

    def publish(self, version: int, vector: Vector) -> None:
        """Make a model known to later work."""
        flat = packed(vector)
        with self._lock:
            self._model = version, flat, digest_of(flat).hex()

    def send(self, command: ToDevice) -> None:
        """Take note of what a device should do; it hears of it in its next letter."""
        with self._lock:
            box = next((each for each in self._boxes.values() if each.device == command.device), None)
            if box is None:
                return
            match command:
                case Work():
                    self._begin(box, command)
                case Continue(_, round_, target, order, lease_s) if box.work is not None:
                    work = replace(box.work, round=round_, target=target, order=order, lease_s=lease_s)
                    self._begin(box, replace(work, coefficients=None))
                case Reveal() | Repair():
                    box.asks.append(command)
                    _asks_no_more_ahead(box)
                    stream = StreamId("codeword", command.round, command.attempt)
                    box.expected[stream] = form_asked(self._numbers, command)
                case Open() | Roster() | Begin() | Survivors() | Unmask():
                    box.letters.append(command)
                    box.keyed = command.round
                case Close():
                    box.left, box.asks, box.expected, box.letters = (), [], {}, []
                    _asks_no_more_ahead(box)
                case _:
                    return  # a device that hears nothing while it works is told nothing else
        self.wanted.set()

    def _begin(self, box: _Box, work: Work) -> None:
        box.work, box.left = work, work.order
        box.asks, box.expected, box.again = [], {}, 0.0
        self._account(box.device).round = work.round

    @property
    def refused(self) -> Counter[str]:
        """How much was refused, by kind of error."""
        return self.refusals.counts

    def take(self, device: str, round_: int, attempt: int) -> Numbers:
        """Return a whole codeword, once."""
        with self._lock:
            vector = self._ready.pop((device, StreamId("codeword", round_, attempt)), None)
        if vector is None:
            raise EdgeFailed(f"codeword of {device}, round {round_}, attempt {attempt}: it is not here")
        return vector

    def forget(self, device: str, round_: int, attempt: int) -> None:
        """Nothing more will be done with a codeword that was announced."""
        with self._lock:
            self._ready.pop((device, StreamId("codeword", round_, attempt)), None)

    def settle(self, device: str) -> Amounts:
        """Return what this device sent and was sent since the last call."""
        with self._lock:
            return self._account(device).settle()

    def name(self, device: str) -> str:
        """Return what a device calls itself."""
        with self._lock:
            return self._names.get(device, "")

    def link(self, _: str) -> str:
        """Return the name of this link."""
        return "messages"

    def devices(self) -> tuple[str, ...]:
        """Return the devices that answer letters."""
        with self._lock:
            return tuple(box.device for box in self._boxes.values() if box.device)

    # ---- for whoever carries the letters

    def open(self, node: int, asked: bytes | None = None) -> None:
        """From now on this node is written to; with the nonce `asked` it was asked already who it is."""
        with self._lock:
            box = self._boxes.setdefault(node, _Box())
            if asked is not None:
                box.out = introduction(self._run, asked)

    def serves(self, node: int) -> bool:
        """Return whether this node is written to."""
        with self._lock:
            return node in self._boxes

    def gone(self, node: int) -> None:
        """This node is there no more."""
        with self._lock:
            if (box := self._boxes.pop(node, None)) is not None:
                self._lose(box)

    def letters(self) -> tuple[tuple[int, Letter, float], ...]:
        """Return (node, letter, its time to live) of every letter that should leave now."""
        now = self._around.clock()
        with self._lock:
            self.wanted.clear()
            due = [(node, box) for node, box in self._boxes.items() if box.out is None and now >= box.next]
            written = [(node, self._fitting(box, now)) for node, box in due]
            return tuple((node, letter, self._life_s(letter)) for node, letter in written if letter)

    def answered(self, node: int, answer: Callable[[Letter], Answer]) -> None:
        """A letter came back; `answer` reads it, and may raise a Refused."""
        with self._lock:
            box = self._boxes.get(node)
            letter = box.out if box else None
            if box is None or letter is None:
                return
            box.out = None
            try:
                self._hear(box, answer(letter))
            except Refused as error:
                self._refuse(box, error)
                self._failed(box)

    def failed(self, node: int, reason: str) -> None:
        """A letter will not be answered."""
        with self._lock:
            box = self._boxes.get(node)
            if box is not None and box.out is not None:
                who = self._names.get(box.device) or box.device or f"node {node}"
                self._around.log.warning("a message to %s failed: %s", who, for_people(reason))
                box.out = None
                self._failed(box)

    def waits(self) -> bool:
        """Return whether a letter is out, or is soon to leave."""
        with self._lock:
            return any(box.out is not None or box.left or box.letters for box in self._boxes.values())

    # ---- writing

    def _fitting(self, box: _Box, now: float) -> Letter | None:
        """Return what goes to a device now; where a line of it is too long, the device is lost."""
        try:
            return self._written(box, now)
        except BadMessage as error:
            self._refuse(box, error)
            box.out = None
            self._failed(box)
            return None

    def _written(self, box: _Box, now: float) -> Letter | None:
        nonce = self._around.entropy(NONCE_BYTES)
        if not box.device:
            box.owed, box.out = (), introduction(self._run, nonce)
            return box.out
        letters = tuple(box.letters)
        works = box.work is not None and (box.asks or (box.left and now >= box.again))
        if not works and not letters:
            return None
        box.letters = []
        if box.work is None:  # keys are asked for before there is any work
            box.out = Letter(self._run, nonce, 0.0, letters)
            self._count_sent(box, box.out)
            return box.out
        order, lease_s = ((), 0.0) if box.asks or not works else (box.left, self._lease_s(box, box.work))
        ahead = None if box.asks else box.work.coefficients
        work = replace(box.work, order=order, lease_s=lease_s, coefficients=ahead)
        box.owed, box.asks = tuple(box.asks), []
        commands = (work, *letters, *box.owed)
        box.out = Letter(self._run, nonce, lease_s, commands, self._lacking(box, work))
        self._count_sent(box, box.out)
        return box.out

    def _count_sent(self, box: _Box, letter: Letter) -> None:
        down = 0 if letter.model is None else letter.model[1].nbytes
        control = sum(len(wire.encode(command)) for command in letter.commands)
        self._account(box.device).add(Amounts(down_bytes=down, control_bytes=control))

    def _lacking(self, box: _Box, work: Work) -> tuple[int, Vector] | None:
        """Return the model that the work starts from, where the device's shelf has not got it."""
        if self._model is None or self._model[0] != work.version:
            return None
        version, vector, digest = self._model
        return None if box.shelf.get(version) == digest else (version, vector)

    def _lease_s(self, box: _Box, work: Work) -> float:
        if not box.pace_s:
            return min(work.lease_s, FIRST_LEASE_S)
        ways = 1 if work.kind == "local" else len(box.left)
        should_take_s = median(box.pace_s) * work.target * ways
        return min(work.lease_s, max(LEAST_LEASE_S, LEASE_RATIO * should_take_s))

    def _life_s(self, letter: Letter) -> float:
        vectors = (letter.model is not None) + sum(
            isinstance(each, Reveal | Repair) for each in letter.commands
        )
        return letter.lease_s + WAY_S + vectors * self._numbers * 4 / SLOWEST_BYTES_S

    # ---- reading

    def _hear(self, box: _Box, answer: Answer) -> None:
        now = self._around.clock()
        joined = next((line for line in answer.lines if isinstance(line, Joined)), None)
        if box.device and answer.device != box.device:
            raise NotAdmitted(f"answer: saw device {answer.device}, needed {box.device}, which was asked")
        if not box.device and joined is None:
            raise NotAdmitted(
                f"answer of {answer.device}: needed what it can load, as it was asked who it is"
            )
        box.pause_s = FIRST_PAUSE_S
        box.again = now + AGAIN_S
        box.shelf = {line.version: line.digest for line in answer.lines if isinstance(line, Shelved)}
        self._names[answer.device] = for_people(answer.name, LONGEST_NAME)
        came = Amounts(up_bytes=answer.up_bytes, control_bytes=answer.control_bytes)
        self._account(answer.device).add(came)
        if not box.device and joined is not None:
            self._around.audit("joined", answer.device, f"over messages, with key {answer.key.hex()}")
            self._admit(box, joined)
        else:
            self._came_along(box, answer)
        for line in answer.lines:
            if isinstance(line, Masking):
                self._emit(line)
            elif isinstance(line, Progress | Report | Failed):
                self._told(box, line)
        self._collect(box, answer)

    def _admit(self, box: _Box, joined: Joined) -> None:
        for other in self._boxes.values():
            if other is not box and other.device == joined.device:
                self._lose(other)
                other.next = self._around.clock() + LONGEST_PAUSE_S  # its node may be gone, or not be
        box.device = joined.device
        box.work, box.left, box.asks, box.expected, box.letters = None, (), [], {}, []
        self._emit(replace(joined, live=False))

    def _told(self, box: _Box, line: Progress | Report | Failed) -> None:
        """Pass on what belongs to the round under way; what a closed round left undone hurts nobody."""
        steps = 0 if isinstance(line, Failed) else line.steps if isinstance(line, Report) else line.reached
        if not isinstance(line, Failed) and steps:
            box.pace_s.append(line.seconds / steps)
        if isinstance(line, Failed) and line.round == box.keyed and not box.left:
            self._emit(line)
            return
        if box.work is None or line.round != box.work.round:
            return
        done = _done(box, line)
        box.left = tuple(chunk for chunk in box.left if chunk not in done)
        self._emit(line)

    def _came_along(self, box: _Box, answer: Answer) -> None:
        """Take the codeword that was mixed ahead, before the reports that may end the round."""
        work = box.work
        if work is None or work.coefficients is None:
            return
        stream = StreamId("codeword", work.round)
        offer = next(
            (each for each in answer.lines if isinstance(each, Offer) and each.stream == stream), None
        )
        if offer is None:
            return
        _asks_no_more_ahead(box)
        asked = Reveal(box.device, work.round, 0, "coded", work.coefficients, work.wire)
        box.expected[stream] = form_asked(self._numbers, asked)
        try:
            self._receive(box, answer, offer, stream, ahead=True)
        except BadVector as error:  # as if it had not come: it is asked for, if it is wanted
            box.expected.pop(stream, None)
            self._refuse(box, error)

    def _collect(self, box: _Box, answer: Answer) -> None:
        """Take the codewords that were asked for; one that did not come is said to have failed."""
        offers = {line.stream: line for line in answer.lines if isinstance(line, Offer)}
        failed = {line.round for line in answer.lines if isinstance(line, Failed) and not line.chunks}
        without = {line.round for line in answer.lines if isinstance(line, Report) and not line.steps}
        for ask in box.owed:
            stream = StreamId("codeword", ask.round, ask.attempt)
            if stream not in box.expected or ask.round in without:
                continue  # its round is closed, or there is nothing to send
            try:
                self._receive(box, answer, offers.get(stream), stream)
            except BadVector as error:
                self._refuse(box, error)
                if ask.round not in failed:
                    reason = str(error)[:LONGEST_REASON]
                    self._emit(Failed(self._around.clock(), box.device, ask.round, reason))
        box.owed = ()

    def _receive(
        self, box: _Box, answer: Answer, offer: Offer | None, stream: StreamId, *, ahead: bool = False
    ) -> None:
        array = answer.codewords.get(stream)
        if offer is None or array is None:
            raise BadVector(f"{stream}: it was asked for, and did not come")
        vector = codeword(offer, array, box.expected.pop(stream))
        self._ready[box.device, stream] = vector
        now = self._around.clock()
        self._emit(Codeword(now, box.device, stream.number, stream.attempt, 0.0, offer.size, ahead))

    # ---- what goes wrong

    def _refuse(self, box: _Box, error: Refused) -> None:
        self.refusals.count(error, box.device)
        if box.device:
            self._account(box.device).add(Amounts(refused=1))

    def _failed(self, box: _Box) -> None:
        self._lose(box)
        box.next = self._around.clock() + box.pause_s
        box.pause_s = min(2 * box.pause_s, LONGEST_PAUSE_S)

    def _lose(self, box: _Box) -> None:
        device, box.device = box.device, ""
        box.left, box.asks, box.owed, box.expected, box.letters = (), [], (), {}, []
        if device:
            self._emit(Lost(self._around.clock(), device))

    def _account(self, device: str) -> Accounts:
        return self._accounts.setdefault(device, Accounts())


def _asks_no_more_ahead(box: _Box) -> None:
    """A codeword that comes unasked from now on is not the one that was foreseen."""
    if box.work is not None:
        box.work = replace(box.work, coefficients=None)


def _done(box: _Box, line: Progress | Report | Failed) -> frozenset[int]:
    """Return what this says that need not be asked for again."""
    if isinstance(line, Progress):
        return frozenset({line.chunk})
    if isinstance(line, Report):
        reached = box.work is not None and line.steps >= box.work.target
        return frozenset(box.left if reached else ())
    return frozenset(line.chunks or box.left)
