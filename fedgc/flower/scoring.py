"""Scores a saved model on the data of the clients, without training: what `fedgc evaluate` asks for.

Nothing of the run changes: there is no round, no checkpoint and no row in its history.
"""

import json
import math
import queue
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from logging import INFO, Logger
from typing import Any, Final

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.event_guard import EventGuard
from fedgc.links.links import Link
from fedgc.messages import (
    Announced,
    Failed,
    Joined,
    LinkEvent,
    Lost,
    Refuse,
    Scored,
    Stop,
    ToClient,
    Validate,
)
from fedgc.run.client_figures import ClientFigures
from fedgc.run.initialization import Initialization
from fedgc.run.rows import caused
from fedgc.store.checkpoint import Checkpoint

RESULT: Final = "scored: "  # before the result in the server's log, which is one line of JSON
WAIT_S: Final = 0.25
TIMES_LONGEST: Final = 5.0  # the longest time to figures: how long the others are waited for, once some came


@dataclass(frozen=True, slots=True)
class Parts:
    """What a scoring works with."""

    events: "queue.SimpleQueue[LinkEvent]"
    clock: Callable[[], float]
    log: Logger


class Scoring:
    """Sends a model to the clients of a run and collects their figures."""

    def __init__(self, config: RunConfig, saved: Checkpoint, start: Initialization, parts: Parts) -> None:
        """`start` refuses clients whose model has another layout."""
        self._config, self._saved, self._start, self._parts = config, saved, start, parts
        self._figures = ClientFigures(largest_share=config.largest_share)
        self._joined: set[str] = set()
        self._asked: dict[str, float] = {}  # when
        self._longest_s = 0.0  # from then to figures
        self._until = math.inf
        self._answers: dict[str, Scored] = {}
        self._problems: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def drive(self, link: Link) -> Mapping[str, Any]:
        """Return the figures of each client, and their mean, as plain values.

        Raises:
            EdgeFailed: Too few clients joined, none returned figures, or a user stopped it.
        """
        link.publish(self._saved.version, self._saved.model)
        until = self._parts.clock() + self._config.start_timeout_s
        guard = EventGuard(self._parts.log, lambda: self._saved.round)
        while len(self._joined) < self._config.min_clients or self._awaited:
            event = self._next()
            if isinstance(event, Stop):
                raise EdgeFailed(event.reason)
            if event is not None:
                for refusal in guard.outputs(event, partial(self._handle, event, link)):
                    link.send(refusal)
            now = self._parts.clock()
            if len(self._joined) < self._config.min_clients and now > until:
                wanted, seen = self._config.min_clients, len(self._joined)
                waited = f"waited {self._config.start_timeout_s:g} s for {wanted} clients, saw {seen}"
                raise EdgeFailed(caused(self._start.last_refusal, waited))
            if now > self._until:
                late = f"it returned no figures within {self._wait_s:.0f} s of the last ones"
                self._problems.update(dict.fromkeys(self._awaited, late))
        return self._result()

    @property
    def _awaited(self) -> Set[str]:
        return self._joined - self._answers.keys() - self._problems.keys()

    @property
    def _wait_s(self) -> float:
        return max(self._config.start_timeout_s, TIMES_LONGEST * self._longest_s)

    def _next(self) -> LinkEvent | None:
        try:
            return self._parts.events.get(timeout=WAIT_S)
        except queue.Empty:
            return None

    def _handle(self, event: LinkEvent, link: Link) -> Sequence[ToClient]:
        match event:
            case Announced():
                for command in self._start.handle(event):
                    if isinstance(command, Refuse):
                        link.send(command)
            case Joined() if event.client not in self._start.refused:
                self._joined.add(event.client)
                self._names[event.client] = link.name(event.client)
                self._ask(event.client)
                link.send(Validate(event.client, self._saved.round, self._saved.version))
            case Scored():
                self._scored(event)
            case Failed():
                self._problems[event.client] = event.reason
            case Lost():
                self._problems.setdefault(event.client, "it was lost")
            case _:
                pass
        return ()

    def _ask(self, client: str) -> None:
        """Await the figures of a client, also of one that is back."""
        self._problems.pop(client, None)
        self._asked[client] = now = self._parts.clock()
        if self._until < math.inf:
            self._until = now + self._wait_s

    def _scored(self, event: Scored) -> None:
        now = self._parts.clock()
        self._longest_s = max(self._longest_s, now - self._asked.get(event.client, now))
        self._until = now + self._wait_s
        if event.problem:
            self._problems[event.client] = event.problem
            return
        self._problems.pop(event.client, None)
        self._answers[event.client] = event
        self._figures.enter(event)

    def _result(self) -> Mapping[str, Any]:
        problems = {self._names.get(each) or each: why for each, why in sorted(self._problems.items())}
        if not self._answers:
            why = "; ".join(f"{name}: {each}" for name, each in problems.items())
            raise EdgeFailed(f"no client returned figures; {why}")
        clients = [
            {
                "client": each.client,
                "name": self._names.get(each.client, ""),
                "samples": each.samples,
                "metrics": dict(each.figures),
            }
            for each in self._answers.values()
        ]
        mean = dict(self._figures.mean(self._saved.version))
        about = {"version": self._saved.version, "round": self._saved.round}
        result = {**about, "clients": clients, "mean": mean, "problems": problems}
        self._parts.log.log(INFO, "%s%s", RESULT, json.dumps(result))
        return result
