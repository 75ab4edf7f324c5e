"""Which institutions are there, and the epoch of one-time keys that stands among them.

    IDLE       no epoch, or none with an exchange left
    OPENING    Open went out: adverts come in, from everybody or until the time is over
    SHARING    Roster went out: deals come in
    STANDING   exchanges are drawn from the epoch, one for each that is begun

A set-up that ends with fewer than a quorum leaves no epoch, and says why. Who was away joins the next one.
Whoever enrols signs with a member's pinned key, for this run and the device that it speaks over. Nothing that
another says is believed, waited for or told to anybody: nobody who is no member can delay a set-up.

Epochs only ever go up, on every institution's side; the next one is after the last that any of them has
seen. One that claims a number far beyond the others is not believed, for they would refuse to follow.

A model of which shares were asked for is spent: institutions mask no second update of it (`secagg.client`). A
run goes on where the sum is had, since that makes another model; else it ends.

May import: secagg, messages, errors.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from fedgc.errors import NotAdmitted, NotRecoverable, Refused
from fedgc.messages import (
    LONGEST_REASON,
    Advert,
    Begin,
    Command,
    Deal,
    Enrolled,
    Event,
    Failed,
    Lost,
    Open,
    Published,
    Refuse,
    Roster,
    Tick,
)
from fedgc.secagg import Epoch, Exchange, Federation, SetUp, Terms, letters, rules
from fedgc.secagg.client import LONGEST_LEAP


class Phase(Enum):
    """Where the keys stand."""

    IDLE = "idle"
    OPENING = "opening"
    SHARING = "sharing"
    STANDING = "standing"


@dataclass(frozen=True, slots=True)
class Drawn:
    """One exchange of the epoch: who is in it, as which member, and what each is told."""

    exchange: Exchange
    member: Mapping[str, int]
    letter: Mapping[str, bytes]

    def begin(self, device: str, round_: int) -> tuple[Begin, ...]:
        """Return what tells a device of the exchange, if it is in it."""
        return (Begin(device, round_, self.letter[device]),) if device in self.letter else ()


class Keying:
    """The institutions of one federation, as the server sees them."""

    def __init__(
        self, federation: Federation, terms: Terms, patience_s: float, wall_s: float, run: str = ""
    ) -> None:
        """`terms` are those of every exchange, but for the model and where its steps stand.

        `patience_s` is how long each half of a set-up may take. `wall_s` added to an event's time gives
        seconds since 1970: institutions' clocks are held against it. `run` is the name that institutions
        were told.
        """
        self.federation: Final = federation
        self.phase = Phase.IDLE
        self.next_tick = math.inf
        self.reason = ""  # why the last set-up left no epoch
        self._terms = terms
        self._run = run
        self._spent: set[bytes] = set()  # digests of models of which shares were asked for
        self._model: Published | None = None
        self._before: Published | None = None  # the version before it, if that was published here
        self._drawn: Drawn | None = None
        self._patience_s = patience_s
        self._wall_s = wall_s
        self._enrolled: dict[str, int] = {}  # device -> the last epoch that it told of
        self._asked: set[str] = set()  # when this epoch was opened, and there since
        self._waiting: set[str] = set()  # who still owes an advert, or a deal
        self._last = 0  # the newest epoch that was opened here
        self._round = 0
        self._setup: SetUp | None = None
        self._roster = b""
        self._epoch: Epoch | None = None
        self._exchange = 0
        self._device: dict[int, str] = {}  # member -> the device that proved to be it

    def noted(self, event: Event) -> tuple[Command, ...]:
        """Take in whatever concerns the keys."""
        match event:
            case Published():
                self._published(event)
            case Enrolled():
                return self.enrol(event)
            case Advert() | Deal():
                return self.heard(event)
            case Lost():
                return self.left(event.device, event.now)
            case Failed() if self.busy:
                return self.failed(event)
            case Tick() if self.busy:
                return self.time_passed(event.now)
        return ()

    @property
    def busy(self) -> bool:
        """Whether a set-up is under way."""
        return self.phase in (Phase.OPENING, Phase.SHARING)

    # ---- who is there

    @property
    def enrolled(self) -> Collection[str]:
        """The devices of institutions that hold the descriptor."""
        return self._enrolled.keys()

    def enrol(self, event: Enrolled) -> tuple[Command, ...]:
        """Take an institution in; one with another descriptor, or who is no member, is told so."""
        try:
            self._check_enrolled(event)
        except NotAdmitted as error:
            return _refused(event.device, self._round, str(error))
        self._enrolled[event.device] = event.epoch
        if self.phase is Phase.OPENING and self._setup is not None:
            self._waiting.add(event.device)
            self._asked.add(event.device)
            return (self._open(event.device, self._setup),)
        if self.phase is Phase.SHARING and event.device in self._waiting:
            return (Roster(event.device, self._round, self._roster),)
        return ()

    def _check_enrolled(self, event: Enrolled) -> None:
        fid = self.federation.fid
        if event.descriptor != fid:
            raise NotAdmitted(
                f"saw descriptor {event.descriptor.hex()[:16]}, needed {fid.hex()[:16]}: compare the files"
            )
        said = rules.enrolment(fid, self._run, event.device, event.member, event.epoch)
        rules.check_enrolment(self.federation, said, event.member, event.signature)

    def left(self, device: str, now: float) -> tuple[Command, ...]:
        """Wait for this institution no more; it may come back."""
        self._enrolled.pop(device, None)
        self._asked -= {device} - set(self._device.values())
        return self._without(device, now)

    def failed(self, event: Failed) -> tuple[Command, ...]:
        """An institution could not do its part of the set-up."""
        if event.device in self._waiting:
            self.reason = f"{event.device}: {event.reason}"
        return self._without(event.device, event.now)

    def _without(self, device: str, now: float) -> tuple[Command, ...]:
        if device not in self._waiting:
            return ()
        self._waiting.discard(device)
        return self._go_on(now)

    # ---- an epoch

    @property
    def members(self) -> Collection[str]:
        """The devices that are in the epoch, wherever they are now."""
        return self._device.values() if self.phase is Phase.STANDING else ()

    @property
    def newcomers(self) -> Collection[str]:
        """Who is there and was not asked for keys when this epoch was opened."""
        return self._enrolled.keys() - self._asked

    def stands_for(self, devices: Collection[str]) -> bool:
        """Whether an exchange can be drawn among those of these devices that are in the epoch."""
        able = set(devices) & set(self.members)
        return len(able) >= self.federation.quorum and self._exchange < self.federation.exchanges

    def open(self, now: float, round_: int) -> tuple[Command, ...]:
        """Begin a set-up among all who are there."""
        told = self._enrolled.values()
        self._last = 1 + max([self._last, *(each for each in told if each < min(told) + LONGEST_LEAP)])
        self._setup, self._epoch, self._round = SetUp(self.federation, self._last), None, round_
        self._device, self._exchange, self._drawn, self.reason = {}, 0, None, ""
        self._asked = set(self._enrolled)
        self._enter(Phase.OPENING, now, self._enrolled)
        return tuple(self._open(device, self._setup) for device in sorted(self._enrolled))

    def heard(self, event: Advert | Deal) -> tuple[Command, ...]:
        """Take in a letter of the set-up."""
        wanted = {Phase.OPENING: Advert, Phase.SHARING: Deal}.get(self.phase)
        if self._setup is None or wanted is None or not isinstance(event, wanted):
            return _refused(event.device, event.round, f"saw a letter while the keys are {self.phase.value}")
        try:
            self._setup = self._taken(self._setup, event)
        except Refused as error:
            self.reason = str(error)
            return (*_refused(event.device, event.round, str(error)), *self._without(event.device, event.now))
        self._waiting.discard(event.device)
        return self._go_on(event.now)

    def time_passed(self, now: float) -> tuple[Command, ...]:
        """Go on with those who have answered, once the time is over."""
        if now < self.next_tick:
            return ()
        self._waiting.clear()
        return self._go_on(now)

    def _taken(self, setup: SetUp, event: Advert | Deal) -> SetUp:
        if isinstance(event, Deal):
            deal = letters.Deal.unpack(event.letter)
            self._check_member(deal.member, event.device)
            return setup.receive(deal)
        advert = letters.Advert.unpack(event.letter)
        after = setup.admit(advert, event.now + self._wall_s)
        self._check_member(advert.member, event.device)
        self._device[advert.member] = event.device
        return after

    def _check_member(self, member: int, device: str) -> None:
        """Hold a device to the member that it proved to be."""
        known = {held: at for at, held in self._device.items()}.get(device, member)
        if known != member or self._device.get(member, device) != device:
            who = self.federation.name(member)
            raise NotAdmitted(f"{who}: saw it at {device}, needed one device for each institution")

    def _go_on(self, now: float) -> tuple[Command, ...]:
        if self._waiting or self._setup is None:
            return ()
        try:
            if self.phase is Phase.OPENING:
                return self._share(self._setup, now)
            self._epoch = self._setup.close()
        except NotRecoverable as error:
            self.reason = f"{error}; {self.reason}".rstrip("; ")
            self._enter(Phase.IDLE, now, ())
            return ()
        self._device = {member: self._device[member] for member in self._epoch.members}
        self._enter(Phase.STANDING, now, ())
        return ()

    def _share(self, setup: SetUp, now: float) -> tuple[Command, ...]:
        self._setup, roster = setup.roster()
        self._roster = roster.pack()
        devices = [self._device[advert.member] for advert in roster.adverts]
        self._enter(Phase.SHARING, now, devices)
        return tuple(Roster(device, self._round, self._roster) for device in devices)

    def _enter(self, phase: Phase, now: float, waiting: Collection[str]) -> None:
        self.phase, self._waiting = phase, set(waiting)
        self.next_tick = now + self._patience_s if waiting else math.inf

    def _open(self, device: str, setup: SetUp) -> Open:
        return Open(device, self._round, setup.letter().pack())

    # ---- exchanges

    def _published(self, event: Published) -> None:
        if self._model is None or self._model.version != event.version:
            follows = self._model is not None and self._model.version == event.version - 1
            self._before = self._model if follows else None
        self._model = event

    def knows(self, version: int) -> bool:
        """Whether this version of the model is known, to which the next exchange is bound."""
        return self._model is not None and self._model.version == version

    @property
    def knows_before(self) -> bool:
        """Whether the version before it is known as well, by which shared momentum leads."""
        return self._before is not None

    def draw(
        self, devices: Collection[str], steps: tuple[int, float] = (0, 0.0), *, again: bool = False
    ) -> Drawn:
        """Begin the next exchange, among these devices as far as they are in the epoch.

        `steps` are the two of `Work` that all must have in common: the first, and those that lead. `again`
        goes on with the exchange before, which a skipped round has left unused.
        """
        if again and self._drawn is not None:
            return self._drawn
        if self._epoch is None or self._model is None:
            raise NotRecoverable("exchange: saw no keys or no model, needed a set-up")
        member = {device: at for at, device in self._device.items() if device in devices}
        first_step, common_steps = steps
        before = self._before.digest if common_steps and self._before is not None else b""
        settings = rules.footing(self._terms.settings, first_step, common_steps, before)
        terms = replace(self._terms, model=self._model.digest, settings=settings)
        exchange, told = self._epoch.begin(self._exchange + 1, list(member.values()), terms)
        self._exchange += 1
        letter = {device: told[at].pack() for device, at in member.items()}
        self._drawn = Drawn(exchange, member, letter)
        return self._drawn

    def unmasks(self) -> None:
        """Shares are asked for: from here on no institution may mask the present model again."""
        if self._model is not None:
            self._spent.add(self._model.digest)

    @property
    def is_spent(self) -> bool:
        """Whether shares were asked for of the present model."""
        return self._model is not None and self._model.digest in self._spent

    def supplied(self, device: str) -> None:
        """A device's vector came: it has what the others dealt to it."""
        for member, known in self._device.items():
            if known == device and self._epoch is not None:
                self._epoch = self._epoch.supply(member)


def _refused(device: str, round_: int, reason: str) -> tuple[Command, ...]:
    return (Refuse(device, round_, reason[:LONGEST_REASON]),)
