"""A client whose memory and disk are full folds what it has finished into its codeword, and loses nothing."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from fedgc.codes import RunningSum
from fedgc.config import RunConfig
from fedgc.errors import BadMessage
from fedgc.gates import Decision
from fedgc.history import Speeds
from fedgc.messages import (
    UNREAD,
    Add,
    Close,
    Codeword,
    Continue,
    Failed,
    Fold,
    Joined,
    Mix,
    Pressed,
    Progress,
    Repair,
    Reveal,
    Take,
)
from fedgc.round.machine import Assignment, Round, State
from fedgc.round.plan import Chunk, Fleet, make_plan
from fedgc.training import Engine
from tests.six_chunks import SIZES as SIX
from tests.six_chunks import TASK

FACTORS = ((1.0, 2.0), (0.5, -1.0), (3.0, 0.25))


@pytest.fixture(params=["mounted and filled", "no folder"])
def full_disk(request, tmp_path_factory):
    """A folder that takes nothing: one on a file system without room, if this user may mount it, or none."""
    folder = tmp_path_factory.mktemp("full")
    if request.param == "no folder":
        (folder / "file").touch()
        yield folder / "file" / "below"
        return
    mounted = ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(folder)]
    if subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("this user may mount nothing")
    try:
        (folder / "filler").write_bytes(bytes(4096))
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def cramped(bench, small, full_disk, monkeypatch):
    """An engine with room for two trajectories, and nowhere to put a third."""
    bench.spill_dir, own = full_disk, bench.spill_dir
    monkeypatch.setattr("fedgc.training.engine.MEGABYTE", 2 * room_of(small, own))
    engine = bench.engine(small, RunConfig(batch_size=10, memory_mb=1))
    engine.ask_for_room()
    yield engine
    engine.close()
    bench.spill_dir = own


def room_of(task, folder: Path) -> int:
    """What one trajectory of this task takes."""
    engine = Engine(task, RunConfig(batch_size=10), clock=float, rest=lambda _: None, spill_dir=folder)
    numbers = engine.size
    engine.close()
    return 8 * numbers + 200  # its vector and its momentum, and what stays with it


def apart(bench, small, mix: Mix) -> np.ndarray:
    """The slow, obvious twin: an engine with room for all."""
    engine = bench.engine(small)
    engine.handle(bench.work(mix.chunks))
    bench.drain(engine)
    return engine.codeword(mix)


def test_it_says_once_that_it_has_no_room_and_trains_no_further(bench, cramped):
    cramped.handle(bench.work(range(5)))
    said = bench.drain(cramped)
    assert [type(event) for event in said] == [Progress, Progress, Progress, Pressed]
    assert len(cramped.kept()) == 3
    cramped.handle(Take("me", 1, (4,)))
    assert cramped.idle
    assert cramped.step() is None


def test_while_it_waits_for_room_it_tells_nothing_again(bench, cramped):
    cramped.handle(bench.work(range(3)))
    assert isinstance(bench.drain(cramped)[-1], Pressed)
    cramped.handle(Take("me", 1, (0,)))
    assert cramped.idle, "the answer may be that chunk 0 is to be freed: then it is not had again"
    cramped.handle(Fold("me", 1, None, (0,)))
    assert not [event for event in bench.drain(cramped) if isinstance(event, Failed)]


def test_what_is_given_up_is_not_told_once_more(bench, cramped):
    cramped.handle(bench.work(range(3)))
    bench.drain(cramped)
    cramped.handle(Take("me", 1, (0,)))
    cramped.handle(Fold("me", 1, None))
    said = bench.drain(cramped)
    assert [event.chunks for event in said if isinstance(event, Failed)] == [(0,)]
    assert 0 not in [event.chunk for event in said if isinstance(event, Progress)]


@pytest.mark.parametrize("folded", [1, 2, 3])
def test_what_is_folded_and_what_is_not_are_one_codeword(
    bench, cramped, small, tmp_path, folded, monkeypatch
):
    cramped.handle(bench.work([3, 0, 2]))
    bench.drain(cramped)
    mix = Mix((3, 0, 2), FACTORS)
    cramped.handle(Fold("me", 1, Mix(mix.chunks[:folded], FACTORS[:folded])))
    assert [kept.chunk for kept in cramped.kept()] == sorted(mix.chunks[folded:])
    monkeypatch.setattr("fedgc.training.engine.MEGABYTE", 1_000_000)
    bench.spill_dir = tmp_path
    expected = apart(bench, small, mix)
    for _ in range(2):
        np.testing.assert_allclose(cramped.codeword(mix), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "asked",
    [
        Mix((0, 2), FACTORS[1:]),
        Mix((3, 0, 2), (FACTORS[1], *FACTORS[1:])),
        Mix((3, 0, 2), ((1.0,),) * 3),
        Mix((3, 1), FACTORS[:2]),
    ],
    ids=["without it, of what is kept", "other factors", "other blocks", "with what was never finished"],
)
def test_a_fold_is_used_whole_by_its_own_factors_or_not_at_all(bench, cramped, asked):
    cramped.handle(bench.work([3, 0, 2]))
    bench.drain(cramped)
    cramped.handle(Fold("me", 1, Mix((3,), FACTORS[:1])))
    if 3 in asked.chunks:
        with pytest.raises(BadMessage, match=r"codeword: chunk [13] is at step 0"):
            cramped.codeword(asked)
        return
    plain = cramped.codeword(asked)
    alone = [cramped.codeword(Mix((c,), (row,))) for c, row in zip(asked.chunks, asked.matrix, strict=True)]
    np.testing.assert_allclose(plain, sum(alone), rtol=1e-5, atol=1e-5)


def test_after_a_fold_it_works_on_and_a_chunk_that_is_asked_for_again_is_trained_again(bench, cramped):
    cramped.handle(bench.work(range(5)))
    bench.drain(cramped)
    before = cramped.codeword(Mix((0,), ((1.0,),)))
    cramped.handle(Fold("me", 1, None, (0, 1)))
    assert [event.chunk for event in bench.drain(cramped) if isinstance(event, Progress)] == [3, 4]
    cramped.handle(Fold("me", 1, Mix((2,), ((1.0,),)), (3,)))
    cramped.handle(Take("me", 1, (0,)))
    assert [event.chunk for event in bench.drain(cramped)] == [0]
    assert cramped.codeword(Mix((0,), ((1.0,),))).tobytes() == before.tobytes()


@pytest.mark.parametrize("spare", [(), (4,)], ids=["nothing", "what is not there"])
def test_where_nothing_is_freed_the_oldest_is_given_up(bench, cramped, spare):
    cramped.handle(bench.work(range(4)))
    bench.drain(cramped)
    cramped.handle(Fold("me", 1, None, spare))
    failed, progress, pressed = bench.drain(cramped)
    assert (type(failed), failed.chunks) == (Failed, (0,))
    assert "the disk says" in failed.reason
    assert (progress.chunk, type(pressed)) == (3, Pressed)


def test_who_is_not_heard_gives_up_the_oldest_at_once(bench, cramped):
    cramped._asks_for_room = False
    cramped.handle(bench.work(range(4)))
    said = bench.drain(cramped)
    assert [event.chunks for event in said if isinstance(event, Failed)] == [(0,), (1,)]
    assert not any(isinstance(event, Pressed) for event in said)


def test_new_work_forgets_what_was_folded_and_asks_anew(bench, cramped):
    cramped.handle(bench.work(range(5)))
    bench.drain(cramped)
    cramped.handle(Fold("me", 1, Mix((0,), ((1.0,),))))
    bench.drain(cramped)
    cramped.handle(Continue("me", 2, 3, tuple(range(5)), 60.0))
    assert cramped.step() == Pressed(0.0, "me", 2)
    with pytest.raises(BadMessage, match="chunk 0 is at step 0"):
        cramped.codeword(Mix((0,), ((1.0,),)))
    cramped.handle(Close("me", 2, "synced", frees=True))
    assert cramped.kept() == ()
    assert cramped.idle


def test_a_fold_of_what_is_not_there_changes_nothing(bench, cramped):
    cramped.handle(bench.work(range(5)))
    bench.drain(cramped)
    for wrong in (Mix((0, 4), FACTORS[:2]), Mix((4,), FACTORS[:1])):
        with pytest.raises(BadMessage, match="chunk 4 is at step 0"):
            cramped.handle(Fold("me", 1, wrong))
    assert len(cramped.kept()) == 3
    cramped.handle(Fold("me", 1, Mix((0,), FACTORS[:1])))
    for twice in (Mix((0,), FACTORS[:1]), Mix((1,), ((1.0,),))):
        with pytest.raises(BadMessage):
            cramped.handle(Fold("me", 1, twice))


# ---- a round among such clients


def fleet(clients: int, replicas: int, blocks: int, size: int):
    six = enumerate(SIX.items())
    chunks = tuple(Chunk(number, name, samples, digest=UNREAD) for number, (name, samples) in six)
    held = {f"client {w}": frozenset(range(len(chunks))) for w in range(clients)}
    config = RunConfig(replicas=replicas, blocks=blocks, local_steps=2)
    return make_plan(Fleet(held, chunks, size), Speeds({}), config, steps=2)


class Site:
    """A round, and engines that are driven in turn."""

    def __init__(self, plan, engines, start) -> None:
        self.plan, self.engines = plan, engines
        decide = lambda _: Decision(sync=True, reason="every round")  # noqa: E731  a class or a test of one line
        self.round = Round(plan, Assignment(1, 0, 2, 0), decide)
        self.failed, self.most = [], 0
        self.sum, self.vectors, self.unsent = None, {}, []
        for engine in engines.values():
            engine.load(0, start)
        there = [Joined(0.0, name, True, each.holds(), each.kept()) for name, each in engines.items()]
        self.obey(self.round.start(0.0, there))

    def obey(self, commands) -> None:
        for command in commands:
            if isinstance(command, Add):
                vector = self.vectors.pop((command.client, command.attempt))
                self.sum = self.sum or RunningSum(self.engines[command.client].size, len(command.weights))
                self.sum.add(command.weights, vector)
            elif isinstance(command, Reveal | Repair):
                key = (command.client, command.attempt)
                self.vectors[key] = self.engines[command.client].codeword(command.mix)
                self.unsent.append(key)
            else:
                self.engines[command.client].handle(command)

    def run(self) -> None:
        while self.round.state is not State.CLOSED:
            busy = [engine for engine in self.engines.values() if not engine.idle]
            for engine in busy:
                said = engine.step()
                self.most = max(self.most, len(engine.kept()))
                if said is not None:
                    self.failed += [said] if isinstance(said, Failed) else []
                    self.obey(self.round.handle(said))
            if not busy or self.round.state is State.COLLECTING:
                assert self.unsent, "everybody waits for somebody else"
            if self.unsent:
                client, attempt = self.unsent.pop(0)
                self.obey(self.round.handle(Codeword(1.0, client, 1, attempt)))


@pytest.mark.parametrize(("replicas", "blocks"), [(1, 1), (2, 1), (2, 2)])
def test_a_round_among_clients_that_keep_one_update_is_exact(
    full_disk, tmp_path, monkeypatch, replicas, blocks
):
    def engines(folder, room):
        monkeypatch.setattr("fedgc.training.engine.MEGABYTE", room)
        config = RunConfig(memory_mb=1, local_steps=2, batch_size=4)
        made = {
            f"client {w}": Engine(TASK, config, clock=float, rest=lambda _: None, spill_dir=folder)
            for w in range(2)
        }
        for engine in made.values():
            engine.ask_for_room()
        return made

    roomy = engines(tmp_path, 1_000_000)
    size = roomy["client 0"].size
    start = np.random.default_rng(0).normal(size=size).astype(np.float32)
    plan = fleet(2, replicas, blocks, size)
    free = Site(plan, roomy, start)
    free.run()
    tight = engines(full_disk, 4 * size)
    site = Site(plan, tight, start)
    site.run()
    assert (site.round.outcome, site.failed) == ("synced", [])
    assert site.round.statistics.folds > 0
    assert site.most == 2, "the one that there is room for, and the one that was just finished"
    np.testing.assert_allclose(site.sum.total(), free.sum.total(), rtol=1e-4, atol=1e-5)
    for engine in (*roomy.values(), *tight.values()):
        engine.close()
