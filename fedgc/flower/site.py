"""The server of a site, as its gateway's consortium sees it: a training loop that the gateway drives.

A site is a fleet with a server of its own. Its gateway is one client of a consortium: it takes part with the
engine of local work (`fedgc.training.local_engine`), like any client with a training script, and this server
stands at the other end of the script's local socket (`fedgc.training.loop`). So what is above the engine is
the same for a site as for one machine: masks, codecs, partial work, departures.

    the consortium asks for        the site's run gets
    training from its model        `NewModel`: the model, and where it comes from
    steps up to a target           `StepsGranted`: it begins rounds until they are done
    what there is                  `UpdateDue`: the present round collects; then the site hands in its model
    the end                        `Stop`

The site's model counts for a consortium's model by that model's version and digest, which checkpoints keep. A
site whose server starts again goes on from there.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from fedgc.errors import EdgeFailed, FedgcError
from fedgc.messages import Layout, Scored, StepsGranted, Stop, UpdateDue
from fedgc.run.site_steps import SiteSteps
from fedgc.training import Vector
from fedgc.training.cache_files import digest_of
from fedgc.training.figures import UNNAMED
from fedgc.training.loop.environment import VARIABLE, ScriptEnvironment
from fedgc.training.loop.leader import Action, Do, Leader

OVER: Final = "the run of the consortium is over"
NO_SCORES: Final = "a site scores no models"
GONE: Final = "the gateway of this site has ended"


@dataclass(frozen=True, slots=True, eq=False)
class SiteState:
    """Where the site's run is."""

    steps: SiteSteps
    model: Vector
    now: float
    samples: int  # of the present clients
    works: bool  # a round is under way


@dataclass(frozen=True, slots=True, eq=False)
class NewModel:
    """The site trains from this model from now on."""

    model: Vector
    granted: StepsGranted


Asked = StepsGranted | UpdateDue | NewModel | Stop


class GatewayLine:
    """The line to the gateway of this site."""

    def __init__(self, leader: Leader) -> None:
        self._leader = leader
        self._is_announced = False
        self._owed: Action | None = None  # to be done once no round is under way
        self._first_step = 0
        self._since = 0.0  # when the steps began that are counted next

    def turn(self, site: SiteState, layout: Layout) -> Iterator[Asked]:
        """Yield what the consortium asks for now; nothing if the run goes on as it does."""
        try:
            if self._is_announced:
                yield from self._proceed(site)
            elif site.steps.ready:
                self._announce(site, layout)
        except FedgcError as error:
            yield Stop(site.now, f"{GONE}: {error}")

    def _announce(self, site: SiteState, layout: Layout) -> None:
        """Take part in the consortium, once the fleet has gathered."""
        self._leader.announce(layout, site.samples, validates=False, trained=bool(site.steps.origin))
        self._leader.trained[:] = site.model
        self._leader.ready()
        self._is_announced = True

    def _proceed(self, site: SiteState) -> Iterator[Asked]:
        """Tell the gateway what is done, and do what it asks for."""
        if self._owed is None or self._owed.do != Do.LOAD:
            self._count(site)
        if self._owed is None:
            action = self._leader.next(0.0)
            if action.do in (Do.LOAD, Do.HAND_IN):
                self._owed = action
                yield UpdateDue(site.now)
            else:
                yield from self._do(action, site)
        if self._owed is not None and not site.works:
            action, self._owed = self._owed, None
            yield from self._do(action, site)

    def _count(self, site: SiteState) -> None:
        """Count the steps of the rounds that are over."""
        if site.steps.done > self._leader.steps:
            if site.steps.loss is not None:
                self._leader.log_loss(site.steps.loss)
            self._leader.count_steps(site.steps.done, site.now - self._since)
            self._since = site.now

    def _do(self, action: Action, site: SiteState) -> Iterator[Asked]:
        match action.do:
            case Do.LOAD:
                yield from self._load(action, site)
            case Do.STEP if site.steps.limit != (goal := self._leader.goal):
                self._since = site.now if site.steps.rests else self._since
                yield StepsGranted(site.now, site.steps.origin, self._first_step, goal)
            case Do.READ | Do.HAND_IN:
                self._leader.trained[:] = site.model
                self._leader.handed_in(action.do)
            case Do.VALIDATE:
                self._leader.scored(Scored(0.0, UNNAMED, action.version, 1, (), NO_SCORES))
            case Do.END:
                yield Stop(site.now, OVER, complete=True)

    def _load(self, action: Action, site: SiteState) -> Iterator[Asked]:
        """Train from the model that the gateway gives, unless the site's model has come from it already."""
        steps, told = site.steps, self._leader.steps
        model = self._leader.common.copy()
        origin = f"{action.version} {digest_of(model)}"  # the next version can have the same numbers
        self._first_step = action.first_step
        if origin == steps.origin and told <= steps.done:  # a gateway that is started again has not seen more
            self._since = site.now
            return
        if not np.array_equal(model, site.model):
            steps.origin = ""  # also the same model again is a new version for the fleet
            yield NewModel(model, StepsGranted(site.now, origin, action.first_step + told, 0))
        steps.origin, steps.done, steps.limit = origin, told, 0


@contextmanager
def gateway_line(path: str) -> Iterator[GatewayLine | None]:
    """Yield the line to the gateway that has written this file, None without a file.

    Raises:
        EdgeFailed: The file cannot be read, or the gateway is not there.
    """
    if not path:
        yield None
        return
    try:
        environment = ScriptEnvironment.read({VARIABLE: Path(path).read_text()})
    except OSError as error:
        raise EdgeFailed(f"site.gateway {path}: cannot be read ({error.strerror})") from error
    if environment is None:
        raise EdgeFailed(f"site.gateway {path}: saw an empty file, needed what `fedgc gateway` writes")
    leader = Leader(environment)
    with closing(leader):
        yield GatewayLine(leader)
