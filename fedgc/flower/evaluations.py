"""The server's own evaluations of models, in the background."""

from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future
from functools import partial

from fedgc.errors import FedgcError
from fedgc.flower.background import BackgroundQueue
from fedgc.flower.job import Job
from fedgc.flower.privacy_account import PrivacyAccount
from fedgc.flower.validation import Validation
from fedgc.flower.warn_once import WarnOnce
from fedgc.links.pieces import Vector


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
        self._under_way: list[tuple[int, Future[Mapping[str, float]]]] = []

    def begin(self, round_: int, model: Callable[[], Vector]) -> None:
        """Evaluate the model of a round, if there is an evaluation function."""
        if self._job.evaluate is not None:
            measure = partial(self._job.evaluate, round_, model())
        elif self._job.model.evaluates:
            measure = partial(self._job.model.evaluate, model())
        else:
            return
        self._validation.evaluating(round_)
        self._under_way.append((round_, self._background.submit("evaluation", round_, measure)))

    def collect(self, *, wait: bool) -> None:
        """Hand on the figures that are there; with `wait`, those of all models."""
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
