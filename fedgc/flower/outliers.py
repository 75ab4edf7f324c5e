"""Outliers of rounds: their names, and models without one of them, which the server evaluates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from fedgc.errors import BadSetting
from fedgc.flower.job import Job
from fedgc.flower.warn_once import WarnOnce
from fedgc.links.pieces import Vector
from fedgc.training.round_sum import RoundSum

Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """Another model of a round, to be evaluated beside it."""

    model: Callable[[], Vector]
    compare: Callable[[Figures, Figures], None]  # takes the figures of the round's model, and of this one


class Outliers:
    """Names the outliers of a run, and asks for evaluations that show what one of them does."""

    def __init__(self, job: Job, names: Mapping[str, str], warn_once: WarnOnce) -> None:
        """`names` are those of the clients, by identity; they come while the run goes on."""
        setting, own = job.config.check_outliers, job.evaluate is None and job.model.evaluates
        if setting == "on" and job.evaluate is None and not job.model.evaluates:
            raise BadSetting(
                "setting aggregation.check-outliers: saw on, needed auto: the server evaluates no models"
            )
        self.checks = bool(job.config.evaluate_every) and (own or setting == "on")
        self._job, self._names, self._warn_once = job, names, warn_once

    def report(self, round_: int, outliers: Mapping[str, float]) -> None:
        """Name the outliers of a round in the log and in the history."""
        for client, part in outliers.items():
            what = f"only {part:.1%} of its update counts: it is far from those of the others"
            if not part:
                what = "its update does not count: models are better without its updates"
            self._job.sink.audited("outlier", client, f"round {round_}: {what}")
            about = f"outlier {client}, {'in part' if part else 'not'}"
            self._warn_once(about, round_, f"{self._names.get(client) or client}: {what}")

    def comparison(
        self, of: RoundSum, before: Vector, after: Vector, average: Callable[[Vector], Vector]
    ) -> Comparison | None:
        """Return what to evaluate beside the model `after` the last mean, if it is a mean with outliers.

        `average` turns a model that clients train from into the one to use.
        """
        check = of.check
        if check is None:
            return None
        return Comparison(lambda: average(check.alternative(before, after)), partial(of.compared, check))
