"""The models that clients receive, and the commands that wait until they are there."""

from typing import Final

from fedgc.messages import Repair, Reveal, Skip, Take, Work
from fedgc.sim.clock.server_link import Line, Pipe

Behind = Skip | Take | Reveal | Repair  # commands that may come before the model


class Downloads:
    """The model in transit to each client, with the work that it is for."""

    def __init__(self, line: Line) -> None:
        self.pipe: Final = Pipe(line)
        self._known: dict[int, tuple[Work, float, list[Behind]]] = {}  # since when, and what waits

    def begin(self, now: float, w: int, work: Work, down_s: float) -> None:
        """Send the model of this work, which takes so long on the client's own link."""
        self._known[w] = work, now, []
        self.pipe.begin(now, w, 1.0, down_s)

    @property
    def versions(self) -> set[int]:
        """The versions of the models in transit."""
        return {work.version for work, _, _ in self._known.values()}

    def ended(self, w: int) -> tuple[Work, float, list[Behind]]:
        """Return the work whose model is here, since when it was sent, and the commands that waited."""
        return self._known.pop(w)

    def drop(self, now: float, w: int, number: int | None = None) -> None:
        """Stop sending a model, if it is for this round; without a number, for any."""
        if w in self._known and number in (None, self._known[w][0].round):
            self.pipe.drop(now, w)
            del self._known[w]

    def keep_behind(self, w: int, command: Behind) -> bool:
        """Queue a command for work whose model is in transit; return whether there is such work."""
        waits = w in self._known and self._known[w][0].round == command.round
        if waits:
            self._known[w][2].append(command)
        return waits
