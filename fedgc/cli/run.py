"""`fedgc run`: a run on clients of this machine or of a SuperLink, a resumed run, or a look at one that runs.

What is run is the app in the present folder, where there is one, else fedgc's own with the task named.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from fedgc.cli import up, view
from fedgc.cli.follow import (
    Follower,
    Log,
    Seen,
    Show,
    Warned,
    follow,
    print_tables,
    show_on,
    why_incomplete,
    why_not_begun,
)
from fedgc.cli.history import must_be_over
from fedgc.cli.settings import GIVEN, Layer, settle
from fedgc.cli.signals import like_ctrl_c
from fedgc.config import RunConfig, known
from fedgc.deploy import local_federation as local
from fedgc.deploy.app_folder import MANIFEST, App, Setting, app_in
from fedgc.deploy.superlink import Superlink, connection, told_time
from fedgc.errors import EdgeFailed, Unusable
from fedgc.flower import preconditions as beginning
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.standing import ALIVE_S, advice_for, alive, lost, reason_of
from fedgc.training.tasks.find import check_name

CLIENTS: Final = 4  # that are started where nothing else is said
STOP_S: Final = 30.0  # a run that was asked to stop has stopped by then, or is left to Flower


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be run, and where: on so many clients that are started for it, or on a SuperLink."""

    clients: int | None
    settings: Mapping[str, Setting]
    superlink: str | None = None
    resume: str | None = None

    @property
    def elsewhere(self) -> bool:
        """Whether its store may be somebody else's: then its log is all there is to see."""
        return self.superlink not in (None, up.NAME)

    def __post_init__(self) -> None:
        if self.clients is not None and self.clients < 1:
            raise Unusable(f"--clients: saw {self.clients}, needed at least 1")
        if self.clients is not None and self.superlink is not None:
            raise Unusable("--clients and --superlink: saw both, needed one: a SuperLink has its own clients")

    @property
    def here(self) -> int:
        """How many clients are started for it."""
        return 0 if self.superlink is not None else self.clients or CLIENTS


def run(wanted: Wanted) -> None:
    """Run to the end and print the tables; Ctrl-C or a signal stops the run and leaves its checkpoint."""
    console = view.terminal()
    app = app_in(Path.cwd())
    if wanted.superlink is not None:
        named(wanted.superlink, Path.cwd())  # one that cannot be is refused before anything is begun
    with like_ctrl_c(), Store.open() as store:
        config = _ready(store, wanted, app)
        name = config.resume or config.run
        follower = Follower(store, name)
        before = follower.look()
        console.print(f"run {name}, store {store.name}", soft_wrap=True, markup=False)
        began = time.monotonic()
        with _where(wanted, console) as superlink, tempfile.TemporaryDirectory(prefix="fedgc-") as folder:
            written = _written(app, Path(folder) / "app", config)
            log = Log(path := superlink.log(flower_run := _submitted(superlink, written, wanted)))
            unknown = _say(console, log) if wanted.elsewhere else _nothing
            with show_on(console, config.rounds) as show:
                stopped, gone = _followed(
                    Shown(follower, show, Warned(Log(path)), before), superlink, flower_run, unknown
                )
            said = log.text()
            unseen = wanted.elsewhere and follower.look().run is None
            ended = superlink.status(flower_run) if unseen else ""
        seen = follower.whole()
        print_tables(console, seen, time.monotonic() - began)
    goes_on = f"; `fedgc run --resume {name}` goes on" if seen.last > before.last and seen.has_model else ""
    if stopped:
        console.print(f"stopped after round {seen.last}{goes_on}", soft_wrap=True, markup=False)
        raise click.Abort
    reason = gone or (_why(before, seen, said) if not ended else _unlike_completed(ended, said))
    if reason is not None:
        raise EdgeFailed(f"the run did not complete: {reason}{goes_on}")


def attach(run_name: str, *, alone: bool) -> None:
    """Show a run of the store until it is over; Ctrl-C ends the looking, and the run goes on.

    `alone` says that nothing else was asked for: what is only looked at cannot be changed.
    """
    if not alone:
        raise Unusable("--attach: saw other words with it, needed the run's name alone")
    console = view.terminal()
    with Store.open(reads_only=True) as store:
        found = store.run(run_name)
        follower = Follower(store, found.run)
        rounds = int(found.settings.get("rounds", 0)) or 1
        began = time.monotonic()
        with show_on(console, rounds) as show:
            follow(follower, show, lambda: alive(store.run(found.run), time.time()))
            seen = follower.whole()
            show.update(seen, ())
        print_tables(console, seen, time.monotonic() - began)
    silent = seen.run is not None and seen.run.state == "running" and not lost(seen.run)
    reason = f"it has said nothing for {ALIVE_S:.0f} s" if silent else why_incomplete(seen, "")
    if reason is not None:
        advice = advice_for(seen.run) if seen.run else ""
        raise EdgeFailed("; ".join(filter(None, (f"the run did not complete: {reason}", advice))))


@dataclass(frozen=True, slots=True)
class Shown:
    """A run, where it is shown, and what is noted under it."""

    follower: Follower
    show: Show
    warned: Warned
    before: Seen  # how the run stood before this attempt

    def lost(self) -> str:
        """Return how the server of this attempt went without a word; nothing where it did not."""
        run = self.follower.run()
        return reason_of(run) if run and run.heard != _heard(self.before) and lost(run) else ""

    def update(self, *more: str) -> Seen:
        """Show how things stand, with these notes; return it."""
        seen = self.follower.look()
        self.show.update(seen, [*(self.warned.notes() if seen.run else ()), *more])
        return seen


def _followed(
    shown: Shown, superlink: Superlink, flower_run: int, unknown: Callable[[], None]
) -> tuple[bool, str]:
    """Show the run until it is over; return whether it was stopped from here, and how its server was lost."""
    said: list[str] = []

    def going() -> bool:
        return superlink.running(flower_run) and not shown.lost()

    try:
        follow(shown.follower, shown.show, going, unknown, shown.warned.notes)
    except KeyboardInterrupt:
        said.append("stopping the run")
        shown.update(*said)
        superlink.stop(flower_run)
        superlink.wait(flower_run, STOP_S)
        said.append("stopped")
    if shown.update(*said).run is None:
        unknown()
    return bool(said), shown.lost()


def _why(before: Seen, seen: Seen, log: str) -> str | None:
    """Return why it did not complete; a store that has heard nothing of this attempt knows an earlier one."""
    return why_incomplete(seen if _heard(seen) != _heard(before) else Seen(None), log)


def _heard(seen: Seen) -> float:
    return seen.run.heard if seen.run else 0.0


def _unlike_completed(status: str, log: str) -> str | None:
    """Return what Flower says of a run whose store is elsewhere; None where it is done."""
    return None if status == "finished:completed" else why_not_begun(log) or f"Flower says {status}"


def _say(console: Console, log: Log) -> Callable[[], None]:
    def say() -> None:
        for line in log.lines():
            console.print(line, soft_wrap=True, highlight=False, markup=False)

    return say


def _nothing() -> None:
    """Say nothing of a run that has yet to begin."""


@contextmanager
def _where(wanted: Wanted, console: Console) -> Iterator[Superlink]:
    """Give the SuperLink that is to run it, started for it or there already."""
    if wanted.superlink is None:
        with local.LocalFederation(wanted.here) as federation:
            console.print(local.exposure(federation.address), soft_wrap=True, markup=False, highlight=False)
            yield federation.superlink
        return
    with tempfile.TemporaryDirectory(prefix="fedgc-") as folder:
        found = named(wanted.superlink, Path(folder))
        try:
            yield found
        finally:
            found.close()


def named(name: str, folder: Path) -> Superlink:
    """Return the SuperLink of this name: the one that `fedgc up` started, or one that Flower knows."""
    if name != up.NAME:
        connection(name, os.environ)
        return Superlink(name, folder)
    there = up.standing()
    if there is None:
        raise Unusable(f"SuperLink {name!r}: saw no federation up, needed one; `fedgc up` starts one")
    return Superlink(local.NAME, folder, {"FLWR_HOME": there.home})


def _submitted(superlink: Superlink, app: Path, wanted: Wanted) -> int:
    try:
        return superlink.submit(app)
    except EdgeFailed:
        if wanted.elsewhere:  # a certificate that is refused, Flower calls a network that is down
            told_time(connection(superlink.name, superlink.environment))
        raise


def _written(app: App | None, folder: Path, config: RunConfig) -> Path:
    return app.write(folder, config.table()) if app else local.write_app(folder, config.table())


def _settings(store: Store, wanted: Wanted, app: App | None) -> RunConfig:
    """Return the settings: those given, over those the run had when it is resumed, over the app's."""
    layers: list[Layer] = []
    if wanted.here:
        layers.append(("--clients", {"min-clients": wanted.here}))
    if app is not None:
        layers.append((MANIFEST, app.settings))
    name = f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"
    had: Mapping[str, Setting] = {"run": name}
    if wanted.resume is not None:
        found = store.run(wanted.resume)
        must_be_over(found)
        had = known(found.settings) | {"resume": found.run}
    config = settle([*layers, ("the run", had), (GIVEN, wanted.settings)]).config
    if "task" in wanted.settings:
        check_name(config.task)  # before anything is started
    if wanted.here and config.min_clients > wanted.here:
        raise Unusable(f"--clients: saw {wanted.here}, needed min-clients, {config.min_clients}")
    return config


def _ready(store: Store, wanted: Wanted, app: App | None) -> RunConfig:
    """Return the settings of a run that may begin; files that the server writes are named from here."""
    config = _settings(store, wanted, app)
    if not wanted.elsewhere:
        checkpoints, log = _from_here(config.checkpoint_dir), _from_here(config.log_file)
        config = replace(config, checkpoint_dir=checkpoints, log_file=log)
    _must_begin(store, wanted, config)
    return config


def _from_here(name: str) -> str:
    return str(Path(name).absolute()) if name else ""


def _must_begin(store: Store, wanted: Wanted, config: RunConfig) -> None:
    """Refuse what the server would refuse, before anything is started; of its own disk it knows more."""
    runs = runs_folder(config.checkpoint_dir, os.environ)
    if not config.resume:
        for known in store.runs():
            if known.run == config.run:
                must_be_over(known)
        beginning.must_be_new(config.run, store, runs)
    elif not wanted.elsewhere:
        beginning.must_go_on(config, beginning.reached(runs / config.resume))
    if not wanted.elsewhere:
        beginning.must_be_kept(config, runs)
