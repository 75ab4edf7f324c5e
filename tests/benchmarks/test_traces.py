"""Test readers of other projects' traces on a tiny file of each format and on malformed files."""

import os
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.traces import (
    Absences,
    convert,
    read_behavior,
    read_capacity,
    read_lambda,
    read_micro_batches,
    read_scenario,
)
from benchmarks.traces.pickles import read_plain
from fedgc.errors import BadSetting, EdgeFailed
from fedgc.sim.clock import MODELS, NEVER
from fedgc.sim.traces import read_table

RECORDED = Path(__file__).parents[3] / "shared" / "traces"


def written(path: Path, content: object) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else pickle.dumps(content))
    return path


def test_unknown_format_and_missing_file_are_refused(tmp_path):
    with pytest.raises(BadSetting, match=r"saw suffix '\.txt'"):
        read_scenario(tmp_path / "t.txt")
    with pytest.raises(BadSetting, match="saw no such file, needed a table"):
        read_scenario(tmp_path / "t.csv")


# ---- pickles

ROUNDS = [
    {"results": [{"started": 10.0, "finished": 11.5, "response": {}}, {"started": 10.0, "finished": 12.0}]},
    {"results": [{"started": 20, "finished": 21}, {"started": 20, "finished": 24}]},
]


def test_recorded_functions_give_pace_for_each_client(tmp_path):
    first, second = read_scenario(written(tmp_path / "w2.pkl", ROUNDS))
    assert first.mean_pace_w.tolist() == [1.5, 2.0]
    assert second.mean_pace_w.tolist() == [1.0, 4.0]


class Malicious:
    def __reduce__(self):
        return eval, ("open('pwned', 'w').close()",)


@pytest.mark.parametrize(
    "reader", [read_lambda, read_behavior, lambda path: read_capacity(path, samples=1, update_bytes=1)]
)
def test_pickle_that_imports_anything_is_refused_by_name(tmp_path, monkeypatch, reader):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting, match=r"asks for 'builtins\.eval', needed containers and numbers only"):
        reader(written(tmp_path / "m.pkl", Malicious()))
    assert not (tmp_path / "pwned").exists()


class Calls:
    def __init__(self, function, *arguments):
        self.called = function, arguments

    def __reduce__(self):
        return self.called


RECORDED_ROUND = {
    "results": [
        {"worker_id": np.int32(0), "started": np.float64(10.0), "finished": np.float64(11.5)},
        {"worker_id": np.int64(1), "started": np.float32(10.0), "finished": np.int16(12), "kind": list},
    ],
    "payload": np.asfortranarray([[1, 2, 3], [4, 5, 6]], ">i8"),
}


@pytest.mark.parametrize("core", [b"numpy.core", b"numpy._core"])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_numpy_values_of_every_protocol_are_read(tmp_path, protocol, core):
    content = pickle.dumps([RECORDED_ROUND], protocol).replace(b"numpy._core", core)
    if protocol >= 4 and core == b"numpy.core":  # with the length of each name
        content = pickle.dumps([RECORDED_ROUND], 3).replace(b"numpy._core", core)
    path = written(tmp_path / "w2.pkl", content)
    assert [each.mean_pace_w.tolist() for each in read_scenario(path)] == [[1.5, 2.0]]
    (only,) = read_plain(path)
    assert only["payload"] == [[1, 2, 3], [4, 5, 6]]
    assert type(only["results"][1]["started"]) is float
    assert type(only["results"][0]["worker_id"]) is int
    assert only["results"][1]["kind"] == "builtins.list"


SCALAR = np.float64(1.0).__reduce__()[0]
REBUILD = np.zeros(1).__reduce__()[0]
HUGE = (1, (10**6, 10**6), np.dtype("f8"), False, b"12345678")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (Calls(os.system, "touch pwned"), "asks for '(posix|nt).system'"),
        (b"cbuiltins\ngetattr\n(cnumpy\nndarray\nVtofile\ntR.", "asks for 'builtins.getattr'"),
        (b"cnumpy\nndarray\n(Vsecret\ntR.", "not a pickle (TypeError"),
        (Calls(np.load, "secret.npy"), "asks for 'numpy.load'"),
        (Calls(np.fromfile, "secret"), "asks for 'numpy.fromfile'"),
        (Calls(np.frombuffer, b"12345678"), "asks for 'numpy.frombuffer'"),
        (b"cnumpy\ncore.multiarray.scalar\n.", "asks for 'numpy.core.multiarray.scalar'"),
        (b"c_codecs\nencode\n(V0A\nVhex\ntR.", "needed bytes as latin1"),
        ([np.array([{}])], "type 'O8', needed numbers"),
        ([np.array(["text"])], "type 'U4', needed numbers"),
        ([np.array([(1, 2.0)], "i4,f8")], "type 'V12', needed numbers"),
        ([np.datetime64("2026-01-01")], "type 'M8', needed numbers"),
        ([np.array(1.0)], "shape (), needed 1 to 32 axes"),
        ([np.zeros((0, 3))], "needed axes of 1 or more"),
        ([Calls(SCALAR, np.dtype("f8"), b"1234")], "1 numpy values in 4 bytes, needed 8 bytes each"),
        ([Calls(SCALAR, "f8", b"12345678")], "needed bytes and their type"),
        (b"\x80\x04cnumpy\ndtype\n}b.", "gives a function of numpy the state {}"),
        (
            b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00f8\x85RN}X\x01\x00\x00\x00aNs\x86b.",
            "needed a byte order",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,  # the same in each process
)
def test_hostile_pickle_is_refused_without_running(tmp_path, monkeypatch, content, says):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadSetting, match=re.escape(says) if "(posix" not in says else says) as refused:
        read_plain(written(tmp_path / "m.pkl", content))
    assert len(str(refused.value)) < 200
    assert not (tmp_path / "pwned").exists()


class Rebuilt:
    def __init__(self, state):
        self.state = state

    def __reduce__(self):
        return REBUILD, (np.ndarray, (0,), b"b"), self.state


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (HUGE, "1000000000000 numpy values in 8 bytes"),
        ((1, (2**62, 4), np.dtype("u1"), False, b""), "numpy values in 0 bytes"),
        ((1, (-1, -8), np.dtype("u1"), False, b"12345678"), "needed axes of 1 or more"),
        ((1, (True,), np.dtype("u1"), False, b"1"), "needed axes of 1 or more"),
        ((1, (1,) * 33, np.dtype("u1"), False, b"1"), "needed 1 to 32 axes"),
        ((1, (1,), np.dtype("O"), False, [print]), "type 'O8', needed numbers"),
        ((1, (1,), np.dtype("u1"), False, [7]), "needed bytes and their type"),
        ((1,), "needed five values"),
    ],
    ids=str,
)
def test_array_larger_than_its_data_is_refused(tmp_path, state, says):
    with pytest.raises(BadSetting, match=re.escape(says)):
        read_plain(written(tmp_path / "m.pkl", [Rebuilt(state)]))


def test_repeated_array_data_is_bounded_by_file(tmp_path):
    state = (1, (4000,), np.dtype("u1"), False, bytes(4000))
    with pytest.raises(BadSetting, match="repeats its arrays, needed at most as many bytes"):
        read_plain(written(tmp_path / "m.pkl", [Rebuilt(state) for _ in range(50)]))


def test_pickle_cannot_change_function_of_numpy(tmp_path):
    name = b"cnumpy._core.multiarray\nscalar\n"
    state = b"N}X\x08\x00\x00\x00functionK\x01s\x86b."
    with pytest.raises(BadSetting, match="gives a function of numpy the state"):
        read_plain(written(tmp_path / "m.pkl", b"\x80\x02" + name + state))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not a pickle", "not a pickle"),
        (pickle.dumps(ROUNDS)[:40], "not a pickle"),
        ({}, "saw dict, needed a list"),
        ([], "needed a list of rounds"),
        ([{"results": []}], "round 1: needed a table with a list"),
        ([{"results": [{"started": 1.0}]}], "client 1: needed a table with started"),
        ([{"results": [{"started": 1.0, "finished": "2"}]}], "saw '2', needed a number"),
        ([{"results": [{"started": 1.0, "finished": True}]}], "saw True, needed a number"),
        ([{"results": [{"started": 2.0, "finished": 1.0}]}], "saw -1.0 s from start to finish"),
        ([{"results": [{"started": 2.0, "finished": float("nan")}]}], "saw nan s"),
        ([*ROUNDS, {"results": ROUNDS[0]["results"][:1]}], "no time for client 2, round 3"),
    ],
)
def test_malformed_recording_is_refused(tmp_path, content, says):
    with pytest.raises(BadSetting, match=says):
        read_lambda(written(tmp_path / "w.pkl", content))


DEEP = b"]" * 100_000 + b"a" * 99_999


@pytest.mark.parametrize(
    ("finished", "says"),
    [
        (pickle.dumps(10**400)[2:-1], "saw an integer of 1329 bits, needed a number below 1e308"),
        (pickle.dumps([10**5000], 2)[2:-1], "saw .an integer of 16610 bits., needed a number"),
        (DEEP, "needed a number"),
    ],
    ids=["wide", "wide inside", "deep"],
)
def test_value_of_any_size_and_depth_is_refused_in_short_line(tmp_path, finished, says):
    started = b"X\x07\x00\x00\x00startedK\x00X\x08\x00\x00\x00finished"
    content = b"\x80\x04]}(X\x07\x00\x00\x00results]}(" + started + finished + b"uaua."
    with pytest.raises(BadSetting, match=f"round 1, client 1: .*{says}") as refused:
        read_lambda(written(tmp_path / "w.pkl", content))
    assert len(str(refused.value)) < 200


def test_pickle_cannot_request_unfilled_memory(tmp_path):
    """LONG_BINPUT at place 2 ** 27: the unpickler would take two gigabytes for nine bytes."""
    with pytest.raises(BadSetting, match="byte 3 of the pickle asks for memo place 134217728"):
        read_lambda(written(tmp_path / "m.pkl", b"\x80\x02]r\x00\x00\x00\x08."))


# ---- FedScale


def test_bad_times_and_names_are_reported_in_short_line(tmp_path):
    many = {**BEHAVIOR, "inactive": [float("nan"), *range(100_000)]}
    with pytest.raises(BadSetting, match=r"client 'a\\nb': saw nan, needed finite times") as refused:
        read_behavior(written(tmp_path / "b", {"a\nb": many}))
    assert len(str(refused.value)) < 100
    with pytest.raises(BadSetting, match="saw an integer of 1329 bits"):
        read_behavior(written(tmp_path / "b", {1: {**BEHAVIOR, "active": [10**400]}}))


def test_capacity_gives_compute_and_links(tmp_path):
    path = written(tmp_path / "c", {7: {"computation": 100.0, "communication": 8000.0}})
    conditions = read_capacity(path, samples=10, update_bytes=2_000_000)
    assert conditions.mean_pace_w.tolist() == pytest.approx([3 * 0.1 * 10])
    assert conditions.up_s_w.tolist() == conditions.down_s_w.tolist() == [2.0]


@pytest.mark.parametrize(
    ("client", "says"),
    [
        ({}, "client 7: needed computation"),
        ({"computation": 0, "communication": 1}, "needed both above 0"),
        ({"computation": "fast", "communication": 1}, "saw 'fast', needed a number"),
        ({"computation": float("nan"), "communication": 1}, "needed both above 0"),
    ],
)
def test_malformed_capacity_is_refused(tmp_path, client, says):
    with pytest.raises(BadSetting, match=says):
        read_capacity(written(tmp_path / "c", {7: client}), samples=1, update_bytes=1)


BEHAVIOR = {"duration": 1, "active": [0, 50], "inactive": [20, 90], "finish_time": 100, "model": "x"}


@pytest.mark.parametrize(
    ("start_s", "failure"),
    [
        (0.0, (20.0, 50.0)),
        (30.0, (0.0, 20.0)),
        (60.0, (30.0, 40.0)),
        (95.0, (0.0, 5.0)),
        (250.0, (40.0, 50.0)),
    ],
)
def test_recorded_arrivals_and_departures_repeat(tmp_path, start_s, failure):
    absences = read_behavior(written(tmp_path / "b", {1: BEHAVIOR}))
    assert absences.failure(0, start_s) == failure


def test_client_without_times_is_always_present():
    assert Absences(((),), ((),), (10.0,)).failure(0, 3.0) == (NEVER, NEVER)


def test_absences_are_applied_to_scenario(tmp_path):
    absences = read_behavior(written(tmp_path / "b", {1: BEHAVIOR, 2: BEHAVIOR}))
    scenario = MODELS["homogeneous"](2, 2, np.random.default_rng(0))
    first, second = absences.over(scenario, (0.0, 60.0))
    assert first.dies_s_w.tolist() == [20.0, 20.0]
    assert second.returns_s_w.tolist() == [40.0, 40.0]
    with pytest.raises(BadSetting, match="a client for each client"):
        absences.over(MODELS["homogeneous"](3, 2, np.random.default_rng(0)), (0.0, 1.0))


@pytest.mark.parametrize(
    ("client", "says"),
    [({"active": []}, "needed active, inactive"), ({**BEHAVIOR, "finish_time": 0}, "finish_time above 0"),
     ({**BEHAVIOR, "active": ["x"]}, "saw 'x', needed a number"), (5, "needed active")],
)  # fmt: skip
def test_malformed_behavior_is_refused(tmp_path, client, says):
    with pytest.raises(BadSetting, match=says):
        read_behavior(written(tmp_path / "b", {1: client}))


# ---- parquet


def micro_batches(path: Path, rows: list[tuple[int, int, int, str, float]]) -> Path:
    arrow = pytest.importorskip("pyarrow", reason="parquet traces need the extra pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    names = ("rank", "step", "mb_id", "optype", "duration")
    columns = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    parquet.write_table(arrow.table(columns), path)
    return path


def test_micro_batch_takes_forward_and_backward_time(tmp_path):
    rows = [
        (rank, 5, batch, kind, seconds * (1 + rank))
        for rank in (0, 2)
        for batch in (0, 1)
        for kind, seconds in (("forward-compute", 1.0), ("backward-compute", 2.0), ("optimizer", 50.0))
    ]
    (only,) = read_scenario(micro_batches(tmp_path / "t.parquet", rows))
    assert only.slice_units == 0.5
    assert only.after_s(np.ones(2)).tolist() == [6.0, 18.0]


def test_trace_without_computation_is_refused(tmp_path):
    with pytest.raises(BadSetting, match="saw operations"):
        read_micro_batches(micro_batches(tmp_path / "t.parquet", [(0, 0, 0, "optimizer", 1.0)]))
    with pytest.raises(BadSetting, match=r"t2\.parquet"):
        read_micro_batches(written(tmp_path / "t2.parquet", b"PAR1 nothing"))


@pytest.mark.parametrize(
    ("at", "value", "says"),
    [
        (0, None, "row 4, rank: saw None, needed a whole number"),
        (0, "one", "row 4, rank: saw 'one', needed a whole number"),
        (0, 0.4, "row 4, rank: saw 0.4, needed a whole number"),
        (0, float("nan"), "row 4, rank: saw nan, needed a whole number"),
        (3, None, "row 4, optype: saw None, needed the name of an operation"),
        (4, "1", "row 4, duration: saw '1', needed a number"),
        (4, [1.0, 2.0], "row 4, duration: saw .1.0, 2.0., needed a number"),
        (4, None, "row 4, duration: saw None, needed a number"),
        (4, -1.0, "row 4, duration: saw -1.0 s"),
        (4, 0.0, "row 3: saw 0 s"),
    ],
)
def test_malformed_micro_batch_is_refused_with_its_row(tmp_path, at, value, says):
    rows = [[rank, 0, 0, kind, 0.0] for rank in (0, 1) for kind in ("forward-compute", "backward-compute")]
    rows[0][4] = rows[1][4] = 1.0
    rows[3][at] = value
    if isinstance(value, str | list):  # a column has one type
        for row in rows[:3]:
            row[at] = value
        says = says.replace("row 4", "row 1")
    with pytest.raises(BadSetting, match=says):
        read_micro_batches(micro_batches(tmp_path / "t.parquet", [tuple(row) for row in rows]))


@pytest.mark.parametrize(("name", "shape"), [("SE", (64, 8)), ("ST", (8, 4)), ("AR", (16, 32))])
def test_recorded_jobs_are_read(name, shape):
    path = RECORDED / f"trace-{name}.parquet"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    pytest.importorskip("pyarrow", reason="parquet traces need the extra pyarrow")
    scenario = read_scenario(path)
    assert len(scenario) >= 30
    assert {each.pace_wk.shape for each in scenario} == {shape}


# ---- to fedgc's own table


def test_converted_trace_plays_same_rounds(tmp_path):
    rows = [
        (rank, step, batch, kind, 1.0 + rank + 2 * step + 4 * batch)
        for rank in (0, 2)
        for step in (5, 6)
        for batch in (0, 1)
        for kind in ("forward-compute", "backward-compute")
    ]
    for trace in (micro_batches(tmp_path / "t.parquet", rows), written(tmp_path / "w2.pkl", ROUNDS)):
        convert(trace, tmp_path / "t.csv")
        was, now = read_scenario(trace), read_table(tmp_path / "t.csv")
        assert [each.pace_wk.tolist() for each in was] == [each.pace_wk.tolist() for each in now]
        assert [each.slice_units for each in was] == [each.slice_units for each in now]


def test_table_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(EdgeFailed, match="No such file"):
        convert(written(tmp_path / "w2.pkl", ROUNDS), tmp_path / "none" / "t.csv")
