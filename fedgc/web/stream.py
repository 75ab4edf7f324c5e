"""Server-sent events with the page's content, whenever the run has news.

The store is asked for a run's pulse a few times a second, which is cheap; only when the pulse has changed is
the whole snapshot made, in a thread, and a new round is sent before it. Between rounds small events show the
state of the current one; while a run is silent, they explain it anew. The browser reconnects by itself and
gets everything again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from starlette.concurrency import run_in_threadpool

from fedgc.errors import FedgcError
from fedgc.guards import guarded
from fedgc.store.database import Store
from fedgc.store.explanation import explain
from fedgc.store.liveness import ALIVE_S, CRASHED, lost
from fedgc.store.views import Pulse
from fedgc.web.fleet import Wanted
from fedgc.web.json_values import as_json
from fedgc.web.snapshot import Now, OneRound, Snapshot, now_of, one_round, picture

POLL_S: Final = 0.25
CALM_S: Final = 15.0  # a comment line keeps the connection open through proxies


@dataclass(frozen=True, slots=True)
class _Sent:
    """What this browser has received."""

    pulse: Pulse | None = None
    round: int | None = None
    shown: Sequence[str] = ()
    due: bool = False  # the snapshot, after a round that was sent before it
    quiet_s: float = 0.0  # for which the run had given no record when its state was sent
    gone: bool = False  # the server's process ended, which the store does not record
    trouble: str = ""


async def events(store: Store, wanted: Wanted, ends: Callable[[], bool]) -> AsyncIterator[str]:
    """Yield the events of a run until `ends`; the first one is the current snapshot."""
    sent, calm_s = _Sent(), 0.0
    while not ends():
        try:
            found, sent = await run_in_threadpool(_news, store, wanted, sent)
        except FedgcError as error:
            found = "" if sent.trouble == str(error) else event("trouble", str(error))
            sent = _Sent(trouble=str(error))
        calm_s = 0.0 if found else calm_s + POLL_S
        if found:
            yield found
            if sent.due:
                continue
        elif calm_s >= CALM_S:
            calm_s = 0.0
            yield ": calm\n\n"
        await asyncio.sleep(POLL_S)


def event(name: str, value: Snapshot | OneRound | Now | str) -> str:
    r"""Return one event in its wire format.

    >>> event("trouble", "gone")
    'event: trouble\ndata: "gone"\n\n'
    """
    return f"event: {name}\ndata: {as_json(value)}\n\n"


def _news(store: Store, wanted: Wanted, sent: _Sent) -> tuple[str, _Sent]:
    """Return the next event, and what the browser knows after it; the event may be empty."""
    with guarded("a stream of the page", wanted.run):
        return _newest(store, wanted, sent)


def _newest(store: Store, wanted: Wanted, sent: _Sent) -> tuple[str, _Sent]:
    pulse, before = store.pulse(wanted.run), sent.pulse
    if before is None or _stands(pulse) != _stands(before):
        if before and pulse.run == before.run and pulse.last_round not in (None, sent.round):
            newest = one_round(store, pulse.run, pulse.last_round or 0)
            return event("round", newest), replace(sent, round=pulse.last_round, due=True)
        return _whole(store, wanted, pulse)
    if pulse.heard != before.heard:
        return _now(store, pulse, replace(sent, gone=False))
    if pulse.state == "running" and not sent.gone and lost(store.run(pulse.run)):
        return _whole(store, wanted, pulse)
    if pulse.state == "running" and not sent.gone and _is_outdated(sent, _quiet_s(pulse)):
        return _now(store, pulse, sent)
    return "", sent


def _quiet_s(pulse: Pulse) -> float:
    return time.time() - pulse.heard


def _is_outdated(sent: _Sent, quiet_s: float) -> bool:
    """Whether a run without a record for so long is explained in other words than those sent."""
    return quiet_s >= ALIVE_S and (sent.quiet_s < ALIVE_S or quiet_s >= sent.quiet_s + CALM_S)


def _now(store: Store, pulse: Pulse, sent: _Sent) -> tuple[str, _Sent]:
    run = store.run(pulse.run)
    now = now_of(run, sent.shown, explain(store, run, time.time()).lines)
    return event("now", now), replace(sent, pulse=pulse, quiet_s=_quiet_s(pulse))


def _whole(store: Store, wanted: Wanted, pulse: Pulse) -> tuple[str, _Sent]:
    made = picture(store, wanted)
    shown = [each.client for each in made.fleet.lines]
    gone = made.now.state == CRASHED
    return event("picture", made), _Sent(pulse, pulse.last_round, shown, gone=gone, quiet_s=_quiet_s(pulse))


def _stands(pulse: Pulse) -> Pulse:
    """Return a pulse without its timestamp."""
    return replace(pulse, heard=0.0)
