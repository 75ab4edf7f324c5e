"""The gate of a run: its state from round to round, and the costs that it considers."""

import json
from dataclasses import replace
from typing import Final

import numpy as np

from fedgc.codecs import codec_of
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, ExtensionFailed
from fedgc.fragments import largest_fragment
from fedgc.gates import Decision, Reports
from fedgc.guards import guarded
from fedgc.plugins import returned
from fedgc.round.limits import UNKNOWN_LINE
from fedgc.round.plan import Plan

CHECK_BYTES: Final = 300  # of a client's report and of the Continue command, as lines of a session


class RunGate:
    """Applies the gate of a run. `keep` commits its new state when the round is closed."""

    def __init__(self, config: RunConfig, size: int, buffers: int = 0) -> None:
        """The model's vector has `size` numbers, of which the last are `buffers`."""
        self.last_sync: tuple[int, float] | None = None  # bytes up and seconds of the last exchange
        self._config = config
        codec = codec_of(config.download_codec, buffers)
        self._down_bytes = codec.expected(largest_fragment(config.fragments, size))
        self._gate = config.new_gate()
        self._name = f"gate.name {config.chosen_gate}"
        with guarded(f"{self._name}: init", error=ExtensionFailed):
            self._state = self._next = self._gate.init()

    def decide(self, reports: Reports, plan: Plan | None, round_: int, step: int) -> Decision:
        """Decide whether a round is exchanged, at this local step of the run; the last round always is.

        A later decision about the same round takes the place of an earlier one.
        """
        if round_ == self._config.rounds:
            reports = replace(reports, forced="the last round")
        if self._config.is_private:  # a decision would tell what it is made from
            reports = replace(reports, items=())
        where = f"{self._name}, round {round_}"
        priced = self._priced(reports, plan, step)
        with guarded(where, error=ExtensionFailed):
            answer: object = self._gate.step(self._state, priced)
        match answer:
            case (state, Decision(sync=bool() | np.bool_(), reason=str(), left_out=tuple()) as decision):
                self._next, decision = state, replace(decision, sync=bool(decision.sync))
            case (_, Decision(sync, reason, left_out)):
                seen = f"a Decision of {returned((sync, reason, left_out))}"
                raise ExtensionFailed(f"{where}: step returned {seen}, needed one of (bool, str, tuple)")
            case _:
                raise ExtensionFailed(f"{where}: step returned {returned(answer)}, needed (state, Decision)")
        return Decision(sync=True, reason=reports.forced) if reports.forced else decision

    def keep(self) -> None:
        """Commit the state after the last decision."""
        self._state = self._next

    def write(self) -> str:
        """Return the state and the name of its gate as JSON; raise ExtensionFailed if it cannot hold them."""
        try:
            return json.dumps([self._config.chosen_gate, self._state])
        except (TypeError, ValueError, RecursionError) as error:
            seen = f"a state that JSON cannot hold, {returned(self._state)} ({error})"
            needed = "needed numbers, texts, lists and tuples of them"
            raise ExtensionFailed(f"{self._name}: saw {seen}, {needed}") from error

    def read(self, text: str) -> None:
        """Restore a state from JSON; raise BadSetting if it is none.

        Another gate begins anew, and so does one whose state has no name, as version 0.2.0 wrote it.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadSetting(
                f"resume: saw a gate state of {len(text)} characters, needed JSON ({error})"
            ) from error
        match found:
            case [self._config.chosen_gate, state]:
                self._state = self._next = state

    def _priced(self, reports: Reports, plan: Plan | None, step: int) -> Reports:
        """Add the costs of an exchange and of a gate check, and the learning rate."""
        clients = len(plan.clients) if plan else 0
        up_bytes, seconds = self.last_sync or self._unseen_sync(plan)
        return replace(
            reports,
            sync_bytes=up_bytes + clients * self._down_bytes,
            sync_seconds=seconds,
            check_bytes=clients * CHECK_BYTES,
            learning_rate=self._config.learning_rate * self._config.rate_share(step - 1),
        )

    def _unseen_sync(self, plan: Plan | None) -> tuple[int, float]:
        """Estimate the cost of an exchange before the first one."""
        if not plan:
            return 0, 0.0
        clients = len(plan.clients)
        one_bytes = plan.update_bytes
        waves = self._config.upload_turns(clients, one_bytes)
        known_s = max(plan.upload_s)
        return clients * one_bytes, waves * (known_s or one_bytes / UNKNOWN_LINE)
