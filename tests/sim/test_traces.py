"""Test trace readers on a tiny table, on links and on malformed files."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedgc.errors import BadSetting
from fedgc.sim import Request
from fedgc.sim.clock import MODELS
from fedgc.sim.traces import read_links, read_table

RECORDED = Path(__file__).parents[3] / "shared" / "traces"


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


# ---- CSV

TABLE = """client,round,chunk,seconds
b,1,0,2.0
a,1,0,1.0
a,1,1,3.0
b,1,1,2.0
a,2,0,1.0
a,2,1,1.0
b,2,0,4.0
b,2,1,4.0
"""


def test_table_gives_each_round_its_paces(tmp_path):
    marked = "\ufeff" + TABLE  # as spreadsheets write it
    first, second = read_table(written(tmp_path / "t.csv", marked.encode()))
    assert first.pace_wk.tolist() == [[4.0, 4.0], [2.0, 6.0]]
    assert first.slice_units == 0.5
    assert first.after_s(np.ones(2)).tolist() == [4.0, 4.0]
    assert second.after_s(np.ones(2)).tolist() == [8.0, 2.0]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("a,3,0,0", "row 10: saw 0 s"),
        ("a,3,0,nan", "row 10: saw nan s"),
        ("a,3,zero,1", "row 10: saw 'a,3,zero,1'"),
        ("a,3,0", "row 10: saw 3 values, needed 4"),
        (" ,3,0,1", "row 10: saw no client, needed its name"),
        ("a,3,0,1", "no time for client 'b', round 3, chunk 0"),
        ("a,1,0,1", "row 10: saw this client, round and chunk before"),
        ("\n\na,1,0,1", "row 12: saw this client, round and chunk before"),
        ("\n\na,3,0,0", "row 12: saw 0 s"),
        ("a,3,0,1e308", "row 10: saw 1e.308 s"),
        ("a,99999999999999999999999,0,1", "row 10: .* needed counts of at most 64 bits"),
    ],
)
def test_malformed_table_is_refused_with_its_row(tmp_path, row, says):
    with pytest.raises(BadSetting, match=says) as refused:
        read_table(written(tmp_path / "t.csv", (TABLE + row + "\n").encode()))
    assert "\n" not in str(refused.value)


def test_table_that_spans_more_than_memory_is_refused_at_once(tmp_path):
    rows = "".join(f"w{each},{each},{each},1\n" for each in range(6000))
    with pytest.raises(BadSetting, match="no time for client 'w0', round 0, chunk 1"):
        read_table(written(tmp_path / "t.csv", f"client,round,chunk,seconds\n{rows}".encode()))


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2\n", b"\xff\xfe"])
def test_malformed_table_is_refused(tmp_path, content):
    with pytest.raises(BadSetting, match=r"trace t\.csv"):
        read_table(written(tmp_path / "t.csv", content))


def test_missing_table_is_refused(tmp_path):
    with pytest.raises(BadSetting, match="saw no such file, needed a table"):
        read_table(tmp_path / "t.csv")


# ---- links


def test_links_are_sampled_users_and_stay_fixed(tmp_path):
    users = {"u": {"up_u": 1000, "up_sigma": 0, "down_u": 4000, "down_sigma": 0}}
    links = read_links(written(tmp_path / "l.json", json.dumps(users).encode()))
    scenario = links.over(
        MODELS["homogeneous"](3, 2, np.random.default_rng(0)), 2_000_000, np.random.default_rng(0)
    )
    assert [each.up_s_w.tolist() for each in scenario] == [[2.0] * 3] * 2
    assert [each.down_s_w.tolist() for each in scenario] == [[0.5] * 3] * 2


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"{}",
        b'{"u": 1}',
        b'{"u": {"up_u": 1}}',
        b'{"u": {"up_u": 0, "up_sigma": 0, "down_u": 1, "down_sigma": 0}}',
        b'{"u": {"up_u": "1", "up_sigma": 0, "down_u": 1, "down_sigma": 0}}',
        b'{"u": {"up_u": 1e308, "up_sigma": 0, "down_u": 1, "down_sigma": 0}}',
        b'{"u": {"up_u": 1, "up_sigma": -1, "down_u": 1, "down_sigma": 0}}',
        b'{"u": {"up_u": 1%s, "up_sigma": 0, "down_u": 1, "down_sigma": 0}}' % (b"0" * 400),
        b"[" * 200_000,
    ],
)
def test_malformed_links_are_refused(tmp_path, content):
    with pytest.raises(BadSetting, match=r"trace l\.json"):
        read_links(written(tmp_path / "l.json", content))


LINK_TABLE = "client,up_mb_s,down_mb_s\nnear,2,4\nfar,0.5,1\n"


def test_link_table_gives_each_client_its_speeds(tmp_path):
    links = read_links(written(tmp_path / "L.CSV", LINK_TABLE.encode("utf-8-sig")))
    rng = np.random.default_rng(0)
    scenario = links.over(MODELS["homogeneous"](2, 2, rng), 2_000_000, rng)
    assert [each.up_s_w.tolist() for each in scenario] == [[1.0, 4.0]] * 2
    assert [each.down_s_w.tolist() for each in scenario] == [[0.5, 2.0]] * 2
    with pytest.raises(BadSetting, match="links: saw 2 clients, needed one row for each of 3"):
        links.over(MODELS["homogeneous"](3, 1, rng), 1, rng)


def test_link_table_is_matched_with_clients_of_trace_by_name(tmp_path):
    trace = written(tmp_path / "t.csv", b"client,round,chunk,seconds\na,1,0,1\nb,1,0,2\n")
    table = written(tmp_path / "l.csv", b"client,up_mb_s,down_mb_s\nc,9,9\nb,1,1\na,100,100\n")
    (first,) = Request(trace=trace, links=table, rounds=1, model_mb=50.0).scenario()
    assert first.up_s_w.tolist() == [0.5, 50.0]
    table.write_text(LINK_TABLE)
    with pytest.raises(BadSetting, match="links: saw the clients 'near', 'far', needed a row for 'a' too"):
        Request(trace=trace, links=table, rounds=1).scenario()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "saw '' and 0 rows, needed client,up_mb_s,down_mb_s and a row for each client"),
        (b"client,up_mb_s,down_mb_s\n", "and 0 rows, needed"),
        (b"client,round,chunk,seconds\na,1,0,1\n", "row 1: saw 'client,round,chunk,seconds'"),
        (LINK_TABLE.encode() + b"\nx,1\n", "row 5: saw 'x,1', needed a client and two speeds"),
        (LINK_TABLE.encode() + b"x,1,fast\n", "row 4: saw 'x,1,fast', needed a client and two speeds"),
        (LINK_TABLE.encode() + b"x,1,0\n", "row 4: saw 'x,1,0', needed 1e-09 to 1e.09 MB/s"),
        (LINK_TABLE.encode() + b"x,nan,1\n", "row 4: saw 'x,nan,1', needed 1e-09"),
        (LINK_TABLE.encode() + b"near,1,1\n", "row 4: saw client 'near' before"),
        (b"\xff", "not a table of text"),
    ],
)
def test_malformed_link_table_is_refused_with_its_row(tmp_path, content, says):
    with pytest.raises(BadSetting, match=says) as refused:
        read_links(written(tmp_path / "l.csv", content))
    assert "\n" not in str(refused.value)


def test_recorded_links_are_read():
    path = RECORDED / "flash_speed_distri.json"
    if not path.exists():
        pytest.skip(f"{path.name} is not here")
    assert read_links(path).speeds_u4.shape == (19, 4)
