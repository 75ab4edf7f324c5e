"""The demo: a real federation on this machine in which one device is slow and one dies and comes back.

Every device is given the pace of a small one (`pace-s`, the least time of a step), so that the story is the
same on quick machines; the slow one is given a quarter of that. The dead one gets SIGKILL, and all that is
shown is read from the store that every run writes.

May import: flower.local, store, cli.
"""

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fedgc.cli import view
from fedgc.cli.follow import POLL_S, Follower, Seen, print_tables, show_on, why_incomplete
from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.app import Setting
from fedgc.flower.local import LocalFederation, Node
from fedgc.store.database import Store
from fedgc.store.engine import default_path

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
        follower = Follower(store, run)
        console.print(f"run {run}, store {store.name}", soft_wrap=True)
        began = time.monotonic()
        with LocalFederation(_nodes(keys)) as federation, show_on(console, rounds) as show:
            flower_run = federation.submit(config.table())
            while federation.running(flower_run):
                seen = follower.look()
                story.act(federation, seen.last)
                show.update(seen, story.notes)
                time.sleep(POLL_S)
            seen = follower.whole()
            show.update(seen, story.notes)
            log = federation.log(f"run-{flower_run}").read_text(errors="replace")
        print_tables(console, seen, time.monotonic() - began)
    _judge(seen, story, log)


def _nodes(keys: Path) -> list[Node]:
    """Four devices whose keys outlive the demo, so that the next one knows them again."""
    names = ("device-1", "device-2", SLOW, KILLED)
    return [
        Node(
            name, {"identity": str(keys / f"{name}.key"), "pace-s": PACE_S * (SLOWER if name == SLOW else 1)}
        )
        for name in names
    ]


def _judge(seen: Seen, story: _Story, log: str) -> None:
    """Say in one line what did not happen that had to."""
    reason = why_incomplete(seen, log)
    if reason is not None:
        raise EdgeFailed(f"the run did not complete: {reason}")
    rows = [row for device, own in seen.rows.items() if seen.names.get(device) == KILLED for row in own]
    if not any(row.counted for number, row in rows if number > (story.killed_in or seen.last)):
        raise EdgeFailed(f"{KILLED} did not come back in time; it needs more rounds than {seen.last}")
