"""The picture again, whenever the run has news: server-sent events.

The store is asked for a run's pulse a few times a second, which costs it nothing; only where the pulse has
changed is the whole picture made, in a thread of its own. Between two rounds small events say how the present
one stands. The browser connects again by itself, and is then told everything anew.

May import: picture, plain; store, errors; starlette.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from starlette.concurrency import run_in_threadpool

from fedgc.errors import FedgcError
from fedgc.store.database import Store
from fedgc.store.views import Pulse
from fedgc.web.picture import Now, Picture, Wanted, now_of, picture
from fedgc.web.plain import as_json

POLL_S: Final = 0.25
CALM_S: Final = 15.0  # a line that says nothing keeps the connection through whatever stands between


@dataclass(frozen=True, slots=True)
class _Told:
    """What this browser has been told."""

    pulse: Pulse | None = None
    shown: tuple[str, ...] = ()
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
        elif calm_s >= CALM_S:
            calm_s = 0.0
            yield ": calm\n\n"
        await asyncio.sleep(POLL_S)


def event(name: str, value: Picture | Now | str) -> str:
    r"""Return one event as it goes over the wire.

    >>> event("trouble", "gone")
    'event: trouble\ndata: "gone"\n\n'
    """
    return f"event: {name}\ndata: {as_json(value)}\n\n"


def _news(store: Store, wanted: Wanted, told: _Told) -> tuple[str, _Told]:
    """Return the event that is due, and what the browser knows after it; the event may be empty."""
    pulse = store.pulse(wanted.run)
    before = told.pulse
    if before is None or (pulse.run, pulse.state, pulse.marks) != (before.run, before.state, before.marks):
        made = picture(store, wanted)
        return event("picture", made), _Told(pulse, tuple(each.device for each in made.fleet.lines))
    if pulse.heard != before.heard:
        return event("now", now_of(store.run(pulse.run), told.shown)), _Told(pulse, told.shown)
    return "", told
