"""The tuner as the planner of a run: it chooses from the speed history and reviews that choice."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from fedgc.config import RunConfig
from fedgc.history import WINDOW, PastRound, RoundRow
from fedgc.round.plan import Plan, make_plan
from fedgc.run.planner import PlanRequest
from fedgc.sim.clock import Line
from fedgc.tuner.choose import Choice, choose
from fedgc.tuner.counted import chunk_weights
from fedgc.tuner.past import recall
from fedgc.tuner.review import review
from fedgc.tuner.trial import Question

LOAD_STEPS: Final = 1.0  # local steps that loading a chunk takes as long as; nobody measures it


class Tuner:
    """The planner of one run; `told` are the last rounds of its task, of whatever run, oldest first.

    >>> Tuner(RunConfig()).basis
    {}
    """

    def __init__(self, config: RunConfig, told: Iterable[PastRound] = ()) -> None:
        self._config = config
        self._told: deque[PastRound] = deque(told, maxlen=WINDOW)
        self._rows: deque[RoundRow] = deque(maxlen=WINDOW)  # of this run alone, whose chunks they number
        self._choice: Choice | None = None
        self._since: list[float] = []  # seconds of the rounds since it was made

    def plan(self, request: PlanRequest) -> Plan:
        """Return the plan for this round: the present one itself where the choice still holds."""
        config, fleet, speeds = self._config, request.fleet, request.speeds
        load_s = LOAD_STEPS * max((speed.step_s for speed in speeds.known.values()), default=0.0)
        line, steps = Line(slots=config.upload_slots), config.round_steps
        question = Question(fleet, config, steps, line, load_s, request.rounds_left)
        past = recall(self._told, question.clients)
        rng = np.random.default_rng([config.seed, request.round])
        if request.anew or self._choice is None:
            choice = choose(question, past, speeds, rng, self._choice)
        else:
            choice = review(self._choice, question, past, speeds, measured_s=self._since, rng=rng)
        if request.present and choice is self._choice and not request.anew:
            return request.present
        self._choice, self._since = choice, []
        plan = make_plan(fleet, choice.speeds, choice.settled(config), steps=steps)
        return replace(plan, reason=f"{plan.reason}; {choice.reason}")

    def weights(self, plan: Plan) -> tuple[float, ...]:
        """Return the weight of each chunk of a plan in a round that is cut short."""
        return chunk_weights(self._rows, plan)

    def learn(self, past: PastRound) -> None:
        """Take in an exchanged round of this run."""
        self._rows.append(past.row)
        self._told.append(past)
        self._since.append(past.row.working_s + past.row.collecting_s)

    @property
    def basis(self) -> Mapping[str, object]:
        """What the last choice was made from and predicts, as plain values."""
        choice = self._choice
        if choice is None:
            return {}
        rows = {"rows": [row.words for row in choice.rows]}
        return {"predicted_s": choice.predicted_s, "band_s": (choice.low_s, choice.high_s), **rows}
