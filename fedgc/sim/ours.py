"""fedgc itself: the very `Run` that serves real devices, under the virtual clock.

With short numbers a round sends bf16 or int8 where the amplification of its code leaves the sum no more
wrong than 8 bits make a plain sum (amplification 1): what a work queue that sends 8 bits is allowed.

The run learns the speeds, plans anew where they changed, and chooses commands; only what devices do is
modelled. `Obeys` makes them deaf to some of its commands, so that what each is worth can be measured:
nothing (static, as over the messages link), skip, or skip and take (steer).

May import: run and below, policy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final

from fedgc.codes import EPSILON, Wire
from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadPlacement
from fedgc.history import RoundRow
from fedgc.messages import Held
from fedgc.replay import NEVER, Line, Span, Terms, Under, Weather, World
from fedgc.run import Append, Run
from fedgc.sim.policy import Result

LATE_S: Final = 0.5  # no process pauses under a virtual clock
PATIENT_S: Final = 1e9  # what is measured is how long a round takes, so nothing cuts it off
SHORT_ERROR: Final = 1.001 * EPSILON[Wire.INT8]  # amplification 1 is reckoned with rounding of its own
CHOSEN: Final = 0  # blocks: by each round
SHARED: Final = "shared"  # digest of chunks that every modelled device can load
NUMBERS: Final = 1_000_000  # of the model: what matters is its upload time, which the conditions say


class Obeys(Enum):
    """Which of the commands during work are followed."""

    NOTHING = "static"
    SKIP = "skip"
    ALL = "steer"


@dataclass(frozen=True, slots=True)
class Fedgc:
    """`pieces` chunks for each device, each with `replicas` devices; blocks CHOSEN lets each round choose."""

    replicas: int
    pieces: int
    blocks: int = 1
    obeys: Obeys = Obeys.ALL
    short: bool = False
    exact: ClassVar[bool] = True  # up to the rounding of its wire

    @property
    def name(self) -> str:
        """Return its name in tables."""
        how = "uncoded" if self.replicas == 1 else f"{self.obeys.value}, {self.replicas} replicas"
        cut = {CHOSEN: ", blocks chosen", 1: ""}.get(self.blocks, f", blocks {self.blocks}")
        return f"fedgc {how}, {self.pieces} chunks each{cut}" + (", short numbers" if self.short else "")

    def play(self, weather: Weather, line: Line) -> tuple[Result, ...]:
        """Run all rounds."""
        return tuple(result for result, _ in self.watched(weather, line, watch=False))

    def watched(
        self,
        weather: Weather,
        line: Line,
        *,
        watch: bool = True,
        heard: Callable[[RoundRow], object] = lambda _: None,
    ) -> tuple[tuple[Result, tuple[Span, ...]], ...]:
        """Run all rounds, and return the spans of each; `heard` is told each row when it is made."""
        devices = weather[0].devices
        if self.replicas > devices:
            raise BadPlacement(f"{self.replicas} replicas on {devices} devices: at most as many are possible")
        rounds = []
        for part in _parts(weather):
            simulation = Simulation(self, part, line, watch)
            simulation.run(heard)
            rounds += simulation.rounds
        return tuple(rounds)


class Simulation:
    """One run of fedgc over all rounds of a weather."""

    def __init__(self, policy: Fedgc, weather: Weather, line: Line, watch: bool) -> None:
        devices, chunks = weather[0].devices, weather[0].devices * policy.pieces
        self._policy = policy
        self._devices = devices
        self.rounds: list[tuple[Result, tuple[Span, ...]]] = []
        self._before = (0.0, 0)
        held = tuple(Held(f"chunk {number}", 1, SHARED) for number in range(chunks))
        nature = Under(lambda number: weather[number - 1], [1.0 / policy.pieces] * chunks)
        terms = Terms(1, 4 * NUMBERS, line, steered=policy.obeys is Obeys.ALL, watch=watch)
        self._names = [f"device {worker}" for worker in range(devices)]
        self._world = World(self._names, nature, terms, held)
        config = RunConfig(
            rounds=len(weather),
            local_steps=1,
            chunks=chunks,
            replicas=policy.replicas,
            blocks=AUTO if policy.blocks == CHOSEN else policy.blocks,
            wire="short" if policy.short else "float32",
            error_limit=SHORT_ERROR if policy.short else RunConfig().error_limit,
            min_devices=devices,
            deadline_s=PATIENT_S,
            upload_deadline_s=PATIENT_S,
            late_s=LATE_S,
        )
        self._run = Run(config, now=0.0, size=NUMBERS)

    def run(self, heard: Callable[[RoundRow], object]) -> None:
        """Let everybody join, and go on to the end."""

        def heed(output: object) -> None:
            if isinstance(output, Append):
                self._settle(output.row)
                heard(output.row)

        live = self._policy.obeys is not Obeys.NOTHING
        given: list[Any] = []
        for worker in range(self._devices):
            given += self._run.handle(self._world.joined(worker, 0.0, live=live))
        self._world.run(self._run, given, lambda: self._run.finished, heed)

    def _settle(self, row: RoundRow) -> None:
        world, pieces = self._world, self._policy.pieces
        sent, computed = world.sent - self._before[0], world.computed - self._before[1]
        self._before = (world.sent, world.computed)
        size, world.longest = world.longest, 0.0
        seconds = row.working_s + row.collecting_s
        missing = len(row.short) / row.chunks
        counted = sum(device.counted for device in row.devices) / pieces
        result = Result(seconds, row.working_s, sent, computed / pieces, counted, missing, size)
        self.rounds.append((result, shifted(world.spans(), row.started)))


def _parts(weather: Weather) -> tuple[Weather, ...]:
    """Where devices die, every round is a run of its own, so that all are back: as for the other policies."""
    if any((conditions.dies_s_w < NEVER).any() for conditions in weather):
        return tuple((conditions,) for conditions in weather)
    return (weather,)


def shifted(spans: Sequence[Span], begin_s: float) -> tuple[Span, ...]:
    """Return the spans with their times from the beginning of their round."""
    return tuple(replace(span, begin_s=span.begin_s - begin_s, end_s=span.end_s - begin_s) for span in spans)
