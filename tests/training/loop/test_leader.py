"""Test rank 0's side of the local socket: what all ranks do next."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.errors import EdgeFailed
from fedgc.training.loop import leader as leader_module
from fedgc.training.loop.environment import ScriptEnvironment
from fedgc.training.loop.leader import Action, Do, Leader
from fedgc.training.loop.protocol import LineSocket


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Leader, LineSocket]]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "client"))
        listener.listen()
        leader = Leader(ScriptEnvironment(str(tmp_path / "client"), "secret", {}, {}, str(tmp_path)))
        client = LineSocket(listener.accept()[0])
    assert client.receive() == {"kind": "hello", "secret": "secret"}
    yield leader, client
    leader.close()
    client.close()


@pytest.mark.slow
def test_ranks_hear_of_leader_while_client_is_silent(pair, monkeypatch: pytest.MonkeyPatch):
    leader, client = pair
    monkeypatch.setattr(leader_module, "HEARTBEAT_S", 0.01)
    assert leader.next().do == Do.WAIT
    client.send("end", complete=True)
    assert leader.next().do == Do.END


def test_leader_that_leaves_waits_for_nothing(pair):
    leader, _ = pair
    leader.leave()
    assert leader.next().do == Do.LEAVE


def test_lost_client_raises(pair):
    leader, client = pair
    client.close()
    with pytest.raises(EdgeFailed, match="the other side closed it"):
        leader.next()


def test_action_survives_its_broadcast_as_numbers():
    action = Action(Do.LOAD, 3, 2, 40, 5)
    assert Action.of(action.numbers()) == action
