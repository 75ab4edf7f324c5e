"""The run: gathering, planning, applying, skipping, resuming, giving up."""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import permutations

import pytest

from fedgc.messages import (
    Close,
    Codeword,
    Continue,
    Failed,
    Held,
    Joined,
    Loaded,
    Lost,
    Progress,
    Refuse,
    Repair,
    Report,
    Reveal,
    Skip,
    Stop,
    Take,
    Tick,
    Work,
)
from fedgc.run.machine import Append, Apply, Finished, Output, RunState
from tests.config_of import config_of
from tests.tuned import tuned_run

SHARED = tuple(Held(f"chunk {number}", 10, "same") for number in range(4))


class Driver:
    """Carries out what the run says, with clients that finish a chunk whenever they are asked to."""

    def __init__(self, resume: RunState | None = None, **settings: object) -> None:
        self.config = config_of(
            {"work": "coded", "rounds": 3, "replicas": 2, "blocks": 1, "min_clients": 2, **settings}
        )
        self.run = tuned_run(self.config, now=0.0, size=100, resume=resume)
        self.now = 0.0
        self.log: list[Output] = []
        self.queue: dict[str, list[int]] = {}
        self.unsent: list[tuple[str, int, int]] = []
        self.at: dict[str, tuple[int, int]] = {}  # client -> round, target
        self.step_s: dict[str, float] = {}

    def say(self, event: object) -> tuple[Output, ...]:
        outputs = self.run.handle(event)  # type: ignore[arg-type]
        self.log += outputs
        for output in outputs:
            match output:
                case Work() | Continue():
                    self.queue[output.client] = list(output.order)
                    self.at[output.client] = (output.round, output.target)
                case Take():
                    rest = [c for c in self.queue[output.client] if c not in output.chunks]
                    self.queue[output.client] = [*output.chunks, *rest]
                case Skip():
                    self.queue[output.client] = [c for c in self.queue[output.client] if c != output.chunk]
                case Reveal() | Repair():
                    self.unsent.append((output.client, output.round, output.attempt))
                case Close():
                    self.queue[output.client] = []
        return outputs

    def join(self, *clients: str, holds: Iterable[Held] = SHARED) -> None:
        for client in clients:
            self.say(Joined(self.now, client, True, tuple(holds)))

    def work(self, client: str) -> None:
        chunk = self.queue[client].pop(0)
        number, target = self.at[client]
        seconds = target * self.step_s.get(client, 0.1)
        self.say(Progress(self.now, client, number, chunk, target, seconds, 10, 1.0, 0.5))

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

    def of(self, kind: type) -> list:
        return [output for output in self.log if isinstance(output, kind)]


def test_it_waits_for_the_clients_asked_for_and_then_runs_all_its_rounds():
    driver = Driver()
    driver.join("a")
    assert not driver.of(Work)
    driver.join("b")
    assert {work.client for work in driver.of(Work)} == {"a", "b"}
    while not driver.run.finished:
        driver.do_a_round()
    assert [apply.version for apply in driver.of(Apply)] == [1, 2, 3]
    assert [append.row.round for append in driver.of(Append)] == [1, 2, 3]
    assert driver.log[-1] == Finished("3 rounds are done", complete=True)


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_in_which_nothing_was_ever_counted_is_not_complete(rounds: int):
    driver = Driver(rounds=rounds)
    driver.join("a", "b")
    while not driver.run.finished:
        for client, queue in list(driver.queue.items()):
            for chunk in list(queue):
                number, _ = driver.at[client]
                driver.say(Failed(driver.now, client, number, f"ValueError {number}", (chunk,)))
        driver.now += 1.0
        driver.say(Tick(driver.now))
    assert driver.log[-1] == Finished(
        f"{rounds} rounds are done, and no work was ever counted; a: ValueError 1", complete=False
    )


def test_clients_that_hold_nothing_are_counted_where_none_else_came():
    driver = Driver(start_timeout_s=5.0)
    driver.join("a", "b", holds=())
    driver.say(Tick(5.0))
    said = "waited 5 s for 2 clients, saw 0, and 2 that hold no chunk"
    assert driver.log[-1] == Finished(said, complete=False)


def test_the_new_model_is_applied_before_anybody_works_on_it():
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


def test_too_few_clients_end_the_run_with_a_sentence_that_counts_them():
    driver = Driver(start_timeout_s=5.0)
    assert driver.run.next_tick == 5.0
    driver.say(Tick(5.0))
    assert driver.log == [Finished("waited 5 s for 2 clients, saw 0", complete=False)]


def test_no_wait_is_long_enough_to_begin_with_fewer_clients_than_the_minimum():
    driver = Driver(start_timeout_s=5.0, min_clients=3)
    driver.join("a", "b")
    driver.say(Tick(5.0))
    said = "waited 5 s for 3 clients, saw 2; min-clients = 2 begins with them"
    assert driver.log == [Finished(said, complete=False)]


def test_a_resumed_run_needs_its_minimum_again():
    first = Driver(min_clients=2, rounds=3)
    first.join("a", "b")
    first.do_a_round()
    resumed = Driver(start_timeout_s=5.0, min_clients=2, rounds=3, resume=first.run.state())
    resumed.join("a")
    resumed.say(Tick(5.0))
    said = "waited 5 s for 2 clients, saw 1; min-clients = 1 begins with them"
    assert resumed.log == [Finished(said, complete=False)]


def test_a_run_that_has_begun_goes_on_with_fewer_than_its_minimum():
    driver = Driver(min_clients=3, rounds=3)
    driver.join("a", "b", "c")
    driver.do_a_round()
    driver.say(Lost(driver.now, "b"))
    driver.say(Lost(driver.now, "c"))
    while not driver.run.finished:
        driver.do_a_round()
    assert driver.log[-1] == Finished("3 rounds are done", complete=True)


def test_a_skipped_round_goes_on_from_where_clients_are():
    driver = Driver(gate_period=2, rounds=4, local_steps=4)
    driver.join("a", "b")
    while not driver.run.finished:
        driver.do_a_round()
    rows = [append.row for append in driver.of(Append)]
    assert [row.outcome for row in rows] == ["skipped", "synced", "skipped", "synced"]
    assert [carry.target for carry in driver.of(Continue)] == [8, 8, 8, 8]
    assert [apply.version for apply in driver.of(Apply)] == [1, 2]


def test_a_client_that_joins_late_is_planned_for_in_the_next_round():
    driver = Driver()
    driver.join("a", "b")
    driver.join("c")
    assert "c" not in {work.client for work in driver.of(Work)}
    driver.do_a_round()
    assert "c" in {work.client for work in driver.of(Work)}


def test_a_client_that_is_gone_is_not_planned_for():
    driver = Driver()
    driver.join("a", "b", "c")
    driver.do_a_round()
    driver.say(Lost(driver.now, "c"))
    driver.do_a_round()
    driver.log.clear()
    driver.do_a_round()
    assert {row.client for append in driver.of(Append) for row in append.row.clients} == {"a", "b"}


def test_when_all_are_gone_it_waits_and_goes_on():
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


def test_a_client_that_is_four_times_slower_gets_less():
    driver = Driver(min_clients=4)
    driver.step_s = {"a": 0.1, "b": 0.1, "c": 0.1, "d": 0.4}
    driver.join("a", "b", "c", "d", holds=[Held(f"chunk {n}", 10, "same") for n in range(16)])
    before = {work.client: len(work.names) for work in driver.of(Work)}
    driver.do_a_round()
    after = {work.client: len(work.names) for work in driver.of(Work)}
    assert after["d"] < before["d"]
    assert sum(after.values()) == sum(before.values())


def test_a_task_that_fails_everywhere_ends_the_run_with_its_own_words():
    driver = Driver(rounds=10)
    driver.join("a", "b")
    while not driver.run.finished:
        for client in ("a", "b"):
            if not driver.run.finished and driver.queue[client]:
                number, _ = driver.at[client]
                chunk = driver.queue[client].pop(0)
                driver.say(Failed(1.0, client, number, "ValueError: no such column", (chunk,)))
    last = driver.log[-1]
    assert isinstance(last, Finished)
    assert not last.complete
    assert "ValueError: no such column" in last.reason


def test_a_chunk_that_two_clients_size_differently_is_refused_from_the_second():
    driver = Driver()
    driver.join("a")
    driver.join("b", holds=[Held("chunk 0", 99, "same"), Held("mine", 5)])
    assert [(refuse.client, "chunk 0" in refuse.reason) for refuse in driver.of(Refuse)] == [("b", True)]
    works = {work.client: dict(work.names) for work in driver.of(Work)}
    assert list(works["b"].values()) == ["mine"]


def test_data_that_lies_with_one_client_only_stays_there():
    driver = Driver(rounds=1)
    driver.join("a", holds=SHARED[:2])
    driver.join("b", holds=SHARED[2:])
    works = {work.client: {name for _, name in work.names} for work in driver.of(Work)}
    assert works == {"a": {"chunk 0", "chunk 1"}, "b": {"chunk 2", "chunk 3"}}
    driver.do_a_round()
    assert driver.of(Append)[0].row.outcome == "synced"


@pytest.mark.parametrize("begun", [False, True])
def test_stop_ends_it_at_any_time(begun: bool):
    driver = Driver()
    driver.join("a", *(["b"] if begun else []))
    driver.say(Stop(1.0, "asked to"))
    assert driver.run.finished
    assert driver.log[-1] == Finished("asked to", complete=False)
    assert bool(driver.of(Close)) is begun
    assert driver.say(Tick(2.0)) == ()


def test_a_resumed_run_goes_on_after_the_last_sync():
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
def test_a_run_that_is_resumed_when_all_its_rounds_are_done_is_done(settings, rounds):
    driver = Driver(rounds=6)
    driver.join("a", "b")
    while not driver.run.finished:
        driver.do_a_round()
    again = Driver(rounds=rounds, **settings)
    done = replace(driver.run.state(), gate=again.run.state().gate)
    again.run = tuned_run(again.config, now=0.0, size=100, resume=done)
    again.join("a", "b")
    assert [each for each in again.log if isinstance(each, Finished)] == [
        Finished(f"{rounds} rounds are done", complete=True)
    ]
    assert not again.of(Work)


def test_the_exchange_of_the_last_round_is_known_to_the_gate_of_a_run_that_goes_on():
    driver = Driver(rounds=6, gate="drift", gate_budget=0.5)
    driver.join("a", "b")
    while not driver.run.finished:
        driver.do_a_round()
    gap, checks, spent, _ = json.loads(driver.run.state().gate)
    synced = sum(append.row.outcome == "synced" for append in driver.of(Append))
    assert (gap, checks, spent) == (0, 6, synced)


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
def test_whoever_joins_first_everybody_is_given_the_same_chunks(joined: tuple[str, ...]):
    driver = Driver(min_clients=3)
    driver.join(*joined)
    given = {each.client: each.order for each in driver.log if isinstance(each, Work)}
    twin = Driver(min_clients=3)
    twin.join("a", "b", "c")
    assert given == {each.client: each.order for each in twin.log if isinstance(each, Work)}
    assert len(set(given.values())) == 3


@pytest.mark.parametrize("shown_by", [Loaded, Progress])
def test_a_skipped_round_leaves_word_of_whose_model_is_on_its_way(shown_by: type):
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


def test_who_holds_the_same_chunks_after_a_death_in_a_skipped_round_carries_on():
    driver = Driver(min_clients=3, gate="every", gate_period=3)
    for client in "abc":
        driver.join(client, holds=[Held(f"chunk {client}", 10)])
    driver.say(Lost(0.5, "c"))
    driver.queue.pop("c")
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
def test_run_with_private_chunks_survives_a_lost_client_when_the_tuner_chooses(lost: str):
    driver = Driver(rounds=14, replicas="auto", min_clients=3)
    for client in "abc":
        driver.join(client, holds=own(client))
    play_private_rounds(driver, 6)  # by then there is history, and the tuner replays
    driver.say(Lost(driver.now, lost))
    driver.queue.pop(lost)
    driver.unsent = [each for each in driver.unsent if each[0] != lost]
    play_private_rounds(driver, 14)
    assert driver.log[-1] == Finished("14 rounds are done", complete=True)
    assert driver.of(Append)[-1].row.chunks == 8


def test_resume_with_fewer_clients_plans_without_the_chunks_of_the_others():
    first = Driver(rounds=14, replicas="auto", min_clients=3)
    for client in "abc":
        first.join(client, holds=own(client))
    play_private_rounds(first, 6)
    again = Driver(rounds=14, replicas="auto", min_clients=2)
    again.run = tuned_run(again.config, now=0.0, size=100, resume=first.run.state())
    for client in "bc":
        again.join(client, holds=own(client))
    play_private_rounds(again, 14)
    assert again.log[-1] == Finished("14 rounds are done", complete=True)
    assert {row.row.outcome for row in again.of(Append)} == {"synced"}
    assert again.of(Append)[-1].row.chunks == 8


@pytest.mark.parametrize("work", ["coded", "local"])
def test_a_client_that_claims_to_have_worked_for_ages_holds_up_no_later_round(work: str):
    driver = Driver(rounds=3, work=work, gate="every")
    driver.now = 1.0
    for client in "ab":
        driver.join(client, holds=[Held(f"chunk {client}", 10)])
    _, target = driver.at["a"]
    driver.now = 3.0

    def tell(client: str) -> None:
        if work == "local":
            driver.say(Report(driver.now, client, 1, target, 10, 1e30, 1.0, 0.5))
        elif driver.queue[client]:
            chunk = driver.queue[client].pop()
            driver.say(Progress(driver.now, client, 1, chunk, target, 1e30, 10, 1.0, 0.5))

    tell("a")
    tell("b")
    while driver.unsent:
        client, at, attempt = driver.unsent.pop(0)
        tell(client)
        driver.say(Codeword(driver.now, client, at, attempt, seconds=1.0, size_bytes=400))
    assert driver.run.number == 2
    assert driver.run.next_tick < 60.0, "a few times as long as the run had lasted then"


def test_sites_that_name_their_private_chunks_alike_train_all_of_them():
    driver = Driver(rounds=2, min_clients=3)
    for client in "abc":
        driver.join(client, holds=[Held(f"part-{at}", 10) for at in range(4)])
    play_private_rounds(driver, 2)
    assert not driver.of(Refuse)
    rows = [each.row for each in driver.of(Append)]
    assert [(row.outcome, row.chunks, row.samples) for row in rows] == [("synced", 12, 120)] * 2


def test_shared_chunk_with_other_content_is_refused_with_both_digests():
    driver = Driver(rounds=2)
    driver.join("a")
    driver.join("b", holds=[Held(f"chunk {number}", 10, "other") for number in range(4)])
    (refused,) = driver.of(Refuse)
    said = "chunk chunk 0: saw content of digest other, others have same; 3 more chunks differ"
    assert (refused.client, refused.reason) == ("b", said)


def test_repeated_announcements_leave_no_trace_in_the_checkpoint():
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


def test_resumed_run_gives_chunks_their_numbers_again():
    first = Driver(rounds=3)
    first.join("a", holds=own("a"))
    first.join("b", holds=own("b"))
    play_private_rounds(first, 1)
    again = Driver(rounds=3)
    again.run = tuned_run(again.config, now=0.0, size=100, resume=first.run.state())
    again.join("c", holds=own("c"))
    again.join("b", holds=own("b"))
    numbers = {work.client: {number for number, _ in work.names} for work in again.of(Work)}
    assert numbers == {"b": {4, 5, 6, 7}, "c": {8, 9, 10, 11}}


def test_lost_private_data_is_missing_from_the_samples_that_counted():
    driver = Driver(rounds=3, min_clients=3)
    for client in "abc":
        driver.join(client, holds=own(client))
    play_private_rounds(driver, 1)
    driver.say(Lost(driver.now, "c"))
    driver.queue.pop("c")
    driver.unsent = [each for each in driver.unsent if each[0] != "c"]
    play_private_rounds(driver, 3)
    rows = [each.row for each in driver.of(Append)]
    assert [row.known_samples for row in rows] == [120] * 3
    assert (rows[0].counted_samples, rows[0].lacking) == (120, "")
    assert (rows[2].counted_samples, rows[2].lacking) == (80, "66% of the samples")


def test_refused_data_counts_as_known_and_as_a_fault_in_every_round():
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


def test_run_that_waits_for_clients_whose_data_was_refused_says_so():
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


def test_two_differing_copies_are_told_in_the_row_with_both_clients():
    driver = Driver(rounds=1)
    driver.join("a", "b", holds=[Held("chunk 0", 10, "same"), Held("chunk 1", 10, "same")])
    for client, chunk, number in (("a", 0, 1.0), ("b", 0, 2.0), ("b", 1, 1.0)):
        driver.say(Progress(1.0, client, 1, chunk, driver.at[client][1], 0.1, 10, 1.0, 0.5, (number,) * 16))
    driver.queue.clear()
    driver.do_a_round()
    (row,) = (each.row for each in driver.of(Append))
    assert "replicas of 1 chunks differ among a, b: unknown whose are wrong" in row.reason
    assert [each.refused for each in row.clients] == [0, 0]


def test_data_that_changed_in_mid_round_did_not_count_in_it():
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
