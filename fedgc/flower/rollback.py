"""Goes back to the best model after a collapse, and records whose updates led to it."""

from collections.abc import Mapping
from dataclasses import replace
from logging import WARNING, Logger
from typing import Final

from fedgc.config import RunConfig
from fedgc.flower.sink import Sink
from fedgc.history import RoundRow
from fedgc.messages import Close
from fedgc.run.collapse import CollapseWatch
from fedgc.run.rows import SUMMED
from fedgc.store.checkpoint import Checkpoint

MOST_KEPT: Final = 4  # models whose figures are not known yet
MOST_SOURCES: Final = 1000  # versions of which the clients are remembered


class Rollback:
    """Keeps the best model, and the newer ones while they are evaluated.

    Under masks it does nothing: a site masks no second update of a model whose sum was revealed. Nor does it
    with client-level privacy: going back would tell figures of clients without noise.
    """

    def __init__(self, config: RunConfig, sink: Sink, log: Logger) -> None:
        self._is_on = config.rollback == "auto" and config.secrecy == "open" and not config.is_private
        self._watch = CollapseWatch(config.best, config.best_is)
        self._sink, self._log = sink, log
        self._kept: dict[int, Checkpoint] = {}  # by version
        self._sources: dict[int, tuple[str, ...]] = {}  # clients whose updates made a version
        self._due: Checkpoint | None = None

    def made(self, checkpoint: Checkpoint) -> None:
        """Keep a new model that will be evaluated."""
        if not self._is_on:
            return
        self._kept[checkpoint.version] = checkpoint
        unknown = [each for each in self._kept if each != self._watch.best]
        for each in unknown[:-MOST_KEPT]:
            del self._kept[each]

    def counted(self, row: RoundRow) -> None:
        """Note the clients whose updates are in a version."""
        if self._is_on and row.outcome in SUMMED:
            self._sources[row.version + 1] = tuple(each.client for each in row.clients if each.counted)
            if len(self._sources) > MOST_SOURCES:
                del self._sources[next(iter(self._sources))]

    def evaluated(self, version: int, figures: Mapping[str, float]) -> None:
        """Take in the figures of a version; go back at the next exchange if it has collapsed."""
        if version not in self._kept:
            return
        back = self._watch.enter(version, figures)
        best, round_ = self._watch.best, self._kept[version].round
        if back is not None and back in self._kept and self._due is None:
            self._due = self._kept[back]
            self._report(self._due, version, round_)
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
        return due

    def _report(self, back: Checkpoint, version: int, round_: int) -> None:
        watch = self._watch
        made = sorted({client for each, who in self._sources.items() if each <= version for client in who})
        figures = f"{watch.figure} {watch.value:.4g} after {watch.best_value:.4g}"
        what = (
            f"round {round_}: {figures}: the run goes back to the model of round {back.round}; "
            f"updates since then came from {', '.join(made) or 'no client'}"
        )
        self._log.log(WARNING, "%s", what)
        self._sink.audited("rollback", "server", what)
