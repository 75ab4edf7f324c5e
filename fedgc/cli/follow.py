"""Following a run: what the store says of it, shown again and again until it is over.

On a terminal a view that is drawn over itself, elsewhere one line a round.

May import: store, history, cli.view; rich.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, Self

from rich.console import Console
from rich.live import Live

from fedgc.cli import view
from fedgc.history import DeviceRow
from fedgc.store.database import Store
from fedgc.store.views import Round, Run

POLL_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Seen:
    """The run as the store tells it."""

    run: Run | None
    rounds: tuple[Round, ...] = ()
    rows: Mapping[str, Sequence[tuple[int, DeviceRow]]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)

    @property
    def last(self) -> int:
        """The newest round that is over, 0 where none is."""
        return self.rounds[-1].row.round if self.rounds else 0


def look(store: Store, run: str) -> Seen:
    """Return the run as it stands; one that has not begun is nothing yet."""
    found = next((each for each in store.runs() if each.run == run), None)
    if found is None:
        return Seen(None)
    names = {device.device: device.name for device in store.devices()}
    rows = {device: history for device in names if (history := store.device_history(run, device))}
    return Seen(found, store.rounds(run), rows, names)


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
    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = 0
        self._noted = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, seen: Seen, notes: Sequence[str]) -> None:
        for note in notes[self._noted :]:
            self._console.print(note, soft_wrap=True, highlight=False)
        for each in seen.rounds[self._shown :]:
            self._console.print(view.round_line(each), soft_wrap=True, highlight=False)
        self._noted, self._shown = len(notes), len(seen.rounds)


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


def print_tables(console: Console, seen: Seen, seconds: float) -> None:
    """Print the run as tables, where it had any rounds."""
    if seen.rounds:
        console.print(view.summary(seen.rounds, seconds))
        rows = {device: [row for _, row in own] for device, own in seen.rows.items()}
        console.print(view.devices_table(rows, seen.names))


def why_incomplete(seen: Seen, log: str) -> str | None:
    """Return why a run that is over did not do its rounds; None where it did."""
    if seen.run is not None and seen.run.state == "completed":
        return None
    if seen.run is not None and seen.run.reason:
        return seen.run.reason
    words = [line for line in log.splitlines() if line.strip()]
    return words[-1].strip() if words else "its log is empty"
