"""Test the bound on the norms of codewords, on the machine of a round."""

import numpy as np
import pytest

from fedgc.messages import Add, Codeword, Refuse, Repair, Take
from fedgc.round.coded.norms import MOST
from fedgc.round.machine import Round, State
from fedgc.sim.clock.reference_client import Reported
from tests.coded_round import Clients, begun, planned, progress

HOSTILE = "client 0"
SAMPLES = 10
LARGEST = 1e15  # norm that a report may claim


def finish(machine: Round, clients: Clients, claim: float = 0.0) -> None:
    """Clients report chunks in turn with their true norms, the hostile one with its claim."""
    while machine.state is State.WORKING:
        for name in clients.plan.clients:
            report(machine, clients, name, claim)
    assert machine.state is State.COLLECTING


def report(machine: Round, clients: Clients, name: str, claim: float = 0.0) -> None:
    """Finish the next chunk of a client."""
    if clients.queue[name] and machine.state is not State.CLOSED:
        said = clients.finish_next(name)
        assert isinstance(said, Reported)
        norm = float(np.linalg.norm(clients.updates[said.chunk])) / SAMPLES
        norm = claim if name == HOSTILE and claim else norm
        clients.obey(machine.handle(progress(name, said.chunk, squared_norm=norm**2)))


def send(machine: Round, clients: Clients, hostile: float | None = None) -> list[tuple[str, object]]:
    """Send all that is asked for, with its norm, or this one of the hostile client."""
    answers = []
    while clients.unsent or machine.state is not State.CLOSED:
        if not clients.unsent:  # repairs wait for chunks
            assert any(clients.queue.values()), "the round waits although nobody has anything to do"
            for name in clients.plan.clients:
                report(machine, clients, name)
            continue
        client, attempt = clients.unsent.pop(0)
        norm = float(np.linalg.norm(clients.made[client, attempt]))
        norm = hostile if client == HOSTILE and hostile is not None else norm
        said = machine.handle(Codeword(2.0, client, 1, attempt, norm=norm))
        answers += [(client, each) for each in said if isinstance(each, Add | Refuse)]
        clients.obey(said)
    return answers


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("claim", [0.0, LARGEST])
def test_huge_codeword_is_refused_and_repaired(claim: float, blocks: int):
    machine, clients = begun(planned(4, 8, replicas=3, blocks=blocks))
    finish(machine, clients, claim)
    answers = send(machine, clients, 1e30)
    assert [type(each) for client, each in answers if client == HOSTILE] == [Refuse]
    assert machine.outcome == "synced"
    assert machine.statistics.counted[0] == 0
    assert (machine.statistics.refused[0], machine.statistics.awaited) == (1, {0})
    assert machine.statistics.failure[0].startswith("its codeword has norm 1e+30, and at most")


def test_false_claims_of_one_client_count_up_to_cap():
    machine, clients = begun(planned(4, 8, replicas=3, blocks=1))
    finish(machine, clients, LARGEST)
    answers = send(machine, clients, LARGEST)
    assert [type(each) for client, each in answers if client == HOSTILE] == [Refuse]
    assert machine.outcome == "synced"


def test_refused_codeword_is_repaired_at_once():
    machine, clients = begun(planned(4, 8, replicas=3, blocks=1))
    finish(machine, clients)
    clients.unsent.sort(key=lambda key: key[0] == HOSTILE)  # the hostile client sends last
    for client, attempt in clients.unsent[:-1]:
        assert machine.handle(Codeword(2.0, client, 1, attempt, norm=0.0))
    said = machine.handle(Codeword(2.0, HOSTILE, 1, 0, norm=1e30))
    assert isinstance(said[0], Refuse)
    assert any(isinstance(each, Repair | Take) for each in said[1:])


def test_only_holder_of_chunk_leaves_it_out():
    machine, clients = begun(planned(3, 3, replicas=1, blocks=1, held=[{0}, {1}, {2}]))
    finish(machine, clients, LARGEST)
    send(machine, clients, 1e30)
    assert (machine.outcome, machine.short) == ("approximate", (0,))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_honest_codewords_are_never_refused(blocks: int, seed: int):
    machine, clients = begun(planned(5, 10, replicas=3, blocks=blocks))
    clients.updates |= {
        chunk: scale * clients.updates[chunk]
        for chunk, scale in enumerate(np.random.default_rng(seed).uniform(0.5, MOST / 2, 10))
    }
    finish(machine, clients)
    assert all(isinstance(each, Add) for _, each in send(machine, clients))
    assert machine.outcome == "synced"
    assert not any(machine.statistics.refused)


@pytest.mark.parametrize("blocks", [1, 2])
def test_chunk_with_far_longer_update_counts_in_part(blocks: int):
    machine, clients = begun(planned(4, 8, replicas=3, blocks=blocks))
    clients.updates[5] = 1000 * clients.updates[5]
    finish(machine, clients)
    assert all(isinstance(each, Add) for _, each in send(machine, clients))
    assert machine.outcome == "synced"
    assert machine.statistics.counted_in_part == [5]
    rest = clients.total - sum(update for chunk, update in clients.updates.items() if chunk != 5)
    usual = [np.linalg.norm(update) for chunk, update in clients.updates.items() if chunk != 5]
    assert MOST * min(usual) <= np.linalg.norm(rest) <= MOST * max(usual)
    assert np.dot(rest, clients.updates[5]) > 0.99 * np.linalg.norm(rest) * np.linalg.norm(clients.updates[5])


def test_only_holder_of_far_longer_chunk_is_not_refused():
    machine, clients = begun(planned(4, 4, replicas=1, blocks=1, held=[{0}, {1}, {2}, {3}]))
    clients.updates[3] = 1000 * clients.updates[3]
    finish(machine, clients)
    assert all(isinstance(each, Add) for _, each in send(machine, clients))
    assert (machine.outcome, list(machine.statistics.counted)) == ("synced", [1] * 4)


def test_false_small_norms_of_one_client_harm_no_other():
    machine, clients = begun(planned(4, 8, replicas=3, blocks=1))
    finish(machine, clients, 1e-9)
    answers = send(machine, clients)
    assert {client for client, each in answers if isinstance(each, Refuse)} <= {HOSTILE}
    assert machine.outcome == "synced"


def test_of_two_clients_reports_count_in_full():
    machine, clients = begun(planned(2, 2, replicas=1, blocks=1, held=[{0}, {1}]))
    finish(machine, clients, LARGEST)
    assert all(isinstance(each, Add) for _, each in send(machine, clients, LARGEST))
