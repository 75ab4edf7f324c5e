"""The picture again, whenever the run has news: server-sent events.

The store is asked for a run's pulse a few times a second, which costs it nothing; only where the pulse has
changed is the whole picture made, in a thread of its own, and a new round goes ahead of it. Between two
rounds small events say how the present one stands. The browser connects again by itself and is told all anew.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.concurrency import run_in_threadpool

from fedgc.errors import FedgcError
from fedgc.store.database import Store
from fedgc.store.standing import STOPPED, lost
from fedgc.store.views import Pulse
from fedgc.web.fleet import Wanted
from fedgc.web.json_values import as_json
from fedgc.web.snapshot import Now, OneRound, Snapshot, now_of, one_round, picture

POLL_S: Final = 0.25
CALM_S: Final = 15.0  # a line that says nothing keeps the connection through whatever stands between


@dataclass(frozen=True, slots=True)
class _Told:
    """What this browser has been told."""

    pulse: Pulse | None = None
    round: int | None = None
    shown: Sequence[str] = ()
    due: bool = False  # the picture, after a round that went ahead of it
    gone: bool = False  # the server's process, of which the store says nothing
    trouble: str = ""


async def events(store: Store, wanted: Wanted, ends: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the events of a run until `ends`; the first one is the picture as it is now."""
    told, calm_s = _Told(), 0.0
    while not ends():
        try:
            found, told = await run_in_threadpool(_news, store, wanted, told)
        except FedgcError as error:
            found = "" if told.trouble == str(error) else event("trouble", str(error))
            told = _Told(trouble=str(error))
        calm_s = 0.0 if found else calm_s + POLL_S
        if found:
            yield found
            if told.due:
                continue
        elif calm_s >= CALM_S:
            calm_s = 0.0
            yield ": calm\n\n"
        await asyncio.sleep(POLL_S)


def event(name: str, value: Snapshot | OneRound | Now | str) -> str:
    r"""Return one event as it goes over the wire.

    >>> event("trouble", "gone")
    'event: trouble\ndata: "gone"\n\n'
    """
    return f"event: {name}\ndata: {as_json(value)}\n\n"


def _news(store: Store, wanted: Wanted, told: _Told) -> tuple[str, _Told]:
    """Return the event that is due, and what the browser knows after it; the event may be empty."""
    pulse, before = store.pulse(wanted.run), told.pulse
    if before is None or _stands(pulse) != _stands(before):
        if before and pulse.run == before.run and pulse.last_round not in (None, told.round):
            newest = one_round(store, pulse.run, pulse.last_round or 0)
            return event("round", newest), replace(told, round=pulse.last_round, due=True)
        return _whole(store, wanted, pulse)
    if pulse.heard != before.heard:
        return event("now", now_of(store.run(pulse.run), told.shown)), replace(told, pulse=pulse, gone=False)
    if pulse.state == "running" and not told.gone and lost(store.run(pulse.run)):
        return _whole(store, wanted, pulse)
    return "", told


def _whole(store: Store, wanted: Wanted, pulse: Pulse) -> tuple[str, _Told]:
    made = picture(store, wanted)
    shown = [each.client for each in made.fleet.lines]
    return event("picture", made), _Told(pulse, pulse.last_round, shown, gone=made.now.state == STOPPED)


def _stands(pulse: Pulse) -> Pulse:
    """Return a pulse but for its beat."""
    return replace(pulse, heard=0.0)
