"""Test the client loop: it handles a command within one step, even at rest, and reports failures."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from fedgc.errors import BadMessage, NotHere, TaskFailed
from fedgc.flower.client_loop import LEFT, ClientLoop
from fedgc.flower.departure import Departure
from fedgc.flower.site_policy import SitePolicy
from fedgc.messages import (
    Announced,
    Close,
    Closing,
    Codeword,
    Continue,
    Failed,
    Fetched,
    Held,
    Initialize,
    Joined,
    Layout,
    Leaving,
    Lost,
    Mix,
    Progress,
    Report,
    Reveal,
    Ring,
    Skip,
    Survivors,
    Take,
    TensorSpec,
    Work,
)
from fedgc.training import Answer
from tests.links.conftest import WAIT_S


class PlainEngine:
    """An engine that counts its commands and works when the test allows it."""

    def __init__(self, rest, numbers: int) -> None:
        self._rest = rest
        self._numbers = numbers
        self.heard: list[object] = []
        self.models: dict[int, np.ndarray] = {}
        self.idle = True
        self.rests_s = 0.0
        self.steps = 5
        self.error: Exception | None = None
        self.left = 0
        self.has_work = True
        self.has_left = False
        self.event: Progress | Fetched = Progress(0.0, "x", 1, 0, 4, 0.5, 8, 1.0, 0.5)

    def leave(self) -> None:
        self.left += 1
        self.idle = True

    def holds(self) -> tuple[Held, ...]:
        return (Held("chunk-0", 8),)

    def kept(self) -> tuple[()]:
        return ()

    def load(
        self, version: int, vector: np.ndarray, changed: object = None, *, is_finite: bool = False
    ) -> None:
        self.models[version] = vector

    def handle(self, command) -> None:
        self.heard.append(command)
        if self.error:
            raise self.error
        self.idle = not isinstance(command, Work)

    def step(self) -> Progress | Fetched | None:
        if self.rests_s:
            self._rest(self.rests_s)
            return None
        self.idle = True
        return self.event

    @property
    def layout(self) -> Layout:
        return Layout((TensorSpec("weight", "float32", (self._numbers,)),), 1)

    def initial(self) -> np.ndarray:
        return np.full(self._numbers, 4.0, np.float32)

    def answer(self, command: Reveal) -> Answer:
        if self.error:
            raise self.error
        if command.mix is not None:
            return Answer(command, None, np.full(-(-self._numbers // command.mix.blocks), 2.0, np.float32))
        report = Report(0.0, command.client, command.round, self.steps, 8, 0.5, 1.0, 0.5)
        vector = np.full(self._numbers, 3.0, np.float32) if self.steps else None
        return Answer(command, report, vector)


@contextmanager
def serving(
    link, departure: Departure | None = None, policy: SitePolicy | None = None, *, brings_model: bool = False
) -> Iterator[tuple[PlainEngine, str, list[str]]]:
    loop = ClientLoop(
        lambda rest: PlainEngine(rest, link.numbers),
        departure=departure,
        policy=policy,
        brings_model=brings_model,
    )
    session = link.session(says_joined=False)
    ended: list[str] = []
    thread = threading.Thread(target=lambda: ended.append(loop.serve(session, "x")))
    thread.start()
    assert link.event(Announced).layout == loop.engine.layout
    if policy is not None and (closes_s := policy.closes_s()) is not None:
        assert 0 < link.event(Closing).closes_s <= closes_s + WAIT_S
    yield loop.engine, link.event(Joined).client, ended
    session.end("the test is over")
    thread.join(WAIT_S)
    assert not thread.is_alive()


def work(client: str) -> Work:
    return Work(client, 1, 0, 4, (0,), ((0, "chunk-0"),), 7, 60.0)


def given_work(link, client: str) -> None:
    link.listener.publish(0, link.vector())
    link.listener.send(work(client))
    assert link.event(Progress).chunk == 0


def test_client_joins_works_and_sends_codeword(link) -> None:
    with serving(link) as (engine, client, _):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        assert link.event(Progress).chunk == 0
        np.testing.assert_array_equal(engine.models[0], link.vector())
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0,), ((1.0, 2.0),))))
        assert link.event(Codeword).round == 1
        assert (link.listener.take(client, 1, 0) == 2.0).all()


def test_server_hears_of_fetched_chunks(link) -> None:
    with serving(link) as (engine, client, _):
        engine.event = Fetched(0.0, "x", 3, 300, 0.5)
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        heard = link.event(Fetched)
        assert heard == Fetched(heard.now, client, 3, 300, 0.5)


@pytest.mark.parametrize("wire", ["bf16", "int8"])
def test_codeword_is_sent_in_requested_format(link, wire: str) -> None:
    with serving(link) as (_, client, _):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0,), ((1.0, 2.0),)), wire))
        assert link.event(Codeword).size_bytes < 4 * (link.numbers // 2)
        np.testing.assert_allclose(link.listener.take(client, 1, 0), 2.0, rtol=1e-6)


def test_command_wakes_resting_engine(link) -> None:
    with serving(link) as (engine, client, _):
        engine.rests_s = 3600.0
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.eventually(lambda: engine.heard)
        link.listener.send(Skip(client, 1, 0))
        link.eventually(lambda: Skip(client, 1, 0) in engine.heard)


@pytest.mark.parametrize("error", [BadMessage("not finished"), TaskFailed("the loss raised")], ids=str)
def test_engine_error_is_reported_and_client_continues(link, error: Exception) -> None:
    with serving(link) as (engine, client, ended):
        given_work(link, client)
        engine.error = error
        link.listener.send(Skip(client, 1, 0))
        assert link.event(Failed).reason == str(error)
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0,), ((1.0,),))))
        assert link.event(Failed).reason == str(error)
        assert not ended


def test_codeword_without_chunk_fails_for_that_chunk_only(link) -> None:
    with serving(link) as (engine, client, _):
        given_work(link, client)
        engine.error = NotHere("chunk 1 is gone", (1,))
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0, 1), ((1.0,),) * 2)))
        failed = link.event(Failed)
        assert (failed.reason, failed.chunks) == ("chunk 1 is gone", (1,))


@pytest.mark.parametrize("kind", ["reveal", "survivors"])
def test_masked_work_without_site_is_reported_as_failure(link, kind: str) -> None:
    with serving(link) as (_, client, _):
        given_work(link, client)
        masked = Reveal(client, 1, 0, "masked", None, ring=Ring(3, 32))
        strange = masked if kind == "reveal" else Survivors(client, 1, b"packet")
        link.listener.send(strange)
        assert "masked work" in link.event(Failed).reason


def test_command_about_work_of_earlier_session_is_ignored(link) -> None:
    with serving(link) as (engine, client, _):
        link.listener.send(Skip(client, 1, 0))
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0,), ((1.0, 2.0),))))
        given_work(link, client)
        assert [type(each) for each in engine.heard] == [Work]


def test_local_work_is_reported_before_its_update_is_sent(link) -> None:
    with serving(link) as (_, client, _):
        given_work(link, client)
        link.listener.send(Reveal(client, 1, 0, "local", None))
        assert link.event(Report).steps == 5
        assert link.event(Codeword).size_bytes == 4 * link.numbers
        assert (link.listener.take(client, 1, 0) == 3.0).all()


def test_local_work_without_steps_sends_nothing(link) -> None:
    with serving(link) as (engine, client, _):
        given_work(link, client)
        engine.steps = 0
        link.listener.send(Reveal(client, 1, 0, "local", None))
        assert link.event(Report).steps == 0
        link.listener.send(Reveal(client, 1, 1, "coded", Mix((0,), ((1.0,),))))
        assert link.event().attempt == 1, "nothing was sent in between"


def test_first_model_leaves_only_before_any_work(link) -> None:
    sent: list[int] = []
    policy = SitePolicy()
    policy.send_first_model = sent.append
    with serving(link, policy=policy, brings_model=True) as (_, client, _):
        link.listener.send(Initialize(client))
        assert link.event(Codeword).round == 0
        assert (link.listener.take(client, 0, 0) == 4.0).all()
        assert sent == [4 * link.numbers]
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        link.listener.send(Initialize(client, 0, 1))
        assert "first model" in link.event(Failed).reason
        link.listener.send(Initialize(client, 2))
        assert "first model" in link.event(Failed).reason
    assert len(sent) == 1


def test_client_of_run_with_task_gives_no_first_model(link) -> None:
    with serving(link) as (_, client, _):
        link.listener.send(Initialize(client))
        assert "the run has no script" in link.event(Failed).reason


def test_stopped_run_ends_session(link) -> None:
    with serving(link) as (_, client, ended):
        link.listener.send(Close(client, 1, "stopped", False))
        link.eventually(lambda: ended)
        assert ended == ["the run was stopped"]


def test_stop_of_complete_run_leaves_session_to_server(link) -> None:
    with serving(link) as (engine, client, ended):
        link.listener.send(Close(client, 1, "stopped", True))
        link.eventually(lambda: engine.heard)
        assert ended == []


def test_leaving_client_answers_until_its_round_is_closed(link) -> None:
    departure = Departure(WAIT_S)
    with serving(link, departure) as (engine, client, ended):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        departure.ask()
        assert 0 < link.event(Leaving).grace_s <= WAIT_S
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0,), ((1.0, 2.0),))))
        assert link.event(Codeword).round == 1
        assert not ended
        engine.has_work = False
        link.listener.send(Close(client, 1, "synced", True))
        link.event(Lost)  # at once, not after the session's grace time
        link.eventually(lambda: ended)
        assert ended == [LEFT]


def test_client_whose_script_has_left_says_so_and_stays(link) -> None:
    """No round waits for its steps; it hands in what it has, and is hurried only once it is asked to end."""
    departure = Departure(WAIT_S)
    with serving(link, departure) as (engine, client, ended):
        given_work(link, client)
        engine.has_left = True
        assert link.event(Leaving).grace_s > 86_400
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0,), ((1.0, 2.0),))))
        assert link.event(Codeword).round == 1
        assert not ended
        departure.ask()
        assert 0 < link.event(Leaving).grace_s <= WAIT_S


def test_leaving_client_takes_no_new_work(link) -> None:
    """The next round may have begun before the server hears of it."""
    departure = Departure(WAIT_S)
    with serving(link, departure) as (engine, client, _):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        departure.ask()
        link.event(Leaving)
        for command in (Take(client, 1, (0,)), Close(client, 1, "skipped", False), carry_on(client)):
            link.listener.send(command)
        link.eventually(lambda: carry_on(client) in engine.heard)
        link.eventually(lambda: engine.left == 3)
        assert engine.idle


@pytest.mark.parametrize("case", ["no work", "no time"])
def test_client_leaves_at_once_without(link, case: str) -> None:
    departure = Departure(WAIT_S if case == "no work" else 0.0)
    with serving(link, departure) as (engine, client, ended):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        engine.has_work = case != "no work"
        departure.ask()
        if case == "no work":
            link.event(Leaving)
        link.event(Lost)
        link.eventually(lambda: ended)
        assert ended == [LEFT]


def carry_on(client: str) -> Continue:
    return Continue(client, 2, 8, (0,), 60.0)


def test_lease_ends_between_rounds(link) -> None:
    with serving(link) as (_, client, ended):
        link.listener.publish(0, link.vector())
        link.listener.send(work(client))
        link.event(Progress)
        link.opened[0]._lease_end = time.monotonic()
        link.listener.send(Reveal(client, 1, 0, "coded", Mix((0,), ((1.0,),))))
        link.event(Codeword)
        assert not ended
        link.listener.send(Close(client, 1, "synced", True))
        link.eventually(lambda: ended)
        assert ended == ["the lease is over"]
