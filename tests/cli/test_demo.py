"""Test the demo's texts and the moment of its kill; a contract test runs the demo itself."""

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from fedgc.cli.demo import COLLECTING, KILLED, LATEST, MORE_ROUNDS, ClientKill, _play, failure, reasons, sums
from fedgc.cli.follow import Seen
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.history import ClientRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Decided, Ended
from fedgc.store.records import Seen as Met
from tests.cli.test_follow import ROW


class Killed:
    """A federation that records kills only."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def kill(self, name: str) -> list[int]:
        self.killed.append(name)
        return [1]

    def restart(self, name: str) -> None:
        self.killed.remove(name)


def test_first_and_last_plan_name_clients() -> None:
    decisions = [Decided(0.0, "r", number, "plan", {}, f"because of aa{number}") for number in (1, 4, 9)]
    decisions.insert(1, Decided(0.0, "r", 2, "gate", {}, "other"))
    first, last, count = reasons(decisions, {"aa": "north"})
    assert (first, last) == ("plan of round 1: because of north1", "plan of round 9: because of north9")
    assert "3 plans" in count
    assert len(list(reasons(decisions[:1], {}))) == 2
    assert not list(reasons([], {}))


def seen_of(killed_counts: dict[int, int]) -> Seen:
    """Five rounds of two sites, the third without a sum, with the counted work of the killed site."""
    outcomes = ("synced", "approximate", "aborted", "synced", "synced")
    rounds = [
        SimpleNamespace(row=SimpleNamespace(round=number, outcome=each))
        for number, each in enumerate(outcomes, start=1)
    ]
    others = [(number, ClientRow("a", 8, 0 if number == 3 else 8)) for number in range(1, 6)]
    killed = [(number, ClientRow("k", 8, count)) for number, count in killed_counts.items()]
    return Seen(None, tuple(rounds), {"a": others, "k": killed}, {"a": "client-1", "k": KILLED})


def test_outcome_of_killed_client_is_reported() -> None:
    client_kill = ClientKill(kill_after=1, return_after_s=1.0)
    assert not list(failure(seen_of({1: 8}), client_kill)), "it was not killed yet"
    client_kill.killed_in = 2
    assert list(failure(seen_of({1: 8, 2: 0}), client_kill)) == [
        f"{KILLED} was killed in round 2; it was not counted again"
    ]
    assert list(failure(seen_of({1: 8, 2: 8, 3: 0, 4: 8, 5: 8}), client_kill)) == [
        f"{KILLED} was killed in round 2; it was counted again from round 4 on"
    ]


def test_masked_demo_reports_number_of_sites_in_each_sum() -> None:
    assert list(sums(seen_of({1: 8, 2: 0, 4: 8, 5: 8}))) == [
        "under masks: the server saw 4 sums (3 over 2 sites, 1 over 1 sites), and no update of one"
    ]
    assert list(sums(Seen(None, (), {}, {}))) == ["under masks: the server saw no sum, and no update of one"]


def test_demo_kills_client_while_collecting() -> None:
    federation = Killed()
    client_kill = ClientKill(kill_after=5, return_after_s=1.0)
    for last, phase in ((4, COLLECTING), (5, "working"), (6, None)):
        client_kill.act(federation, last, phase)
    assert not federation.killed
    client_kill.act(federation, 6, COLLECTING)
    assert federation.killed == [KILLED]
    assert client_kill.killed_in == 7


def test_client_is_killed_at_latest_round_in_any_phase() -> None:
    federation = Killed()
    ClientKill(kill_after=5, return_after_s=1.0).act(federation, 5 + LATEST, "working")
    assert federation.killed == [KILLED]


class Quick(Killed):
    """A federation whose runs end at the second look; a killed client counts in resumed runs, or never."""

    def __init__(self, store: Store, folder: Path, *, returns: bool) -> None:
        super().__init__()
        self.store, self.folder, self.returns = store, folder, returns
        self.done = self.looks = 0
        self.log("run-1").write_text("")

    def log(self, name: str) -> Path:
        return self.folder / name

    def submit(self, settings: Mapping[str, object]) -> int:
        config = RunConfig.read(settings)
        assert not self.killed, "it was started again before"
        self.store.write(Begun(1.0 + self.done, config.run, config.table()))
        self.store.write(Met(1.0, "k", KILLED))
        own = ClientRow("k", finished=8, counted=8 if config.resume and self.returns else 0)
        for number in range(self.done + 1, config.rounds + 1):
            row = replace(ROW, round=number, started=1.0 + number, clients=(own,))
            self.store.write(Appended(2.0 + number, config.run, row))
        self.done = config.rounds
        self.store.write(Ended(2.0 + self.done, config.run, "completed"))
        return 1

    def running(self, _: int) -> bool:
        self.looks += 1
        return self.looks % 2 == 1


@pytest.mark.parametrize("returns", [True, False])
def test_demo_goes_on_until_killed_client_is_counted(tmp_path: Path, returns: bool) -> None:
    said, config = io.StringIO(), RunConfig.read({"run": "demo", "rounds": 6, "work": "coded"})
    with Store.open("sqlite://") as store:
        federation = Quick(store, tmp_path, returns=returns)

        def play() -> None:
            _play(Console(file=said, width=120), store, federation, config, masked=False, kills=True)

        if returns:
            play()
            assert f"round 7: {KILLED} is started again" in said.getvalue()
            assert federation.done == 6 + MORE_ROUNDS
            assert f"{KILLED} was killed in round 7; it was counted again from round 8 on" in said.getvalue()
        else:
            with pytest.raises(EdgeFailed, match=f"{KILLED} did not come back within 18 rounds"):
                play()
