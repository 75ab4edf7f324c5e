"""Test the reference client against the real engines: the same commands must give the same events."""

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedgc.config import RunConfig
from fedgc.errors import FedgcError
from fedgc.flower.masked_client import failure
from fedgc.messages import (
    Close,
    Continue,
    Event,
    Failed,
    Kept,
    Mix,
    Progress,
    Repair,
    Report,
    Reveal,
    Skip,
    Take,
    Work,
)
from fedgc.sim.clock.reference_client import ReferenceClient, Reported, failed
from fedgc.training import Engine, new_engine
from fedgc.training.pace import Pace
from tests.six_chunks import SIZES, TASK

NUMBERS = range(4)  # of the six chunks of the task; work may name fewer
STILL = Pace(float, lambda _: None)
SAMPLES = dict(enumerate(SIZES.values()))


class Pair:
    """A real engine and a reference client that receive the same commands."""

    def __init__(self, kind: str, folder: Path, *, lockstep: bool) -> None:
        self.lockstep = lockstep
        config = RunConfig(work=kind, batch_size=4, shared_momentum="off", memory_mb=64)
        self.kind, self.engine = kind, new_engine(TASK, config, STILL, folder)
        self.client = ReferenceClient("me")
        self.round, self.version, self.target = 0, 0, 1
        self._load()

    def _load(self) -> None:
        vector = np.random.default_rng(self.version).normal(size=self.engine.size).astype(np.float32)
        self.engine.load(self.version, vector)

    def tell(self, command: object) -> None:
        """Send both a command; they give the same answer or the same failure."""
        self._agree(engine_says(self.engine, command), self._client_says(command))

    # ---- the actions

    def steps(self, count: int) -> None:
        for _ in range(count):
            told = self.client.step()
            self._agree(self.engine.step(), self._event(told))

    def skip(self, chunk: int, late: int) -> None:
        self.tell(Skip("me", self.round - late, chunk))

    def take(self, chunks: list[int], late: int) -> None:
        self.tell(Take("me", self.round - late, tuple(chunks)))

    def reveal(self, chunks: list[int], late: int) -> None:
        mix = ones(chunks) if self.kind == "coded" else None
        self.tell(Reveal("me", self.round - late, 0, self.kind, mix))

    def repair(self, chunks: list[int], late: int) -> None:
        self.tell(Repair("me", self.round - late, 1, "other", ones(chunks)))

    def close(self, frees: bool, late: int) -> None:
        self.tell(Close("me", self.round - late, "synced" if frees else "skipped", frees))

    def work(self, order: list[int], new: bool, more: int, most: int, named: int) -> None:
        if new:
            self.version += 1
            self._load()
        self.round, self.target = self.round + 1, max(1, (1 if new else self.target) + more)
        names = tuple((number, f"c{number}") for number in range(named))
        order = [chunk for chunk in order if chunk < named]
        given = Work(
            "me",
            self.round,
            self.version,
            self.target,
            tuple(order),
            names,
            5,
            60.0,
            self.lockstep,
            self.kind,
        )
        self.tell(replace(given, first_step=8 * self.version, most_steps=most))

    def carry_on(self, order: list[int], more: int) -> None:
        self.tell(Continue("me", self.round + 1, max(1, self.target + more), tuple(order), 60.0))
        self.round, self.target = max(self.round, self.client.round), max(self.target, self.client.target)

    def _client_says(self, command: object) -> Event | None:
        try:
            return self._event(self.client.handle(command))
        except FedgcError as error:
            return failed(0.0, command, error)

    def _event(self, told: Reported | Failed | None) -> Event | None:
        if not isinstance(told, Reported):
            return told
        local = self.kind == "local"
        samples = sum(SAMPLES[each] for each in self.client.names) if local else SAMPLES[told.chunk]
        return told.event(0.0, "me", samples)

    def _agree(self, engine_said: Event | None, client_said: Event | None) -> None:
        assert plain(client_said) == plain(engine_said)
        assert self.client.idle == self.engine.idle
        assert self.client.kept() == tuple(replace(each, sketch=()) for each in self.engine.kept())


def plain(said: Event | None) -> Event | None:
    """Remove the results of training and the texts."""
    match said:
        case Progress():
            return replace(said, squared_norm=1.0, loss=0.0, sketch=(), model_norm=0.0)
        case Report():
            return replace(said, squared_norm=1.0, loss=0.0)
        case Failed():
            return replace(said, reason="")
    return said


def engine_says(engine: Engine, command: object) -> Event | None:
    """Return the answer of a client of this engine, as its loop does."""
    try:
        if isinstance(command, Reveal | Repair):
            answer = engine.answer(command)
            return answer.report if answer is not None else None
        engine.handle(command)
    except FedgcError as error:
        return failure(command, error)
    return None


orders = st.lists(st.sampled_from(NUMBERS), unique=True)
some = st.lists(st.sampled_from(NUMBERS), unique=True, min_size=1, max_size=3)
late = st.sampled_from([0, 0, 0, 1])  # rounds by which a command is late
actions = st.lists(
    st.one_of(
        st.tuples(st.just("steps"), st.integers(1, 5)),
        st.tuples(st.just("skip"), st.sampled_from(NUMBERS), late),
        st.tuples(st.just("take"), some, late),
        st.tuples(st.just("reveal"), some, late),
        st.tuples(st.just("repair"), some, late),
        st.tuples(st.just("close"), st.booleans(), late),
        st.tuples(st.just("carry_on"), orders, st.sampled_from([0, 1, 2, -1])),
        st.tuples(
            st.just("work"), orders, st.booleans(), st.integers(-1, 2), st.integers(0, 5), st.integers(2, 4)
        ),
    ),
    max_size=25,
)


def ones(chunks: list[int]) -> Mix:
    return Mix(tuple(chunks), ((1.0,),) * len(chunks))


@pytest.mark.parametrize("kind", ["coded", "local"])
def test_reference_client_reports_like_engine(kind: str):
    @settings(max_examples=100, deadline=None)
    @example([0, 1, 2, 3], 2, [("steps", 3), ("take", [0, 3], 0), ("steps", 2), ("skip", 1, 0)], False)
    @given(st.permutations(NUMBERS), st.sampled_from([2, 3, 1]), actions, st.booleans())
    def play(order: list[int], target: int, then: list[tuple], lockstep: bool) -> None:
        with TemporaryDirectory() as folder:
            pair = Pair(kind, Path(folder), lockstep=lockstep)
            pair.work(order, new=False, more=target - 1, most=target + 2, named=4)
            for action, *details in then:
                getattr(pair, action)(*details)
            pair.steps(50)
            pair.engine.close()

    play()


def test_new_process_keeps_trained_steps_and_has_no_work():
    client = ReferenceClient("a")
    client.handle(Work("a", 1, 3, 2, (0, 1), ((0, "x"), (1, "y")), 0, 9.0))
    told = [client.step(), client.step(), client.step()]
    assert [each.reached for each in told if each] == [2]
    client.restart(keeps=True)
    assert client.idle
    assert client.kept() == (Kept(3, 0, 2), Kept(3, 1, 1))
    with pytest.raises(FedgcError, match="needed that round"):
        client.handle(Skip("a", 1, 0))
    client.restart(keeps=False)
    assert client.kept() == ()


def test_failed_chunk_is_not_trained_again():
    client = ReferenceClient("a")
    client.handle(Work("a", 1, 0, 2, (0, 1), ((0, "x"), (1, "y")), 0, 9.0))
    client.step()
    assert client.fail(0, "out of memory").chunks == (0,)
    assert [told.chunk for told in (client.step(), client.step()) if told] == [1]
    assert client.idle
