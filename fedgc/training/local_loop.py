"""What trains the one model of local work: the engine's interface to a loop of fedgc or of the user.

`TaskLoop` does the steps of a `Task` in the engine's thread. `ScriptLoop` follows a training script in
another process. The engine asks for progress turn by turn, so neither keeps it from commands.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedgc.large_vectors import Readable
from fedgc.messages import Held, Layout, Scored, Work
from fedgc.training.cache import Saved
from fedgc.training.flat import Vector
from fedgc.training.record_privacy import RecordPrivacy


@dataclass(frozen=True, slots=True, eq=False)
class Begin:
    """What a loop begins with."""

    work: Work
    chunks: tuple[str, ...]  # names of what it trains on
    model: Vector  # the common model
    lead: Vector | None  # shared momentum: the common part of every step
    saved: Saved | None  # the trajectory, if it is not at the common model
    reached: int  # its steps


@dataclass(frozen=True, slots=True)
class Advance:
    """What was trained since the loop was asked last."""

    steps: int
    seconds: float
    losses: float  # the sum over the steps
    led: float = 0.0  # steps with shared momentum, each by its share of the learning rate


class LocalLoop(ABC):
    """Trains one model, one step at a time."""

    squared_gradient = 0.0  # of the last step, if the gate weighs gradients
    records: RecordPrivacy | None = None  # with record-level privacy
    is_costly = False  # finished work is worth a write at once: another machine would have to repeat it

    @property
    def has_left(self) -> bool:
        """Whether it trains no more in this session; what it has done can be handed in."""
        return False

    @property
    @abstractmethod
    def layout(self) -> Layout | None:
        """The layout of the model's vector; None while it is not known yet."""

    @property
    @abstractmethod
    def sizes(self) -> Mapping[str, int]:
        """The chunks that can be trained on, with their numbers of samples."""

    @abstractmethod
    def holds(self) -> tuple[Held, ...]:
        """Return the chunks as they are announced."""

    @abstractmethod
    def initial(self) -> Vector:
        """Return the model as this client made it."""

    @abstractmethod
    def begin(self, begin: Begin) -> None:
        """Train from the common model, or from where a trajectory was."""

    @abstractmethod
    def merge(self, begin: Begin, parts: Sequence[slice], own: float) -> None:
        """Move parts of the model that was handed in to those of a new common model, and train on from there.

        The client's own values keep the share `own`. The optimizer keeps its state.
        """

    @abstractmethod
    def go_on(self, work: Work) -> None:
        """Train on, to the target and the most steps of this work."""

    @abstractmethod
    def advance(self, reached: int, goal: int) -> Advance | None:
        """Return what was trained; None if nothing was.

        Args:
            reached: Steps of the trajectory so far.
            goal: Steps up to which to train; no more than `reached` asks only for steps that are done.

        Raises:
            TaskFailed: The loop cannot go on with this trajectory.
        """

    @abstractmethod
    def vector(self) -> Readable | None:
        """Return the model at the target or later, without stopping the loop; None if it was not read."""

    @abstractmethod
    def hand_in(self, *, wait: bool = False) -> Readable | None:
        """Stop at the end of the present step and return the model; None if it is not there yet.

        The loop rests until `begin` or `go_on`; until then nothing writes to the vector. With `wait`, wait
        some seconds for it.
        """

    @abstractmethod
    def saved(self) -> Saved:
        """Return the trajectory after `hand_in`, to continue with it later."""

    @property
    @abstractmethod
    def scores_models(self) -> bool:
        """Whether there is a function that scores models."""

    @abstractmethod
    def validate(self, version: int, model: Vector) -> bool:
        """Score a model before the next step; return whether figures will come."""

    @abstractmethod
    def scores(self, *, wait: bool) -> tuple[Scored, ...]:
        """Return the figures since the last call; with `wait`, wait a moment for them."""

    @abstractmethod
    def rest(self) -> None:
        """Train no more until told to."""

    @abstractmethod
    def close(self, *, complete: bool) -> None:
        """End the loop; `complete` says that the run is over."""
