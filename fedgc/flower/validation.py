"""What the models of a run are worth: figures of clients and of the server, the best model, early stopping.

A model takes figures of clients until the second model after it is made, those of the server whenever they
come. It counts for the best model once: when all clients that score models have answered, or with the figures
that are there by then. Where late updates count, some clients are always behind: each counts with the figures
of the last model that it has scored, and the run judges a model also without the others.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from logging import INFO, Logger
from typing import Final

from fedgc.config import RunConfig
from fedgc.errors import Refused
from fedgc.flower.sink import Sink
from fedgc.history import KnownBest
from fedgc.messages import Scored
from fedgc.run.best_model import BestModelSearch
from fedgc.run.client_figures import ClientFigures
from fedgc.store.checkpoint import Checkpoint

MOST_SCORES: Final = 8  # of one model by one client: a process that was started again scores it anew
LEAST_WAIT_S: Final = 10.0  # for the figures of the last model
TIMES_LONGEST: Final = 5.0  # the longest time from work to figures: how long the last ones are waited for

Pin = Callable[[Checkpoint], None]
Judge = Callable[[int, Mapping[str, float], str], None]
MEDIANS: Final = "medians of the clients"
ON_SERVER: Final = "on the server"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why the run is to end before its last round."""

    reason: str
    complete: bool


@dataclass(slots=True)
class _Model:
    """A model that still takes figures."""

    round: int  # that made it
    checkpoint: Checkpoint | None = None
    entered: bool = False  # in the search for the best one
    judged: bool = False  # by the figures of clients
    scores: Counter[str] = field(default_factory=Counter)  # how often each client has scored it
    on_server: float | None = None  # the followed figure, by the server's own evaluation


class Validation:
    """Collects the figures of models; the driver tells it of models, figures and evaluations."""

    def __init__(
        self,
        config: RunConfig,
        sink: Sink,
        log: Logger,
        pin: Pin | None = None,
        best: KnownBest | None = None,
        judge: Judge | None = None,
    ) -> None:
        """`pin` keeps the checkpoint of the best model; `best` is the one before a resume.

        `judge` gets the figures of each version and whose they are: the server's own or, without them, the
        medians of the clients, which no minority of them can choose.
        """
        self._judge = judge or (lambda _version, _figures, _source: None)
        self._sink, self._log, self._pin = sink, log, pin
        carries = config.late_updates == "count"
        self._figures = ClientFigures(carries=carries, largest_share=config.largest_share)
        self._every = config.evaluate_every
        self._models: dict[int, _Model] = {}
        self._newest = self._first = 0
        self._search = BestModelSearch(config.best, config.best_is, config.best_patience, best)
        self._reported: set[str] = set()  # names of figures
        self._scorers: set[str] = set()  # clients that score models
        self._evaluating: set[int] = set()  # rounds whose models the server evaluates now
        self._on_server = False  # the server evaluates models itself
        self._problem = ""
        self._judged = False  # there was time for the figures of a model
        self._working: dict[str, float] = {}  # since when, by client
        self._longest_s = 0.0
        self.of_server: Final[dict[int, Mapping[str, float]]] = {}  # figures, by round
        self.of_clients: Final[dict[int, Mapping[str, float]]] = {}  # means, which go before the server's

    # ---- models

    def begin(self, version: int, round_: int, checkpoint: Checkpoint | None) -> None:
        """Start with this model."""
        self._newest = self._first = version
        self._models = {version: _Model(round_, checkpoint)}

    def made(self, version: int, round_: int, checkpoint: Checkpoint | None) -> None:
        """Take in a new model; the one before the last takes no more figures."""
        for old in sorted(self._models):
            self._show(old)
            if old < version - 1:
                if self._figures.carries and self._figures.answered(old):
                    self._judge_by_clients(old)
                self._enter(old)
                self._forget(old)
        self._models[version] = _Model(round_, checkpoint if self._search.figure else None)
        self._newest = version
        self._judged = True
        if not self._scorers:  # then only the server evaluates
            self._enter_before(version)

    # ---- figures of clients

    def work_sent(self, client: str, now: float) -> None:
        """Note when a client was told of a model."""
        self._working[client] = now

    def scored(self, event: Scored, name: str, present: Collection[str]) -> None:
        """Take in the figures of a client, or why it has none.

        Raises:
            Refused: It scores this model too often: all scores are written and logged.
        """
        model = self._models.get(event.version)
        if model is None:  # it takes no more figures, or there never was one
            return
        model.scores[event.client] += 1
        if model.scores[event.client] > MOST_SCORES:
            raise Refused(f"saw more than {MOST_SCORES} scores of model {event.version}, needed one")
        event = self._figures.enter(event, present)
        self._scorers.add(event.client)
        if (since := self._working.pop(event.client, None)) is not None:
            self._longest_s = max(self._longest_s, event.now - since)
        if event.problem:
            self._problem = self._problem or f"{name}: {event.problem}"
        else:
            self._reported |= {figure for figure, _ in event.figures}
            self._sink.scored(model.round, event.client, event.samples, dict(event.figures))
        if self._is_complete(event.version, present):
            self._judged = True
            self._judge_by_clients(event.version)
            self._show(event.version)
            self._enter_before(event.version)
            self._enter(event.version)

    def _judge_by_clients(self, version: int) -> None:
        model = self._models[version]
        if not (self._on_server or model.judged):
            model.judged = True
            self._judge(version, self._figures.median(version), MEDIANS)

    def is_evaluated(self, version: int, round_: int) -> bool:
        """Whether the server or a client evaluates the model of this round."""
        by_clients = self._scorers and self._every and version % self._every == 0
        return round_ in self._evaluating or bool(by_clients)

    def lacking(self, present: Collection[str]) -> frozenset[str]:
        """Return the clients that have scored models before, and have not scored the newest one."""
        return frozenset(self._scorers & set(present)) - self._figures.answered(self._newest)

    @property
    def wait_s(self) -> float:
        """How long to wait for the figures of the last model."""
        return max(LEAST_WAIT_S, TIMES_LONGEST * self._longest_s)

    def _is_complete(self, version: int, present: Collection[str]) -> bool:
        """Whether all clients have answered: at first all that are here, later those that score models."""
        expected = set(present) if self._newest == self._first else self._scorers & set(present)
        return self._figures.complete(version, expected)

    def _show(self, version: int) -> None:
        """Record the mean figures of a model."""
        round_, mean = self._models[version].round, self._figures.mean(version)
        known = self.of_clients.get(round_, {})
        if all(known.get(name) == each for name, each in mean.items()):
            return
        self.of_clients[round_] = {**known, **mean}
        shown = " ".join(f"{name}={value:.4g}" for name, value in mean.items())
        self._log.log(INFO, "round %d validated by clients: %s", round_, shown)
        self._sink.evaluated(round_, self._figures_of(round_))

    def _figures_of(self, round_: int) -> Mapping[str, float]:
        return {**self.of_server.get(round_, {}), **self.of_clients.get(round_, {})}

    # ---- figures of the server

    def evaluating(self, round_: int) -> None:
        """Note that the server evaluates the model of this round."""
        self._evaluating.add(round_)
        self._on_server = True

    def evaluated(self, round_: int, figures: Mapping[str, float] | None) -> None:
        """Take in the server's own figures of a model; None if there are none."""
        self._evaluating.discard(round_)
        if figures:
            self._reported |= figures.keys()
            self.of_server[round_] = figures
            known = self._figures_of(round_)
            shown = " ".join(f"{name}={value:.4g}" for name, value in known.items())
            self._log.log(INFO, "round %d evaluated: %s", round_, shown)
            self._sink.evaluated(round_, known)
        for version in [each for each, model in self._models.items() if model.round == round_]:
            if figures is not None:
                self._judge(version, figures, ON_SERVER)
            self._models[version].on_server = (figures or {}).get(self._search.figure)
            if self._judged and not self._scorers:
                self._enter(version)
            if version < self._newest - 1:
                self._enter(version)
                self._forget(version)

    def _forget(self, version: int) -> None:
        """Let a model take no more figures, once the server has evaluated it."""
        if self._models[version].round not in self._evaluating:
            del self._models[version]

    # ---- the best model

    @property
    def ending(self) -> Ending | None:
        """Why the run is to end now; None if it goes on."""
        figure = self._search.figure
        if why := self._search.why_stop:
            return Ending(why, complete=True)
        if not figure or figure in self._reported or self._evaluating or not self._judged:
            return None
        seen = ", ".join(sorted(self._reported)) or "none"
        problem = f" ({self._problem})" if self._problem else ""
        return Ending(
            f"setting validate.best: needed the figure {figure}, saw figures {seen}{problem}", complete=False
        )

    def finish(self) -> None:
        """Enter all models with the figures that are there."""
        for version in sorted(self._models):
            self._show(version)
            self._enter(version)

    def _enter_before(self, version: int) -> None:
        for older in sorted(self._models):
            if older < version:
                self._enter(older)

    def _enter(self, version: int) -> None:
        """Enter a model into the search for the best one, once."""
        model, figure = self._models[version], self._search.figure
        value = self._figures.mean(version).get(figure, model.on_server)
        if not figure or model.entered or value is None:
            return
        model.entered = True
        if self._search.enter(version, model.round, value) and self._search.best is not None:
            self._sink.improved(self._search.best)
            if self._pin is not None and model.checkpoint is not None:
                self._pin(model.checkpoint)
        model.checkpoint = None
