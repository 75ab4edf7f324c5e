"""The models that clients receive, and the commands that wait until they are there."""

from dataclasses import dataclass, replace
from typing import Final

from fedgc.messages import Repair, Reveal, Skip, Take, Work
from fedgc.sim.clock.interfaces import Terms
from fedgc.sim.clock.server_link import Pipe

Behind = Skip | Take | Reveal | Repair  # commands that may come before the model


@dataclass(slots=True)
class Download:
    """A model in transit: `size` in whole models, since when, and the commands that wait for it."""

    work: Work
    size: float
    began: float
    behind: list[Behind]


class Downloads:
    """The model in transit to each client, with the work that it is for.

    As in a session, a client is sent the change of a model, by the codec for downloads, if it got the model
    before.
    """

    def __init__(self, terms: Terms) -> None:
        self.sent = 0.0  # in whole models
        self.pipe: Final = Pipe(replace(terms.line, slots=None))  # slots are of uploads
        self.has: Final[dict[int, int]] = {}  # the version that each client got last in its session
        self.unchanged: Final[set[int]] = set()  # versions that are the model before: they have no change
        self._terms = terms
        self._known: dict[int, Download] = {}

    def size(self, w: int, version: int) -> float:
        """Return what a client is sent for this version, in whole models, and count it as sent."""
        has_last = self.has.get(w) == version - 1 and version not in self.unchanged
        size = self._terms.share(self._terms.download_codec) if has_last else 1.0
        self.sent += size
        return size

    def begin(self, now: float, w: int, work: Work, size: float, down_s: float) -> None:
        """Send the model of this work; a whole one takes `down_s` on the client's own link."""
        self._known[w] = Download(work, size, now, [])
        self.pipe.begin(now, w, size, down_s)

    @property
    def versions(self) -> set[int]:
        """The versions of the models in transit."""
        return {each.work.version for each in self._known.values()}

    def ended(self, w: int) -> Download:
        """Return the download that is over."""
        return self._known.pop(w)

    def drop(self, now: float, w: int, number: int | None = None) -> None:
        """Stop sending a model, if it is for this round; without a number, for any."""
        if w in self._known and number in (None, self._known[w].work.round):
            self.pipe.drop(now, w)
            del self._known[w]

    def keep_behind(self, w: int, command: Behind) -> bool:
        """Queue a command for work whose model is in transit; return whether there is such work."""
        waits = w in self._known and self._known[w].work.round == command.round
        if waits:
            self._known[w].behind.append(command)
        return waits
