"""Early stopping in a simulation, by the figures of the server, as in a run (`validate.best`)."""

from fedgc.config import RunConfig
from fedgc.history import BestModel
from fedgc.messages import SUMMED
from fedgc.run.best_model import BestModelSearch
from fedgc.sim.training import Point


class EarlyStop:
    """Whether a simulation is to end after a round; `train` calls it, maybe several times for one round."""

    def __init__(self, config: RunConfig) -> None:
        self._search = BestModelSearch(config.best, config.best_is, config.best_patience)
        self._round = 0  # the last one

    def __call__(self, point: Point) -> bool:
        """Enter the figure of a new model."""
        figure, row = self._search.figure, point.row
        if row.round > self._round:
            self._round = row.round
            if row.outcome in SUMMED and figure in point.metrics:
                self._search.enter(row.version + 1, row.round, point.metrics[figure])
        return bool(self.why)

    @property
    def best(self) -> BestModel | None:
        """The best model so far, if the settings name a figure for it."""
        return self._search.best

    @property
    def why(self) -> str:
        """Why the simulation ends; empty while it goes on."""
        return self._search.why_stop
