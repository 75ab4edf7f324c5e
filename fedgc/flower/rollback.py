"""Goes back to the best model after a collapse, and records whose updates led to it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from logging import WARNING, Logger
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed
from fedgc.flower.background import most_waiting
from fedgc.flower.sink import Sink
from fedgc.history import RoundRow
from fedgc.large_vectors import IN_MEMORY_BYTES, Scratch
from fedgc.messages import SUMMED, Close
from fedgc.run.collapse import CollapseWatch
from fedgc.store.checkpoint import Checkpoint

MOST_SOURCES: Final = 1000  # versions of which the clients are remembered


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A model to go back to."""

    checkpoint: Checkpoint
    optimizer: NDArray[np.uint8] | None = None  # its state, if it is in the scratch

    def moved(self, scratch: Scratch) -> "_Kept":
        """Return the model with its large arrays in the scratch."""
        before = self.checkpoint
        if self.optimizer is not None or before.model.nbytes <= IN_MEMORY_BYTES:
            return self
        model = scratch.empty(before.model.nbytes).view(np.float32)
        optimizer = scratch.empty(len(before.optimizer))
        model[:] = before.model
        optimizer[:] = np.frombuffer(before.optimizer, np.uint8)
        return _Kept(replace(before, model=model, optimizer=b""), optimizer)

    def whole(self) -> Checkpoint:
        """Return the checkpoint."""
        state = self.optimizer
        return self.checkpoint if state is None else replace(self.checkpoint, optimizer=state.tobytes())


class Rollback:
    """Keeps the best model, and newer ones while they are evaluated; all but the newest in the scratch.

    Under masks it does nothing: a site masks no second update of a model whose sum was revealed. Nor does it
    with client-level privacy: going back would tell figures of clients without noise.
    """

    def __init__(
        self,
        config: RunConfig,
        sink: Sink,
        log: Logger,
        scratch: Scratch | None = None,
        names: Mapping[str, str] | None = None,
    ) -> None:
        """`names` are those of the clients, by identity; they come while the run goes on."""
        self._names = {} if names is None else names
        self._is_on = config.rollback == "auto" and config.secrecy == "open" and not config.is_private
        self._config = config
        self._sink, self._log, self._scratch = sink, log, scratch or Scratch()
        self.begin()

    def begin(self, figures: str = "") -> None:
        """Know no model: a run begins or resumes, or that of a site goes on from its consortium's new model.

        `figures` are those of the checkpoint that it resumes from.
        """
        self._watch = CollapseWatch(self._config.best, self._config.best_is).restored(figures)
        self._kept: dict[int, _Kept] = {}  # by version
        self._sources: dict[int, tuple[str, ...]] = {}  # clients whose updates made a version
        self._due: _Kept | None = None

    @property
    def figures(self) -> str:
        """What a checkpoint keeps of the figures so far."""
        return self._watch.text() if self._is_on else ""

    def made(self, checkpoint: Checkpoint) -> None:
        """Keep a new model that will be evaluated."""
        if not self._is_on:
            return
        try:
            self._kept = {version: each.moved(self._scratch) for version, each in self._kept.items()}
        except EdgeFailed as error:
            self._is_on, self._kept = False, {}
            self._log.log(
                WARNING,
                "round %d: the run cannot go back to a model from now on: %s",
                checkpoint.round,
                error,
            )
            return
        self._kept[checkpoint.version] = _Kept(checkpoint)
        unknown = [each for each in self._kept if each != self._watch.best]
        for each in unknown[1 : -most_waiting(checkpoint.model.nbytes)]:  # the first one is evaluated now
            del self._kept[each]

    def counted(self, row: RoundRow) -> None:
        """Note the clients whose updates are in a version."""
        if self._is_on and row.outcome in SUMMED:
            self._sources[row.version + 1] = tuple(each.client for each in row.clients if each.counted)
            if len(self._sources) > MOST_SOURCES:
                del self._sources[next(iter(self._sources))]

    def evaluated(self, version: int, figures: Mapping[str, float], source: str) -> None:
        """Take in the figures of a version; go back at the next exchange if it has collapsed.

        `source` says whose figures they are.
        """
        if version not in self._kept:
            return
        back = self._watch.enter(version, figures)
        best, round_ = self._watch.best, self._kept[version].checkpoint.round
        if back is not None and back in self._kept and self._due is None:
            self._due = self._kept[back]
            self._report(self._due.checkpoint, version, round_, source)
        older = [each for each in self._kept if each <= version and each != best]
        for each in older:
            del self._kept[each]
        self._sources = {each: who for each, who in self._sources.items() if each > (best or 0)}

    @property
    def is_due(self) -> bool:
        """Whether the next exchange goes back."""
        return self._due is not None

    def closing(self, close: Close) -> Close:
        """Return what a client is told at the end of a round: one that goes back has no use for updates."""
        return replace(close, outcome="aborted") if self.is_due and close.outcome in SUMMED else close

    def take(self) -> Checkpoint | None:
        """Return the model to go back to now, once."""
        due, self._due = self._due, None
        return None if due is None else due.whole()

    def _report(self, back: Checkpoint, version: int, round_: int, source: str) -> None:
        watch = self._watch
        made = {client for each, who in self._sources.items() if each <= version for client in who}
        named = sorted({self._names.get(client) or client for client in made})
        figures = f"{watch.figure} {watch.value:.4g} after {watch.best_value:.4g} ({source})"
        what = (
            f"round {round_}: {figures}: the run goes back to the model of round {back.round}; "
            f"updates since then came from {', '.join(named) or 'no client'}"
        )
        self._log.log(WARNING, "%s", what)
        self._sink.audited("rollback", "server", what)
