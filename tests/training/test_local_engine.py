"""Test the engine for local work: one model over all chunks, stopped anywhere, with shared momentum."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedgc.codecs import codec_of, make_codec, rounding
from fedgc.config import RunConfig
from fedgc.errors import BadMessage, BadVector
from fedgc.messages import Close, Continue, Failed, Kept, Report, Reveal, Scored, Take, Validate, Work
from fedgc.training.cache_files import CacheFiles
from fedgc.training.engine import NO_VALIDATE
from fedgc.training.tasks import Task
from tests.training.conftest import SIZES, load

CHUNKS = (0, 1, 2)
SAMPLES = sum(SIZES[f"c{chunk}"] for chunk in CHUNKS)
BUFFERS = 16  # numbers in the buffers of the small model
PLAIN = RunConfig(work="local", batch_size=10, shared_momentum="off")


def local(bench, *, target=3, round=1, version=0, **changes) -> Work:
    names = tuple((chunk, f"c{chunk}") for chunk in CHUNKS)
    return replace(
        bench.work(CHUNKS, target=target, round=round, version=version, names=names), kind="local", **changes
    )


def reveal(round=1, wire="float32") -> Reveal:
    return Reveal("me", round, 0, "local", None, wire)


def update(engine, command: Reveal) -> tuple[Report | None, np.ndarray | None]:
    answer = engine.answer(command)
    return answer.report, answer.vector if answer.vector is None else answer.vector[:]


def encoded(engine, command: Reveal) -> tuple[Report | None, np.ndarray]:
    """Return the report, and the update as the server decodes it."""
    answer = engine.answer(command)
    codec = codec_of(command.wire, engine.layout.buffer_size)
    return answer.report, codec.decode(answer.encoded, engine.size)


def steps(engine, count: int) -> None:
    for _ in range(count):
        engine.step()


def walked(bench, task, config, count: int, *, pauses=()) -> np.ndarray:
    """The way of an engine that does so many steps, told to carry on at these."""
    engine = bench.engine(task, config)
    for number, target in enumerate((*pauses, count), start=1):
        if number == 1:
            engine.handle(local(bench, target=target))
        else:
            engine.handle(Close("me", number - 1, "skipped", frees=False))
            engine.handle(Continue("me", number, target, CHUNKS, 60.0))
        bench.drain(engine)
    _, way = update(engine, reveal(len(pauses) + 1))
    return way


def wide() -> Task:
    """A task whose model is larger than all else: four million numbers."""
    return Task(
        model=lambda: torch.nn.Linear(2000, 2000, bias=False),
        chunks={"c0": 4},
        load=lambda _: (torch.ones(4, 2000),),
        loss=lambda module, batch: module(batch[0]).square().mean(),
    )


@pytest.mark.parametrize(("momentum", "models"), [("off", 0.2), (0.3, 1.2)])
def test_engine_holds_no_copy_of_models(bench, momentum, models):
    task, config = wide(), replace(PLAIN, shared_momentum=momentum, device="cpu")
    names, start = ((0, "c0"),), bench.vector(4_000_000)
    engine = bench.engine(task, config, vector=start)
    tracemalloc.start()
    try:
        for version in range(3):
            if version:
                engine.load(version, start * np.float32(1 - version / 10))
            given = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            led = {"common_steps": float(version > 0), "before": max(0, version - 1)}
            common = {"kind": "local", **led}
            work = bench.work((0,), round=version + 1, version=version, names=names)
            engine.handle(replace(work, **common))
            assert any(isinstance(event, Report) for event in bench.drain(engine))
            answer = engine.answer(reveal(version + 1))
            for first in range(0, answer.vector.size, 50_000):
                assert np.isfinite(answer.vector[first : first + 50_000]).all()
            assert tracemalloc.get_traced_memory()[1] - given < models * start.nbytes
            engine.handle(Close("me", version + 1, "synced", frees=False))
    finally:
        tracemalloc.stop()


def test_engine_reports_all_chunks_together_at_target(bench, small, clock):
    engine = bench.engine(small, PLAIN, clock=clock)
    engine.handle(local(bench))
    (report,) = bench.drain(engine)
    assert isinstance(report, Report)
    assert (report.client, report.round, report.steps, report.samples) == ("me", 1, 3, SAMPLES)
    assert report.seconds == 3.0
    assert engine.idle
    assert engine.kept() == tuple(Kept(0, chunk, 3) for chunk in CHUNKS)


def test_update_is_way_back_to_common_model(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench))
    (report,) = bench.drain(engine)
    told, way = update(engine, reveal())
    assert told == report
    parameters = engine.layout.parameter_size
    assert report.squared_norm == pytest.approx(float(np.sum(np.square(way[:parameters], dtype=np.float64))))
    assert way.size == engine.size > parameters


def test_engine_can_be_stopped_anywhere_with_partial_steps(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench, target=8))
    steps(engine, 5)
    report, way = update(engine, reveal())
    assert report.steps == 5
    assert engine.idle
    np.testing.assert_array_equal(way, walked(bench, small, PLAIN, 5))


def test_update_without_steps_is_empty(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench))
    report, way = update(engine, reveal())
    assert (report.steps, report.samples, report.squared_norm, way) == (0, SAMPLES, 0.0, None)


def test_skipped_rounds_do_not_change_update(bench, small):
    whole, paused = walked(bench, small, PLAIN, 9), walked(bench, small, PLAIN, 9, pauses=(2, 6))
    np.testing.assert_array_equal(whole, paused)


def test_clients_and_rounds_see_different_batches(bench, small):
    def way(**changes) -> np.ndarray:
        engine = bench.engine(small, PLAIN)
        work = local(bench, **changes)
        engine.handle(work)
        bench.drain(engine)
        return update(engine, replace(reveal(), client=work.client))[1]

    first = way()
    np.testing.assert_array_equal(first, way())
    assert (first != way(client="you")).any()
    assert (first != way(first_step=3)).any()


def test_steps_beyond_target_are_kept(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench, target=6))
    bench.drain(engine)
    engine.handle(local(bench, target=4, round=2))
    (report,) = bench.drain(engine)
    assert (report.round, report.steps) == (2, 6)


@pytest.mark.parametrize(("left_out", "kept"), [(0, {4}), (1, set())])
def test_same_model_continues_same_chunks_and_restarts_others(bench, small, left_out, kept):
    engine = bench.engine(small, PLAIN)
    work = local(bench, target=4)
    engine.handle(work)
    bench.drain(engine)
    there = len(CHUNKS) - left_out
    engine.handle(replace(work, round=2, target=6, order=work.order[:there], names=work.names[:there]))
    assert {each.reached for each in engine.kept()} == kept
    assert [event.steps for event in bench.drain(engine)] == [6]


def test_engine_runs_ahead_of_verdict_up_to_limit(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench, target=3, most_steps=6))
    assert [event.steps for event in bench.drain(engine)] == [3, 6]
    assert engine.idle
    engine.handle(Continue("me", 2, 9, CHUNKS, 60.0))
    assert [event.steps for event in bench.drain(engine)] == [9]
    report, way = update(engine, reveal(2))
    assert report.steps == 9
    np.testing.assert_array_equal(way, walked(bench, small, PLAIN, 9))


def test_client_ahead_is_stopped_at_once_and_meets_next_target(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench, target=2, most_steps=100))
    steps(engine, 5)
    engine.handle(Close("me", 1, "skipped", frees=False))
    assert engine.idle
    engine.handle(Continue("me", 2, 4, CHUNKS, 60.0))
    assert engine.step().steps == 5
    assert engine.step() is None, "it goes on"
    report, way = update(engine, reveal(2))
    assert (report.steps, engine.idle) == (6, True)
    np.testing.assert_array_equal(way, walked(bench, small, PLAIN, 6))


def test_failure_to_load_names_chunk(bench, small):
    def broken(name):
        if name == "c1":
            raise OSError("the disk is gone")
        return load(name)

    engine = bench.engine(replace(small, load=broken), PLAIN)
    engine.handle(local(bench))
    (failed,) = bench.drain(engine)
    assert isinstance(failed, Failed)
    assert failed.chunks == (1,)
    assert failed.reason == "local work, step 1: OSError: the disk is gone"


def test_failure_to_train_names_no_chunk(bench, small):
    def broken(module, batch):
        raise ValueError("no loss")

    engine = bench.engine(replace(small, loss=broken), PLAIN)
    engine.handle(local(bench))
    (failed,) = bench.drain(engine)
    assert (failed.chunks, failed.reason) == ((), "local work, step 1: ValueError: no loss")


def test_failure_tells_steps_that_were_done_before(bench, small):
    seen = []

    def broken(module, batch):
        seen.append(batch)
        if len(seen) > 3:
            raise ValueError("no loss")
        return small.loss(module, batch)

    engine = bench.engine(replace(small, loss=broken), PLAIN)
    engine.handle(local(bench, target=5))
    (failed,) = bench.drain(engine)
    assert (failed.steps, failed.reason) == (3, "local work, step 4: ValueError: no loss")


def test_update_of_coded_work_is_not_requested(bench, small):
    engine = bench.engine(small, RunConfig(batch_size=10, work="coded"))
    engine.handle(bench.work((0,)))
    with pytest.raises(BadMessage, match="saw no mix, needed one, this is coded work"):
        engine.answer(reveal())


def test_published_gate_receives_newest_gradient(bench, small):
    config = replace(PLAIN, gate="relative-change")
    engine = bench.engine(replace(small, optimizer=None), config)
    engine.handle(local(bench, target=1))
    (report,) = bench.drain(engine)
    _, way = update(engine, reveal())
    step = way[: engine.layout.parameter_size].astype(np.float64) / config.learning_rate
    assert report.squared_norm == pytest.approx(float(np.sum(step**2)), rel=1e-3)


# ---- shared momentum


def led(bench, task, config, *, common_steps=4.0, before=True) -> tuple[Report, np.ndarray]:
    """The second round of an engine that knows the model before, or does not."""
    engine = bench.engine(task, config)
    start = bench.vector(engine.size)
    if before:
        engine.load(1, start * np.float32(0.9))
    else:
        engine = bench.engine(task, config, version=1, vector=start * np.float32(0.9))
    engine.handle(local(bench, version=1, target=3, first_step=4, common_steps=common_steps))
    (report,) = bench.drain(engine)
    return report, update(engine, reveal())[1]


@pytest.mark.parametrize(
    ("optimizer", "common_steps"), [("sgd", 4.0), ("adam", 4.0), ("sgd", 2.0)]
)  # it leads as many steps as it was measured over
def test_every_step_is_led_by_common_step_under_any_optimizer(bench, small, optimizer, common_steps):
    made = None if optimizer == "sgd" else lambda parameters, rate: torch.optim.Adam(parameters, lr=rate)
    task = replace(small, optimizer=made)
    config = replace(PLAIN, shared_momentum=0.001, learning_rate=1e-6)
    report, way = led(bench, task, config, common_steps=common_steps)
    start = bench.vector(way.size)
    parameters = bench.engine(task, config).layout.parameter_size
    common = (start - start * np.float32(0.9))[:parameters] / common_steps
    steps = min(3, common_steps)
    np.testing.assert_allclose(way[:parameters], steps * 0.999 * common, rtol=1e-3, atol=1e-6)
    assert report.squared_norm < 1e-6, "what all have in common is no drift"


def test_late_client_is_led_from_model_that_it_had(bench, small):
    config = replace(PLAIN, shared_momentum=0.001, learning_rate=1e-6)
    engine = bench.engine(small, config)
    start, newest = bench.vector(engine.size), bench.vector(engine.size) * np.float32(0.6)
    engine.handle(local(bench))
    bench.drain(engine)
    engine.handle(Close("me", 1, "synced", frees=True))  # its update has come late
    engine.load(4, newest)
    engine.handle(local(bench, round=5, version=4, target=3, first_step=16, common_steps=16.0, before=0))
    bench.drain(engine)
    _, way = update(engine, reveal(5))
    parameters = engine.layout.parameter_size
    common = (start - newest)[:parameters] / 16
    np.testing.assert_allclose(way[:parameters], 3 * 0.999 * common, rtol=1e-3, atol=1e-6)


def test_samples_of_earlier_shares_are_unloaded(bench, small):
    engine = bench.engine(small, PLAIN)
    for round_, share in enumerate([(0, 1), (1, 2), (0, 2), (1, 2)], start=1):
        names = tuple((chunk, f"c{chunk}") for chunk in share)
        engine.handle(replace(bench.work(share, round=round_, names=names), kind="local"))
        assert [type(each) for each in bench.drain(engine)] == [Report]
        assert list(engine._loop._trainer._loaded) == [tuple(name for _, name in names)]


def test_first_model_steps_alone_at_alpha_of_rate(bench, small):
    task = replace(small, optimizer=None)
    _, alone = led(bench, task, replace(PLAIN, shared_momentum=0.5), before=False)
    _, plain = led(bench, task, replace(PLAIN, learning_rate=PLAIN.learning_rate / 2), before=False)
    np.testing.assert_allclose(alone, plain, atol=1e-6)


OTHER_FOOTING = [{"first_step": 9}, {"common_steps": 1e-6}, {"before": 0.5}]


@pytest.mark.parametrize("other", OTHER_FOOTING)
@pytest.mark.parametrize("next_process", [False, True])
def test_steps_led_differently_are_dropped(bench, small, tmp_path_factory, other, next_process):
    config, cache = replace(PLAIN, shared_momentum=0.5), tmp_path_factory.mktemp("cache")
    changed, share = dict(other), other.get("before", 0.8)
    changed.pop("before", None)

    def begun(share, **changes):
        vector = bench.vector(bench.engine(small, config).size) * np.float32(share)
        engine = bench.engine(small, config, vector=vector, files=CacheFiles(cache))
        engine.load(1, bench.vector(engine.size) * np.float32(0.9))
        return again(engine, **changes)

    def again(engine, **changes):
        engine.handle(local(bench, version=1, **{"first_step": 4, "common_steps": 4.0, **changes}))
        return engine

    engine = begun(share, **changed)
    bench.drain(engine)
    if next_process:
        engine.keep()
        engine = begun(0.8)
    else:
        engine.load(0, bench.vector(engine.size) * np.float32(0.8))
        again(engine)
    assert engine.kept() == ()
    bench.drain(engine)
    engine.keep()
    assert begun(0.8).kept(), "what was led in the same way is gone on with"


def test_new_process_without_model_before_goes_on_with_led_steps(bench, small, tmp_path_factory):
    """A client that was started again is sent the common model alone."""
    config, cache = replace(PLAIN, shared_momentum=0.5), tmp_path_factory.mktemp("cache")
    work = local(bench, target=3, version=1, first_step=4, common_steps=4.0)
    engine = bench.engine(small, config, files=CacheFiles(cache))
    model = bench.vector(engine.size) * np.float32(0.9)
    engine.load(1, model)
    engine.handle(work)
    steps(engine, 2)
    engine.keep()
    again = bench.engine(small, config, version=1, vector=model, files=CacheFiles(cache))
    again.handle(work)
    assert {each.reached for each in again.kept()} == {2}
    steps(again, 1)
    assert again.idle


@pytest.mark.parametrize("kind", ["local", "coded"])
def test_start_counts_chunks_of_work(bench, small, kind):
    engine = bench.engine(small, replace(PLAIN, work=kind))
    engine.handle(replace(local(bench), kind=kind))
    assert engine.start.chunks == len(CHUNKS)
    engine.handle(Continue("me", 2, 9, CHUNKS, 60.0))
    assert engine.start.chunks == len(CHUNKS)


@pytest.mark.parametrize(("kind", "other"), [("local", "coded"), ("coded", "local")])
def test_work_of_other_kind_is_refused(bench, small, kind, other):
    engine = bench.engine(small, replace(PLAIN, work=kind))
    with pytest.raises(BadMessage, match=f"saw {other} work, needed {kind}"):
        engine.handle(replace(local(bench), kind=other))


def test_local_work_has_no_order_of_chunks(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench))
    with pytest.raises(BadMessage, match="no order of chunks"):
        engine.handle(Take("me", 1, (0,)))


def test_start_holds_all_inputs_of_work(bench, small):
    engine = bench.engine(small, replace(PLAIN, shared_momentum=0.5))
    assert engine.start is None
    engine.handle(local(bench, first_step=2))
    assert (engine.start.before, engine.start.first_step, engine.start.common_steps) == (None, 2, 0.0)
    engine.load(1, bench.vector(engine.size, 1))
    engine.handle(local(bench, version=1, first_step=6, common_steps=4.0))
    start = engine.start
    np.testing.assert_array_equal(start.model, bench.vector(engine.size, 1))
    np.testing.assert_array_equal(start.before, bench.vector(engine.size))
    assert (start.first_step, start.common_steps) == (6, 4.0)


# ---- few bits, and the next process


def test_codec_that_sends_more_than_its_largest_is_named(bench, small, monkeypatch):
    monkeypatch.setattr(type(make_codec("int8")), "largest", lambda _, size: size)
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench))
    bench.drain(engine)
    coded = engine.size - BUFFERS
    seen = make_codec("int8").encode(bench.vector(coded), np.random.default_rng(0)).size
    says = rf"^codec int8 \(an update\): encode returned {seen} bytes for {coded} numbers, needed "
    with pytest.raises(BadVector, match=rf"{says}{coded}, as `largest` says$"):
        engine.answer(reveal(wire="int8"))


@pytest.mark.parametrize("wire", ["int8", "int4", "top-k"])
def test_buffers_are_sent_exactly_by_each_codec(bench, small, wire):
    engine = bench.engine(small, PLAIN)
    assert engine.layout.buffer_size == BUFFERS
    engine.handle(local(bench))
    bench.drain(engine)
    _, decoded = encoded(engine, reveal(wire=wire))
    exact = walked(bench, small, PLAIN, 3)
    np.testing.assert_array_equal(decoded[-BUFFERS:], exact[-BUFFERS:])
    assert (decoded[:-BUFFERS] != exact[:-BUFFERS]).any()


def test_rounding_error_is_in_next_update(bench, small):
    engine = bench.engine(small, PLAIN)
    sent, true = np.zeros(engine.size), np.zeros(engine.size)
    for number in range(1, 6):
        engine.handle(local(bench, round=number))
        bench.drain(engine)
        exact = walked(bench, small, PLAIN, 3)
        _, decoded = encoded(engine, reveal(number, "int4"))
        again = encoded(engine, reveal(number, "int4"))[1]
        np.testing.assert_array_equal(decoded, again)
        sent += decoded
        true += exact
        engine.handle(Close("me", number, "synced", frees=True))
    one = np.abs(walked(bench, small, PLAIN, 3)).max() / 7
    assert np.abs(sent - true).max() < 1.5 * one, "no more than one rounding is ever owed"


@pytest.mark.parametrize("wire", ["int8", "top-k share=0.1"])
def test_other_process_continues_with_rounding_error(bench, small, tmp_path_factory, wire):
    cache = tmp_path_factory.mktemp("cache")
    first = bench.engine(small, PLAIN, files=CacheFiles(cache))
    first.handle(local(bench, target=6))
    steps(first, 4)
    (report,) = first.keep()
    assert report.steps == 4
    second = bench.engine(small, PLAIN, files=CacheFiles(cache))
    assert second.kept() == tuple(Kept(0, chunk, 4) for chunk in CHUNKS)
    second.handle(local(bench, target=6))
    bench.drain(second)
    report, decoded = encoded(second, reveal(wire=wire))
    assert report.steps == 6
    second.keep()
    third = bench.engine(small, PLAIN, files=CacheFiles(cache))
    third.handle(local(bench, target=6))
    np.testing.assert_array_equal(encoded(third, reveal(wire=wire))[1], decoded)
    _, later = encoded(third, replace(reveal(wire=wire), attempt=1))
    left = walked(bench, small, PLAIN, 6) - decoded
    corrected = walked(bench, small, PLAIN, 6) + np.float32(make_codec(wire).decay) * left
    np.testing.assert_array_equal(later, through(corrected, wire, attempt=1))


def through(update: np.ndarray, wire: str, round=1, attempt=0) -> np.ndarray:
    """Return an update as the server decodes it, without error feedback."""
    codec = codec_of(wire, BUFFERS)
    return codec.decode(codec.encode(update, rounding(round, attempt, "me")), update.size)


@pytest.mark.parametrize(
    ("outcome", "is_owed"),
    [("synced", True), ("approximate", True), ("aborted", False), ("empty", False)],
    ids=["synced", "approximate", "aborted", "empty"],
)
def test_update_of_unexchanged_round_leaves_no_residual(bench, small, outcome, is_owed):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench))
    bench.drain(engine)
    _, decoded = encoded(engine, reveal(wire="int4"))
    engine.handle(Close("me", 1, outcome, frees=False))
    engine.handle(local(bench, round=2, target=4))
    bench.drain(engine)
    _, later = encoded(engine, reveal(2, "int4"))
    update = walked(bench, small, PLAIN, 4, pauses=(3,))
    if is_owed:
        update = update + (walked(bench, small, PLAIN, 3) - decoded)
    np.testing.assert_array_equal(later, through(update, "int4", round=2))


def test_keep_reports_only_unfinished_local_work(bench, small):
    engine = bench.engine(small, PLAIN)
    assert engine.keep() == ()
    engine.handle(local(bench))
    bench.drain(engine)
    assert engine.keep() == ()
    coded = bench.engine(small, RunConfig(batch_size=10, work="coded"))
    coded.handle(bench.work((0, 1)))
    coded.step()
    assert coded.keep() == ()


def test_model_is_scored_without_work(bench, small):
    engine = bench.engine(replace(small, validate=lambda model: {"accuracy": 0.5}), PLAIN)
    engine.handle(Validate("me", 3, 0))
    (scored,) = bench.drain(engine)
    assert (scored.version, dict(scored.figures), scored.problem) == (0, {"accuracy": 0.5}, "")
    assert engine.idle


def test_request_without_validate_is_answered(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(Validate("me", 3, 0))
    (scored,) = bench.drain(engine)
    assert isinstance(scored, Scored)
    assert (scored.figures, scored.problem) == ((), NO_VALIDATE)


def test_leaving_engine_reports_its_steps_and_trains_no_more(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench, target=10))
    assert not engine.has_work
    steps(engine, 4)
    engine.leave()
    (report,) = bench.drain(engine)
    assert report.steps == 4
    assert engine.has_work
    told, way = update(engine, reveal())
    assert told == report
    np.testing.assert_array_equal(way, walked(bench, small, PLAIN, 4))
    engine.handle(Close("me", 1, "synced", frees=True))
    assert not engine.has_work


def test_leaving_engine_reports_in_round_that_carries_on(bench, small):
    engine = bench.engine(small, PLAIN)
    engine.handle(local(bench, target=3))
    bench.drain(engine)
    engine.leave()
    assert [each.round for each in bench.drain(engine)] == [1]
    engine.handle(Close("me", 1, "skipped", frees=False))
    engine.handle(Continue("me", 2, 6, CHUNKS, 60.0))
    engine.leave()
    assert [(each.round, each.steps) for each in bench.drain(engine)] == [(2, 3)]


@pytest.mark.parametrize("done", [3, 2])
def test_costly_steps_outlive_killed_process(bench, small, tmp_path_factory, monkeypatch, done):
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("fedgc.training.task_loop.TaskLoop.is_costly", True, raising=False)
    work = local(bench, most_steps=3)
    first = bench.engine(small, PLAIN, files=CacheFiles(cache))
    first.handle(work)
    steps(first, done + (done == 3))
    way = update(first, reveal())[1] if done < 3 else None  # at the target it is written without a request
    second = bench.engine(small, PLAIN, files=CacheFiles(cache))  # the first one is not told to keep
    assert second.kept() == tuple(Kept(0, chunk, done) for chunk in CHUNKS)
    second.handle(replace(work, order=()))
    report, again = update(second, reveal())
    assert report.steps == done
    np.testing.assert_array_equal(again, update(first, reveal())[1] if way is None else way)
