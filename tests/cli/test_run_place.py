"""Test that a run is resumed and evaluated where it was."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from fedgc.cli import evaluate as evaluation
from fedgc.cli import run as running
from fedgc.cli.clients import ClientSettings
from fedgc.cli.run import Wanted
from fedgc.cli.run_place import (
    FILE,
    LOCK,
    RunPlace,
    claimed,
    folder_of,
    keep_place,
    keys_of_queue,
    place_of,
)
from fedgc.cli.serve import serve
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.store.database import Store
from fedgc.store.records import Begun, Ended

OWN: ClientSettings = {
    "north": {"data": "/data/north", "beds": 12, "pace-s": 0.5},
    "south": {"data": "/data/south"},
}


class Started(Exception):
    """A run would start here."""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.chdir(tmp_path)
    with Store.open() as store:
        for run in ("ward", "other"):
            store.write(Begun(1.0, run, RunConfig(work="coded", min_clients=2, chunks=4).table()))
            store.write(Ended(2.0, run, "stopped"))
    return tmp_path


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[Wanted]:
    """Where runs would start, in place of a federation."""
    found: list[Wanted] = []

    @contextmanager
    def host_of(wanted: Wanted, *_: object) -> Iterator[object]:
        found.append(wanted)
        raise Started
        yield

    for module in ("fedgc.cli.run", "fedgc.cli.serve", "fedgc.cli.evaluate"):
        monkeypatch.setattr(f"{module}.host_of", host_of)
    monkeypatch.setattr(running, "_must_begin", lambda *_: None)
    monkeypatch.setattr(evaluation, "chosen_version", lambda *_, **__: 1)
    return found


@pytest.mark.parametrize(
    ("place", "says"),
    [
        (RunPlace(), False),
        (RunPlace(3), True),
        (RunPlace(superlink="hospital"), True),
        (RunPlace(own=OWN, folder="/work"), True),
        (RunPlace(5, None, OWN, "/work", "/keys"), True),
    ],
)
def test_place_is_kept_for_its_owner(place: RunPlace, says: bool) -> None:
    assert place_of("ward") == RunPlace()
    keep_place("ward", RunPlace(9))
    keep_place("ward", place)
    assert place_of("ward") == place
    assert bool(place) is says
    kept = folder_of("ward") / FILE
    assert [each.stat().st_mode & 0o077 for each in (kept, kept.parent)] == [0, 0]


@pytest.mark.parametrize(
    "command",
    [
        lambda: running.run(Wanted(None, {}, resume="ward")),
        lambda: serve(Wanted(None, {"run": "ward"}), most=0),
        lambda: evaluation.evaluate(evaluation.Asked("ward"), as_json=True),
    ],
    ids=["run", "serve", "evaluate"],
)
def test_clients_are_those_of_run(hosts: list[Wanted], command: Callable[[], None]) -> None:
    keep_place("ward", RunPlace(3, None, OWN, keys="/keys"))
    with pytest.raises(Started):
        command()
    (wanted,) = hosts
    assert wanted.keys == "/keys"
    assert {node.name: dict(node.config) for node in wanted.nodes} == {"client-0": {}, **OWN}
    assert place_of("ward").keys == "/keys", "a start that fails changes nothing"


def test_newest_run_is_resumed_where_it_was(hosts: list[Wanted]) -> None:
    keep_place("other", RunPlace(5))
    with pytest.raises(Started):
        running.run(Wanted(None, {}, resume="latest"))
    assert hosts[0].here == 5


def test_number_of_default_clients_is_kept() -> None:
    assert Wanted(None, {}).place.clients == 4
    assert Wanted(None, {}, superlink="up").place.clients is None


@pytest.mark.parametrize("given", [Wanted(2, {}), Wanted(None, {}, "up"), Wanted(None, {}, own={"east": {}})])
def test_place_that_is_given_counts(given: Wanted) -> None:
    keep_place("ward", RunPlace(own=OWN))
    assert given.where_it_was("ward") == given


def test_serve_finds_superlink_of_run_with_many_clients(
    hosts: list[Wanted], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedgc.cli.serve.must_be_known", lambda _: None)
    keep_place("ward", RunPlace(superlink="hospital"))
    with pytest.raises(Started):
        serve(Wanted(None, {"run": "ward", "min-clients": 6}), most=0)
    assert hosts[0].superlink == "hospital"


def test_unknown_superlink_of_resumed_run_is_named() -> None:
    keep_place("ward", RunPlace(superlink="gone"))
    with pytest.raises(Unusable, match="gone"):
        running.run(Wanted(None, {}, resume="ward"))


def test_relative_paths_of_clients_need_their_folder(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_place("ward", RunPlace(own={"north": {"data": "north.pt"}}, folder=str(state)))
    assert place_of("ward").own == {"north": {"data": "north.pt"}}
    monkeypatch.chdir("/")
    with pytest.raises(Unusable, match=f"run ward: saw folder /, needed {state}, from which its clients"):
        place_of("ward")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "7",
        '{"clients": "two"}',
        '{"own": {"north": 3}}',
        '{"own": {"north": {"data": [1]}}}',
        '{"keys": 1}',
        '{"more": 1}',
        "[" * 100_000,
    ],
)
def test_damaged_place_is_refused_in_one_line(text: str) -> None:
    keep_place("ward", RunPlace(2))
    (folder_of("ward") / FILE).write_text(text)
    with pytest.raises(EdgeFailed, match=r"place.json: saw \w+, needed the place of run ward; give --c"):
        place_of("ward")


def test_folder_that_cannot_be_written_ends_no_run() -> None:
    folder_of("ward").parent.mkdir(parents=True)
    folder_of("ward").write_text("a file in its place")
    keep_place("ward", RunPlace(2))


@pytest.mark.parametrize(
    "command",
    [
        lambda: running.run(Wanted(2, {}, resume="ward")),
        lambda: serve(Wanted(2, {"run": "ward"}), most=0),
    ],
    ids=["run", "serve"],
)
def test_run_started_by_another_process_is_refused(
    hosts: list[Wanted], monkeypatch: pytest.MonkeyPatch, command: Callable[[], None]
) -> None:
    monkeypatch.setattr("fedgc.cli.serve.CLAIM_S", 0.0)
    holds = "import sys\nwith claimed('ward'):\n    print(flush=True)\n    sys.stdin.read()"
    words = [sys.executable, "-c", f"from fedgc.cli.run_place import claimed\n{holds}"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        said = rf"run ward: saw it running \(process {other.pid} has started it\), needed it to be over"
        with pytest.raises(Unusable, match=said):
            command()
        assert not hosts, "nothing was started"
        other.communicate()
    with pytest.raises(Started):
        command()


def test_claim_waits_for_earlier_command() -> None:
    asked: list[str] = []
    with ExitStack() as earlier:
        earlier.enter_context(claimed("ward"))

        def waits(holder: str) -> bool:
            asked.append(holder)
            if len(asked) == 2:
                earlier.close()
            return True

        with claimed("ward", waits), pytest.raises(Unusable), claimed("ward"):
            pass
    assert asked == [f"process {os.getpid()}"] * 2


def test_holder_that_wrote_no_process_is_another_command() -> None:
    with claimed("ward"):
        (folder_of("ward") / LOCK).write_text("")
        with pytest.raises(Unusable, match=r"\(another command has started it\)"), claimed("ward"):
            pass


def test_lock_on_full_disk_is_held_without_process() -> None:
    full = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))\n"
    lines = (
        f"from fedgc.cli.run_place import claimed\nfrom fedgc.errors import Unusable\n{full}"
        "with claimed('ward'):\n    try:\n        with claimed('ward'): pass\n"
        "    except Unusable as error: print(error)\nprint('over')\n"
    )
    ran = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)
    said = "run ward: saw it running (another command has started it), needed it to be over\nover\n"
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, said, "")


def test_folder_that_cannot_be_written_claims_nothing() -> None:
    folder_of("ward").parent.mkdir(parents=True)
    folder_of("ward").write_text("a file in its place")
    with claimed("ward"):
        pass


def test_queues_of_two_stores_share_no_keys() -> None:
    assert keys_of_queue("sqlite:////a/fedgc.db") != keys_of_queue("sqlite:////b/fedgc.db")
