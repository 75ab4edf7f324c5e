"""Following a run: what the store says of it, shown again and again until it is over.

On a terminal a view that is drawn over itself, elsewhere one line a round. Where the run keeps its store
elsewhere, as one on a SuperLink of other people does, its log is what there is to show.
"""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol, Self

from rich.console import Console
from rich.live import Live

from fedgc.cli import view
from fedgc.config import RunConfig
from fedgc.deploy.superlink import KEEP_INSTALLED, framed
from fedgc.errors import Unusable
from fedgc.flower.preconditions import SUMMED
from fedgc.history import ClientRow
from fedgc.store.database import Store
from fedgc.store.standing import reason_of
from fedgc.store.views import Round, Run

POLL_S: Final = 0.2
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
FAULT: Final = re.compile(r"^ERROR *: +(?!Exit Code)(\S.*?) *$", re.MULTILINE)  # as Flower's log tells one
WARNED: Final = re.compile(r"^WARNING *: +round \d+: (.*\S)")  # what a round lacks, as the server says it
EXIT_CODE: Final = re.compile(r"^ERROR *: +Exit Code: *(\d+)", re.MULTILINE)
INSTALLS: Final = "608"  # the exit code of a server whose app's dependencies could not be installed
INCOMPLETE: Final = "the run did not complete: "  # so begins the reason of one that the server gave up
MOST_WARNED: Final = 8  # of them that are shown, each sentence once
UNSETTLED: Final = 5  # of the newest rounds: their evaluation may still join them


@dataclass(frozen=True, slots=True)
class Seen:
    """The run as the store tells it."""

    run: Run | None
    rounds: tuple[Round, ...] = ()
    rows: Mapping[str, Sequence[tuple[int, ClientRow]]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The newest round that is over, 0 where none is."""
        return self.rounds[-1].row.round if self.rounds else 0

    @property
    def has_model(self) -> bool:
        """Whether a round has made a model: without one there is nothing to go on from."""
        return any(each.row.outcome in SUMMED for each in self.rounds)


class Follower:
    """Asks the store about one run, and each time for what is new alone."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._rounds: list[Round] = []

    def run(self) -> Run | None:
        """Return the run alone; one that has not begun is nothing yet."""
        try:
            return self._store.run(self._run)
        except Unusable:
            return None

    def look(self) -> Seen:
        """Return the run as it stands."""
        found = self.run()
        if found is None:
            return Seen(None)
        settled = self._rounds[:-UNSETTLED]
        after = settled[-1].row.round if settled else -1
        self._rounds = [*settled, *self._store.rounds(self._run, after)]
        return Seen(found, tuple(self._rounds))

    def whole(self) -> Seen:
        """Return the run with what every client did in it."""
        seen = self.look()
        if seen.run is None:
            return seen
        names = {client.client: client.name for client in self._store.clients()}
        rows = {
            client: history for client in names if (history := self._store.client_history(self._run, client))
        }
        return Seen(seen.run, seen.rounds, rows, names)


class Show(Protocol):
    """Somewhere to show a run."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(self, *_: object) -> None:
        """Leave what was shown last."""

    def update(self, seen: Seen, notes: Sequence[str]) -> None:
        """Show how things stand."""


def show_on(console: Console, rounds: int) -> Show:
    """Return what fits this console."""
    return _Terminal(console, rounds) if console.is_terminal else _Lines(console)


class _Lines:
    """A line for each round, held back until its evaluation is there or the next round is over."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._noted = 0
        self._held: Sequence[Round] = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._say(self._held)

    def update(self, seen: Seen, notes: Sequence[str]) -> None:
        for note in notes[self._noted :]:
            self._console.print(note, soft_wrap=True, highlight=False, markup=False)
        self._noted = len(notes)
        fresh = seen.rounds[self._shown :]
        waits = 1 if fresh and not fresh[-1].row.metrics else 0
        self._held = fresh[len(fresh) - waits :]
        self._say(fresh[: len(fresh) - waits])
        self._shown += len(fresh) - waits

    def _say(self, rounds: Sequence[Round]) -> None:
        for each in rounds:
            self._console.print(view.round_line(each), soft_wrap=True, highlight=False, markup=False)


class _Terminal:
    def __init__(self, console: Console, rounds: int) -> None:
        self._live = Live(console=console, refresh_per_second=8)
        self._rounds = rounds

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, seen: Seen, notes: Sequence[str]) -> None:
        present = seen.run.present if seen.run else {}
        self._live.update(view.live_view(self._rounds, present, seen.rounds, notes))


class Log:
    """A log that another process writes, line by line as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def lines(self) -> list[str]:
        """Return the whole lines that are new, without their colours."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        return COLOURS.sub("", whole.decode(errors="replace")).splitlines()

    def text(self) -> str:
        """Return all of it."""
        return self._path.read_text(errors="replace")


class Warned:
    """What the server warns of in its log, as notes: each sentence once, and only the first few."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def notes(self) -> list[str]:
        """Return all that it has warned of so far."""
        for line in self._log.lines():
            found = WARNED.match(line)
            if found and len(self._said) < MOST_WARNED:
                self._said.setdefault(found[1], line.partition(":")[2].strip())
        return list(self._said.values())


def follow(
    follower: Follower,
    show: Show,
    going: Callable[[], bool],
    unknown: Callable[[], None] = lambda: None,
    notes: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Show the run until it is no longer going; `unknown` is called while the store does not know it.

    Ctrl-C goes to the caller.
    """
    while going():
        seen = follower.look()
        show.update(seen, notes() if seen.run else ())
        if seen.run is None:
            unknown()
        time.sleep(POLL_S)


def print_tables(console: Console, seen: Seen, seconds: float) -> None:
    """Print the run as tables, where it had any rounds, and in the last line whether all data counted."""
    if seen.rounds:
        console.print(view.summary(seen.rounds, seconds))
        rows = {client: [row for _, row in own] for client, own in seen.rows.items()}
        console.print(view.clients_table(rows, seen.names))
        if seen.run is not None and view.unit_of(seen.rounds) == "local steps":
            config = view.config_of(seen.run) or RunConfig()
            console.print(view.gate_table(seen.rounds, seen.rows, config.round_steps))
        skipped = sum(each.row.outcome == "skipped" for each in seen.rounds)
        if seen.run is not None and (said := view.told_of_skips(seen.run, skipped)):
            console.print(said, soft_wrap=True, highlight=False, markup=False)
    if seen.run is not None and seen.run.state == "completed":
        lacking = f", {seen.run.reason}" if seen.run.reason else ""
        console.print(f"completed: {seen.last} rounds{lacking}", soft_wrap=True, markup=False)


def why_incomplete(seen: Seen, log: str) -> str | None:
    """Return why a run that is over did not do its rounds; None where it did.

    That is its own word, or how its server ended, or what the log calls an error: no line is a reason because
    it is the last.
    """
    run = seen.run
    if run is not None and run.state == "completed":
        return None
    if run is not None and (said := reason_of(run)):
        return said.removeprefix(INCOMPLETE)
    plain = COLOURS.sub("", log)
    if (not_begun := why_not_begun(plain)) is not None:
        return not_begun
    faults = FAULT.findall(plain)
    return faults[-1] if faults else framed(plain) or _without_a_word(seen, EXIT_CODE.findall(plain))


def why_not_begun(log: str) -> str | None:
    """Return why a SuperLink could not start the app, where its log says that it tried to install things."""
    if INSTALLS not in EXIT_CODE.findall(COLOURS.sub("", log)):
        return None
    return (
        "the SuperLink tried to install what the app depends on, and fedgc is in no package registry; "
        f"start flower-superlink with {KEEP_INSTALLED}"
    )


def _without_a_word(seen: Seen, codes: Sequence[str]) -> str:
    where = f" after round {seen.last}" if seen.last else " before its first round was over"
    by = f", with Flower's exit code {codes[-1]}" if codes else ""
    return f"the server ended{where}{by}, and neither store nor log says why"
