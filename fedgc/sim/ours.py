"""fedgc as a policy: the same `Run` that serves real clients, under the virtual clock.

With short numbers a round sends bf16 or int8 if the amplification of its code keeps the error of the sum at
or below that of a plain sum in 8 bits (amplification 1), which a work queue with 8 bits has too.

With a planner, as a server has one, the run chooses its replicas and blocks. Otherwise they are fixed.
Modelled clients load chunks in no time, and report so: the planner counts no time for moving them.

The run learns the speeds, replans, and sends commands; only the clients are modelled. `Obeys` makes them
ignore some commands, to measure each command's value: none (static, as over the message link), skip, or skip
and take (steer).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, ClassVar, Final

from fedgc.codecs import EPSILON, Wire
from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadPlacement, numbered
from fedgc.history import RoundRow, Speeds
from fedgc.messages import SUMMED, Fetched, Held
from fedgc.run.machine import Append, Run, RunParts
from fedgc.run.planner import Planner
from fedgc.sim.clock import (
    NEVER,
    UNCONTENDED,
    ClientModel,
    Line,
    Scenario,
    Span,
    Terms,
    VirtualClock,
)
from fedgc.sim.policy import Result

LATE_S: Final = 0.5  # no process pauses under a virtual clock
PATIENT_S: Final = 1e9  # no timeout, since the duration is measured
SHORT_ERROR: Final = 1.001 * EPSILON[Wire.INT8]  # tolerance for the rounding of amplification 1
CHOSEN: Final = 0  # blocks: chosen by each round
SHARED: Final = "shared"  # digest of chunks that every modelled client can load
LOADED_S: Final = 1e-9  # of loading a chunk
NUMBERS: Final = 1_000_000  # of the model; only its upload time matters, which the conditions give


class Obeys(Enum):
    """The commands during work that clients follow."""

    NOTHING = "static"
    SKIP = "skip"
    ALL = "steer"


@dataclass(frozen=True, slots=True)
class Fedgc:
    """fedgc with `pieces` chunks per client and `replicas` replicas; blocks CHOSEN lets each round choose.

    `planner` makes the planner of a run, which then chooses the replicas, and the blocks if they are CHOSEN.
    A client that dies is lost after `grace_s`: at once beside baselines, which notice failures at once too.
    """

    replicas: int
    pieces: int
    blocks: int = 1
    obeys: Obeys = Obeys.ALL
    short: bool = False
    planner: Callable[[RunConfig], Planner] | None = None
    grace_s: float = 0.0
    exact: ClassVar[bool] = True  # up to the rounding of its wire

    @property
    def name(self) -> str:
        """Return the name in tables."""
        chunks = f"{numbered(self.pieces, 'chunk')} each"
        if self.planner:
            return f"fedgc planned, {chunks}"
        how = "uncoded" if self.replicas == 1 else f"{self.obeys.value}, {self.replicas} replicas"
        cut = {CHOSEN: ", blocks chosen", 1: ""}.get(self.blocks, f", blocks {self.blocks}")
        return f"fedgc {how}, {chunks}{cut}" + (", short numbers" if self.short else "")

    def play(self, scenario: Scenario, line: Line) -> tuple[Result, ...]:
        """Run all rounds."""
        return tuple(result for result, _ in self.watched(scenario, line, watch=False))

    def watched(
        self,
        scenario: Scenario,
        line: Line,
        *,
        watch: bool = True,
        heard: Callable[[RoundRow], object] = lambda _: None,
    ) -> tuple[tuple[Result, tuple[Span, ...]], ...]:
        """Run all rounds and return the spans of each; `heard` is called with each row."""
        clients = scenario[0].clients
        if self.replicas > clients:
            raise BadPlacement(f"{self.replicas} replicas on {clients} clients: at most as many are possible")
        planner = self.planner(self.config(clients, len(scenario), line)) if self.planner else None
        rounds, speeds = [], Speeds()
        for part in _parts(scenario):
            simulation = Simulation(self, part, line, watch, planner, speeds)
            simulation.run(heard)
            rounds += simulation.rounds
            speeds = simulation.speeds
        return tuple(rounds)

    def config(self, clients: int, rounds: int, line: Line = UNCONTENDED) -> RunConfig:
        """Return the configuration of a run of so many clients and rounds on this line."""
        return RunConfig(
            work="coded",
            rounds=rounds,
            local_steps=1,
            chunks=clients * self.pieces,
            replicas=AUTO if self.planner else self.replicas,
            blocks=AUTO if self.blocks == CHOSEN else self.blocks,
            wire="short" if self.short else "float32",
            error_limit=SHORT_ERROR if self.short else RunConfig().error_limit,
            min_clients=clients,
            upload_slots=line.slots or clients,  # what the planner is told of the line
            deadline_s=PATIENT_S,
            upload_deadline_s=PATIENT_S,
            late_s=LATE_S,
        )


class Simulation:
    """One run of fedgc over all rounds of a scenario."""

    def __init__(
        self,
        policy: Fedgc,
        scenario: Scenario,
        line: Line,
        watch: bool,
        planner: Planner | None = None,
        speeds: Speeds | None = None,
    ) -> None:
        """`speeds` are known from earlier rounds, as a server has them from its store."""
        clients, chunks = scenario[0].clients, scenario[0].clients * policy.pieces
        self._policy = policy
        self._clients = clients
        self.rounds: list[tuple[Result, tuple[Span, ...]]] = []
        self._before = (0.0, 0)
        held = tuple(Held(f"chunk {number}", 1, SHARED) for number in range(chunks))
        client_model = ClientModel(lambda number: scenario[number - 1], [1.0 / policy.pieces] * chunks)
        config = policy.config(clients, len(scenario), line)
        steered = policy.obeys is Obeys.ALL
        terms = Terms(1, 4 * NUMBERS, line, policy.grace_s, steered=steered, watch=watch)
        self._names = [f"client {w}" for w in range(clients)]
        self._clock = VirtualClock(self._names, client_model, terms, held)
        known = speeds if planner else None  # fixed settings share out the work without
        self._run = Run(config, now=0.0, size=NUMBERS, parts=RunParts(planner), speeds=known)

    @property
    def speeds(self) -> Speeds:
        """What the run has learned of its clients."""
        return self._run.speeds.speeds()

    def run(self, heard: Callable[[RoundRow], object]) -> None:
        """Let all clients join, and run to the end."""

        def heed(output: object) -> None:
            if isinstance(output, Append):
                self._settle(output.row)
                heard(output.row)

        live = self._policy.obeys is not Obeys.NOTHING
        given: list[Any] = []
        for w in range(self._clients):
            given += self._run.handle(self._clock.joined(w, 0.0, live=live))
            given += self._run.handle(Fetched(0.0, self._names[w], 1, 1, LOADED_S))
        self._clock.run(self._run, given, lambda: self._run.finished, heed)

    def _settle(self, row: RoundRow) -> None:
        clock, pieces = self._clock, self._policy.pieces
        sent, computed = clock.uploads.sent - self._before[0], clock.computed - self._before[1]
        self._before = (clock.uploads.sent, clock.computed)
        size, clock.uploads.longest = clock.uploads.longest, 0.0
        seconds = row.working_s + row.collecting_s
        missing = len(row.short) / row.chunks if row.outcome in SUMMED else 1.0
        counted = sum(client.counted for client in row.clients) / pieces
        result = Result(seconds, row.working_s, sent, computed / pieces, counted, missing, size)
        self.rounds.append((result, shifted(clock.watched.spans(), row.started)))


def _parts(scenario: Scenario) -> tuple[Scenario, ...]:
    """Split a scenario with failures into single rounds, so that all clients return for each."""
    if any((conditions.dies_s_w < NEVER).any() for conditions in scenario):
        return tuple((conditions,) for conditions in scenario)
    return (scenario,)


def shifted(spans: Sequence[Span], begin_s: float) -> tuple[Span, ...]:
    """Return the spans with times relative to the beginning of their round."""
    return tuple(replace(span, begin_s=span.begin_s - begin_s, end_s=span.end_s - begin_s) for span in spans)
