"""Waits for the model of a run whose clients bring it, before the driver begins."""

import queue
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from logging import WARNING, Logger
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import BadVector, EdgeFailed
from fedgc.flower.event_guard import EventGuard
from fedgc.links.links import Link
from fedgc.links.pieces import Vector
from fedgc.messages import LinkEvent, Stop, ToClient
from fedgc.run.initialization import Initialization
from fedgc.training import AnnouncedModel

WAIT_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Events:
    """The driver's events and their clock."""

    queue: "queue.SimpleQueue[LinkEvent]"
    clock: Callable[[], float]
    log: Logger


def announced_model(config: RunConfig, events: Events, link: Link) -> AnnouncedModel:
    """Return the model that the first client has announced and sent.

    Events that belong to the run are put back into the queue, in their order.

    Raises:
        EdgeFailed: The run was stopped, or no client has announced a model within `timing.start-timeout-s`.
    """
    start, guard = Initialization(), EventGuard(events.log, lambda: 1)
    later: list[LinkEvent] = []
    end = events.clock() + config.start_timeout_s
    model = None
    while model is None:
        event = _next(events.queue)
        if event is None and events.clock() > end:
            raise EdgeFailed(_waited(config, start, link))
        if isinstance(event, Stop):
            raise EdgeFailed(event.reason)
        if event is None:
            continue
        if start.is_vector(event):
            model = _taken(start, link, events.log)
            commands: Sequence[ToClient] = start.without(start.source) if model is None else ()
        else:
            later.append(event)
            commands = guard.outputs(event, partial(_commands, start, event, link))
        for command in commands:
            link.send(command)
    for event in later:
        events.queue.put(event)
    return model


def _commands(start: Initialization, event: LinkEvent, link: Link) -> tuple[ToClient, ...]:
    """Return what follows from an event; the links learn the length of vectors with the first layout."""
    known = start.layout is not None
    commands = start.handle(event)
    if start.layout is not None and not known:
        link.expect(start.layout.size)
    return commands


def _next(events: "queue.SimpleQueue[LinkEvent]") -> LinkEvent | None:
    try:
        return events.get(timeout=WAIT_S)
    except queue.Empty:
        return None


def _taken(start: Initialization, link: Link, log: Logger) -> AnnouncedModel | None:
    """Return the model with the vector that has come, or None if it cannot be used."""
    vector: Vector = link.take(start.source, 0, 0)
    link.forget(start.source, 0, 0)
    try:
        return AnnouncedModel(start.layout, vector) if start.layout is not None else None
    except BadVector as error:
        log.log(WARNING, "the initial model of %s cannot be used: %s", start.source, error)
        return None


def _waited(config: RunConfig, start: Initialization, link: Link) -> str:
    seen = f"{len(link.clients())} clients connected"
    what = "its vector" if start.layout is not None else "a client that announces its model"
    return f"waited {config.start_timeout_s:g} s for {what}, saw {seen}; a client's script log tells more"
