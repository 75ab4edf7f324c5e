"""Test that a run is resumed where it was."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedgc.cli import run as running
from fedgc.cli.clients import ClientSettings
from fedgc.cli.run import Wanted
from fedgc.cli.run_place import FILE, RunPlace, folder_of, keep_place, place_of
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.records import Begun, Ended

OWN: ClientSettings = {
    "north": {"data": "/data/north", "beds": 12, "pace-s": 0.5},
    "south": {"data": "/data/south"},
}


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    return tmp_path


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open() as opened:
        opened.write(Begun(1.0, "ward", RunConfig(work="coded").table()))
        opened.write(Ended(2.0, "ward", "stopped"))
        yield opened


@pytest.mark.parametrize(
    "place",
    [RunPlace(), RunPlace(3), RunPlace(superlink="hospital"), RunPlace(own=OWN), RunPlace(5, None, OWN)],
)
def test_place_is_kept(place: RunPlace) -> None:
    assert place_of("ward") == RunPlace()
    keep_place("ward", RunPlace(9))
    keep_place("ward", place)
    assert place_of("ward") == place
    assert bool(place) == (place != RunPlace())


@pytest.mark.parametrize("resume", ["ward", "latest"])
def test_run_is_resumed_where_it_was(store: Store, resume: str) -> None:
    keep_place("ward", RunPlace(own=OWN))
    again = Wanted(None, {}, resume=resume).where_it_was(store)
    assert [(node.name, dict(node.config)) for node in again.nodes] == list(OWN.items())


@pytest.mark.parametrize(
    "given", [Wanted(2, {}, resume="ward"), Wanted(None, {}, "up", "ward"), Wanted(None, {"run": "ward"})]
)
def test_place_that_is_given_counts_and_new_run_has_none(store: Store, given: Wanted) -> None:
    keep_place("ward", RunPlace(own=OWN))
    assert given.where_it_was(store) == given


def test_unknown_superlink_of_resumed_run_is_named(store: Store) -> None:
    keep_place("ward", RunPlace(superlink="gone"))
    with pytest.raises(Unusable, match="gone"):
        running.run(Wanted(None, {}, resume="ward"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        '{"clients": "two"}',
        '{"own": {"north": 3}}',
        '{"own": {"north": {"data": [1]}}}',
        '{"more": 1}',
    ],
)
def test_damaged_place_is_refused_in_one_line(text: str) -> None:
    keep_place("ward", RunPlace(2))
    (folder_of("ward") / FILE).write_text(text)
    with pytest.raises(
        EdgeFailed, match=r"place.json: saw \w+, needed the place of run ward; give --clients"
    ):
        place_of("ward")


def test_folder_that_cannot_be_written_ends_no_run(state: Path) -> None:
    folder_of("ward").parent.mkdir(parents=True)
    folder_of("ward").write_text("a file in its place")
    keep_place("ward", RunPlace(2))
