"""The reports of local steps: how far each client is from the common model."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from fedgc.messages import Command, Continue, Joined, Progress, Report, Work
from fedgc.round.roster import Roster


@dataclass(slots=True)
class LocalState:
    """The state of a live client."""

    steps: int  # reported since the last common model
    before: int = 0  # of these, done before this round
    earlier: int = 0  # done in this round before it began anew
    since: float = 0.0  # when it was given work
    report: Report | None = None
    able: bool = True
    leaves: bool = False  # it trains no more


class StepReports:
    """Owns the state of every live client."""

    def __init__(self, roster: Roster) -> None:
        self.roster: Final = roster
        self.clients: Final[dict[int, LocalState]] = {}
        self.collecting = False
        self.staying: set[int] = set()  # those that train: the others are leaving
        self.arrived: set[int] = set()  # those that have reached the target
        orders, chunks = roster.plan.placement.orders, roster.plan.chunks
        self.held: Final = [[chunks[c] for c in sorted(order)] for order in orders]
        self.samples: Final = [sum(chunk.samples for chunk in held) for held in self.held]
        self.pinned: Final = {
            roster.w[each]: n for each, n in roster.assignment.pinned.items() if each in roster.w
        }
        # A client trains to the target, or ahead of it as far as its work says, and no further
        self.most_steps: Final = max(roster.assignment.target, roster.assignment.most_steps)
        # It may have done more in rounds that the gate skipped, which a resumed run does not know
        self.most_kept: Final = max(self.most_steps, roster.assignment.most_kept)

    def enter(self, w: int, event: Joined, steps: int, since: float, *, owes: bool = False) -> LocalState:
        """Enter a client with the steps that it has kept; one that `owes` its update can send it."""
        statistics = self.roster.statistics
        statistics.moved(w, steps)
        state = self.clients[w] = LocalState(steps, steps, statistics.steps[w], since)
        state.able = owes or self._loads(w, event)
        if self.held[w] and not state.able:
            saw = sum(each.samples for each in event.holds)
            statistics.failure[w] = f"returned with other data: saw {saw} samples, needed {self.samples[w]}"
        self._note(w)
        return state

    def remove(self, w: int) -> None:
        """Forget a lost client."""
        self.clients.pop(w, None)
        self._note(w)

    def leaves(self, w: int) -> None:
        """Expect no more steps of a client."""
        self.clients[w].leaves = True
        self._note(w)

    def failed(self, w: int, steps: int) -> None:
        """Count nothing of a client, which discards its steps: at least as many as it has reported."""
        state, statistics = self.clients[w], self.roster.statistics
        done = max(state.steps, min(steps, self.most_steps))
        statistics.steps[w] += done - state.steps
        statistics.moved(w, done)
        state.steps = 0
        self.give_up(w)

    def settle(self, behind: Collection[int], *, final: bool) -> None:
        """Book the steps that no later sum can count; `final`: none of them, as there is another model."""
        statistics, this = self.roster.statistics, self.roster.assignment
        for w, client in enumerate(self.roster.plan.clients):
            state = self.clients.get(w)
            if statistics.counted[w]:
                statistics.open[w] = 0
            elif w in behind or w in self.roster.behind:
                statistics.open[w] = this.open.get(client, 0)
            else:
                statistics.moved(w, 0 if final or state is None else state.steps)

    def give_up(self, w: int) -> None:
        """Expect nothing more of a client."""
        self.clients[w].able = False
        self._note(w)

    def _note(self, w: int) -> None:
        """Sort a client whose state has changed; every report asks for the totals."""
        state = self.clients.get(w)
        stays = state is not None and state.able and not state.leaves
        (self.staying.add if stays else self.staying.discard)(w)
        arrived = state is not None and stays and state.steps >= self.roster.assignment.target
        (self.arrived.add if arrived else self.arrived.discard)(w)

    def weight(self, w: int) -> int:
        """Return the samples that a client counts for."""
        return self.pinned.get(w, self.samples[w])

    def able(self) -> list[int]:
        """Return the live clients that can train."""
        return [w for w in sorted(self.clients) if self.clients[w].able]

    def loaded(self, w: int, now: float) -> None:
        """Note that a client of an earlier round has its model."""
        client = self.roster.plan.clients[w]
        if client in self.roster.loading:
            self.roster.loading.discard(client)
            self.roster.model_at[w] = now

    def hands_in(self, w: int, now: float) -> bool:
        """Whether a client has trained for as long as its model and its update travel, or to the target."""
        state, roster = self.clients[w], self.roster
        if roster.plan.clients[w] in roster.loading and not state.steps:
            return False
        loaded_at = roster.model_at.get(w, state.since)
        travels_s = loaded_at - state.since + roster.upload_s[w]
        is_done = state.leaves or state.steps >= roster.assignment.target
        return is_done or now - loaded_at >= travels_s

    def heard(self, event: Progress | Report) -> list[Command]:
        """Enter the steps that a client reports, or refuse the report."""
        if isinstance(event, Progress):
            return self.roster.refuse(event, "progress of a chunk, this is local work")
        if self._has_failed(event):
            return []
        why_not = self._why_not(event)
        if why_not:
            return self.roster.refuse(event, why_not)
        self._book(self.roster.w[event.client], event)
        return []

    def kept(self, w: int, event: Joined) -> int:
        """Return the steps that a client still holds; steps on other chunks than its own do not count."""
        version = self.roster.assignment.version
        reached = {each.chunk: each.reached for each in event.kept if each.version == version}
        steps = min(reached.values(), default=0) if reached.keys() == set(self.numbers(w)) else 0
        return steps if steps <= self.most_kept else 0

    def numbers(self, w: int) -> tuple[int, ...]:
        """Return the numbers of the chunks that a client trains on."""
        return tuple(chunk.number for chunk in self.held[w])

    def lacking(self, clients_w: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of the chunks that none of these clients trains on."""
        there = {chunk.number for w in clients_w for chunk in self.held[w]}
        return tuple(chunk.number for chunk in self.roster.plan.chunks if chunk.number not in there)

    def work(self, w: int, *, live: bool, order: tuple[int, ...]) -> Work:
        """Return the command for a client to train on its chunks; an empty order only names them."""
        plan, this = self.roster.plan, self.roster.assignment
        client = plan.clients[w]
        before = min(self.roster.before.get(client, this.version), max(0, this.version - 1))
        self.roster.given.add(client)
        return Work(
            client, this.number, this.version, this.target, order, plan.names_w[w], this.seed,
            self.roster.limit_s, kind="local", first_step=this.first_step,
            common_steps=this.steps_from(before), before=before,
            most_steps=this.most_steps if live else 0, pool=plan.pool,
        )  # fmt: skip

    def go_on(self, w: int) -> Continue:
        """Return the command for a client to continue from a skipped round."""
        this, limit_s = self.roster.assignment, self.roster.limit_s
        return Continue(self.roster.plan.clients[w], this.number, this.target, self.numbers(w), limit_s)

    def _has_failed(self, event: Report) -> bool:
        """Whether the client had failed in this round, or was lost: its report was on its way."""
        state = self.clients.get(self.roster.w.get(event.client, -1))
        return state is not None and not state.able and event.round == self.roster.assignment.number

    def _why_not(self, event: Report) -> str:
        """Return why this report does not count, or an empty string."""
        away = self.roster.here(event)
        if away:
            return away
        w = self.roster.w[event.client]
        state = self.clients.get(w)
        if state is None:
            return f"client {event.client} is not in round {self.roster.assignment.number}"
        if event.samples != self.samples[w]:
            return f"it trains on {event.samples} samples, needed {self.samples[w]}"
        is_claim = state.report is None  # its steps are those that it kept, maybe from an abandoned model
        most = self.most_kept if is_claim else self.most_steps
        if event.steps > most:
            return f"saw {event.steps} steps, it was asked for at most {most}"
        if event.steps < state.steps and not (is_claim or self.collecting):
            return f"saw {event.steps} steps, it has reported {state.steps}"
        return ""

    def _book(self, w: int, event: Report) -> None:
        state, statistics = self.clients[w], self.roster.statistics
        statistics.moved(w, event.steps)
        if event.steps < state.before:  # it has begun anew
            state.before = 0
        state.steps, state.report = event.steps, event
        statistics.steps[w] = state.earlier + max(0, event.steps - state.before)
        self._note(w)
        if self.collecting:
            statistics.finished[w] = event.steps
        if event.steps:
            step_s = event.seconds / event.steps
            statistics.step_s[w], statistics.busy_s[w] = [step_s], step_s * statistics.steps[w]

    def _loads(self, w: int, event: Joined) -> bool:
        held_by_name, needed = {held.name: held for held in event.holds}, self.held[w]
        return bool(needed) and all(c.name in held_by_name and c.fits(held_by_name[c.name]) for c in needed)
