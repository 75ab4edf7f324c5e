"""The plans of a run: one holds until other clients are there, or their speeds have changed."""

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from fedgc.config import AUTO, RunConfig
from fedgc.history import PastRound, RoundRow
from fedgc.messages import SUMMED
from fedgc.round.limits import model_limit_s, upload_deadline_s, upload_s
from fedgc.round.machine import Assignment, Round
from fedgc.round.plan import Fleet, Plan, make_plan, seconds_of_round
from fedgc.round.replication import ReplicationTarget
from fedgc.round.scheduler import WorkSummary
from fedgc.run.choice import Choice
from fedgc.run.longer_limits import LongerLimits
from fedgc.run.outputs import Chose, basis_of, kind_of
from fedgc.run.planner import Planner, PlanRequest
from fedgc.run.speeds import MeasuredSpeeds, is_other, learn_replication

THIS_RUN: Final = "this run"  # if the run has no name


class Plans:
    """Makes the plan of each round, by a planner if the settings leave the code open, and learns from rounds.

    `choice` draws the clients of a round, if a sample of them trains.
    """

    def __init__(
        self, config: RunConfig, speeds: MeasuredSpeeds, planner: Planner | None, *, masked: bool
    ) -> None:
        """The run enters into `speeds` what it hears; rounds are entered here."""
        self.present: Plan | None = None
        self.choice: Final = Choice(config.clients_per_round, config.seed)
        self.limits: Final = LongerLimits(config)
        self._config: Final = config
        self._speeds: Final = speeds
        self._planner: Final = planner
        self._is_open: Final = config.replicas == AUTO and config.work == "coded" and not masked
        self._replication: Final = ReplicationTarget()
        self._planned_for: Fleet | None = None

    def next(self, fleet: Fleet, number: int, carried: Collection[str]) -> Plan:
        """Return the plan that holds from this round on: the present one if it still fits.

        `carried` are the clients that continue from a skipped round: moved chunks would start again.

        Raises:
            BadPlacement: These clients cannot work together.
        """
        plan = self.present
        anew = plan is None or self._others_are_there(plan, fleet)
        if plan is None or anew or not carried:
            self.present = plan = self._planned(fleet, number, carried, anew=anew)
        self._planned_for = fleet
        return plan

    def _others_are_there(self, plan: Plan, fleet: Fleet) -> bool:
        if fleet is self._planned_for:
            return False
        return plan.held != {client: fleet.holds[client] for client in fleet.able}

    def _planned(self, fleet: Fleet, number: int, carried: Collection[str], *, anew: bool) -> Plan:
        plan = self.present
        if self._planner and self._is_open:
            left = max(1, self._config.rounds - number + 1)
            return self._planner.plan(PlanRequest(number, left, fleet, self._speeds.speeds(), plan, anew))
        # Rounds of a sample have plans of their own, by the newest speeds
        stays = carried or self._config.clients_per_round
        if plan is None or anew or (not stays and self._differ(plan, fleet)):
            return make_plan(fleet, self._speeds.speeds(), self._config, steps=self._config.round_steps)
        return plan

    def _differ(self, plan: Plan, fleet: Fleet) -> bool:
        """Whether clients are so much faster or slower than planned that a new plan is worth it."""
        round_s = seconds_of_round(plan.clients, fleet, self._speeds.speeds(), self._config)
        return self._speeds.differ(plan) or is_other(round_s, plan.round_s)

    def chose(self, number: int, plan: Plan, fleet: Fleet) -> Chose:
        """Return what a plan was made from, and why."""
        return Chose(number, basis_of(plan, self._planner, fleet.size), plan.reason)

    def of_round(self, number: int, plan: Plan, fleet: Fleet, carried: Collection[str]) -> Plan:
        """Return the plan for the clients that are asked in this round, with the limits that hold now."""
        asked = self.choice.among(plan.clients, number, carried)
        if asked is not None:
            plan = make_plan(fleet, self._speeds.speeds(), self._config, steps=plan.steps, asked=asked)
        upload_s = upload_deadline_s(self._config, plan.clients, self._speeds.speeds(), plan.update_bytes)
        return self.limits.applied(plan, max(upload_s, plan.upload_deadline_s))

    def measured(self, assignment: Assignment, plan: Plan, size: int) -> Assignment:
        """Return the parameters of a round with what the measurements say of its costs."""
        coded, speeds = self._config.work == "coded", self._speeds
        return replace(
            assignment,
            weights=self._planner.weights(plan) if self._planner and coded else (),
            replication_costs=self._replication.replication_costs(kind_of(plan), assignment.target),
            upload_s=upload_s(map(speeds.up_bytes_s, plan.clients), plan.update_bytes),
            model_limit_s=self.limits.model_s(model_limit_s(map(speeds.down_bytes_s, plan.clients), size)),
        )

    def learn(self, over: Round, summary: WorkSummary, row: RoundRow) -> None:
        """Learn from a closed round."""
        self._speeds.learn(over)
        if over.outcome not in SUMMED:
            return
        if not over.assignment.carried:
            learn_replication(self._replication, over, summary)
        if self._planner and over.assignment.target == over.plan.steps:  # others took longer
            self._planner.learn(PastRound(self._config.resume or self._config.run or THIS_RUN, row))
