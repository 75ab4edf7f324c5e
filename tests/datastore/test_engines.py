"""Test that engines fetch what a round gives them, and go on without a damaged chunk."""

import time

import pytest
from torch import nn

import fedgc
from fedgc.config import RunConfig
from fedgc.messages import Failed, Fetched, Work
from fedgc.training import new_engine
from fedgc.training.pace import Pace
from tests.datastore.conftest import MARK, Ward


def loss(model, batch):
    return nn.functional.cross_entropy(model(batch[0].float() / MARK), batch[1])


def worked(ward: Ward, kind: str, numbers: tuple[int, ...]) -> list[object]:
    """Let an engine work on these chunks; return its events."""
    config = RunConfig(work=kind, device="cpu")
    task = fedgc.over(ward.data(), config, model=lambda: nn.Linear(2, 2), loss=loss)
    engine = new_engine(task, config, Pace(time.monotonic, time.sleep), ward.folder / "spill")
    names = tuple((number, held.name) for number, held in enumerate(engine.holds()) if number in numbers)
    engine.load(0, engine.initial())
    engine.handle(Work("me", 1, 0, 2, numbers, names, seed=0, lease_s=60.0, kind=kind))
    events = []
    while not engine.idle:
        events.append(engine.step())
    engine.close()
    task.source.wait()
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


def test_damaged_chunk_fails_by_name_and_others_are_trained(ward: Ward):
    damaged = ward.chunks[1]
    ward.file(damaged).write_bytes(b"x" * damaged.size_bytes)
    events = [event for event in worked(ward, "coded", (0, 1, 2)) if not isinstance(event, Fetched)]
    failed, *finished = sorted(events, key=lambda event: type(event).__name__)
    assert f"{damaged.name}: corrupted, or another chunk" in failed.reason
    assert [event.chunk for event in finished] == [0, 2]
