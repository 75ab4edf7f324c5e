"""Following a run: its state in the store, shown repeatedly until it is over.

On a terminal this is a live view, otherwise one line per round. If the store of the run is not available, as
for a run on a foreign SuperLink, its log is shown.
"""

import math
import re
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final, Protocol, Self

from rich.console import Console
from rich.live import Live

from fedgc.cli import view
from fedgc.config import RunConfig
from fedgc.deploy.superlink import KEEP_INSTALLED, framed
from fedgc.errors import EdgeFailed, Unusable, numbered
from fedgc.flower.preconditions import rounds_done
from fedgc.history import BestModel, ClientRow, Score
from fedgc.messages import SUMMED
from fedgc.store.database import Store
from fedgc.store.explanation import INCOMPLETE
from fedgc.store.liveness import reason_of, state_of
from fedgc.store.views import Round, Run, labels_of
from fedgc.store.work import WorkTotals

POLL_S: Final = 0.2
LOG_S: Final = 1.0  # by which the log of a run may be later than the store
ON_ROUND: Final = re.compile(r"round (\d+): ")  # a note on a round
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
FAULT: Final = re.compile(r"^ERROR *: +(?!Exit Code)(\S.*?) *$", re.MULTILINE)  # an error in Flower's log
RAISED: Final = "ServerApp raised an exception"  # a traceback follows
TRACEBACK: Final = re.compile(
    r"^Traceback \(most recent call last\):\n((?:[ \t].*\n|\n)*)(\S.*)$", re.MULTILINE
)
FRAME: Final = re.compile(r'^  File "(?!<)([^"]+)", line (\d+)', re.MULTILINE)
MOST_SHOWN: Final = 300  # characters of an error
LIBRARIES: Final = ("site-packages", "importlib")  # folders of frames that are not the app's
WARNED: Final = re.compile(
    r"^(?:WARNING|INFO) *: +"
    r"(?:round \d+: |(?=checkpoint |busy with run |refused by its site: |the run goes on with other settings "
    r"|store |the store is back|rows kept aside in |\d+ records are lost: |.* \(its app failed with ))(.*\S)"
)  # in the server's log: what a round lacks, who is back, busy or does not take part, what a resume changes
UNSTORED: Final = re.compile(r"^WARNING *: +(store .*); the run goes on, its rows are kept in ", re.MULTILINE)
LOGGED: Final = re.compile(r"[A-Z]+ *:|Successfully installed ")  # how lines of Flower and of loggers begin
APP_BEGINS: Final = "Start `flwr-serverapp` process"
EXIT_CODE: Final = re.compile(r"^ERROR *: +Exit Code: *(\d+)", re.MULTILINE)
INSTALLS: Final = "608"  # Flower's exit code when the app's dependencies could not be installed
MOST_WARNED: Final = 8  # shown warnings, each text once, besides those of a return to an earlier model
GOES_BACK: Final = "the run goes back to the model of round"
UNSETTLED: Final = 5  # of the newest rounds: their evaluation may still arrive


@dataclass(frozen=True, slots=True)
class Seen:
    """The run in the store."""

    run: Run | None
    rounds: tuple[Round, ...] = ()
    rows: Mapping[str, Sequence[tuple[int, ClientRow]]] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    scores: tuple[Score, ...] = ()  # the newest of each client
    best: BestModel | None = None

    @property
    def last(self) -> int:
        """The newest finished round, 0 if there is none."""
        return self.rounds[-1].row.round if self.rounds else 0

    @property
    def has_model(self) -> bool:
        """Whether a round has made a model, from which a run can resume."""
        return any(each.row.outcome in SUMMED for each in self.rounds)


NOTHING: Final = Seen(None)


class Follower:
    """Reads one run from the store, each time only what is new."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._rounds: list[Round] = []
        self._lately = Seen(None)

    def run(self) -> Run | None:
        """Return the run without its rounds; None if it has not begun."""
        try:
            return self._store.run(self._run)
        except Unusable:
            return None

    def look(self) -> Seen:
        """Return the current state of the run."""
        found = self.run()
        if found is None:
            return Seen(None)
        if self._rounds and self._rounds[-1].row.round > (found.last_round or 0):
            self._rounds = []  # the run has gone back to an earlier model
        settled = self._rounds[:-UNSETTLED]
        after = settled[-1].row.round if settled else -1
        self._rounds = [*settled, *self._store.rounds(self._run, after)]
        scores, best = self._store.last_scores(self._run), self._store.best(self._run)
        return Seen(found, tuple(self._rounds), scores=scores, best=best)

    def lately(self) -> Seen:
        """Return the current state or, while the store fails, the last known one: the server goes on then."""
        with suppress(EdgeFailed):
            self._lately = self.look()
        return self._lately

    def run_lately(self) -> Run | None:
        """Return the same without rounds."""
        with suppress(EdgeFailed):
            return self.run()
        return self._lately.run

    def whole(self) -> Seen:
        """Return the run with the rows of all clients."""
        seen = self.look()
        if seen.run is None:
            return seen
        known = self._store.clients()
        rows = {
            each.client: history
            for each in known
            if (history := self._store.client_history(self._run, each.client))
        }
        own = rows.keys() | {each.client for each in seen.scores}
        return replace(seen, rows=rows, names=labels_of(each for each in known if each.client in own))


class Show(Protocol):
    """A display of a run."""

    def __enter__(self) -> Self:
        """Start the display."""

    def __exit__(self, *_: object) -> None:
        """Leave the last state on the screen."""

    def update(self, seen: Seen, notes: Sequence[str]) -> None:
        """Show the current state."""


def show_on(console: Console, rounds: int, before: Seen = NOTHING) -> Show:
    """Return the display for this console; without a terminal, only of rounds that were not seen before."""
    return _Terminal(console, rounds) if console.is_terminal else _Lines(console, before)


class _Lines:
    """One line for each round, delayed until its evaluation, if any, is there or the next round is over.

    A line follows the notes on its round and on earlier ones. The log arrives later than the store, so that
    a line waits LOG_S for such notes, and a note waits as long for the lines of earlier rounds. It does not
    wait for their evaluation.
    """

    def __init__(self, console: Console, before: Seen, clock: Callable[[], float] = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._before = {each.row.round: each.row.started for each in before.rounds}
        self._shown = 0  # the last round that was shown
        self._noted = 0
        self._rounds: dict[int, tuple[float, Round]] = {}  # not shown yet, and when each was first seen
        self._notes: list[tuple[int, float, str]] = []  # the same of notes, with their round

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._show(math.inf)

    def update(self, seen: Seen, notes: Sequence[str]) -> None:
        now = self._clock()
        for note in notes[self._noted :]:
            found = ON_ROUND.match(note)
            self._notes.append((int(found[1]) if found else 0, now, note))
        self._noted = len(notes)
        for each in seen.rounds:
            number = each.row.round
            if each.row.started != self._before.get(number) and number > self._shown:
                self._rounds[number] = (self._rounds.get(number, (now, each))[0], each)
        self._show(now)

    def _show(self, now: float) -> None:
        newest = max(self._rounds, default=0)
        for number, (came, each) in sorted(self._rounds.items()):
            fruitless = each.row.outcome in ("empty", "aborted")  # the next one may be long in coming
            evaluated = each.row.metrics or fruitless or number < newest or now == math.inf
            if not evaluated or now - came < LOG_S:
                break
            self._say_notes(number)
            self._say(view.round_line(each))
            self._shown = number
            del self._rounds[number]
        self._say_notes(min(self._rounds, default=self._shown + 1), now - LOG_S)

    def _say_notes(self, last: int, until: float = -math.inf) -> None:
        """Print the notes on rounds up to `last`, and those that came no later than `until`."""
        waits = [each for each in self._notes if each[0] > last and each[1] > until]
        for each in self._notes:
            if each not in waits:
                self._say(each[2])
        self._notes = waits

    def _say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False)


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
        self._live.update(view.live_view(self._rounds, present, seen.rounds, notes, seen.scores, seen.best))


class Log:
    """A log that another process writes, read line by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0

    def lines(self) -> list[str]:
        """Return the new complete lines, without their colours."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        return COLOURS.sub("", whole.decode(errors="replace")).splitlines()

    def text(self) -> str:
        """Return the whole log."""
        return self._path.read_text(errors="replace")


class Warned:
    """The server's warnings in its log, as notes: each text once, and only the first few."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._said: dict[str, str] = {}

    def notes(self) -> list[str]:
        """Return all warnings so far."""
        for line in self._log.lines():
            found = WARNED.match(line)
            if found and (len(self._said) < MOST_WARNED or GOES_BACK in line):
                text = line.partition(":")[2].strip()
                self._said.setdefault(text if GOES_BACK in line else found[1], text)
        return list(self._said.values())


def follow(
    follower: Follower,
    show: Show,
    going: Callable[[], bool],
    unknown: Callable[[], None] = lambda: None,
    notes: Callable[[], Sequence[str]] = tuple,
) -> None:
    """Show the run until it is no longer going; call `unknown` while it is not in the store.

    A store that fails, such as a database that is restarted, ends neither the display nor the run. Ctrl-C is
    raised to the caller.
    """
    while going():
        seen = follower.lately()
        show.update(seen, notes() if seen.run else ())
        if seen.run is None:
            unknown()
        time.sleep(POLL_S)


def print_tables(console: Console, seen: Seen, seconds: float, *, resumed: bool = False) -> None:
    """Print the run as tables, if it had any rounds, and its data coverage in the last line."""
    if seen.rounds:
        config = view.config_of(seen.run) if seen.run is not None else None
        unit = view.unit_of(seen.rounds, config)
        work = _work_of(seen, local=unit == "local steps")
        console.print(
            view.summary(seen.rounds, seconds, seen.best, unit=unit, resumed=resumed, at_end=work.at_end)
        )
        console.print(view.clients_table(seen.rows, seen.names, work.clients))
        if seen.scores:
            mean = view.mean_of(seen.scores, config)
            console.print(view.scores_table("Last figures of the clients", seen.scores, seen.names, mean))
        if unit == "local steps":
            steps = (config or RunConfig()).round_steps
            console.print(view.gate_table(seen.rounds, seen.rows, steps))
        skipped = sum(each.row.outcome == "skipped" for each in seen.rounds)
        if seen.run is not None and (message := view.skips_message(seen.run, skipped)):
            console.print(message, soft_wrap=True, highlight=False)
    if seen.run is not None and seen.run.state == "completed":
        partial = f", {lacking}" if (lacking := view.partial_rounds(seen.rounds)) else ""
        last = f"{'; ' if partial else ', '}{seen.run.reason}" if seen.run.reason else ""
        done = numbered(rounds_done(seen.rounds), "round")
        console.print(f"completed: {done}{partial}{last}", soft_wrap=True)


def _work_of(seen: Seen, *, local: bool) -> WorkTotals:
    """Return what became of the work of all clients."""
    work, by_round = WorkTotals(local=local), defaultdict[int, list[ClientRow]](list)
    for number, row in chain.from_iterable(seen.rows.values()):
        by_round[number].append(row)
    for each in seen.rounds:
        work.add(each.row, by_round[each.row.round])
    work.close(ended=seen.run is None or state_of(seen.run) != "running")
    return work


def why_incomplete(seen: Seen, log: str) -> str | None:
    """Return why a finished run did not complete its rounds; None if it did.

    That is its recorded reason, how its server ended, or an error in the log; the last line of a log is no
    reason by itself.
    """
    run = seen.run
    if run is not None and run.state == "completed":
        return None
    if run is not None and (message := reason_of(run)):
        return message.removeprefix(INCOMPLETE)
    return fault_in(log) or _without_a_word(seen, COLOURS.sub("", log))


def check_complete(seen: Seen, log: Path) -> None:
    """Raise EdgeFailed, with the reason, if the finished run of this log did not complete its rounds."""
    if (reason := why_incomplete(seen, log.read_text(errors="replace"))) is not None:
        raise EdgeFailed(f"the run did not complete: {reason}")


def printed_by_app(log: str) -> list[str]:
    r"""Return what the app itself has printed, without the lines of loggers.

    >>> printed_by_app("INFO :   Start `flwr-serverapp` process\nINFO :   round 1\naccuracy 0.9\n")
    ['accuracy 0.9']
    """
    _, _, said = COLOURS.sub("", log).partition(APP_BEGINS)
    return [line for line in said.splitlines()[1:] if line.strip() and not LOGGED.match(line)]


def fault_in(log: str) -> str:
    """Return the error in a log; empty if there is none."""
    plain = COLOURS.sub("", log)
    if (not_begun := why_not_begun(plain)) is not None:
        return not_begun
    faults = FAULT.findall(plain)
    if not faults:
        return framed(plain)
    return _raised_in(plain) if faults[-1] == RAISED else str(faults[-1])


def _raised_in(log: str) -> str:
    """Return what an app has raised, and where in its own code."""
    tracebacks = TRACEBACK.findall(log)
    if not tracebacks:
        return RAISED
    frames, error = tracebacks[-1]
    own = [
        f"{'/'.join(Path(file).parts[-2:])}, line {line}"
        for file, line in FRAME.findall(frames)
        if not {*Path(file).parts}.intersection(LIBRARIES)
    ]
    return f"ServerApp raised {error[:MOST_SHOWN]}{f' ({own[-1]})' if own else ''}"


def why_not_begun(log: str) -> str | None:
    """Return why a SuperLink could not start the app, if its log shows a failed installation."""
    if INSTALLS not in EXIT_CODE.findall(COLOURS.sub("", log)):
        return None
    return (
        "the SuperLink tried to install what the app depends on, and fedgc is in no package registry; "
        f"start flower-superlink with {KEEP_INSTALLED}"
    )


def _without_a_word(seen: Seen, log: str) -> str:
    codes, failed = EXIT_CODE.findall(log), UNSTORED.findall(log)
    where = f" after round {seen.last}" if seen.last else " before its first round was over"
    by = f", with Flower's exit code {codes[-1]}" if codes else ""
    if failed:
        return f"the server ended{where}{by}, as far as is stored: {failed[-1]}"
    return f"the server ended{where}{by}, and neither store nor log says why"
