"""The local steps that led to the common model, over all clients."""

from typing import Final

KEPT: Final = 64  # models; a client that had an older one does its first steps alone


class CommonSteps:
    """Counts the local steps of a run, and those between its last models for shared momentum."""

    def __init__(self, first: int = 0, last: float = 0.0) -> None:
        self.first = first  # steps before the common model
        self.between: tuple[float, ...] = (last,) if last else ()  # mean steps, of the newest model first

    @property
    def last(self) -> float:
        """The mean steps from the model before; 0 if they are unknown."""
        return self.between[0] if self.between else 0.0

    def summed(self, target: int, steps: float) -> None:
        """Count the steps to a new model, and their mean over clients; 0: it does not follow the last one."""
        self.first += target
        self.between = (steps, *self.between)[:KEPT] if steps else ()

    def forget(self) -> None:
        """Let all clients do their next steps alone."""
        self.between = ()
