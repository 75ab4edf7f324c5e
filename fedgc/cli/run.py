"""`fedgc run`: a run on local clients or on a SuperLink, a resumed run, or a view of a running one.

It runs the app in the current folder, if there is one, else fedgc's own with the named task.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from fedgc.cli import up, view
from fedgc.cli.clients import NONE, ClientSettings, nodes_of, with_keys
from fedgc.cli.follow import (
    Follower,
    Log,
    Seen,
    Show,
    Warned,
    fault_in,
    follow,
    print_tables,
    show_on,
    why_incomplete,
)
from fedgc.cli.history import must_be_over
from fedgc.cli.run_end import AppStarts, Over, checked, how_left
from fedgc.cli.run_place import RunPlace, claimed, keep_place, keys_of, place_of
from fedgc.cli.script import placed_script, travels
from fedgc.cli.settings import GIVEN, Layer, must_be_private, settle
from fedgc.cli.signals import NOTHING_STARTED, Terminated, after_ctrl_c, like_ctrl_c
from fedgc.cli.task_import import must_import
from fedgc.config import RunConfig, known
from fedgc.deploy import local_federation as local
from fedgc.deploy.app_folder import MANIFEST, App, Setting, app_in, whole
from fedgc.deploy.local_federation import Node
from fedgc.deploy.superlink import Superlink, connection
from fedgc.errors import EdgeFailed, Unusable, numbered
from fedgc.flower import preconditions as beginning
from fedgc.flower.preconditions import rounds_done
from fedgc.policy.digests import STATEMENT
from fedgc.processes.temporary_folder import temporary_folder
from fedgc.store.database import Store
from fedgc.store.engine import runs_folder
from fedgc.store.later_starts import last_start, submitted
from fedgc.store.liveness import ALIVE_S, advice_for, alive, lost, reason_of
from fedgc.training.tasks.find import check_name

AFTER: Final = "the run is over; its clients have up to 60 s to end: a script may test and save its model"
ELSEWHERE: Final = "the server writes to another store; showing its log"
ROUND_OVER: Final = re.compile(r"\bround (\d+) (synced|approximate|skipped|empty|aborted) ")
NOT_STOPPED: Final = "the run was asked to stop, and may go on"
UNREAD: Final = "standard output was closed"
STOPPING: Final = "stopping the run; a second Ctrl-C does not wait for that, and may leave it as crashed"
APP_FOLDER: Final = "fedgc-submit-"  # of temporary folders, one for each kind
LOG_FOLDER: Final = "fedgc-log-"
STOP_S: Final = 30.0  # a run that was asked to stop has stopped by then, or is left to Flower


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to run, and where: on so many local clients, or on a SuperLink."""

    clients: int | None
    settings: Mapping[str, Setting]
    superlink: str | None = None
    resume: str | None = None
    own: ClientSettings = field(default_factory=lambda: NONE)  # the clients' own settings, by name
    folder: Path = field(default_factory=Path.cwd)  # of the app, the script and relative paths
    keys: str = ""  # the folder of the keys of its clients; by default the run's

    @property
    def elsewhere(self) -> bool:
        """Whether its store may be foreign: then only its log is available."""
        return self.superlink not in (None, up.NAME)

    def __post_init__(self) -> None:
        if self.own and self.superlink is not None:
            raise Unusable(
                "--client and --superlink: saw both, needed one: a SuperLink's clients have their settings "
                "from flower-supernode --node-config, or fedgc up --client"
            )
        if self.superlink is None:
            nodes_of(self.clients, self.own)  # checks
        elif self.clients is not None:
            raise Unusable("--clients and --superlink: saw both, needed one: a SuperLink has its own clients")

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The clients to start."""
        return () if self.superlink is not None else nodes_of(self.clients, self.own)

    @property
    def here(self) -> int:
        """The number of clients to start."""
        return len(self.nodes)

    @property
    def place(self) -> RunPlace:
        """Where it runs."""
        return RunPlace(self.here or None, self.superlink, self.own, str(Path.cwd()), self.keys)

    def where_it_was(self, run: str) -> "Wanted":
        """Return this with the place that a known run had, unless another one is given."""
        if RunPlace(self.clients, self.superlink, self.own):
            return self
        had = place_of(run)
        return replace(self, clients=had.clients, superlink=had.superlink, own=had.own, keys=had.keys)


@dataclass(frozen=True, slots=True)
class Host:
    """A SuperLink and, if its federation is of this machine, how to look after its processes."""

    superlink: Superlink
    leave: Callable[[], None] | None = None  # has the clients hand in what they have
    restart_ended: Callable[[], Mapping[str, str]] = dict  # returns how each restarted process ended


@dataclass(frozen=True, slots=True)
class Place:
    """Where a run is started and recorded, and where it is shown."""

    wanted: Wanted
    app: App | None
    store: Store
    host: Host
    console: Console


def run(wanted: Wanted) -> None:
    """Run to the end and print the tables; Ctrl-C or a signal stops the run and keeps its checkpoint.

    At a signal other than Ctrl-C, clients on this machine hand in what they have before. A run whose output
    is closed is stopped in the same way, since it could not say that it goes on.
    """
    console = view.terminal()
    app = app_in(wanted.folder)
    with like_ctrl_c(), Store.open() as store:
        with after_ctrl_c(lambda: NOTHING_STARTED):
            wanted = resumed(store, wanted, app)
            if wanted.resume is not None:
                wanted = wanted.where_it_was(store.run(wanted.resume).run)
            must_be_known(wanted)
            config = ready(store, wanted, app)
        name = config.resume or config.run
        console.print(f"run {name}, store {store.name}", soft_wrap=True)
        began, before = time.monotonic(), Follower(store, name).run()
        with (
            claimed(name),
            after_ctrl_c(lambda: how_left(store, name, before, here=wanted.superlink is None)),
            host_of(wanted, console, name) as host,
        ):
            keep_place(name, wanted.place)
            over = started(Place(wanted, app, store, host, console), config)
        over.print(console, time.monotonic() - began, resumed=bool(config.resume))
    without = "" if over.seen.has_model else "; it has no model to go on from"
    resumable = over.seen.has_model if over.stopped else over.resumable
    goes_on = f"; `fedgc run --resume {name}` goes on" if resumable else without
    if over.stopped and over.reason is not None:
        done = rounds_done(over.seen.rounds)
        _, *lost = over.reason.partition(f"; {beginning.NOT_KEPT}")
        said = f"stopped after round {done}{goes_on}{''.join(lost)}"
        console.print(said, soft_wrap=True)
        raise aborted(console, said)
    if over.reason is not None:
        raise EdgeFailed(f"{over.failure}{goes_on}")


def aborted(console: Console, said: str) -> Exception:
    """Return what ends a command whose run was stopped here: an error if its output was closed."""
    return EdgeFailed(f"{UNREAD}: {said}") if console.quiet else click.Abort()


def must_be_known(wanted: Wanted) -> None:
    """Refuse an unknown SuperLink before anything is started."""
    if wanted.superlink is not None:
        named(wanted.superlink, Path.cwd())


def started(place: Place, config: RunConfig, meanwhile: Callable[[], object] = lambda: None) -> Over:
    """Start a run or resume it, and show it to its end; call `meanwhile` again and again."""
    follower = Follower(place.store, name := config.resume or config.run)
    starts = AppStarts(place.store, name, own_app=whole(place.app) is not None)
    before, superlink, wanted = follower.look(), place.host.superlink, place.wanted
    with temporary_folder(APP_FOLDER) as folder:
        written = app_with(place.app, folder / "app", config, wanted.folder)
        log = Log(path := superlink.log(flower_run := _submitted(superlink, written, wanted)))
        unknown = (
            _nothing
            if wanted.superlink is None
            else Unseen(place.console, log, waits=not wanted.elsewhere).show
        )
        with show_on(place.console, config.rounds, before) as show:
            shown = Shown(follower, show, Warned(Log(path)), before, starts)
            stopped, gone = _followed(shown, place, flower_run, unknown, meanwhile)
        said = log.text()
        status = "" if follower.look().run else stopped or superlink.status(flower_run)
    seen = follower.whole()
    reason = gone or (_why(before, seen, said) if not status else _unlike_completed(status, said))
    if reason is None and not status:
        reason = starts.why_failed(superlink, flower_run, said)
    if not stopped:
        reason = checked(reason, superlink, flower_run)
    printed = starts.printed(said)
    return Over(before, seen, bool(stopped), reason, flower_run, status, said, starts.later, printed)


def attach(run_name: str, *, alone: bool) -> None:
    """Show a run in the store until it is over; Ctrl-C ends the display, and the run continues.

    `alone` says that no other option was given: a run that is only shown cannot be changed.
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
    reason = f"it has recorded nothing for {ALIVE_S:.0f} s" if silent else why_incomplete(seen, "")
    if reason is not None:
        advice = advice_for(seen.run) if seen.run else ""
        raise EdgeFailed("; ".join(filter(None, (f"the run did not complete: {reason}", advice))))


@dataclass(frozen=True, slots=True)
class Shown:
    """A run, its display, and its notes in the order in which they came."""

    follower: Follower
    show: Show
    warned: Warned
    before: Seen  # the state of the run before this attempt
    starts: AppStarts
    notes: list[str] = field(default_factory=list)

    def lost(self) -> str:
        """Return how the server of this attempt crashed; empty if it did not."""
        run = self.follower.run_lately()
        return reason_of(run) if run and run.heard != _heard(self.before) and lost(run) else ""

    def noted(self) -> list[str]:
        """Return the notes, with the server's new warnings and starts at the end."""
        new = (*self.warned.notes(), *self.starts.notes())
        self.notes.extend(each for each in new if each not in self.notes)
        return self.notes

    def update(self, *more: str) -> Seen:
        """Show the current state with these new notes; return it."""
        seen = self.follower.lately()
        if seen.run:
            self.noted()
        self.notes.extend(more)
        self.show.update(seen, self.notes)
        return seen


def _followed(
    shown: Shown,
    place: Place,
    flower_run: int,
    unknown: Callable[[], None],
    meanwhile: Callable[[], object],
) -> tuple[str, str]:
    """Show the run until it is over.

    Returns:
        What Flower says of it if it was stopped from here, else ""; and how its server was lost.

    Raises:
        KeyboardInterrupt: It was to be stopped from here, and could not be.
        EdgeFailed: The same, and the output was closed.
    """
    stopped = ""
    superlink = place.host.superlink

    def going() -> bool:
        meanwhile()
        return superlink.running(flower_run) and not shown.lost()

    try:
        follow(shown.follower, shown.show, going, unknown, shown.noted)
    except (KeyboardInterrupt, SystemExit) as asked:  # SystemExit: rich's, as its pipe is closed
        try:
            stopped = _stopped(shown, place, flower_run, leaves=isinstance(asked, Terminated | SystemExit))
        except EdgeFailed as error:  # its SuperLink may have ended too, or be out of reach
            if place.console.quiet:
                raise EdgeFailed(f"{UNREAD}: {NOT_STOPPED}: {error}") from None
            place.console.print(f"{NOT_STOPPED}: {error}", soft_wrap=True, highlight=False)
            raise asked from None
    if shown.update(*(["stopped"] if stopped else [])).run is None:
        unknown()
    return stopped, shown.lost()


def _stopped(shown: Shown, place: Place, flower_run: int, *, leaves: bool) -> str:
    """Stop the run, before which its clients, but no stock ones, may leave; return what Flower says then."""
    run = shown.follower.run_lately()
    is_stock = run is not None and run.settings.get("client.app") == "stock"
    if leaves and not is_stock and place.host.leave is not None:
        shown.update("clients hand in what they have")
        place.host.leave()
    shown.update(STOPPING)
    place.host.superlink.stop(flower_run)
    return place.host.superlink.wait(flower_run, STOP_S)


def _why(before: Seen, seen: Seen, log: str) -> str | None:
    """Return why it did not complete; a store without records of this attempt only knows an earlier one."""
    return why_incomplete(seen if _heard(seen) != _heard(before) else Seen(None), log)


def _heard(seen: Seen) -> float:
    return seen.run.heard if seen.run else 0.0


def _unlike_completed(status: str, log: str) -> str | None:
    """Return why a run that is not in the store did not complete; None if Flower says that it did."""
    if status == "finished:completed":
        return None
    return fault_in(log) or f"{why_incomplete(Seen(None), log)}; Flower says {status}"


class Unseen:
    """Shows the log of a run that is not in this store."""

    def __init__(self, console: Console, log: Log, *, waits: bool = False) -> None:
        """With `waits`, nothing is shown before it is clear that the store does not hold the run."""
        self._console, self._log, self._waits = console, log, waits
        self._begun = self._said = False
        self._held: list[str] = []

    def show(self) -> None:
        """Show the new lines; say so once the run has had rounds that this store does not hold."""
        if self._begun and not self._said:
            self._said = True
            self._print(ELSEWHERE)
        self._held += self._log.lines()
        self._begun = self._begun or any(map(ROUND_OVER.search, self._held))
        if self._waits and not self._said:
            return
        for line in self._held:
            self._print(line)
        self._held.clear()

    def _print(self, line: str) -> None:
        self._console.print(line, soft_wrap=True, highlight=False)


def _nothing() -> None:
    """Do nothing for a run that has not begun."""


@contextmanager
def host_of(wanted: Wanted, console: Console, run: str) -> Iterator[Host]:
    """Yield where the run takes place: a federation started for it, or an existing SuperLink.

    The clients that are started keep their keys, so that they are the same ones the next time.
    """
    if wanted.superlink is None:
        count = numbered(wanted.here, "client")
        console.print(f"starting the server and {count}: this takes up to a minute", highlight=False)
        nodes = with_keys(wanted.nodes, Path(wanted.keys) if wanted.keys else keys_of(run))
        with local.LocalFederation(nodes) as federation:
            console.print(local.exposure(federation.address), soft_wrap=True, highlight=False)
            yield Host(federation.superlink, federation.leave, federation.restart_ended)
            federation.await_clients(lambda: console.print(AFTER, highlight=False))
        return
    with temporary_folder(LOG_FOLDER) as folder:
        found = named(wanted.superlink, folder)
        try:
            yield Host(found)
        finally:
            found.close()


def named(name: str, folder: Path) -> Superlink:
    """Return the SuperLink of this name: that of `fedgc up`, or one in Flower's configuration."""
    if name != up.NAME:
        connection(name, os.environ, up.NAME)
        return Superlink(name, folder)
    there = up.running_federation()
    if there is None:
        raise Unusable(f"SuperLink {name!r}: saw no federation up, needed one; `fedgc up` starts one")
    return Superlink(local.NAME, folder, {"FLWR_HOME": there.home})


def _submitted(superlink: Superlink, app: Path, wanted: Wanted) -> int:
    try:
        return superlink.submit(app)
    except EdgeFailed:
        if wanted.elsewhere:  # Flower reports a refused certificate as a network failure
            superlink.check()
        raise


def app_with(app: App | None, folder: Path, config: RunConfig, here: Path) -> Path:
    """Write the app, or fedgc's own, with these settings and the statement in `here`; return its folder."""
    if (app := whole(app)) is None:
        written = local.write_app(folder, config.table())
        if (here / STATEMENT).is_file():
            shutil.copyfile(here / STATEMENT, written / STATEMENT)
        return written
    return app.write(folder, config.table(), travels(config.script, app.folder, app))


def new_name() -> str:
    """Return the name of a run to which none is given."""
    return f"run-{datetime.now(UTC):%Y%m%d-%H%M%S}-{os.getpid()}"


def resumed(store: Store, wanted: Wanted, app: App | None) -> Wanted:
    """Return a run whose setting `resume` is the option --resume, unless another store has its records."""
    given = str(wanted.settings.get("resume", app.settings.get("resume", "") if app is not None else ""))
    if wanted.resume is not None and wanted.settings.get("resume", wanted.resume) != wanted.resume:
        raise Unusable(f"--resume and --set resume: saw {wanted.resume} and {given}, needed one run")
    if wanted.resume is not None or not given or (wanted.elsewhere and not Follower(store, given).run()):
        return wanted
    own = {name: value for name, value in wanted.settings.items() if name not in {"resume", "run"}}
    return replace(wanted, resume=given, settings=own)


def settings_of(store: Store, wanted: Wanted, app: App | None) -> RunConfig:
    """Return the settings: those given, over those of a resumed run, over the app's; a new run has a name."""
    layers: list[Layer] = []
    if wanted.here:
        layers.append(("--clients", {"min-clients": wanted.here}))
    if app is not None:
        layers.append((MANIFEST, app.settings))
    if wanted.resume is not None:
        found = store.run(wanted.resume)
        must_be_over(last_start(store, found.run))
        of_run = {**known(found.settings), **submitted(store, found), "resume": found.run}
        layers.append((f"run {found.run}", of_run))
    settled = settle([*layers, (GIVEN, wanted.settings)])
    must_be_private(settled)
    config = settled.config
    if not (config.run or config.resume):
        config = replace(config, run=new_name())
    check_name(config.task)
    if wanted.here and config.min_clients > wanted.here:
        raise Unusable(f"--clients: saw {wanted.here}, needed min-clients, {config.min_clients}")
    return config


def ready(store: Store, wanted: Wanted, app: App | None) -> RunConfig:
    """Return the checked settings of a run, with absolute paths for files that the server writes."""
    config = settings_of(store, wanted, app)
    running, own = up.running_federation() if wanted.superlink == up.NAME else None, whole(app)
    settings = wanted.settings if app is None or own is not None else {**app.settings, **wanted.settings}
    if "task" in settings and (wanted.here or running is not None):
        must_import(config.task, own, running.folder if running is not None else "")
    script = placed_script(config.script, wanted.folder, own, here=not wanted.elsewhere)
    config = replace(config, script=script)
    if not wanted.elsewhere:
        checkpoints, log = (_placed(name, wanted.folder) for name in (config.checkpoint_dir, config.log_file))
        config = replace(config, checkpoint_dir=checkpoints, log_file=log)
    _must_begin(store, wanted, config)
    return config


def _placed(name: str, folder: Path) -> str:
    return str((folder / name).absolute()) if name else ""


def _must_begin(store: Store, wanted: Wanted, config: RunConfig) -> None:
    """Refuse early what the server would refuse; only the server knows its own disk."""
    beginning.must_know_best(config)
    runs = runs_folder(config.checkpoint_dir, os.environ)
    if not config.resume:
        for known in store.runs():
            if known.run == config.run:
                must_be_over(known)
        beginning.must_be_new(config.run, store, runs)
    else:
        if not wanted.elsewhere:
            beginning.must_go_on(config, beginning.reached(runs / config.resume))
            last = last_start(store, config.resume).run
            beginning.must_have_rounds_left(replace(config, resume=last), store)
            beginning.must_have_model(config.resume, runs)
    if not wanted.elsewhere:
        beginning.must_be_kept(config, runs)
