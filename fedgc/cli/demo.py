"""The demo: a real federation on this machine in which one device is slow and one dies and comes back.

Every device is given the pace of a small one (`pace-s`, the least time of a step), so that the story is the
same on quick machines; the slow one is given a quarter of that. The dead one gets SIGKILL, and all that is
shown is read from the store that every run writes.

May import: flower.local, store, cli.
"""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from rich.console import Console
from rich.live import Live

from fedgc.cli import view
from fedgc.cli.settings import Setting
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.local import LocalFederation, Node
from fedgc.history import DeviceRow
from fedgc.store.database import Store
from fedgc.store.engine import default_path
from fedgc.store.views import Round, Run

SETTINGS: Final[Mapping[str, Setting]] = {
    "task": "digits",
    "chunks": 16,
    "replicas": 3,
    "blocks": 2,
    "min-devices": 4,
    "grace-s": 2.0,
    "threads": 1,
}
SLOW, KILLED = "slow-device", "killed-device"
PACE_S: Final = 0.02  # least seconds of a local step
SLOWER: Final = 4
POLL_S: Final = 0.2


@dataclass(slots=True)
class _Story:
    """The killing and the return: when they are due, and what was seen of them."""

    kill_after: int
    return_after_s: float
    killed_in: int | None = None
    killed_at: float = 0.0
    returned: bool = False
    notes: list[str] = field(default_factory=list)

    def act(self, federation: LocalFederation, last: int) -> None:
        """Do what is due after this round."""
        if self.killed_in is None and last >= self.kill_after:
            pids = federation.kill(KILLED)
            self.killed_in, self.killed_at = last + 1, time.monotonic()
            self.notes.append(f"round {last + 1}: SIGKILL to {KILLED}, processes {', '.join(map(str, pids))}")
        elif self.killed_in and not self.returned and time.monotonic() > self.killed_at + self.return_after_s:
            federation.restart(KILLED)
            self.returned = True
            self.notes.append(f"round {last + 1}: {KILLED} is started again")


def run_demo(rounds: int, settings: Mapping[str, Setting]) -> None:
    """Run the demo and print its tables; every process that it started is gone when this returns."""
    console = view.terminal()
    run = f"demo-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    config = RunConfig.read({**SETTINGS, **settings, "rounds": rounds, "run": run})
    keys = default_path(os.environ).parent / "demo"
    story = _Story(kill_after=max(1, rounds // 5), return_after_s=1.0)
    with Store.open() as store:
        console.print(f"run {run}, store {store.name}", soft_wrap=True)
        began = time.monotonic()
        with LocalFederation(_nodes(keys)) as federation:
            flower_run = federation.submit(config.table())
            show = _Terminal(console, rounds) if console.is_terminal else _Lines(console)
            with show:
                while federation.running(flower_run):
                    seen = _seen(store, run)
                    story.act(federation, seen.rounds[-1].row.round if seen.rounds else 0)
                    show.update(seen, story.notes)
                    time.sleep(POLL_S)
                seen = _seen(store, run)
                show.update(seen, story.notes)
            last_words = federation.log(f"run-{flower_run}").read_text(errors="replace").strip()
        _print(console, seen, time.monotonic() - began)
        _judge(seen, story, last_words.splitlines()[-1] if last_words else "its log is empty")


def _nodes(keys: Path) -> list[Node]:
    """Four devices whose keys outlive the demo, so that the next one knows them again."""
    names = ("device-1", "device-2", SLOW, KILLED)
    return [
        Node(
            name, {"identity": str(keys / f"{name}.key"), "pace-s": PACE_S * (SLOWER if name == SLOW else 1)}
        )
        for name in names
    ]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The run as the store tells it."""

    run: Run | None
    rounds: tuple[Round, ...] = ()
    rows: Mapping[str, Sequence[tuple[int, DeviceRow]]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    def counted_after(self, name: str, round_number: int) -> bool:
        """Whether work of this device was counted after that round."""
        own = [row for device, row in self.rows.items() if self.names.get(device) == name]
        return any(row.counted for rows in own for number, row in rows if number > round_number)


def _seen(store: Store, run: str) -> _Seen:
    found = next((each for each in store.runs() if each.run == run), None)
    if found is None:
        return _Seen(None)
    names = {device.device: device.name for device in store.devices()}
    rows = {device: history for device in names if (history := store.device_history(run, device))}
    return _Seen(found, store.rounds(run), rows, names)


class _Lines:
    """One line a round: for pipes and logs."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._noted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, seen: _Seen, notes: Sequence[str]) -> None:
        for note in notes[self._noted :]:
            self._console.print(note, soft_wrap=True)
        for each in seen.rounds[self._shown :]:
            self._console.print(view.round_line(each), soft_wrap=True, highlight=False)
        self._noted, self._shown = len(notes), len(seen.rounds)


class _Terminal:
    """A view that is drawn over itself."""

    def __init__(self, console: Console, rounds: int) -> None:
        self._live = Live(console=console, refresh_per_second=8)
        self._rounds = rounds

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, seen: _Seen, notes: Sequence[str]) -> None:
        present = seen.run.present if seen.run else {}
        self._live.update(view.live_view(self._rounds, present, seen.rounds, notes))


def _print(console: Console, seen: _Seen, seconds: float) -> None:
    if seen.rounds:
        console.print(view.summary(seen.rounds, seconds))
        console.print(
            view.devices_table({d: [row for _, row in own] for d, own in seen.rows.items()}, seen.names)
        )


def _judge(seen: _Seen, story: _Story, last_words: str) -> None:
    """Say in one line what did not happen that had to."""
    if seen.run is None or seen.run.state != "completed":
        reason = seen.run.reason if seen.run and seen.run.reason else last_words
        raise EdgeFailed(f"the run did not complete: {reason}")
    if story.killed_in is None or not seen.counted_after(KILLED, story.killed_in):
        raise EdgeFailed(f"{KILLED} did not come back in time; it needs more rounds than {len(seen.rounds)}")
