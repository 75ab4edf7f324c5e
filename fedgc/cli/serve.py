"""`fedgc serve`: keeps a run alive until it is complete.

It starts a run as `fedgc run` does. If the ServerApp or the SuperLink ends before the run is complete, the
run is resumed from its last checkpoint, after a pause that doubles from one restart to the next. Too many
restarts in a row without a new round end the command. A run of the same name that was begun before is
resumed, so the command itself can be restarted.

A run has one ServerApp at a time: a run that is under way is followed to its end, and a start whose end was
not seen is stopped, before the run is resumed.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from rich.console import Console

from fedgc.cli import view
from fedgc.cli.follow import Follower, Seen, follow, show_on
from fedgc.cli.run import (
    ROUND_OVER,
    Host,
    Place,
    Wanted,
    aborted,
    host_of,
    must_be_known,
    new_name,
    ready,
    settings_of,
    started,
)
from fedgc.cli.run_end import STOPPED, Over
from fedgc.cli.run_place import claimed, keep_place
from fedgc.cli.signals import like_ctrl_c
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import App, app_in
from fedgc.errors import EdgeFailed, FedgcError, Unusable
from fedgc.flower import preconditions
from fedgc.flower.signals import BY_USER
from fedgc.messages import SUMMED
from fedgc.store import checkpoint
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.later_starts import last_start
from fedgc.store.liveness import alive
from fedgc.store.views import Run

T = TypeVar("T")

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
CLAIM_S: Final = 60.0  # for the command that has started the run to end, while the run is not under way
CHECK_S: Final = 2.0  # between checks for processes of a local federation that ended
POLL_S: Final = 0.2  # the same during a pause
STORE_S: Final = 300.0  # for a store that fails between two starts, such as a database that is restarted


@dataclass(frozen=True, slots=True)
class Restarts:
    """How many restarts in a row have given no new round.

    >>> [Restarts(5, count).pause_s for count in (1, 2, 3, 9)]
    [1.0, 2.0, 4.0, 60.0]
    """

    most: int
    in_a_row: int = 0
    reached: int = 0  # the last round of the run
    cause: str = ""  # why the first of them was necessary

    @property
    def pause_s(self) -> float:
        """The pause before this restart."""
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** (self.in_a_row - 1))

    def after(self, reached: int, reason: str) -> "Restarts":
        """Count one more restart, or raise EdgeFailed if there were too many."""
        if reached > self.reached:
            return Restarts(self.most, 1, reached, reason)
        if self.in_a_row >= self.most:
            count = f"; {self.in_a_row} restarts in a row gave no new round, the last one: {reason}"
            raise EdgeFailed(
                f"the run did not complete: {self.cause or reason}{count if self.in_a_row else ''}"
            )
        return replace(self, in_a_row=self.in_a_row + 1, cause=self.cause or reason)


def serve(wanted: Wanted, most: int, rest: Callable[[], object] | None = None) -> None:
    """Keep a run alive until it is over; then say how it ended and `rest`, if given, as until a signal.

    A command that fails before ends, as when it gives up: what restarts it begins again.
    """
    if rest is None:
        _serve(wanted, most)
        return
    if not (wanted.resume or wanted.settings.get("run")):
        raise Unusable("--stay: saw no name of the run, needed --set run=NAME, by which it is found again")
    with like_ctrl_c():
        _serve(wanted, most)
        rest()


def _serve(wanted: Wanted, most: int) -> None:
    console = view.terminal()
    must_be_known(wanted)
    with like_ctrl_c(), Store.open() as store:
        over = keep(wanted, most, store, console, lambda found, run: host_of(found, console, run))
    if over is not None and over.stopped:
        raise aborted(console, f"the run was stopped after round {over.seen.last}")


def keep(
    wanted: Wanted,
    most: int,
    store: Store,
    console: Console,
    on: Callable[[Wanted, str], AbstractContextManager[Host]],
    claim_s: float | None = None,
) -> Over | None:
    """Keep a run alive until it is complete or stopped; give up after `most` restarts without a round.

    What is started is decided once no other command on this machine runs it.

    Args:
        wanted: The run.
        most: So many restarts in a row without a new round are allowed.
        store: The store of the run.
        console: Where the run is shown.
        on: Enters where a run of a name takes place; called only if there is something to run.
        claim_s: So long another command may hold the run while it is not under way, and so long the SuperLink
            of a run that was followed may be away; by default `CLAIM_S`.

    Returns:
        How the last start of the run ended; None if it was complete before.

    Raises:
        EdgeFailed: The run did not complete; the message begins with the first cause.
        Unusable: The run cannot begin with these settings, or another command holds it.
    """
    app = app_in(wanted.folder)
    wanted, name = _named(store, wanted, app)
    limit_s = CLAIM_S if claim_s is None else claim_s
    with claimed(name, _Waits(store, console, name, limit_s)):
        wanted, known = _under_its_name(store, wanted, app)
        known = _last(store, known.run) if known is not None else None
        away_s = 0.0
        if known is not None and alive(known, time.time()):
            known, away_s = _followed(store, known, console), limit_s
        if known is not None and known.state == "completed" and not _wants_more(store, wanted, app, known):
            say(console, f"run {known.run} is complete")
            return None
        # that of `fedgc up` may have ended with its run, and is waited for
        _awaited(partial(must_be_known, wanted), Unusable, away_s, console)
        return _kept(wanted, most, store, console, on, app)


def _kept(
    wanted: Wanted,
    most: int,
    store: Store,
    console: Console,
    on: Callable[[Wanted, str], AbstractContextManager[Host]],
    app: App | None,
) -> Over:
    """Keep a run alive whose lock is held, and that is not under way."""
    config = ready(store, wanted, app)
    name = config.resume or config.run
    if not config.keep_checkpoints:
        raise Unusable("fedgc serve: saw history.keep-checkpoints = 0, needed 1 or more to resume from")
    say(console, f"run {name}, store {store.name}")
    began = time.monotonic()
    with on(wanted, name) as host:
        keep_place(name, wanted.place)
        over = _Server(Place(wanted, app, store, host, console)).keep(config, Restarts(most))
    over.print(console, time.monotonic() - began, resumed=bool(config.resume))
    if over.reason is not None:
        lasts = "" if over.stopped else ", and is not restarted"
        say(console, f"run {name} was stopped after round {over.seen.last}{lasts}")
    return over


def _awaited(
    act: Callable[[], T],
    failing: type[FedgcError],
    limit_s: float,
    console: Console,
    meanwhile: Callable[[], None] = lambda: None,
) -> T:
    """Return what `act` returns, which is called again while it raises this error, for so long at most."""
    until, said = time.monotonic() + limit_s, False
    while True:
        try:
            return act()
        except failing as error:
            if time.monotonic() >= until:
                raise
            if not said:
                say(console, f"waiting: {error}")
                said = True
        meanwhile()
        time.sleep(POLL_S)


class _Waits:
    """What to do while another command holds the lock of a run: show the run while it is under way."""

    def __init__(self, store: Store, console: Console, name: str, limit_s: float) -> None:
        self._store, self._console, self._name, self._limit_s = store, console, name, limit_s
        self._until: float | None = None

    def __call__(self, holder: str) -> bool:
        """Return whether to wait longer."""
        known = _last(self._store, self._name)
        if known is not None and alive(known, time.time()):
            _followed(self._store, known, self._console)
            self._until = None
            return True
        now = time.monotonic()
        if self._until is None and self._limit_s:
            self._until = now + self._limit_s
            say(self._console, f"run {self._name}: waiting for {holder}, which has started it, to end")
        return self._until is not None and now < self._until


def _named(store: Store, wanted: Wanted, app: App | None) -> tuple[Wanted, str]:
    """Return a run with its name, which is a new one if none is given."""
    if wanted.resume is not None:
        name = store.run(wanted.resume).run
        return replace(wanted, resume=name), name
    layers = (wanted.settings, app.settings if app else {})
    given = (layer.get(key) for key in ("resume", "run") for layer in layers)
    name = next((str(each) for each in given if each), "") or new_name()
    RunConfig.read({"run": name})  # checks
    return replace(wanted, settings={**wanted.settings, "run": name}), name


def _under_its_name(store: Store, wanted: Wanted, app: App | None) -> tuple[Wanted, Run | None]:
    """Return a run that the store knows by the given name, and what resumes it if it has a checkpoint."""
    if wanted.resume is not None:
        known = store.run(wanted.resume)
        return wanted.where_it_was(known.run), known
    given = str(wanted.settings["run"])
    found = Follower(store, given).run()
    if found is None:
        return wanted, None
    wanted = wanted.where_it_was(found.run)
    if not _has_checkpoint(settings_of(store, wanted, app)):
        return wanted, found
    own = {name: value for name, value in wanted.settings.items() if name != "run"}
    return replace(wanted, resume=given, settings=own), found


def _last(store: Store, run: str) -> Run | None:
    """Return the run of the last start of the app of a run; None if the run has not begun."""
    return last_start(store, run) if Follower(store, run).run() is not None else None


def _has_checkpoint(config: RunConfig) -> bool:
    folder = runs_folder(config.checkpoint_dir, os.environ) / (config.resume or config.run)
    return bool(checkpoint.versions(folder))


def _wants_more(store: Store, wanted: Wanted, app: App | None, known: Run) -> bool:
    """Whether a complete run is to have further rounds."""
    done = preconditions.reached_in(store, known)
    return settings_of(store, wanted, app).rounds > done and "rounds" in wanted.settings


def _followed(store: Store, known: Run, console: Console) -> Run:
    """Show a run that is under way to its end: it has a ServerApp already."""
    say(console, f"run {known.run} is under way; it is shown until it is over")
    follower = Follower(store, known.run)
    with show_on(console, int(known.settings.get("rounds", 0)) or 1, follower.lately()) as show:
        follow(follower, show, lambda: alive(store.run(known.run), time.time()))
    return store.run(known.run)


class _Server:
    """Starts a run again and again until it is over."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._checked = time.monotonic()
        self._unended: int | None = None  # Flower's number of a start whose end was not seen
        self._has_model = False  # as the log of a start says; its checkpoint may be on another machine

    def keep(self, config: RunConfig, restarts: Restarts) -> Over:
        """Return how the run ended at last."""
        name = config.resume or config.run
        restarts = replace(restarts, reached=self._seen(name).last)
        while True:
            over = self._start(config)
            if over.stopped or over.reason is None:
                return over
            if over.complete or over.is_final:
                raise EdgeFailed(over.failure)
            self._restart()
            if _by_user(over):
                return over
            restarts = restarts.after(_reached(over), over.reason)
            config = self._next(config, name)
            how = "it is resumed from its last checkpoint" if config.resume else "it begins again"
            count = f"restart {restarts.in_a_row} of {restarts.most} without a new round"
            say(self._place.console, f"{over.reason}; {how} in {restarts.pause_s:g} s ({count})")
            self._pause(restarts.pause_s)

    def _start(self, config: RunConfig) -> Over:
        """Start the run; a start that fails has ended too."""
        before = self._seen(config.resume or config.run)
        try:
            self._end_earlier()
            over = started(self._place, config, self._look_after)
        except EdgeFailed as error:
            over = Over(before, self._seen(config.resume or config.run), False, str(error), 0)
            has_completed = over.complete and over.seen.last > before.last  # only its store has failed
            return replace(over, reason=None) if has_completed else over
        finally:
            self._place.host.superlink.close()  # what followed the log of this start
        self._has_model = self._has_model or any(
            outcome in SUMMED for _, outcome in ROUND_OVER.findall(over.log)
        )
        self._unended = over.flower_run if self._place.wanted.superlink is not None else None
        return over

    def _end_earlier(self) -> None:
        """Make sure that the ServerApp of the last start has ended, before there is another one."""
        superlink, flower_run = self._place.host.superlink, self._unended
        if flower_run is not None and not superlink.status(flower_run).startswith("finished"):
            superlink.stop(flower_run)
        self._unended = None

    def _next(self, config: RunConfig, name: str) -> RunConfig:
        """Return the settings with which the run goes on."""
        has_model = self._has_model or _has_checkpoint(config)
        return replace(config, resume=name) if has_model else replace(config, run=name, resume="")

    def _look_after(self) -> None:
        """Restart what ended, from time to time."""
        if time.monotonic() >= self._checked + CHECK_S:
            self._restart()

    def _restart(self) -> None:
        restart_ended(self._place.host, self._place.console)
        self._checked = time.monotonic()

    def _pause(self, seconds: float) -> None:
        """Wait, and restart what ended meanwhile: a killed SuperLink takes its ServerApp with it."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, POLL_S))
            self._restart()

    def _seen(self, name: str) -> Seen:
        """Return the state of the run; wait for a store that fails, and raise EdgeFailed if it goes on to."""
        look = Follower(self._place.store, name).look
        return _awaited(look, EdgeFailed, STORE_S, self._place.console, self._look_after)


def _by_user(over: Over) -> bool:
    """Whether the run was stopped on purpose, such as by `flwr stop`."""
    if over.last is None:
        return over.status == STOPPED
    return over.last.state == "stopped" and BY_USER in (over.reason or "")


def _reached(over: Over) -> int:
    """Return the last round of the run: in the store, or in the log of a run whose store is elsewhere.

    Rounds of later starts of the app come on top.
    """
    done = over.seen.last + sum(each.last_round or 0 for each in over.later)
    return max(done, *(int(number) for number, _ in ROUND_OVER.findall(over.log)), 0)


def restart_ended(host: Host, console: Console) -> None:
    """Restart the processes of a local federation that ended."""
    for name, how in host.restart_ended().items():
        say(console, f"{name} {how} and is restarted")


def say(console: Console, line: str) -> None:
    """Print one line."""
    console.print(line, soft_wrap=True, highlight=False)
