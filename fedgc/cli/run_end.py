"""How one attempt of a run ended: that of its app's first start, of later starts, and of the app itself.

A second `FedGC.start` of a user's app is a run of its own. The display is of the first one, and names others.
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rich.console import Console

from fedgc.cli.follow import Follower, Seen, fault_in, print_tables, printed_by_app, why_incomplete
from fedgc.cli.signals import NOTHING_STARTED
from fedgc.deploy.superlink import Superlink
from fedgc.errors import EdgeFailed, numbered
from fedgc.flower.signals import BY_USER
from fedgc.run.rows import SPENT
from fedgc.secagg.client import UNMASKED
from fedgc.secagg.rules import NO_BUDGET
from fedgc.store.database import Store
from fedgc.store.later_starts import later_starts
from fedgc.store.liveness import lost, state_of
from fedgc.store.views import Run

MOST_PRINTED: Final = 100  # lines
FAILED: Final = "finished:failed"  # as Flower calls the state
STOPPED: Final = "finished:stopped"
NOT_BY_USER: Final = "its SuperLink ended the server"


class AppStarts:
    """The starts of one attempt of a run that come after its first one."""

    def __init__(self, store: Store, run: str, *, own_app: bool) -> None:
        """With fedgc's own app there are none."""
        self._store, self._first, self._own_app = store, Follower(store, run), own_app
        self._before = {each.run: each.heard for each in self._known()}

    def _known(self) -> tuple[Run, ...]:
        first = self._first.run() if self._own_app else None
        return later_starts(self._store, first) if first is not None else ()

    @property
    def later(self) -> tuple[Run, ...]:
        """Their runs."""
        return tuple(each for each in self._known() if each.heard != self._before.get(each.run))

    def printed(self, log: str) -> tuple[str, ...]:
        """Return what the app has printed; fedgc's own prints nothing."""
        return tuple(printed_by_app(log)) if self._own_app else ()

    def notes(self) -> Iterator[str]:
        """Name each of them, and none while the store fails."""
        with suppress(EdgeFailed):
            for each in self.later:
                yield f"the app has begun run {each.run}: `fedgc watch {each.run}` shows it"

    def why_failed(self, superlink: Superlink, flower_run: int, log: str) -> str | None:
        """Return what failed after the first start was complete; None if nothing did."""
        for each in self.later:
            if (reason := why_incomplete(Seen(each), log)) is not None:
                return f"run {each.run}: {reason}"
        with suppress(EdgeFailed):  # the SuperLink has gone, and with it what it knew
            if self._own_app and superlink.status(flower_run) == FAILED:
                return f"its app failed after the last round: {fault_in(log) or 'its log does not say why'}"
        return None


def checked(reason: str | None, superlink: Superlink, flower_run: int) -> str | None:
    """Return a recorded reason; where it names the user, as Flower knows it.

    Flower gives the server SIGINT when a user stops the run, but also when its SuperLink ends, or has missed
    its heartbeats while the machine was suspended. Without an answer, no user has stopped the run.
    """
    if reason is None or BY_USER not in reason:
        return reason
    with suppress(EdgeFailed):
        if superlink.status(flower_run) == STOPPED:
            return reason
    return reason.replace(BY_USER, NOT_BY_USER)


@dataclass(frozen=True, slots=True)
class Over:
    """How one start of a run ended; `reason` is why it did not complete, None if it did."""

    before: Seen
    seen: Seen
    stopped: bool  # from here
    reason: str | None
    flower_run: int
    status: str = ""  # as Flower says it, of a run that is not in this store
    log: str = ""
    later: tuple[Run, ...] = ()  # of later starts of the app
    printed: tuple[str, ...] = ()  # by an app of one's own

    @property
    def last(self) -> Run | None:
        """The run of the app's last start."""
        return (self.seen.run, *self.later)[-1]

    @property
    def complete(self) -> bool:
        """Whether each start of the app is; the app itself may have failed."""
        return self.seen.run is not None and all(
            each.state == "completed" for each in (self.seen.run, *self.later)
        )

    @property
    def failure(self) -> str:
        """What did not complete, and why."""
        about = "the run is complete, but" if self.complete else "the run did not complete:"
        return f"{about} {self.reason}"

    @property
    def is_final(self) -> bool:
        """Whether no resume can go on: sites mask no model for two sums, and nothing beyond their budget."""
        return any(words in (self.reason or "") for words in (SPENT, UNMASKED, NO_BUDGET))

    @property
    def resumable(self) -> bool:
        """Whether this start has made a model to go on from."""
        if self.is_final:
            return False
        made = self.seen.last > self.before.last and self.seen.has_model
        return (made or any(each.models for each in self.later)) and not self.complete

    def print(self, console: Console, seconds: float, *, resumed: bool) -> None:
        """Print the tables of the run, and a line for each later start."""
        if self.printed and self.reason is None:
            lines = numbered(len(self.printed), "line")
            which = f"the last {MOST_PRINTED} of {lines}" if len(self.printed) > MOST_PRINTED else lines
            console.print(
                f"printed by the app, {which}:",
                *self.printed[-MOST_PRINTED:],
                sep="\n",
                soft_wrap=True,
                highlight=False,
                markup=False,
            )
        print_tables(console, self.seen, seconds, resumed=resumed)
        for each in self.later:
            ended = f"run {each.run}: {state_of(each)}, {numbered(each.last_round or 0, 'round')}"
            console.print(ended, soft_wrap=True, highlight=False)


def how_left(store: Store, name: str, before: Run | None, *, here: bool) -> str:
    """Return what Ctrl-C has left of a run: before it began, or at once, without the time to stop.

    `before` is the run as it was before this attempt, and `here` whether its clients were started for it.
    """
    run = Follower(store, name).run()
    if run is None or run == before:
        if here:
            return NOTHING_STARTED
        begins = "if its SuperLink has accepted it, it will still begin: `fedgc status` shows it"
        return f"run {name} has not begun; {begins}"
    if run.state == "running" and not lost(run):
        return f"run {name} is still running, or just ending; `fedgc status {name}` shows it"
    if run.state == "completed":
        return f"run {name} is completed"
    advice = f"`fedgc run --resume {name}` goes on" if run.models else "it has no model to go on from"
    return f"run {name} is {state_of(run)}; {advice}"
