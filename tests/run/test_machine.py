"""Test the run: gather, plan, apply, skip, resume, give up."""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest

from fedgc.errors import numbered
from fedgc.messages import (
    Close,
    Codeword,
    Continue,
    Held,
    Joined,
    Leaving,
    Loaded,
    Lost,
    Progress,
    Refuse,
    Repair,
    Report,
    Reveal,
    Skip,
    Stop,
    Tick,
    ToClient,
    Work,
)
from fedgc.run.gathering import RETURN_S, SCRIPTS_LEFT
from fedgc.run.machine import Append, Apply, Finished, Output, RunState
from fedgc.sim.clock.interfaces import Finding
from fedgc.sim.clock.reference_client import ReferenceClient, Reported, Trajectory
from tests.coded_round import order_of
from tests.config_of import config_of
from tests.tuned import tuned_run

SHARED = tuple(Held(f"chunk {number}", 10, "same") for number in range(4))


class Driver:
    """Execute the run's outputs, with reference clients that finish a chunk on request."""

    def __init__(self, resume: RunState | None = None, fleet: int | None = None, **settings: object) -> None:
        self.config = config_of(
            {"work": "coded", "rounds": 3, "replicas": 2, "blocks": 1, "min_clients": 2, **settings}
        )
        self.run = tuned_run(self.config, now=0.0, size=100, resume=resume, fleet=fleet)
        self.now = 0.0
        self.log: list[Output] = []
        self.clients: dict[str, ReferenceClient] = {}
        self.unsent: list[tuple[str, int, int]] = []
        self.step_s: dict[str, float] = {}

    def say(self, event: object) -> tuple[Output, ...]:
        outputs = self.run.handle(event)
        self.log += outputs
        for output in outputs:
            if isinstance(output, Work):
                self.clients.setdefault(output.client, ReferenceClient(output.client))
            if isinstance(output, ToClient) and output.client in self.clients:
                self.clients[output.client].handle(output)
            if isinstance(output, Reveal | Repair):
                self.unsent.append((output.client, output.round, output.attempt))
        for at in self.clients.values():
            at.start()
        return outputs

    @property
    def queue(self) -> dict[str, list[int]]:
        """The chunks that each client will report, in order."""
        return {client: order_of(at) for client, at in self.clients.items()}

    def join(self, *clients: str, holds: Iterable[Held] = SHARED) -> None:
        for client in clients:
            self.say(Joined(self.now, client, True, tuple(holds)))

    def work(self, client: str) -> None:
        at = self.clients[client]
        reported = at.due() or at.finish(at.left * self.step_s.get(client, 0.1))
        assert isinstance(reported, Reported)
        self.say(reported.event(self.now, client, 10, Finding(loss=0.5)))

    def do_a_round(self) -> None:
        number = self.run.number
        while self.run.number == number and not self.run.finished:
            self.now += 1.0
            if self.unsent:
                client, at, attempt = self.unsent.pop(0)
                self.say(Codeword(self.now, client, at, attempt, seconds=2.0, size_bytes=400))
                continue
            busy = [client for client, queue in self.queue.items() if queue]
            assert busy, "nobody has anything to do and the round does not end"
            for client in busy:
                if self.queue[client]:
                    self.work(client)

    def fail_to_the_end(self) -> None:
        while not self.run.finished:
            for client, queue in list(self.queue.items()):
                for chunk in queue:
                    at = self.clients[client]
                    self.say(replace(at.fail(chunk, f"ValueError {at.round}"), now=self.now))
            self.now += 1.0
            self.say(Tick(self.now))

    def of(self, kind: type) -> list:
        return [output for output in self.log if isinstance(output, kind)]


def test_run_waits_for_clients_and_then_runs_all_rounds():
    driver = Driver()
    driver.join("a")
    assert not driver.of(Work)
    driver.join("b")
    assert {work.client for work in driver.of(Work)} == {"a", "b"}
    while not driver.run.finished:
        driver.do_a_round()
    assert [apply.version for apply in driver.of(Apply)] == [1, 2, 3]
    assert [append.row.round for append in driver.of(Append)] == [1, 2, 3]
    assert driver.log[-1] == Finished("3 rounds done", complete=True)


@pytest.mark.parametrize("rounds", [1, 2])
def test_run_without_counted_update_is_not_complete(rounds: int):
    driver = Driver(rounds=rounds)
    driver.join("a", "b")
    driver.fail_to_the_end()
    assert driver.log[-1] == Finished(
        f"a: ValueError 1; {numbered(rounds, 'round')} done, and no work was ever counted", complete=False
    )


def test_clients_without_data_are_counted_when_no_others_join():
    driver = Driver(start_timeout_s=5.0)
    driver.join("a", "b", holds=())
    driver.say(Tick(5.0))
    said = "waited 5 s for 2 clients, saw 0, and 2 that hold no chunk"
    assert driver.log[-1] == Finished(said, complete=False, lacks_clients=True)


def test_new_model_is_applied_before_any_work():
    driver = Driver()
    driver.join("a", "b")
    while not driver.run.finished:
        driver.do_a_round()
    known = 0
    for output in driver.log:
        if isinstance(output, Apply):
            known = output.version
        if isinstance(output, Work):
            assert output.version == known


def test_too_few_clients_end_run_with_their_count():
    driver = Driver(start_timeout_s=5.0)
    assert driver.run.next_tick == 5.0
    driver.say(Tick(5.0))
    assert driver.log == [Finished("waited 5 s for 2 clients, saw 0", complete=False, lacks_clients=True)]


def test_waiting_never_starts_run_below_minimum():
    driver = Driver(start_timeout_s=5.0, min_clients=3)
    driver.join("a", "b")
    driver.say(Tick(5.0))
    said = "waited 5 s for 3 clients, saw 2; min-clients = 2 begins with them"
    assert driver.log == [Finished(said, complete=False, lacks_clients=True)]


def test_resumed_run_needs_its_minimum_again():
    first = Driver(min_clients=2, rounds=3)
    first.join("a", "b")
    first.do_a_round()
    resumed = Driver(start_timeout_s=5.0, min_clients=2, rounds=3, resume=first.run.state())
    resumed.join("a")
    resumed.say(Tick(5.0))
    said = "waited 5 s for 2 clients, saw 1; min-clients = 1 begins with them"
    assert resumed.log == [Finished(said, complete=False, lacks_clients=True)]


def test_resumed_run_waits_for_known_clients():
    first = Driver(min_clients=2, rounds=3)
    first.join("a", "b", "c", "d")
    first.do_a_round()
    first.say(Lost(first.now, "d"))
    first.do_a_round()
    resumed = Driver(min_clients=2, rounds=5, resume=first.run.state())
    resumed.join("a", "b")
    assert not resumed.of(Work)
    assert resumed.run.waiting.clients == {"c"}
    assert resumed.run.next_tick == RETURN_S
    resumed.join("c")  # d was lost before the server ended
    assert {work.client for work in resumed.of(Work)} == {"a", "b", "c"}


def test_resumed_run_begins_without_client_that_stays_away():
    first = Driver(min_clients=2, rounds=3)
    first.join("a", "b", "c")
    first.do_a_round()
    resumed = Driver(min_clients=2, rounds=5, resume=first.run.state())
    resumed.join("a", "b")
    resumed.say(Lost(1.0, "b"))
    resumed.say(Tick(RETURN_S))
    assert resumed.run.next_tick > RETURN_S
    resumed.join("b")
    assert {work.client for work in resumed.of(Work)} == {"a", "b"}


def test_started_run_continues_below_minimum():
    driver = Driver(min_clients=3, rounds=3)
    driver.join("a", "b", "c")
    driver.do_a_round()
    driver.say(Lost(driver.now, "b"))
    driver.say(Lost(driver.now, "c"))
    while not driver.run.finished:
        driver.do_a_round()
    assert driver.log[-1] == Finished("3 rounds done", complete=True)


def test_skipped_round_continues_from_client_models():
    driver = Driver(gate_period=2, rounds=4, local_steps=4)
    driver.join("a", "b")
    while not driver.run.finished:
        driver.do_a_round()
    rows = [append.row for append in driver.of(Append)]
    assert [row.outcome for row in rows] == ["skipped", "synced", "skipped", "synced"]
    assert [carry.target for carry in driver.of(Continue)] == [8, 8, 8, 8]
    assert [apply.version for apply in driver.of(Apply)] == [1, 2]


def test_late_client_is_planned_for_in_next_round():
    driver = Driver()
    driver.join("a", "b")
    driver.join("c")
    assert "c" not in {work.client for work in driver.of(Work)}
    driver.do_a_round()
    assert "c" in {work.client for work in driver.of(Work)}


def test_lost_client_is_not_planned_for():
    driver = Driver()
    driver.join("a", "b", "c")
    driver.do_a_round()
    driver.say(Lost(driver.now, "c"))
    driver.do_a_round()
    driver.log.clear()
    driver.do_a_round()
    assert {row.client for append in driver.of(Append) for row in append.row.clients} == {"a", "b"}


def test_run_without_clients_waits_and_continues():
    driver = Driver(start_timeout_s=50.0)
    driver.join("a", "b")
    driver.say(Lost(1.0, "a"))
    driver.say(Lost(2.0, "b"))
    assert not driver.run.finished
    assert driver.run.next_tick == 52.0
    driver.now = 10.0
    driver.join("b")
    driver.do_a_round()
    assert [append.row.outcome for append in driver.of(Append)] == ["empty", "synced"]


def test_four_times_slower_client_gets_less_work():
    driver = Driver(min_clients=4)
    driver.step_s = {"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.4}
    driver.join("a", "b", "c", "d", holds=[Held(f"chunk {n}", 10, "same") for n in range(16)])
    before = {work.client: len(work.names) for work in driver.of(Work)}
    driver.do_a_round()
    after = {work.client: len(work.names) for work in driver.of(Work)}
    assert after["d"] < before["d"]
    assert sum(after.values()) == sum(before.values())


def test_task_that_fails_everywhere_ends_run_with_its_error():
    driver = Driver(rounds=10)
    driver.join("a", "b")
    while not driver.run.finished:
        for client in ("a", "b"):
            if not driver.run.finished and driver.queue[client]:
                chunk = driver.queue[client][0]
                failed = driver.clients[client].fail(chunk, "ValueError: no such column")
                driver.say(replace(failed, now=1.0))
    last = driver.log[-1]
    assert isinstance(last, Finished)
    assert not last.complete
    assert "ValueError: no such column" in last.reason


def test_conflicting_chunk_size_is_refused_from_second_client():
    driver = Driver()
    driver.join("a")
    driver.join("b", holds=[Held("chunk 0", 99, "same"), Held("mine", 5)])
    assert [(refuse.client, "chunk 0" in refuse.reason) for refuse in driver.of(Refuse)] == [("b", True)]
    works = {work.client: dict(work.names) for work in driver.of(Work)}
    assert list(works["b"].values()) == ["mine"]


def test_data_of_one_client_stays_there():
    driver = Driver(rounds=1)
    driver.join("a", holds=SHARED[:2])
    driver.join("b", holds=SHARED[2:])
    works = {work.client: {name for _, name in work.names} for work in driver.of(Work)}
    assert works == {"a": {"chunk 0", "chunk 1"}, "b": {"chunk 2", "chunk 3"}}
    driver.do_a_round()
    assert driver.of(Append)[0].row.outcome == "synced"


@pytest.mark.parametrize("begun", [False, True])
def test_stop_ends_run_at_any_time(begun: bool):
    driver = Driver()
    driver.join("a", *(["b"] if begun else []))
    driver.say(Stop(1.0, "asked to"))
    assert driver.run.finished
    assert driver.log[-1] == Finished("asked to", complete=False)
    assert bool(driver.of(Close)) is begun
    assert driver.say(Tick(2.0)) == ()


@pytest.mark.parametrize("begun", [False, True])
def test_stop_can_end_run_as_complete(begun: bool):
    driver = Driver()
    driver.join("a", *(["b"] if begun else []))
    driver.say(Stop(1.0, "no better model is expected", complete=True))
    assert driver.log[-1] == Finished("no better model is expected", complete=True)
    assert all(close.frees for close in driver.of(Close))
    assert bool(driver.of(Close)) is begun


def test_resumed_run_continues_after_last_sync():
    driver = Driver(rounds=5)
    driver.join("a", "b")
    driver.do_a_round()
    driver.do_a_round()
    state = driver.run.state()
    assert (state.round, state.version) == (3, 2)
    again = Driver(rounds=5)
    again.run = tuned_run(again.config, now=0.0, size=100, resume=state)
    again.join("a", "b")
    assert {(work.round, work.version) for work in again.of(Work)} == {(3, 2)}
    while not again.run.finished:
        again.do_a_round()
    assert [append.row.round for append in again.of(Append)] == [3, 4, 5]


@pytest.mark.parametrize("settings", [{}, {"work": "local", "gate": "drift"}])
@pytest.mark.parametrize("rounds", [1, 2, 6])
def test_resumed_complete_run_is_done(settings, rounds):
    driver = Driver(rounds=6)
    driver.join("a", "b")
    while not driver.run.finished:
        driver.do_a_round()
    again = Driver(rounds=rounds, **settings)
    done = replace(driver.run.state(), gate=again.run.state().gate)
    again.run = tuned_run(again.config, now=0.0, size=100, resume=done)
    again.join("a", "b")
    assert [each for each in again.log if isinstance(each, Finished)] == [
        Finished(f"{numbered(rounds, 'round')} done", complete=True)
    ]
    assert not again.of(Work)


def test_gate_of_resumed_run_knows_last_exchange():
    driver = Driver(rounds=6, gate="drift", gate_budget=0.5)
    driver.join("a", "b")
    while not driver.run.finished:
        driver.do_a_round()
    name, (gap, checks, spent, _) = json.loads(driver.run.state().gate)
    synced = sum(append.row.outcome == "synced" for append in driver.of(Append))
    assert (name, gap, checks, spent) == ("drift", 0, 6, synced)


def test_rows_add_up():
    driver = Driver(blocks=2)
    driver.join("a", "b", "c")
    driver.do_a_round()
    row = driver.of(Append)[0].row
    assert row.chunks == row.covered == 4
    assert row.blocks == row.replicas == 2
    assert sum(client.counted for client in row.clients) == 8
    assert row.discarded == sum(client.finished for client in row.clients) - 8
    assert all(client.step_s == pytest.approx(0.1) for client in row.clients if client.finished)


@pytest.mark.parametrize("joined", list(permutations("abc")), ids="".join)
def test_chunk_assignment_ignores_join_order(joined: tuple[str, ...]):
    driver = Driver(min_clients=3)
    driver.join(*joined)
    given = {each.client: each.order for each in driver.log if isinstance(each, Work)}
    twin = Driver(min_clients=3)
    twin.join("a", "b", "c")
    assert given == {each.client: each.order for each in twin.log if isinstance(each, Work)}
    assert len(set(given.values())) == 3


@pytest.mark.parametrize("shown_by", [Loaded, Progress])
def test_skipped_round_keeps_track_of_models_in_flight(shown_by: type):
    driver = Driver(
        rounds=6, min_clients=3, replicas=3, gate="every", gate_period=2, local_steps=4, deadline_s=100
    )
    driver.run = tuned_run(driver.config, now=0.0, size=10_000_000)
    driver.join("a", "b", "c")
    for client in "ab":
        driver.say(Loaded(5.0, client, 0))
    driver.now = 6.0
    while driver.run.number == 1:
        for client in "ab":
            driver.work(client)
    assert [carry.client for carry in driver.of(Continue)] == ["a", "b", "c"]
    limit_s = driver.run.round.assignment.model_limit_s
    assert driver.run.next_tick == pytest.approx(6.0 + limit_s + 100.0 * 2), "c has none yet"
    driver.now = 8.0
    driver.say(Loaded(8.0, "c", 0)) if shown_by is Loaded else driver.work("c")
    assert driver.run.next_tick == pytest.approx(8.0 + 100.0 * 2)


def test_restarted_holder_of_same_chunks_continues_after_skip():
    driver = Driver(min_clients=3, gate="every", gate_period=3)
    for client in "abc":
        driver.join(client, holds=[Held(f"chunk {client}", 10)])
    driver.say(Lost(0.5, "c"))
    driver.clients.pop("c")
    driver.do_a_round()
    assert driver.of(Append)[0].row.outcome == "skipped"
    assert [(carry.client, carry.order) for carry in driver.of(Continue)] == [("a", (0,)), ("b", (1,))]
    assert {work.round for work in driver.of(Work)} == {1}


def own(client: str, count: int = 4) -> tuple[Held, ...]:
    return tuple(Held(f"{client} {number}", 10) for number in range(count))


def play_private_rounds(driver: Driver, rounds: int) -> None:
    while driver.run.number <= rounds and not driver.run.finished:
        driver.do_a_round()


@pytest.mark.parametrize("lost", ["a", "b", "c"])
def test_tuned_run_with_private_chunks_survives_lost_client(lost: str):
    driver = Driver(rounds=14, replicas="auto", min_clients=3)
    for client in "abc":
        driver.join(client, holds=own(client))
    play_private_rounds(driver, 6)  # by then there is history, and the tuner replays
    driver.say(Lost(driver.now, lost))
    driver.clients.pop(lost)
    driver.unsent = [each for each in driver.unsent if each[0] != lost]
    play_private_rounds(driver, 14)
    assert driver.log[-1] == Finished("14 rounds done", complete=True)
    assert driver.of(Append)[-1].row.chunks == 8


def test_resume_with_fewer_clients_omits_chunks_of_others():
    first = Driver(rounds=14, replicas="auto", min_clients=3)
    for client in "abc":
        first.join(client, holds=own(client))
    play_private_rounds(first, 6)
    again = Driver(rounds=14, replicas="auto", min_clients=2)
    again.run = tuned_run(again.config, now=0.0, size=100, resume=first.run.state())
    for client in "bc":
        again.join(client, holds=own(client))
    again.say(Tick(RETURN_S))
    play_private_rounds(again, 14)
    assert again.log[-1] == Finished("14 rounds done", complete=True)
    assert {row.row.outcome for row in again.of(Append)} == {"synced"}
    assert again.of(Append)[-1].row.chunks == 8


@pytest.mark.parametrize("work", ["coded", "local"])
def test_absurd_work_time_claim_delays_no_later_round(work: str):
    driver = Driver(rounds=3, work=work, gate="every")
    driver.now = 1.0
    for client in "ab":
        driver.join(client, holds=[Held(f"chunk {client}", 10)])
    target = driver.clients["a"].target
    driver.now = 3.0

    def tell(client: str) -> None:
        if work == "local":
            driver.say(Report(driver.now, client, 1, target, 10, 1e30, 1.0, 0.5))
        elif driver.queue[client]:
            driver.say(driver.clients[client].finish(1e30).event(driver.now, client, 10))

    tell("a")
    tell("b")
    while driver.unsent:
        client, at, attempt = driver.unsent.pop(0)
        tell(client)
        driver.say(Codeword(driver.now, client, at, attempt, seconds=1.0, size_bytes=400))
    assert driver.run.number == 2
    assert driver.run.next_tick < 60.0, "a few times as long as the run had lasted then"


def test_sites_with_same_private_chunk_names_train_all_of_them():
    driver = Driver(rounds=2, min_clients=3)
    for client in "abc":
        driver.join(client, holds=[Held(f"part-{at}", 10) for at in range(4)])
    play_private_rounds(driver, 2)
    assert not driver.of(Refuse)
    rows = [each.row for each in driver.of(Append)]
    assert [(row.outcome, row.chunks, row.samples) for row in rows] == [("synced", 12, 120)] * 2


def test_shared_chunk_with_other_content_is_refused_with_digests():
    driver = Driver(rounds=2)
    driver.join("a")
    driver.join("b", holds=[Held(f"chunk {number}", 10, "other") for number in range(4)])
    (refused,) = driver.of(Refuse)
    said = (
        "chunk chunk 0: saw content of digest other, others have same; 3 more chunks differ: data made at "
        "random need a seed"
    )
    assert (refused.client, refused.reason) == ("b", said)


def test_repeated_announcements_leave_checkpoint_unchanged():
    driver = Driver(rounds=3)
    driver.join("a", "b")
    before = len(json.dumps(driver.run.state().chunks))
    for at in range(30):
        driver.join("c", holds=[Held(f"invented {at}-{each}", 10) for each in range(200)])
    driver.join("c", holds=())
    play_private_rounds(driver, 1)
    state = driver.run.state()
    assert [name for _, _, name, _, _ in state.chunks] == [held.name for held in SHARED]
    assert len(json.dumps(state.chunks)) - before < 1000
    assert state.next_chunk == 4 + 30 * 200  # no number is given twice


def test_resumed_run_restores_chunk_numbers():
    first = Driver(rounds=3)
    first.join("a", holds=own("a"))
    first.join("b", holds=own("b"))
    play_private_rounds(first, 1)
    again = Driver(rounds=3)
    again.run = tuned_run(again.config, now=0.0, size=100, resume=first.run.state())
    again.join("c", holds=own("c"))
    again.join("b", holds=own("b"))
    again.say(Tick(RETURN_S))
    numbers = {work.client: {number for number, _ in work.names} for work in again.of(Work)}
    assert numbers == {"b": {4, 5, 6, 7}, "c": {8, 9, 10, 11}}


def test_lost_private_data_is_missing_from_counted_samples():
    driver = Driver(rounds=3, min_clients=3)
    for client in "abc":
        driver.join(client, holds=own(client))
    play_private_rounds(driver, 1)
    driver.say(Lost(driver.now, "c"))
    driver.clients.pop("c")
    driver.unsent = [each for each in driver.unsent if each[0] != "c"]
    play_private_rounds(driver, 3)
    rows = [each.row for each in driver.of(Append)]
    assert [row.known_samples for row in rows] == [120] * 3
    assert (rows[0].counted_samples, rows[0].lacking) == (120, "")
    assert (rows[2].counted_samples, rows[2].lacking) == (80, "66% of the samples")


def test_refused_data_counts_as_known_and_faulty_in_every_round():
    driver = Driver(rounds=2)
    driver.join("a", "b")
    driver.join("c", holds=[Held(f"chunk {number}", 10, "other") for number in range(4)])
    play_private_rounds(driver, 2)
    for row in (each.row for each in driver.of(Append)):
        assert (row.known_samples, row.counted_samples) == (80, 40)
        assert row.left_out.startswith(
            "1 client was refused data: c: chunk chunk 0: saw content of digest other"
        )
        (fault,) = [each for each in row.clients if each.client == "c"]
        assert (fault.refused, "saw content of digest other" in fault.failure) == (1, True)


def test_run_waiting_for_clients_with_refused_data_reports_it():
    driver = Driver(start_timeout_s=5.0)
    driver.join("a")
    driver.join("b", holds=[Held("chunk 0", 11, "same")])
    driver.say(Lost(1.0, "a"))
    driver.say(Tick(5.0))
    last = driver.log[-1]
    assert isinstance(last, Finished)
    said = (
        "1 that hold no chunk (1 client was refused data: b: chunk chunk 0: saw 11 samples, others have 10)"
    )
    assert last.reason.endswith(said)


def test_run_ends_once_too_few_of_all_clients_have_data():
    driver = Driver(min_clients=2, fleet=3)
    driver.join("a")
    driver.join("b", holds=[])
    assert not driver.run.finished, "c may have data"
    driver.join("c", holds=[])
    last = driver.log[-1]
    assert isinstance(last, Finished)
    assert last.reason == (
        "saw 1 of 3 clients that can work, needed 2, and 2 that hold no chunk; "
        "min-clients = 1 begins with them"
    )


def test_client_that_loses_its_data_later_does_not_end_run():
    driver = Driver(min_clients=2, fleet=2)
    driver.join("a", "b")
    assert driver.run.round is not None
    driver.say(Lost(1.0, "b"))
    driver.join("b", holds=[])
    assert not driver.run.finished


@pytest.mark.parametrize(
    ("fleet", "stays_s", "reason"),
    [(2, 7 * 86_400.0, SCRIPTS_LEFT), (2, 20.0, ""), (None, 7 * 86_400.0, ""), (3, 7 * 86_400.0, "")],
)
def test_run_ends_once_scripts_of_all_clients_have_left(fleet: int | None, stays_s: float, reason: str):
    """A client that is asked to end may come back, and others may join where their number is not known."""
    driver = Driver(min_clients=2, fleet=fleet)
    driver.join("a", "b")
    for client in ("a", "b"):
        driver.say(Leaving(1.0, client, stays_s))
    driver.say(Tick(30.0))
    assert driver.run.finished is bool(reason)
    assert [each.reason for each in driver.log if isinstance(each, Finished)] == ([reason] if reason else [])


def test_clients_that_cannot_work_are_known_while_others_are_awaited():
    driver = Driver(min_clients=3)
    driver.join("a", "b")
    driver.join("c", holds=[])
    assert driver.run.idle == {"c": "it announced no chunk"}
    driver.join("d", holds=[Held("chunk 0", 11, "same")])
    refused = "chunk chunk 0: saw 11 samples, others have 10"
    assert driver.run.idle == {"c": "it announced no chunk", "d": refused}
    driver.join("e")
    assert not driver.run.idle


def test_differing_replicas_are_reported_with_both_clients():
    driver = Driver(rounds=1)
    driver.join("a", "b", holds=[Held("chunk 0", 10, "same"), Held("chunk 1", 10, "same")])
    for client, chunk, number in (("a", 0, 1.0), ("b", 0, 2.0), ("b", 1, 1.0)):
        at = driver.clients[client]
        at.trajectories[chunk] = Trajectory(at.names[chunk], at.target)
        driver.say(Progress(1.0, client, 1, chunk, at.target, 0.1, 10, 1.0, 0.5, (number,) * 16))
    for client, queue in driver.queue.items():
        for chunk in queue:
            driver.clients[client].handle(Skip(client, 1, chunk))
    driver.do_a_round()
    (row,) = (each.row for each in driver.of(Append))
    assert "replicas of 1 chunks differ among a, b: unknown whose are wrong" in row.reason
    assert [each.refused for each in row.clients] == [0, 0]


def test_data_changed_in_mid_round_does_not_count():
    driver = Driver(rounds=2)
    driver.join("a", holds=own("a"))
    driver.join("b", holds=own("b"))
    for client in "ab":
        while driver.queue[client]:
            driver.work(client)
    driver.say(Joined(driver.now, "a", True, tuple(Held(f"a {number}", 15) for number in range(4))))
    driver.do_a_round()
    first = driver.of(Append)[0].row
    assert (first.known_samples, first.counted_samples) == (100, 40)


def test_run_says_whom_it_waits_for_and_until_when():
    driver = Driver(start_timeout_s=5.0)
    assert (driver.run.waiting.needed, driver.run.waiting.until) == (2, 5.0)
    driver.join("a")
    driver.say(Lost(1.0, "a"))
    driver.join("b")
    assert driver.run.waiting.clients == {"a"}, "it is known, and was lost before the first round"
    assert driver.run.waiting.needed == 1
    driver.join("a")
    waits = driver.run.waiting
    assert (waits.clients, waits.needed) == ({"a", "b"}, 0)
    assert driver.now < waits.until == driver.run.next_tick
    while not driver.unsent:
        for client in ("a", "b"):
            if driver.queue[client]:
                driver.work(client)
    owing = {client for client, _, _ in driver.unsent}
    assert driver.run.waiting.clients == owing
    gave, at, attempt = driver.unsent.pop(0)
    driver.say(Codeword(driver.now, gave, at, attempt, seconds=2.0, size_bytes=400))
    assert driver.run.round is None or gave not in driver.run.waiting.clients


def test_first_fault_of_barren_rounds_leads_reason():
    driver = Driver(rounds=9)
    driver.join("a", "b")
    driver.do_a_round()
    driver.fail_to_the_end()
    assert driver.log[-1] == Finished("a: ValueError 2; 3 rounds in a row gave nothing", complete=False)
