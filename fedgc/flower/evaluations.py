"""The server's own evaluations of models, in the background."""

from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial

from fedgc.errors import FedgcError
from fedgc.flower.background import BackgroundQueue
from fedgc.flower.job import Job
from fedgc.flower.outliers import Comparison, Figures
from fedgc.flower.privacy_account import PrivacyAccount
from fedgc.flower.validation import Validation
from fedgc.flower.warn_once import WarnOnce
from fedgc.links.pieces import Vector
from fedgc.run.outlier_gain import shows_gains


class Evaluations:
    """Evaluates models one after the other, and tells `validation` the figures."""

    def __init__(
        self,
        job: Job,
        background: BackgroundQueue,
        validation: Validation,
        privacy: PrivacyAccount,
        warn_once: WarnOnce,
    ) -> None:
        self._job, self._background, self._validation = job, background, validation
        self._privacy, self._warn_once = privacy, warn_once
        self._under_way: list[tuple[int, Future[Figures]]] = []
        self._compared: tuple[Future[Figures], Future[Figures], Comparison] | None = None

    def begin(self, round_: int, model: Callable[[], Vector], comparison: Comparison | None = None) -> None:
        """Evaluate the model of a round, if there is an evaluation function, and perhaps one beside it.

        Rounds that are faster than evaluations are compared with no other model, nor is the last round.
        """
        if self._job.evaluate is None and not self._job.model.evaluates:
            return
        self._validation.evaluating(round_)
        future = self._background.submit("evaluation", round_, self._measure(round_, model()))
        self._under_way.append((round_, future))
        is_last = round_ >= self._job.config.rounds
        if comparison is not None and not is_last and self._compared is None and len(self._under_way) == 1:
            measure = self._measure(round_, comparison.model())
            other = self._background.submit("comparison", round_, partial(_compared_with, future, measure))
            self._compared = future, other, comparison

    def _measure(self, round_: int, model: Vector) -> Callable[[], Figures]:
        if self._job.evaluate is not None:
            return partial(self._job.evaluate, round_, model)
        return partial(self._job.model.evaluate, model)

    def collect(self, *, wait: bool) -> None:
        """Hand on the figures that are there; with `wait`, those of all models."""
        if self._compared is not None and all(each.done() for each in self._compared[:2]):
            (*futures, comparison), self._compared = self._compared, None
            with suppress(CancelledError, FedgcError):  # the figures of a round are handed on below
                comparison.compare(*(each.result() for each in futures))
        while self._under_way and (wait or self._under_way[0][1].done()):
            round_, future = self._under_way.pop(0)
            found = None
            try:
                found = {**future.result(), **self._privacy.after(round_)}
            except CancelledError:  # it was dropped, with a warning
                pass
            except FedgcError as error:
                self._warn_once("evaluation", round_, str(error))
            self._validation.evaluated(round_, found)


def _compared_with(first: Future[Figures], measure: Callable[[], Figures]) -> Figures:
    """Return the figures of another model, if those of the first one, which are there, show gains."""
    return measure() if shows_gains(first.result()) else {}
