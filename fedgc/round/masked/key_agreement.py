"""The key agreement of a masked run: enrolled sites, and their epoch of one-time keys.

    IDLE       no epoch, or none with an exchange left
    OPENING    Open was sent: adverts come in, from all sites or until the time is over
    SHARING    Roster was sent: deals come in
    STANDING   exchanges are drawn from the epoch, one for each that is begun

A set-up that ends with fewer than a quorum leaves no epoch, and states why. An absent site joins the next
one, which its return begins, unless it has missed several (`MissedSetUps`). A site that enrols signs with
its pinned key, for this run and this client. Messages of others are not believed, awaited or passed on: a
client that is no member cannot delay a set-up.

Epochs only increase, for every site; the next one is after the last that any of them has seen. A claimed
epoch far beyond the others is not believed, since the others would refuse to follow.

With shared momentum, a step needs the model before as well: `having_before` names the clients that have it.

A model whose shares were requested is spent: sites mask no second update of it (`secagg.client`). If the sum
is recovered the run goes on with the new model; else it ends.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

from fedgc.errors import NotAdmitted, NotRecoverable, Refused, printable
from fedgc.messages import (
    LONGEST_REASON,
    Add,
    Advert,
    Begin,
    Command,
    Deal,
    Enrolled,
    Event,
    Failed,
    Joined,
    Lost,
    Open,
    Published,
    Refuse,
    Roster,
    Tick,
    Unmask,
    Work,
)
from fedgc.secagg import Epoch, Exchange, Federation, SetUp, Terms, packets, rules
from fedgc.secagg.client import LONGEST_LEAP

FIRST_PAUSE_S: Final = 120.0  # of a member that has missed two set-ups
LONGEST_PAUSE_S: Final = 3600.0


@dataclass(slots=True)
class GivenModels:
    """The versions that were sent to each client: the last one, and the one before if it was sent too.

    >>> given = GivenModels()
    >>> [given.sent("north", version) for version in (1, 2)], given.sent("south", 2)
    ([None, None], None)
    >>> given.having(1, ["north", "south"])
    ['north']
    """

    versions: dict[str, Collection[int]] = field(default_factory=dict)

    def sent(self, client: str, version: int) -> None:
        """Note a model that is sent to a client."""
        older = self.versions.get(client, ())
        self.versions[client] = {version, *(each for each in older if each >= version - 1)}

    def lost(self, client: str) -> None:
        """Forget what a client had."""
        self.versions.pop(client, None)

    def having(self, version: int, clients: Iterable[str]) -> list[str]:
        """Return the clients that were sent this version."""
        return [client for client in clients if version in self.versions.get(client, ())]


@dataclass(slots=True)
class MissedSetUps:
    """The set-ups in a row that each member has missed; after two it pauses, each time twice as long.

    A set-up waits for each member that it asks, and takes what is left of the epoch before. So a member that
    joins again in each round and never answers, or whose client ends at each `Open`, would delay every round.

    >>> missed = MissedSetUps()
    >>> for now in (60.0, 180.0):
    ...     missed.ended({0, 1, 2}, {0, 1}, now)
    ...     print(missed.pauses(2, now + 1.0), missed.pauses(2, now + 121.0), missed.pauses(0, now))
    False False False
    True False False
    """

    _missed: dict[int, tuple[int, float]] = field(default_factory=dict)  # how many, and when the pause ends

    def ended(self, asked: Collection[int], came: Collection[int], now: float) -> None:
        """Note a set-up: the members that were asked, and those that have keys now."""
        for member in asked:
            count = 0 if member in came else self._missed.get(member, (0, 0.0))[0] + 1
            pause_s = min(FIRST_PAUSE_S * 2.0 ** min(count - 2, 10), LONGEST_PAUSE_S) if count > 1 else 0.0
            self._missed[member] = count, now + pause_s

    def pauses(self, member: int, now: float) -> bool:
        """Whether this member begins no set-up by coming back; one that begins otherwise asks it too."""
        return now < self._missed.get(member, (0, now))[1]


class Phase(Enum):
    """The state of the keys."""

    IDLE = "idle"
    OPENING = "opening"
    SHARING = "sharing"
    STANDING = "standing"


@dataclass(frozen=True, slots=True)
class MaskedExchange:
    """One exchange of the epoch: its sites, their member numbers, and what each receives."""

    exchange: Exchange
    member: Mapping[str, int]
    packet: Mapping[str, bytes]

    def begin(self, client: str, round_: int) -> tuple[Begin, ...]:
        """Return the command that begins the exchange for a client, if it is a member."""
        return (Begin(client, round_, self.packet[client]),) if client in self.packet else ()


class KeyAgreement:
    """The sites of one federation, as the server sees them."""

    def __init__(
        self,
        federation: Federation,
        terms: Terms,
        patience_s: float,
        wall: Callable[[], float],
        run: str = "",
    ) -> None:
        """`terms` are those of every exchange, except for the model and its steps.

        `patience_s` is how long each half of a set-up may take. `wall` gives seconds since 1970, with which
        sites' clocks are compared; the clock of events stops while the machine is suspended. `run` is the
        run's name, as sites know it.
        """
        self.federation: Final = federation
        self.phase = Phase.IDLE
        self.next_tick = math.inf
        self.reason = ""  # why the last set-up left no epoch
        self._terms = terms
        self._run = run
        self._spent: set[bytes] = set()  # digests of models whose shares were requested
        self._model: Published | None = None
        self._before: Published | None = None  # the version before, if it was published here
        self._given = GivenModels()
        self._exchange_drawn: MaskedExchange | None = None
        self._patience_s = patience_s
        self._wall = wall
        self._enrolled: dict[str, int] = {}  # client -> the last epoch it reported
        self._number: dict[str, int] = {}  # the member that each client has proved to be
        self._asked: set[str] = set()  # when this epoch was opened, and present since
        self._called: set[int] = set()  # the members that were asked, present or not
        self._missed = MissedSetUps()
        self._waiting: set[str] = set()  # clients whose advert or deal is awaited
        self._last = 0  # the newest epoch opened here
        self._round = 0
        self._setup: SetUp | None = None
        self._roster = b""
        self._epoch: Epoch | None = None
        self._exchange = 0
        self._client: dict[int, str] = {}  # member -> the client that proved to be it

    def noted(self, event: Event) -> tuple[Command, ...]:
        """Handle an event that concerns the keys."""
        match event:
            case Published():
                self._published(event)
            case Enrolled():
                return self.enrol(event)
            case Advert() | Deal():
                return self.heard(event)
            case Joined():
                self._given.lost(event.client)
            case Lost():
                self._given.lost(event.client)
                return self.left(event.client, event.now)
            case Failed() if self.busy:
                return self.failed(event)
            case Tick() if self.busy:
                return self.time_passed(event.now)
        return ()

    def told(self, commands: Iterable[Command]) -> None:
        """Note the model that each client gets, the vectors that came, and that shares are requested."""
        for command in commands:
            match command:
                case Work():
                    self._given.sent(command.client, command.version)
                case Add():
                    self.supplied(command.client)
                case Unmask():
                    self.unmasks()

    @property
    def busy(self) -> bool:
        """Whether a set-up is under way."""
        return self.phase in (Phase.OPENING, Phase.SHARING)

    # ---- sites

    @property
    def enrolled(self) -> Collection[str]:
        """The clients of sites that hold the descriptor."""
        return self._enrolled.keys()

    def enrol(self, event: Enrolled) -> tuple[Command, ...]:
        """Enrol a site; refuse one with another descriptor, or that is no member."""
        try:
            self._check_enrolled(event)
        except NotAdmitted as error:
            return _refused(event.client, self._round, printable(error))
        self._enrolled[event.client], self._number[event.client] = event.epoch, event.member
        if self.phase is Phase.OPENING and self._setup is not None:
            self._waiting.add(event.client)
            self._asked.add(event.client)
            self._called.add(event.member)
            return (self._open(event.client, self._setup),)
        if self.phase is Phase.SHARING and event.client in self._waiting:
            return (Roster(event.client, self._round, self._roster),)
        return ()

    def _check_enrolled(self, event: Enrolled) -> None:
        fid = self.federation.fid
        if event.descriptor != fid:
            self._enrolled.pop(event.client, None)  # by a process that the client had before
            raise NotAdmitted(
                f"saw descriptor {event.descriptor.hex()[:16]}, needed {fid.hex()[:16]}: compare the files"
            )
        statement = rules.enrolment(fid, self._run, event.client, event.member, event.epoch)
        rules.check_enrolment(self.federation, statement, event.member, event.signature)

    def left(self, client: str, now: float) -> tuple[Command, ...]:
        """Stop waiting for this site; it may come back."""
        self._enrolled.pop(client, None)
        self._asked -= {client} - set(self._client.values())
        return self._without(client, now)

    def failed(self, event: Failed) -> tuple[Command, ...]:
        """Handle a site that could not do its part of the set-up."""
        if event.client not in self._waiting or event.round != self._round:  # work of a round before
            return ()
        self.reason = f"{event.client}: {event.reason}"
        return self._without(event.client, event.now)

    def _without(self, client: str, now: float) -> tuple[Command, ...]:
        if client not in self._waiting:
            return ()
        self._waiting.discard(client)
        return self._go_on(now)

    # ---- an epoch

    @property
    def members(self) -> Collection[str]:
        """The clients in the epoch, present or not."""
        return self._client.values() if self.phase is Phase.STANDING else ()

    def newcomers(self, now: float) -> Collection[str]:
        """Return the present sites that are to be asked for keys, and were not when this epoch was opened."""
        new = self._enrolled.keys() - self._asked
        return {client for client in new if not self._missed.pauses(self._number[client], now)}

    def stands_for(self, clients: Collection[str]) -> bool:
        """Whether an exchange can be drawn among those of these clients that are in the epoch."""
        able = {member for member, client in self._client.items() if client in clients}
        return (
            self._epoch is not None
            and self._exchange < self.federation.exchanges
            and self._epoch.can_begin(able)
        )

    def open(self, now: float, round_: int) -> tuple[Command, ...]:
        """Begin a set-up among all present sites."""
        epochs = self._enrolled.values()
        self._last = 1 + max([self._last, *(each for each in epochs if each < min(epochs) + LONGEST_LEAP)])
        self._setup, self._epoch, self._round = SetUp(self.federation, self._last), None, round_
        self._client, self._exchange, self._exchange_drawn, self.reason = {}, 0, None, ""
        self._asked = set(self._enrolled)
        self._called = {self._number[client] for client in self._enrolled}
        self._enter(Phase.OPENING, now, self._enrolled)
        return tuple(self._open(client, self._setup) for client in sorted(self._enrolled))

    def heard(self, event: Advert | Deal) -> tuple[Command, ...]:
        """Handle a packet of the set-up."""
        wanted = {Phase.OPENING: Advert, Phase.SHARING: Deal}.get(self.phase)
        if self._setup is None or wanted is None or not isinstance(event, wanted):
            return _refused(event.client, event.round, f"saw a packet while the keys are {self.phase.value}")
        try:
            packet = (packets.Advert if wanted is Advert else packets.Deal).unpack(event.packet)
            if packet.epoch < self._setup.epoch:  # a slow site's; its answer in this epoch is still awaited
                late = f"saw a packet of epoch {packet.epoch}, needed one of {self._setup.epoch}"
                return _refused(event.client, event.round, late)
            self._setup = self._taken(self._setup, packet, event.client)
        except Refused as error:
            self.reason = printable(error)
            return (
                *_refused(event.client, event.round, self.reason),
                *self._without(event.client, event.now),
            )
        self._waiting.discard(event.client)
        return self._go_on(event.now)

    def time_passed(self, now: float) -> tuple[Command, ...]:
        """Continue with the sites that have answered, once the time is over."""
        if now < self.next_tick:
            return ()
        self._waiting.clear()
        return self._go_on(now)

    def _taken(self, setup: SetUp, packet: packets.Advert | packets.Deal, client: str) -> SetUp:
        if isinstance(packet, packets.Deal):
            self._check_member(packet.member, client)
            return setup.receive(packet)
        after = setup.admit(packet, self._wall())
        self._check_member(packet.member, client)
        self._client[packet.member] = client
        return after

    def _check_member(self, member: int, client: str) -> None:
        """Check that a client is the member that it proved to be."""
        if self._number.get(client) != member or self._client.get(member, client) != client:
            who = self.federation.name(member)
            raise NotAdmitted(f"{who}: saw it at {client}, needed one client for each site")

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
        self._client = {member: self._client[member] for member in self._epoch.members}
        self._missed.ended(self._called, self._epoch.members, now)
        self._enter(Phase.STANDING, now, ())
        return ()

    def _share(self, setup: SetUp, now: float) -> tuple[Command, ...]:
        self._setup, roster = setup.roster()
        self._roster = roster.pack()
        clients = [self._client[advert.member] for advert in roster.adverts]
        self._enter(Phase.SHARING, now, clients)
        return tuple(Roster(client, self._round, self._roster) for client in clients)

    def _enter(self, phase: Phase, now: float, waiting: Collection[str]) -> None:
        self.phase, self._waiting = phase, set(waiting)
        self.next_tick = now + self._patience_s if waiting else math.inf

    def _open(self, client: str, setup: SetUp) -> Open:
        return Open(client, self._round, setup.packet().pack())

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
        """Whether the version before is known as well, for shared momentum."""
        return self._before is not None

    def having_before(self, clients: Collection[str]) -> Collection[str]:
        """Return those of these clients that were given the version before; none if they are too few."""
        if self._model is None or not self.knows_before:
            return ()
        led = self._given.having(self._model.version - 1, clients)
        return led if self.stands_for(led) else ()

    def draw(
        self, clients: Collection[str], steps: tuple[int, float] = (0, 0.0), *, again: bool = False
    ) -> MaskedExchange:
        """Begin the next exchange, among these clients as far as they are in the epoch.

        `steps` are `first_step` and `common_steps` of `Work`, which all members must share. `again` continues
        the exchange before, which a skipped round has left unused.
        """
        if again and self._exchange_drawn is not None:
            return self._exchange_drawn
        if self._epoch is None or self._model is None:
            raise NotRecoverable("exchange: saw no keys or no model, needed a set-up")
        member = {client: at for at, client in self._client.items() if client in clients}
        first_step, common_steps = steps
        before = self._before.digest if common_steps and self._before is not None else b""
        settings = rules.footing(self._terms.settings, first_step, common_steps, before)
        terms = replace(self._terms, model=self._model.digest, settings=settings)
        exchange, begun = self._epoch.begin(self._exchange + 1, list(member.values()), terms)
        self._exchange += 1
        packet = {client: begun[at].pack() for client, at in member.items()}
        self._exchange_drawn = MaskedExchange(exchange, member, packet)
        return self._exchange_drawn

    def unmasks(self) -> None:
        """Note that shares are requested: from now on no site may mask the present model again."""
        if self._model is not None:
            self._spent.add(self._model.digest)

    @property
    def is_spent(self) -> bool:
        """Whether shares of the present model were requested."""
        return self._model is not None and self._model.digest in self._spent

    def supplied(self, client: str) -> None:
        """Note that a client's vector came: it has what the others dealt to it."""
        for member, known in self._client.items():
            if known == client and self._epoch is not None:
                self._epoch = self._epoch.supply(member)


def _refused(client: str, round_: int, reason: str) -> tuple[Command, ...]:
    return (Refuse(client, round_, reason[:LONGEST_REASON]),)
