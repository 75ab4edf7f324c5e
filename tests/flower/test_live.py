"""The live state says which clients of a run have no data that it can use."""

from types import SimpleNamespace

from fedgc.config import RunConfig
from fedgc.flower.live import LiveState
from fedgc.round.waiting import Waiting
from fedgc.run.chunk_table import Amount


def test_clients_that_cannot_work_are_told_with_reason():
    amounts = SimpleNamespace(present=Amount(), known=Amount(), by_client={})
    run = SimpleNamespace(
        round=None,
        number=1,
        version=0,
        waiting=Waiting(),
        amounts=amounts,
        idle={"b": "it announced no chunk"},
    )
    link = SimpleNamespace(clients=lambda: ["a", "b"], name=str.upper, link=lambda _: "session")
    live = LiveState(RunConfig(), 0.0, ()).of(run, link, 1.0, over=False)
    assert [(each.name, each.idle) for each in live.clients] == [("A", ""), ("B", "it announced no chunk")]
