"""Test local work on real Flower processes over both links: a skipped round, then an 8-bit exchange."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from fedgc.deploy.local_federation import free_port
from fedgc.history import ClientRow
from tests.contract.conftest import GATHER_S, Federation
from tests.contract.relay import Relay, owner

pytestmark = pytest.mark.contract

RUN = "local-work"
SHUT_OUT = "client-2"
STEPS = 3
MODEL_BYTES = 4 * 9_000  # the digits' model has a few more numbers
LEFT_OUT = "the mean update is left out"
PACKET_BYTES = (
    2_500  # of what a client says in a round, vectors apart; in the first with the layout of its model
)
SETTINGS = {
    "work": "local", "gate": "every", "gate_period": 2, "local_steps": STEPS, "rounds": 2, "quorum": 1.0,
    "codec": "int8", "run": RUN, "min_clients": 4, "threads": 1, "grace_s": 2.0, "chunks": 8,
    "deadline_s": 150.0, "connect_s": 2.0, "learning_rate": 0.5,
    "max_gap": 4, "start_timeout_s": GATHER_S, "aggregator": "trimmed-mean",
}  # fmt: skip


SAMPLE = {"run": "sample", "clients_per_round": 2, "gate_period": 1, "aggregator": "weighted-mean"}


@pytest.fixture
def run(federation: Federation, request: pytest.FixtureRequest) -> Iterator[int]:
    listener = f"127.0.0.1:{free_port()}"
    relay = Relay(listener)
    relay.lets_in = lambda flow: owner(flow.port, federation.pids(SHUT_OUT)) is None
    started = federation.submit(
        SETTINGS | getattr(request, "param", {}) | {"bind": listener, "advertise": relay.address}
    )
    yield started
    if federation.running(started):
        federation.stop(started)
    relay.close()


def test_skipped_round_sends_no_vector_and_exchange_covers_both(
    federation: Federation, run: int, tmp_path: Path
) -> None:
    assert federation.wait(run, 270) == "finished:completed", federation.run_log(run)
    with federation.store() as store:
        rounds = [each.row for each in store.rounds(RUN)]
        skipped, exchanged = (store.client_rows(RUN, number) for number in (1, 2))
        called = {client.client: client.name for client in store.clients()}
    assert [row.outcome for row in rounds] == ["skipped", "synced"], federation.run_log(run)
    assert LEFT_OUT not in federation.run_log(run), "four updates are enough for a trimmed mean"
    links = {called[row.client]: row.link for row in exchanged}
    assert links == dict.fromkeys(federation.nodes, "session") | {SHUT_OUT: "messages"}
    done = {called[row.client]: row.steps for row in skipped}
    assert done.pop(SHUT_OUT) == STEPS
    assert all(STEPS <= steps <= 4 * STEPS for steps in done.values()), "they run ahead, within the gap"
    assert [row.up_bytes for row in skipped] == [0] * 4
    counted = {called[row.client]: row.counted for row in exchanged}
    assert counted == {called[row.client]: row.finished for row in exchanged}
    assert counted.pop(SHUT_OUT) == 2 * STEPS
    assert all(2 * STEPS <= steps <= 4 * STEPS for steps in counted.values())
    assert all(0.25 * MODEL_BYTES < row.up_bytes < 0.5 * MODEL_BYTES for row in exchanged)
    assert [row.down_bytes for row in exchanged] == [0] * 4
    packets = [row.control_bytes for row in (*skipped, *exchanged) if row.link == "messages"]
    assert all(0 < count < PACKET_BYTES for count in packets)


@pytest.mark.slow
@pytest.mark.parametrize("run", [SAMPLE], indirect=True)
def test_sample_of_clients_trains_over_both_links(federation: Federation, run: int) -> None:
    assert federation.wait(run, 270) == "finished:completed", federation.run_log(run)
    with federation.store() as store:
        rounds = [each.row for each in store.rounds("sample")]
        asked = [store.client_rows("sample", number) for number in (1, 2)]
        called = {client.client: client.name for client in store.clients()}
    assert [row.outcome for row in rounds] == ["synced", "synced"], federation.run_log(run)
    assert all("asked 2 of 4 clients" in row.reason and row.coverage == 1.0 for row in rounds)
    links = {called[row.client]: row.link for rows in asked for row in rows}
    assert links == dict.fromkeys(federation.nodes, "session") | {SHUT_OUT: "messages"}
    assert all(row.counted and row.down_bytes and not row.failure for rows in asked for row in rows)
    assert [len(rows) for rows in asked] == [2, 2]


@pytest.mark.slow
def test_krum_leaves_out_round_with_too_few_updates(federation: Federation) -> None:
    plain = SETTINGS | {"gate_period": 1, "connect_s": 20.0}
    krum = federation.submit(plain | {"run": "krum", "aggregator": "krum"})
    assert federation.wait(krum, 270) == "finished:failed", federation.run_log(krum)
    left_out = f"{LEFT_OUT}: aggregator krum: saw 4 updates, needed at least 5"
    assert [federation.run_log(krum).count(f"round {number}: {left_out}") for number in (1, 2)] == [1, 1]


def test_late_update_counts_in_round_in_which_it_comes(federation: Federation) -> None:
    """One client's upload is held in its middle: three more rounds end, and it counts after its release."""
    listener = f"127.0.0.1:{free_port()}"
    relay = Relay(listener)
    settings = {"run": "late", "late_updates": "count", "gate_period": 1, "codec": "float32", "grace_s": 60.0}
    settings |= {"rounds": 400, "quorum": 0.5, "aggregator": "auto", "connect_s": 20.0}
    with relay.trap("up", MODEL_BYTES // 2, "up") as trap:
        started = federation.submit(SETTINGS | settings | {"bind": listener, "advertise": relay.address})
        assert trap.sprung.wait(GATHER_S), federation.run_log(started)
        held = rounds_of(federation, started, 3)
        (late,) = {row.client for row in held[-1]} - {row.client for row in held[-1] if row.counted}
        assert all(row.counted == 0 for rows in held[-2:] for row in rows if row.client == late)
    after = rounds_of(federation, started, len(held) + 3)[len(held) :]
    assert any(row.counted for rows in after for row in rows if row.client == late), federation.run_log(
        started
    )
    assert not any(row.failure for rows in after for row in rows)
    with federation.store() as store:
        reasons = [each.row.reason for each in store.rounds("late")]
    assert any(
        "of an earlier round" in reason or "of earlier rounds" in reason
        for reason in reasons[len(held) - 1 :]
    ), reasons
    federation.stop(started)
    relay.close()


def rounds_of(federation: Federation, started: int, count: int) -> list[Sequence[ClientRow]]:
    """Wait for so many rounds of the run `late`; return their clients."""
    end = time.monotonic() + GATHER_S
    while True:
        with federation.store() as store:
            numbers = [each.row.round for each in store.rounds("late")]
            if len(numbers) >= count:
                return [store.client_rows("late", number) for number in numbers]
        assert time.monotonic() < end, federation.run_log(started)
        time.sleep(0.1)
