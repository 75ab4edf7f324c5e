"""Test whole runs in any order of events: private and mixed data, losses, false reports.

`make test` plays a few runs, `make fuzz` thousands of new ones. This plays any number:

    FEDGC_RUNS=10000 .venv/bin/python -m pytest -q tests/test_any_run.py --hypothesis-profile search"""

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fedgc.history import Speed, Speeds
from fedgc.messages import (
    LARGEST_COUNT,
    LARGEST_SKETCH,
    SKETCH_NUMBERS,
    Advert,
    Codeword,
    Deal,
    Enrolled,
    Event,
    Failed,
    Held,
    Joined,
    Kept,
    Leaving,
    Loaded,
    Offered,
    Progress,
    Report,
    Shares,
    Signed,
)
from tests.config_of import config_of
from tests.whole_run import Client, Content, Server, one_of

SEARCHED = not settings().derandomize
RUNS = int(os.environ.get("FEDGC_RUNS", "3000" if SEARCHED else "150"))
NAMES = "abcde"
STRANGER = "nobody"

CODED = st.fixed_dictionaries(
    {},
    optional={
        "replicas": st.sampled_from([1, 2, 3]),
        "blocks": st.sampled_from([1, 2]),
        "wire": st.just("short"),
        "gate": st.sampled_from(["every", "drift", "loss-change", "qsr"]),
    },
)
LOCAL = st.fixed_dictionaries(
    {"work": st.just("local"), "local_steps": st.just(4)},
    optional={
        "placement": st.sampled_from(["scattered", "shuffled-once", "cyclic"]),
        "gate": st.sampled_from(["every", "drift", "relative-change", "qsr"]),
        "quorum": st.sampled_from([0.5, 1.0]),
        "lockstep": st.sampled_from(["on", "off"]),
        "clients_per_round": st.integers(1, 3),
        "late_updates": st.sampled_from(["count", "count", "wait"]),
        "groups": st.sampled_from(["off", "speed"]),
    },
)
SETTINGS = st.fixed_dictionaries(
    {"rounds": st.integers(2, 12), "min_clients": st.integers(1, 3)},
    optional={
        "gate_period": st.integers(1, 3),
        "gate_budget": st.sampled_from([0.3, 0.6, 1.0]),
        "min_gap": st.integers(1, 2),
        "late_s": st.just(0.5),
        "deadline_s": st.just(30.0),
        "local_steps": st.integers(1, 4),
    },
)


def allowed(table: dict[str, object]) -> dict[str, object]:
    """Remove incompatible settings."""
    if isinstance(table.get("replicas"), int) and table.get("blocks", 1) > table["replicas"]:
        table.pop("blocks")
    if (
        table.get("gate", "auto") in ("auto", "drift", "loss-change")
        and table.get("gate_budget", 0.3) * table.get("min_gap", 1) > 1
    ):
        table.pop("min_gap")
    if table.get("late_updates") == "count":
        table["gate"] = "every"
        table.pop("clients_per_round", None)
    else:
        table.pop("groups", None)
    if table.get("placement"):
        table.pop("clients_per_round", None)
    return table


@st.composite
def fleets(draw: st.DrawFn) -> dict[str, list[Content]]:
    """The chunks of each client: private, shared or both; with private or common names."""
    kind = draw(st.sampled_from(["private", "private", "mixed", "shared"]))
    number = draw(st.integers(1, 4)) if kind != "private" else 0
    alike = draw(st.booleans())
    found = {}
    for name in NAMES[: draw(st.sampled_from([3, 4, 2, 5, 1]))]:
        count = draw(st.sampled_from([1, 2, 3, 0])) if kind != "shared" else 0
        own = [own_chunk("part" if alike else name, name, at) for at in range(count)]
        shared = [Content(f"shared {at}", 10 + at, f"shared {at}", shared=True) for at in range(number)]
        if number and draw(st.sampled_from([False] * 9 + [True])):
            shared[0] = Content("shared 0", 10, f"what {name} takes for it", shared=True)
        taken = draw(st.permutations(shared))[: draw(st.sampled_from([number, 1]))]
        found[name] = [*own, *(taken if kind == "mixed" else shared)]
    return found


def own_chunk(named: str, owner: str, at: int, samples: int = 7) -> Content:
    return Content(f"{named} {at}", samples + at, f"{owner}'s {at}, {samples}")


class AnyRun(RuleBasedStateMachine):
    """Clients join late, return with other data, leave, fail and send false reports; the server resumes."""

    @initialize(
        table=st.one_of(CODED, CODED, LOCAL),
        common=SETTINGS,
        fleet=fleets(),
        hostile=st.sampled_from(["", "", "", "a", "b"]),
        known=st.booleans(),
        present=st.sampled_from([5, 3, 2, 1, 0]),
        ending=st.sampled_from(["calm", "silence"]),
        seed=st.integers(0, 2**32),
    )
    def begin(
        self,
        table: dict[str, object],
        common: dict[str, object],
        fleet: dict[str, list[Content]],
        hostile: str,
        present: int,
        ending: str,
        seed: int,
        *,
        known: bool,
    ) -> None:
        config = config_of(allowed({"largest_share": 1.0, **common, **table}))
        chance = np.random.default_rng(seed)
        speeds = {name: Speed(name, one_of((0.05, 0.1, 0.4), chance), rounds=5) for name in fleet}
        self.server = Server(config, Speeds(speeds if known else {}))
        self.clients = {
            name: Client(name, contents, step_s=one_of((0.05, 0.1, 0.4), chance))
            for name, contents in fleet.items()
        }
        self.first = fleet
        for name, client in self.clients.items():
            client.honest = name != hostile
        self.hostile = self.clients.get(hostile)
        self.gone: set[str] = set()
        self.ending, self.chance = ending, chance
        for name in NAMES[:present]:
            if name in self.clients:
                self.server.join(self.clients[name])

    @property
    def here(self) -> list[Client]:
        return [client for client in self.clients.values() if client.connected]

    @property
    def away(self) -> list[Client]:
        clients = self.clients.values()
        return [each for each in clients if not each.connected and each.name not in self.gone]

    # ---- clients come and go

    @rule(live=st.sampled_from([True, True, True, False]))
    def all_come(self, *, live: bool) -> None:
        for client in self.away:
            self.server.join(client, live=live)

    @precondition(lambda self: self.away)
    @rule(data=st.data(), live=st.sampled_from([True, True, False]), keeps=st.booleans())
    def come(self, data: st.DataObject, *, live: bool, keeps: bool) -> None:
        client = data.draw(st.sampled_from(self.away))
        if data.draw(st.booleans()):
            client.restart(keeps=keeps)
        self.server.join(client, live=live)

    @precondition(lambda self: self.away)
    @rule(data=st.data(), fewer=st.booleans())
    def come_with_other_data(self, data: st.DataObject, *, fewer: bool) -> None:
        client = data.draw(st.sampled_from(self.away))
        self.server.join(self.changed(client, data, fewer=fewer))

    def changed(self, client: Client, data: st.DataObject, *, fewer: bool) -> Client:
        contents = self.first[client.name]
        kept = data.draw(st.lists(st.sampled_from(contents), unique=True)) if contents else []
        names = [] if fewer else data.draw(st.lists(st.integers(10, 13), unique=True))
        other = [own_chunk(client.name, client.name, at) for at in names]
        if data.draw(st.booleans()):  # the data of its own has grown, and what is shared cannot be read now
            kept = [c if c.shared else replace(c, samples=c.samples + 1, what=f"more {c.what}") for c in kept]
            client.unread = not any("takes for it" in c.what for each in self.first.values() for c in each)
        client.restart(keeps=True)
        client.hold([*kept, *other])
        return client

    @precondition(lambda self: self.here)
    @rule(data=st.data(), for_good=st.booleans())
    def leave(self, data: st.DataObject, *, for_good: bool) -> None:
        client = data.draw(st.sampled_from(self.here))
        if for_good and len(self.gone) < len(self.clients) - 1:
            self.gone.add(client.name)
        self.server.lose(client)

    @precondition(lambda self: self.here)
    @rule(data=st.data(), grace_s=st.sampled_from([0.0, 5.0, 20.0, 1e6]), times=st.integers(1, 3))
    def say_that_it_leaves(self, data: st.DataObject, grace_s: float, times: int) -> None:
        """It may train on, and say so again."""
        client = data.draw(st.sampled_from(self.here))
        for _ in range(times):
            self.server.say(Leaving(self.server.now, client.name, grace_s))

    @precondition(lambda self: self.here)
    @rule(data=st.data(), same=st.booleans())
    def come_twice(self, data: st.DataObject, *, same: bool) -> None:
        """A `Joined` of a client that was not lost."""
        client = data.draw(st.sampled_from(self.here))
        if not same:
            self.changed(client, data, fewer=False)
        self.server.join(client, live=client.live)

    # ---- they work

    @rule(seed=st.integers(0, 2**32), rounds=st.integers(1, 5))
    def play(self, seed: int, rounds: int) -> None:
        if self.here:
            self.server.play(rounds, np.random.default_rng(seed))

    @rule(seed=st.integers(0, 2**32), actions=st.integers(1, 40), data=st.data())
    def play_and_lose_one(self, seed: int, actions: int, data: st.DataObject) -> None:
        """Lose a client for good at any point of a round."""
        self.play_a_little(seed, actions)
        left = [client for client in self.here if client.contents]
        if len(left) > 1 and len(self.gone) < len(self.clients) - 1:
            client = data.draw(st.sampled_from(left))
            self.gone.add(client.name)
            self.server.lose(client)
            self.play(seed, 3)

    @rule(seed=st.integers(0, 2**32), actions=st.integers(1, 40))
    def play_a_little(self, seed: int, actions: int) -> None:
        if self.here:
            self.server.some(actions, np.random.default_rng(seed))

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0, 1000.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.server.now += seconds
        self.server.tick()

    @precondition(lambda self: any(each.at.round >= 0 and each.at.names for each in self.here))
    @rule(data=st.data(), all_of_it=st.booleans())
    def fail(self, data: st.DataObject, *, all_of_it: bool) -> None:
        clients = [each for each in self.here if each.at.round >= 0 and each.at.names]
        client = data.draw(st.sampled_from(clients)).at
        chunk = data.draw(st.sampled_from(sorted(client.names)))
        named = () if all_of_it or client.local else (chunk,)
        for each in named or list(client.trajectories):
            client.fail(each, "out of luck")
        self.server.say(Failed(self.server.now, client.name, client.round, "out of luck", named))

    # ---- the server is resumed

    @precondition(lambda self: self.server.saved)
    @rule(data=st.data(), keeps=st.booleans())
    def resume(self, data: st.DataObject, *, keeps: bool) -> None:
        state = data.draw(st.sampled_from(self.server.saved[-3:]))
        self.server.resume(state)
        for name in data.draw(st.sets(st.sampled_from(sorted(self.clients)))):
            client = self.clients[name]
            if name not in self.gone:
                client.restart(keeps=keeps)
                self.server.join(client)

    # ---- one client is dishonest

    @precondition(lambda self: self.hostile)
    @rule(data=st.data(), times=st.integers(1, 5))
    def lie(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            event = data.draw(self.lies())
            if isinstance(event, Joined):
                self.claims(event)
            self.server.say(event)

    def claims(self, event: Joined) -> None:
        """The client's vectors match the data that it claims."""
        liar = self.hostile
        self.server.cut(liar)
        self.server.clients[liar.name] = liar
        liar.connected, liar.live = True, event.live
        true = {c.held(): c for contents in self.first.values() for c in contents if c.shared}
        true |= {c.held(): c for c in self.first[liar.name]}
        own = {each: Content(each.name, each.samples, f"{liar.name} says {each}") for each in event.holds}
        liar.hold([true.get(each, own[each]) for each in event.holds])

    def lies(self) -> st.SearchStrategy[Event]:
        liar, now, number = self.hostile.name, self.server.now, self.server.run.number
        true = sorted({c.held() for each in self.first.values() for c in each}, key=repr)
        names = st.sampled_from([*(each.name for each in true), "invented", "invented too"])
        counts = st.sampled_from([1, 9, 10, LARGEST_COUNT])
        digests = st.sampled_from(["", "", "false", *(each.digest for each in true)])
        held = st.builds(Held, names, counts, digests) | st.sampled_from(true or [Held("invented", 1)])
        rounds = st.sampled_from([0, max(0, number - 1), number, number, number, number + 1, LARGEST_COUNT])
        chunks = st.sampled_from([*range(12), 999, LARGEST_COUNT])
        steps = st.sampled_from([0, 1, 2, 3, 4, 8, LARGEST_COUNT])
        sizes = st.sampled_from([0.0, 1e-9, 1.0, 1e30])
        waits = st.sampled_from([0.0, 1e-9, now])  # the server has measured them
        sketches = st.sampled_from(
            [(), (0.0,) * SKETCH_NUMBERS, (7.0,) * SKETCH_NUMBERS, (-LARGEST_SKETCH,) * SKETCH_NUMBERS]
        )
        versions = st.sampled_from([0, 1, 2, 3, LARGEST_COUNT])
        kept = st.lists(
            st.builds(Kept, versions, chunks, steps, sketches), max_size=4, unique_by=lambda each: each.chunk
        )
        joined = st.builds(
            lambda live, holds, kept: Joined(now, liar, live, tuple(holds), tuple(kept)),
            st.booleans(),
            st.lists(held, max_size=8, unique_by=lambda each: each.name),
            kept,
        )
        samples = st.sampled_from([0, 7, 8, 9, 10, 11, 12, 13, LARGEST_COUNT])
        losses = st.sampled_from([0.5, -1e30, 1e30])
        norms = st.sampled_from([0.0, -1.0, 1e300, float("inf"), float("nan")])
        named = st.lists(chunks, max_size=4, unique=True).map(tuple)
        packet = st.just(b"no packet")
        return st.one_of(
            joined,
            joined,
            *(
                st.builds(Progress, st.just(now), st.just(liar), rounds, chunks, steps, sizes, samples, sizes,
                          losses, sketches)
                for _ in range(3)
            ),
            st.builds(Failed, st.just(now), st.just(liar), rounds, st.just("a lie"), named),
            st.builds(Report, st.just(now), st.just(liar), rounds, steps, samples, sizes, norms, losses),
            st.builds(Codeword, st.just(now), st.just(liar), rounds, st.integers(70, 71), waits),
            st.builds(Offered, st.just(now), st.just(liar), rounds, st.integers(0, 1)),
            st.builds(Loaded, st.just(now), st.just(liar), versions, waits, samples),
            st.builds(
                Enrolled, st.just(now), st.just(liar), st.just(bytes(32)), steps, steps, st.just(bytes(64))
            ),
            st.builds(Advert, st.just(now), st.just(liar), rounds, packet),
            st.builds(Deal, st.just(now), st.just(liar), rounds, packet),
            st.builds(Signed, st.just(now), st.just(liar), rounds, st.just(bytes(64))),
            st.builds(Shares, st.just(now), st.just(liar), rounds, packet),
            st.builds(Progress, st.just(now), st.just(STRANGER), rounds, chunks, steps, sizes, samples,
                      sizes, losses),
        )  # fmt: skip

    # ---- the end

    def teardown(self) -> None:
        """The run ends without further events, and honest remaining clients do all its rounds."""
        if not hasattr(self, "server"):
            return
        if self.ending == "calm" and not self.server.finished:
            self.calm()
        else:
            self.silence()

    def silence(self) -> None:
        ticks = 0
        while not self.server.finished:
            ticks += 1
            assert ticks <= 2000, "the run does not end"
            self.server.tick()

    def calm(self) -> None:
        """From the next round on there is work, and it counts."""
        server = self.server
        if self.hostile and self.hostile.connected:
            server.lose(self.hostile)
        for client in self.away:
            if client.honest:
                server.join(client)
        if not any(each.contents for each in self.here):
            self.silence()
        begun = server.run.number
        while not server.finished:
            server.play(1, self.chance)
        after = [row for row in server.rows if row.round > begun]
        assert not [row for row in after if row.outcome == "empty"]
        assert server.finished.complete or not after, server.finished


AnyRun.TestCase.settings = settings(
    max_examples=RUNS, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
TestAnyRun = pytest.mark.timeout(0)(AnyRun.TestCase)  # ten thousand runs take ten minutes
