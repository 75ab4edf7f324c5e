"""Waits for the model of a run whose clients bring it, before the driver begins."""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import WARNING, Logger
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadVector, EdgeFailed, Unusable, numbered
from fedgc.flower.event_guard import EventGuard
from fedgc.links.links import Link
from fedgc.links.pieces import Vector
from fedgc.messages import Announced, Codeword, LinkEvent, Stop, ToClient
from fedgc.run.initialization import Initialization
from fedgc.training import AnnouncedModel

WAIT_S: Final = 0.25
MustFit = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Events:
    """The driver's events and their clock."""

    queue: "queue.SimpleQueue[LinkEvent]"
    clock: Callable[[], float]
    log: Logger


def announced_model(config: RunConfig, events: Events, link: Link, must_fit: MustFit) -> AnnouncedModel:
    """Return the model that the first client has announced and sent.

    `must_fit` raises Unusable for a vector of so many numbers, for which this machine has no room: before any
    of it is reserved, its client is refused.

    Events that belong to the run are put back into the queue, in their order.

    Raises:
        EdgeFailed: The run was stopped, no client has announced a model within `timing.start-timeout-s`, or
            none of those that were asked has sent it, each within this time.
    """
    start, guard = Initialization(), EventGuard(events.log, lambda: 1)
    later: list[LinkEvent] = []
    end = events.clock() + config.start_timeout_s
    model = None
    while model is None:
        event = _next(events.queue)
        commands: Sequence[ToClient] = ()
        if isinstance(event, Stop):
            raise EdgeFailed(event.reason)
        if isinstance(event, Codeword) and start.is_vector(event):
            model = _taken(start, event.client, link, events.log)
            commands = start.without(event.client) if model is None else ()
        elif event is not None:
            later.append(event)
            commands = guard.outputs(event, partial(_commands, start, event, link, must_fit))
        if model is None and events.clock() > end:
            end = events.clock() + config.start_timeout_s
            commands = (*commands, *_next_source(config, start, events.log, link))
        for command in commands:
            link.send(command)
    for event in later:
        events.queue.put(event)
    return model


def _next_source(config: RunConfig, start: Initialization, log: Logger, link: Link) -> tuple[ToClient, ...]:
    """Ask another client for the model, or raise EdgeFailed if there is none."""
    why, silent = _waited(config, start, link), start.source
    commands = start.another()
    if not commands:
        raise EdgeFailed(why)
    text = "%s has not sent its model within %g s: another client is asked"
    log.log(WARNING, text, link.name(silent) or silent, config.start_timeout_s)
    return commands


def _commands(start: Initialization, event: LinkEvent, link: Link, must_fit: MustFit) -> tuple[ToClient, ...]:
    """Return what follows from an event; the links learn the length of vectors with the first layout."""
    known = start.layout is not None
    if not known and isinstance(event, Announced):
        try:
            must_fit(event.layout.size)
        except Unusable as error:
            return start.refuse(event.client, str(error))
    commands = start.handle(event)
    if start.layout is not None and not known:
        link.expect(start.layout.size, start.layout.buffer_size)
    return commands


def _next(events: "queue.SimpleQueue[LinkEvent]") -> LinkEvent | None:
    try:
        return events.get(timeout=WAIT_S)
    except queue.Empty:
        return None


def _taken(start: Initialization, client: str, link: Link, log: Logger) -> AnnouncedModel | None:
    """Return the model with the vector that has come, or None if it cannot be used."""
    vector: Vector = link.take(client, 0, 0)
    link.forget(client, 0, 0)
    try:
        return AnnouncedModel(start.layout, vector) if start.layout is not None else None
    except BadVector as error:
        log.log(WARNING, "the initial model of %s cannot be used: %s", client, error)
        return None


def _waited(config: RunConfig, start: Initialization, link: Link) -> str:
    seen = f"{numbered(len(link.clients()), 'client')} connected"
    what = "its vector" if start.layout is not None else "a client that announces its model"
    more = start.last_refusal or "a client's script log tells more"
    return f"waited {config.start_timeout_s:g} s for {what}, saw {seen}; {more}"
