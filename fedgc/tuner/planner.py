"""The tuner as the planner of a run: chooses from the speed history and reviews the choice."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from fedgc.config import RunConfig
from fedgc.history import WINDOW, PastRound, RoundRow
from fedgc.round.plan import Plan, make_plan
from fedgc.run.planner import PlanRequest
from fedgc.sim.clock import FLOAT_BYTES, Line
from fedgc.tuner.choose import Choice, choose
from fedgc.tuner.counted import chunk_weights
from fedgc.tuner.history import recall
from fedgc.tuner.moving import Move, load_s_of, move_to
from fedgc.tuner.review import review
from fedgc.tuner.trial import Question


class Tuner:
    """The planner of one run; `history` are the last rounds of its task in any run, oldest first.

    >>> Tuner(RunConfig()).basis
    {}
    """

    def __init__(self, config: RunConfig, history: Iterable[PastRound] = ()) -> None:
        self._config = config
        self._history: deque[PastRound] = deque(history, maxlen=WINDOW)
        self._rows: deque[RoundRow] = deque(maxlen=WINDOW)  # this run only: chunk numbers differ by run
        self._choice: Choice | None = None
        self._move: Move | None = None  # to the last choice, from the one before
        self._since: deque[float] = deque(maxlen=WINDOW)  # seconds of the last rounds since the choice

    def plan(self, request: PlanRequest) -> Plan:
        """Return the plan for this round: the present plan object if the choice still holds."""
        config, fleet, speeds = self._config, request.fleet, request.speeds
        load_s = load_s_of(fleet.able, speeds)
        line, steps = Line(slots=config.slots_for(FLOAT_BYTES * fleet.size)), config.round_steps
        question = Question(fleet, config, steps, line, load_s, request.rounds_left)
        history = recall(self._history, question.clients)
        rng = np.random.default_rng([config.seed, request.round])
        if request.anew or self._choice is None:
            choice = choose(question, history, speeds, rng, self._choice)
        else:
            choice = review(self._choice, question, history, speeds, measured_s=tuple(self._since), rng=rng)
        if request.present and choice is self._choice and not request.anew:
            return request.present
        self._choice = choice
        self._since.clear()
        plan = make_plan(fleet, choice.speeds, choice.settled(config), steps=steps)
        self._move = move_to(plan, request.present, speeds) if request.present else None
        moves = f"; {self._move.words}" if self._move and self._move.chunks else ""
        return replace(plan, reason=f"{plan.reason}; {choice.reason}{moves}")

    def weights(self, plan: Plan) -> tuple[float, ...]:
        """Return the weight of each chunk of a plan in a round that is cut short."""
        return chunk_weights(self._rows, plan)

    def learn(self, past: PastRound) -> None:
        """Record an exchanged round of this run, with the replays that predicted it."""
        self._rows.append(past.row)
        self._history.append(replace(past, replay_s=self._choice.replay_s if self._choice else None))
        self._since.append(past.row.working_s + past.row.collecting_s)

    @property
    def basis(self) -> Mapping[str, object]:
        """Return the inputs and the prediction of the last choice as plain values."""
        choice = self._choice
        if choice is None:
            return {}
        move = self._move
        moved = {"chunks": move.chunks, "bytes": move.size_bytes, "seconds": move.seconds} if move else {}
        return {
            "moved": moved,
            "predicted_s": choice.predicted_s,
            "band_s": (choice.band.low_s, choice.band.high_s),
            "replay_s": choice.replay_s,
            "rows": [row.words for row in choice.rows],
        }
