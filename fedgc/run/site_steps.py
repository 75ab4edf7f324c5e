"""What a consortium asks of a site, in the run of the site's own server.

A site is a fleet with a server of its own whose gateway is one client of a consortium. The consortium asks
for a number of local steps from its common model; the site's run begins rounds while some of them are left,
and waits for more of them otherwise. A round counts for the steps of the client that did most.
"""

import json
from dataclasses import dataclass
from typing import Self

from fedgc.errors import Unusable
from fedgc.round.machine import Round


@dataclass(slots=True)
class SiteSteps:
    """Steps that are asked for, and steps that are done, since the consortium's model.

    >>> steps = SiteSteps("5f", done=16)
    >>> steps.limit = 48
    >>> steps.left, steps.within(20), SiteSteps.read(steps.text()).done
    (32, 20, 16)
    """

    origin: str = ""  # the version and the digest of the model that the consortium gave
    done: int = 0  # local steps of the site's model since then
    limit: int = 0  # up to which it is to be trained
    ready: bool = False  # the site's fleet has gathered
    loss: float | None = None  # of the last round; None: its clients tell none

    @property
    def left(self) -> int:
        """The steps that are still to be done."""
        return max(0, self.limit - self.done)

    @property
    def rests(self) -> bool:
        """Whether the fleet has nothing to do until the consortium asks for more."""
        return self.ready and not self.left

    def within(self, steps: int) -> int:
        """Return the steps of the next round: so many, or what is left."""
        return min(steps, self.left)

    def count(self, over: Round, loss: float | None) -> None:
        """Count the steps of a round that has made a new model."""
        counted = over.result.counted.values() if over.result and over.plan.work == "local" else ()
        self.done += min(over.assignment.target, max(counted, default=over.assignment.target))
        self.loss = loss

    def text(self) -> str:
        """Return what a checkpoint keeps."""
        return json.dumps([self.origin, self.done])

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the steps that a checkpoint keeps; an empty text gives those of a new run."""
        if not text:
            return cls()
        try:
            origin, done = json.loads(text)
            return cls(str(origin), int(done))
        except (ValueError, TypeError, RecursionError) as error:
            raise Unusable(f"checkpoint: saw {text[:40]!r} of a site, needed a digest and steps") from error
