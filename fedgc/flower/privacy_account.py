"""The epsilon of a run after each exchange: by client-level privacy, or by the descriptor of a masked run."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from fedgc.errors import BadSetting
from fedgc.flower.job import ServerModel
from fedgc.flower.validation import Ending
from fedgc.history import RoundRow
from fedgc.messages import SUMMED
from fedgc.secagg import Federation
from fedgc.store.checkpoint import Checkpoint
from fedgc.training.private_mean import PrivateMean

NOTHING: Final[Mapping[str, float]] = MappingProxyType({})


class PrivacyAccount:
    """Records what is spent, and says when nothing is left."""

    def __init__(
        self,
        private: PrivateMean | None,
        federation: Federation | None,
        model: ServerModel,
        resumed: Checkpoint | None,
    ) -> None:
        """`private` makes the run's means, if it has client-level privacy.

        Raises:
            BadSetting: The model has buffers, or the run had no privacy, or had some, before it was resumed.
        """
        self._private, self._pinned = private, federation.privacy if federation else None
        self._sums = resumed.version if resumed is not None else 0
        self._without_sum = 0  # exchanges of this start whose updates came, and whose sum did not
        self._after: dict[int, Mapping[str, float]] = {}  # by round
        if private is not None and model.size > model.parameters:
            raise BadSetting(
                f"privacy: saw a model with {model.size - model.parameters} numbers of running statistics, "
                "which noise would make useless, needed one without (GroupNorm in place of BatchNorm)"
            )
        if resumed is not None:
            self._restore(resumed.privacy)

    def released(self, row: RoundRow) -> Mapping[str, float]:
        """Return the figures after a round; empty if it has revealed nothing."""
        if row.outcome not in SUMMED:
            # A site counts each update that it has masked: it cannot know that the sum never came
            self._without_sum += any(each.upload_s > 0 for each in row.clients)
            return NOTHING
        self._sums = row.version + 1
        if self._pinned is not None:
            self._after[row.round] = {"epsilon": self._pinned.spent(self._exchanges)}
        elif self._private is not None:
            self._after[row.round] = self._private.figures
        return self.after(row.round)

    def after(self, round_: int) -> Mapping[str, float]:
        """Return the figures that a round had."""
        return self._after.get(round_, NOTHING)

    @property
    def _exchanges(self) -> int:
        return self._sums + self._without_sum

    @property
    def ending(self) -> Ending | None:
        """Why the run is to end, if its budget or all exchanges of its descriptor are spent."""
        reason = self._private.ending if self._private is not None else ""
        if self._pinned is not None and self._exchanges >= self._pinned.exchanges:
            most = self._pinned.exchanges
            reason = f"all {most} exchanges that the descriptor allows are done (--releases)"
        return Ending(reason, complete=True) if reason else None

    def warning(self, rounds: int) -> str:
        """Return a warning if the descriptor allows fewer exchanges than there are rounds, else nothing."""
        if self._pinned is None or rounds <= self._pinned.exchanges:
            return ""
        return (
            f"setting rounds: saw {rounds}, but the descriptor allows {self._pinned.exchanges} exchanges "
            "in all runs (--releases): the run ends after these"
        )

    def text(self) -> str:
        """Return the state for a checkpoint; empty without client-level privacy."""
        return self._private.text() if self._private is not None else ""

    def _restore(self, text: str) -> None:
        if self._private is not None:
            self._private.restore(text)
        elif text:
            raise BadSetting(
                "resume: saw a run with client-level privacy, needed its privacy.noise or privacy.epsilon"
            )
