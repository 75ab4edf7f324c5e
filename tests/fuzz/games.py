"""Games: whole runs of honest clients among hostile ones, each of one seed.

The honest clients are those of `tests.whole_run` (reference clients with real updates) and, in masked runs,
the sites of `tests.masked_fleet`. Their servers check the sums; the games add that nothing is added twice and
that the run ends by itself.
"""

import random
from collections.abc import Iterator, Sequence
from logging import getLogger
from typing import Any

import numpy as np

from fedgc.config import RunConfig
from fedgc.errors import NotRecoverable
from fedgc.flower.sink import Sink
from fedgc.flower.validation import Validation
from fedgc.messages import (
    UNREAD,
    Add,
    Announced,
    Held,
    Joined,
    LinkEvent,
    Lost,
    ModelEvent,
    Repair,
    Reveal,
    Scored,
    Tick,
    Uncover,
)
from fedgc.round.machine import Round
from fedgc.run.initialization import Initialization
from fedgc.run.machine import Append, Apply
from tests.config_of import config_of
from tests.fuzz.events import HostileEvents
from tests.masked_fleet import SIZE, Fleet
from tests.party import Party
from tests.whole_run import Client, Content, Sending, Server

LIARS = ("liar", "other liar")
STRANGER = "nobody"  # never joins
HOSTILE_EVENTS = 400  # of a game, at most
LONGEST = 20_000  # turns of a game: far more than its rounds can need


class Guarded(Server):
    """The server of a whole run, with the checks of a game."""

    def __init__(self, config: RunConfig) -> None:
        self.events = 0
        self.added: set[tuple[str, int, int]] = set()
        self.asked: dict[tuple[str, int, int], Reveal | Repair] = {}
        self.unsound = False  # a liar's vector in this sum is not of what it claimed: no sum can be right
        self.validation = Validation(config, Sink(), getLogger("fuzz"))
        self.validation.begin(0, 0, None)
        self.initialization = Initialization()
        super().__init__(config)

    def say(self, event: LinkEvent) -> None:
        self.events += 1
        if isinstance(event, Scored):
            self.validation.scored(event, event.client, tuple(self.clients))
        elif isinstance(event, Announced):
            self.initialization.handle(event)
        else:
            self.initialization.handle(event)
            super().say(event)

    def _send(self, command: object) -> None:
        if isinstance(command, Reveal | Repair):
            self.asked[command.client, command.round, command.attempt] = command
        super()._send(command)

    def _add(self, add: Add) -> None:
        key = (add.client, add.round, add.attempt)
        assert key not in self.added, f"{add}: it was added before"
        self.added.add(key)
        client = self.clients[add.client]
        if key not in self.here:
            assert not client.honest, f"{add}: no such vector was sent"
            self.here[key] = Sending(add.round, add.attempt, self.asked[key], self._invented(client, key))
        super()._add(add)

    def _invented(self, client: Client, key: tuple[str, int, int]) -> np.ndarray:
        """A vector that a liar sends: as true as what it claims to hold, or any numbers."""
        request = self.asked[key]
        self.unsound = True
        blocks = 1 if request.mix is None else request.mix.blocks
        return np.full(-(-5 // blocks), 1e30)

    def _check_sum(self, apply: Apply, over: Round) -> None:
        if not self.unsound:
            super()._check_sum(apply, over)

    def _apply(self, apply: Apply, over: Round | None) -> None:
        super()._apply(apply, over)
        self.validation.made(apply.version, apply.round, None)

    def _append(self, row: Any) -> None:
        super()._append(row)
        self.unsound = False
        self.asked = {key: each for key, each in self.asked.items() if key[1] > row.round}


def settings_of(chance: random.Random) -> dict[str, object]:
    """Return the settings of a game."""
    # One client must do: a chunk of one client alone is left out where most clients share their data.
    common: dict[str, object] = {"rounds": chance.randint(2, 8), "min_clients": 1}
    kind = chance.choice(("local", "private", "coded", "auto"))
    if kind == "local":
        common |= {"work": "local", "local_steps": 4, "quorum": chance.choice((0.5, 1.0))}
        common |= {"lockstep": chance.choice(("on", "off"))}
    elif kind == "coded":
        common |= {"replicas": chance.choice((2, 3)), "blocks": chance.choice((1, 2))}
    elif kind == "private":
        common |= {"replicas": 1, "blocks": 1}
    if chance.random() < 0.6:
        other = "relative-change" if kind == "local" else "loss-change"
        common |= {"gate": chance.choice(("every", "drift", other, "qsr"))}
    if kind == "local" and chance.random() < 0.4:
        common |= {"gate": "every", "late_updates": "count", "groups": chance.choice(("off", "speed"))}
    if chance.random() < 0.3:
        common |= {"deadline_s": 30.0, "late_s": 0.5}
    return common


def contents_of(chance: random.Random, name: str) -> list[Content]:
    """Return the chunks of one client: private, shared or both."""
    own = [Content(f"{name} {at}", 7 + at, f"{name}'s {at}") for at in range(chance.choice((0, 1, 2)))]
    shared = [Content(f"shared {at}", 10 + at, f"shared {at}", shared=True) for at in range(4)]
    few = chance.sample(shared, chance.choice((0, 2, 4)))
    return own + few or shared


class Game:
    """Honest and hostile clients on one server."""

    def __init__(self, seed: int, **settings: object) -> None:
        self.chance = random.Random(seed)  # noqa: S311  a seed makes a game again
        self.numbers = np.random.default_rng(seed)
        table = {**settings_of(self.chance), **settings}
        self.server = Guarded(config_of({"work": "coded", "largest_share": 1.0, **table}))
        names = "abcd"[: self.chance.randint(max(2, self.server.config.min_clients), 4)]
        self.honest = [Client(name, contents_of(self.chance, name), step_s=0.1) for name in names]
        self.liars = [Client(name, contents_of(self.chance, name), step_s=0.1) for name in LIARS]
        for liar in self.liars:
            liar.honest = False
        self.own = {each.name: {content.what for content in each.contents.values()} for each in self.liars}
        self.true = {each.held(): each for client in self.everybody for each in client.contents.values()}
        self.hostile = HostileEvents(self.chance, lambda: tuple(self.true))
        self.steady = self.chance.random() < 0.5  # honest clients stay, and are in time

    @property
    def everybody(self) -> Sequence[Client]:
        return [*self.honest, *self.liars]

    def play(self, hostile_events: int = HOSTILE_EVENTS) -> int:
        """Play until the run is over; return the number of events."""
        self.begin()
        turns = 0
        while not self.server.finished:
            turns += 1
            assert turns < LONGEST, "the run does not end"
            self.turn(lies=turns < 2 * hostile_events)
        if self.steady:
            self._check_end()
        return self.server.events

    def begin(self) -> None:
        """Let the honest clients join."""
        for client in self.honest:
            self.server.join(client)

    def turn(self, *, lies: bool = True) -> None:
        """Let one client do or say something."""
        self._come_and_go()
        if lies and self.chance.random() < 0.5:
            self._lie()
        else:
            self.server.some(1, self.numbers)

    def _check_end(self) -> None:
        """Honest clients that stay do all rounds, whatever the others say."""
        assert self.server.finished is not None
        assert self.server.finished.complete, self.server.finished
        outcomes = [row.outcome for row in self.server.rows]
        assert "empty" not in outcomes, outcomes

    def _come_and_go(self) -> None:
        for client in () if self.steady else self.honest:
            if not client.connected and self.chance.random() < 0.2:
                client.restart(keeps=self.chance.random() < 0.5)
                self.server.join(client)
            elif client.connected and self.chance.random() < 0.002:
                self.server.lose(client)
        for liar in self.liars:
            if not liar.connected and self.chance.random() < 0.02:
                liar.restart(keeps=False)
                liar.hold([each for each in self.true.values() if each.what in self.own[liar.name]])
                self.server.join(liar)
        if not self.steady and self.chance.random() < 0.01:
            self.server.now += self.chance.choice((0.1, 1.0, 100.0))
            self.server.say(Tick(self.server.now))

    def _lie(self) -> None:
        server, who = self.server, self.chance.choice((*self.liars, *self.liars, None))
        name = STRANGER if who is None else who.name
        event = self.hostile.event(server.now, name, server.run.number, server.run.version)
        if who is None and isinstance(event, Joined):
            return  # it has a name of its own: see the liars
        if who is not None and isinstance(event, Joined):
            self._claim(who, event)
        elif who is not None and isinstance(event, Lost):
            server.cut(who)
        server.say(event)

    def _claim(self, liar: Client, event: Joined) -> None:
        """From now on, the liar's vectors match what it claims to hold."""
        self.server.cut(liar)
        self.server.clients[liar.name] = liar
        liar.connected, liar.live = True, event.live
        liar.hold([self._content(liar.name, held) for held in event.holds])

    def _content(self, liar: str, held: Held) -> Content:
        """The data behind a claim; equal claims of shared data are of equal data, also by two liars."""
        if held in self.true:
            return self.true[held]
        if not held.digest:
            return Content(held.name, held.samples, f"{liar} says {held}")
        alike = (each for known, each in self.true.items() if known.digest and each.name == held.name)
        same = next((each for each in alike if each.samples == held.samples), None)
        if same is not None and held.digest == UNREAD:
            return same
        return Content(held.name, held.samples, f"shared by claim: {held.name}, {held.samples}")


class MaskedGame(Fleet):
    """A masked run with hostile sites and a hostile client that is no site."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311  as above
        self.events, self.had, self.unsound, self.checked = 0, set(), False, 0
        work, count = self.chance.choice(("local", "coded")), self.chance.choice((4, 5))
        super().__init__(
            Party, count, work=work, gate="every", rounds=self.chance.randint(2, 3), min_clients=3
        )
        self.liar = self.party.clients[-1]
        self.hostile = HostileEvents(self.chance, lambda: (Held("chunk 0-0", 1),))

    def say(self, event: LinkEvent) -> None:
        if not isinstance(event, ModelEvent):
            self.events += 1
            super().say(event)

    def hear(self, output: object) -> None:
        if isinstance(output, Add):
            key = (output.client, output.round, output.attempt)
            assert key not in self.had, f"{output}: it was added before"
            self.had.add(key)
            if (output.client, output.round) not in self.vectors:
                assert output.client == self.liar, f"{output}: no such vector was sent"
                self.unsound = True
                ring = self.party.federation.quantizer
                self.vectors[output.client, output.round] = np.zeros(SIZE + 1, f"u{ring.ring // 8}")
        if isinstance(output, Uncover) and self.unsound:
            self.ring = None
            return
        try:
            super().hear(output)
        except NotRecoverable:
            assert self.unsound
        if isinstance(output, Uncover):
            self._check_mean(output.round)
        if isinstance(output, Append):
            self.unsound = False

    def _check_mean(self, round_: int) -> None:
        self.checked += 1
        self.check(len(self.means) - 1, round_, self.adding)

    def play(self, hostile_events: int = HOSTILE_EVENTS // 4) -> int:
        """Play until the run is over; return the number of events."""
        self.join()
        left, turns = hostile_events, 0
        while not self.finished:
            turns += 1
            assert turns < LONGEST, "the run does not end"
            if left > 0 and self.chance.random() < 0.4:
                left -= 1
                who = self.liar if self.chance.random() < 0.9 else STRANGER
                event = self.hostile.event(self.now, who, self.run.number, self.run.version)
                if isinstance(event, Lost):
                    self.lose(self.liar)
                elif who == self.liar and self.liar in self.away:
                    self.join(self.liar)
                else:
                    self.say(event)
            else:
                self.step()
        return self.events


def play(seed: int) -> int:
    """Play the game of this seed; return the number of its events.

    Raises:
        AssertionError: An invariant does not hold, or anything was raised; it names the seed.
    """
    game = MaskedGame(seed) if seed % 16 == 0 else Game(seed)
    try:
        return game.play()
    except (Exception, AssertionError) as error:
        again = f"python -m tests.fuzz --game {seed}"
        raise AssertionError(f"game {seed}: {type(error).__name__}: {error}; again: {again}") from error


def games(first: int, events: int) -> Iterator[int]:
    """Play games of consecutive seeds until so many events are played; yield the events of each."""
    played, seed = 0, first
    while played < events:
        count = play(seed)
        played, seed = played + count, seed + 1
        yield count
