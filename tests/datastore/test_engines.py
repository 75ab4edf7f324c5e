"""Test that engines fetch what a round gives them, and go on without a damaged chunk."""

import time
from threading import Event

import pytest
from torch import nn

import fedgc
from fedgc.config import RunConfig
from fedgc.flower.message_work import MessageWork
from fedgc.links.message.packets import Packet
from fedgc.messages import Failed, Fetched, Progress, Work
from fedgc.training import CacheFiles, Engine, new_engine
from fedgc.training.pace import Pace
from tests.datastore.conftest import MARK, WAIT_S, Ward
from tests.flower.test_masked_client import House


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0].float() / MARK), batch[1])


def engine_of(ward: Ward, kind: str) -> Engine:
    config = RunConfig(work=kind, device="cpu")
    task = fedgc.over(ward.data(), config, model=lambda: nn.Linear(2, 2), loss=loss)
    return new_engine(task, config, Pace(time.monotonic, time.sleep), ward.folder / "spill")


def work_of(engine: Engine, kind: str, numbers: tuple[int, ...]) -> Work:
    names = tuple((number, held.name) for number, held in enumerate(engine.holds()) if number in numbers)
    return Work("me", 1, 0, 2, numbers, names, seed=0, lease_s=60.0, kind=kind)


def worked(ward: Ward, kind: str, numbers: tuple[int, ...]) -> list[object]:
    """Let an engine work on these chunks; return its events."""
    engine = engine_of(ward, kind)
    engine.load(0, engine.initial())
    engine.handle(work_of(engine, kind, numbers))
    events = []
    while not engine.idle:
        events.append(engine.step())
    engine.close()
    return [event for event in events if event is not None]


@pytest.mark.parametrize("kind", ["coded", "local"])
def test_engine_keeps_chunks_of_its_work(ward: Ward, kind: str):
    for numbers in ((0, 1, 2), (2, 3)):
        events = [event for event in worked(ward, kind, numbers) if not isinstance(event, Fetched)]
        assert not any(isinstance(event, Failed) for event in events)
        assert len(events) == (len(numbers) if kind == "coded" else 1)
        assert ward.cached.keys() == {ward.chunks[number].digest for number in numbers}


def test_coded_engine_reports_fetched_chunks(ward: Ward):
    for numbers, new in (((0, 1, 2), (0, 1, 2)), ((2, 3), (3,)), ((2, 3), ())):
        said = [event for event in worked(ward, "coded", numbers) if isinstance(event, Fetched)]
        assert sum(event.count for event in said) == len(new)
        assert sum(event.size_bytes for event in said) == sum(ward.chunks[at].size_bytes for at in new)
        assert all(event.seconds > 0 for event in said)


@pytest.mark.parametrize("masked", [False, True])
def test_only_open_client_reports_fetched_chunks(ward: Ward, masked: bool):
    engine, house = engine_of(ward, "coded"), House(ward.folder)
    site = house.open["client 0"] if masked else None
    made = MessageWork(engine, CacheFiles(ward.folder / "spill"), "me", time.monotonic, site)
    made.run(Packet("run", bytes(16), 60.0, (work_of(engine, "coded", (0, 1)),), (0, engine.initial())))
    engine.close()
    house.close()
    assert sum(isinstance(line, Progress) for line in made.lines) == 2
    assert sum(line.count for line in made.lines if isinstance(line, Fetched)) == (0 if masked else 2)


def test_damaged_chunk_fails_by_name_and_others_are_trained(ward: Ward):
    damaged = ward.chunks[1]
    ward.file(damaged).write_bytes(b"x" * damaged.size_bytes)
    events = [event for event in worked(ward, "coded", (0, 1, 2)) if not isinstance(event, Fetched)]
    failed, *finished = sorted(events, key=lambda event: type(event).__name__)
    assert f"{damaged.name}: corrupted, or another chunk" in failed.reason
    assert [event.chunk for event in finished] == [0, 2]


def test_chunk_that_is_fetched_is_trained_after_others(ward: Ward, slow: tuple[Event, Event]):
    (begun, free), data = slow, ward.data()
    for chunk in ward.chunks[1:3]:
        data.load(chunk.name)
    engine, trained = engine_of(ward, "coded"), []
    engine.load(0, engine.initial())
    engine.handle(work_of(engine, "coded", (0, 1, 2)))
    assert begun.wait(WAIT_S)
    while not engine.idle:
        if isinstance(event := engine.step(), Progress):
            trained.append(event.chunk)
        if len(trained) == 2:
            free.set()
    engine.close()
    assert trained == [1, 2, 0]
