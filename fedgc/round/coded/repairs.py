"""Repairs: contributions that other clients send in place of those that are lost or late.

Once vectors are asked for, some never come and some come late. What is lost is shared out among those that
have finished its chunks, else among those that can still finish them. What is late is asked of others too,
where they would be sooner: the first counts. And where a line is known to be as slow as that, clients go on
meanwhile with the chunks that they left, so as to have them by then.

Looking is dear where clients are many, and reports come in thousands: so there is no look before something is
new (`stir`), or before its time (`hurry_at`).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.messages import Command
from fedgc.round.coded.coded_sum import CodedSum, Costs
from fedgc.round.coded.lateness import Key, Lateness
from fedgc.round.coded.replicas import ReplicaTracker
from fedgc.round.roster import Roster

Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Help:
    """Whose copies can be sent, or had by asking; chunks that come unasked; and what help costs."""

    done_wc: Bool
    able_wc: Bool
    coming: frozenset[int]
    costs: Costs


class RepairPlanner:
    """Tracks late clients, and what other clients were asked to send for them."""

    def __init__(self, roster: Roster, tracker: ReplicaTracker, collected: CodedSum, blocks: int) -> None:
        """`blocks` are those of the codewords."""
        self.hurry_at = math.inf  # when the next vector will be late
        self._roster: Final = roster
        self._tracker: Final = tracker
        self._sum: Final = collected
        self._blocks: Final = blocks
        self._lateness: Final = Lateness(roster.plan.late_s)
        self._late: set[int] = set()  # clients that kept others waiting
        self._overdue: set[int] = set()  # chunks that others make for what is late
        self._made_elsewhere: set[Key] = set()  # what is late, and whose chunks others are at
        self._mends = self._hurries = True  # whether there may be something new to ask for
        self._asked_anew = True  # whether it is not noted yet when something was asked for
        self._counted = 0  # vectors that have come, as far as that is noted

    # ---- what is new

    def stir(self) -> None:
        """Something has come that was lacking, or is lacking now: look whom to ask for what."""
        self._mends = self._hurries = True

    def finished(self, chunk: int) -> None:
        """Take note of one more replica of this chunk, which a repair may have waited for."""
        if chunk in self._overdue or chunk in self._sum.wanted:
            self.stir()

    def back(self, w: int) -> None:
        """A client is here again: it is late no more."""
        self._lateness.again(w)
        self._late.discard(w)
        self._asked_anew = True
        self.stir()

    # ---- what is asked for

    def meanwhile(self, orders: Sequence[Sequence[int]]) -> list[Command]:
        """Have clients go on with what they left, where a line is likely to be late: others then have it.

        What is on the slowest lines comes first, else all is in the client's order.
        """
        tracker, owing = self._tracker, list(self._sum.owing)
        sending_s = [self._known_s(w) for w in owing]
        if not self._lateness.expects(sending_s):
            return []
        sending_s_w, slowest_s_c = np.zeros(tracker.done_wc.shape[0]), np.zeros(tracker.done_wc.shape[1])
        sending_s_w[owing] = sending_s
        held = self._roster.plan.placement.holders
        done_s = tracker.done_wc[held.worker_s, held.chunk_s]
        np.maximum.at(slowest_s_c, held.chunk_s[done_s], sending_s_w[held.worker_s[done_s]])
        left_wc = tracker.askable_wc & ~tracker.done_wc
        commands: list[Command] = []
        for w in np.flatnonzero(left_wc.any(axis=1)).tolist():
            left = [c for c in orders[w] if left_wc[w, c]]
            commands.append(self._roster.take(w, *sorted(left, key=slowest_s_c.__getitem__, reverse=True)))
        return commands

    def mend(self) -> list[Command]:
        """Ask for repairs of what is open: from who has finished it, else from who can still finish it."""
        mends, self._mends = self._mends, False
        return self._repaired(self._help()) if self._sum.open and mends else []

    def hurry(self, now: float) -> list[Command]:
        """Have others finish what late vectors are made of, then send it; the first to arrive counts."""
        lateness = self._lateness
        lateness.asked(self._sum.owed if self._asked_anew else (), now)
        changed = self._note_came(now) or self._asked_anew
        self._asked_anew = False
        if not (self._hurries and self._overdue) and not changed and now < self.hurry_at:
            return []
        late = lateness.late(self._sum.owed, now)
        self.hurry_at, self._hurries = math.inf, False
        self._overdue.clear()
        commands = self._stand_in(late, now) if late else []
        lateness.asked(self._sum.owed, now)
        self._asked_anew = False
        self.hurry_at = min(self.hurry_at, lateness.next_s(self._sum.owed, now))
        return commands

    # ---- what is known in the end

    def had_c(self) -> Bool:
        """Return the chunks of which a client that can be asked has a replica."""
        had_c: Bool = np.logical_or.reduce(self._tracker.counting_wc & self._without_the_late(), axis=0)
        return had_c

    def unsent_s(self, now: float) -> Mapping[int, float]:
        """Return who was late to the end, and for how long it was at what would be a whole update."""
        self._note_came(now)
        lateness, live_w = self._lateness, self._tracker.live_w
        waits = [w for w in self._late - self._sum.came_too_late if live_w[w]]
        return {v: self._blocks * lateness.waited_s(v, now) for v in waits if lateness.is_sending(v)}

    # ---- small print

    def _stand_in(self, late: Sequence[Key], now: float) -> list[Command]:
        """Let others send what is late where they have finished it, else have it finished: if that is sooner.

        It is not known when a late vector comes. It is taken to need as long again as it took until now, or
        as its line is known to need: a client that can be quicker is asked.
        """
        commands: list[Command] = []
        others: Help | None = None
        self._late |= {w for w, _ in late}
        on_time_w1, costs = self._on_time_w1, self._costs()
        done_wc, able_wc = self._tracker.counting_wc & on_time_w1, self._tracker.askable_wc & on_time_w1
        done_c = np.logical_or.reduce(done_wc, axis=0).tolist()
        for key in late:
            lacking = [c for c in self._sum.owed[key].terms.chunks if not done_c[c]]
            if not (lacking and key in self._made_elsewhere):
                waited_s = self._lateness.waited_s(key[0], now)
                others_s = self._sum.others_s(key, done_wc, able_wc, costs)
                if others_s > max(waited_s, self._known_s(key[0]) - waited_s):
                    again_s = max(others_s - waited_s, waited_s / 2)
                    self.hurry_at = min(self.hurry_at, now + min(again_s, waited_s))  # few looks, for long
                    continue
            if lacking:  # asked for once more, others are where who was asked is gone
                self._made_elsewhere.add(key)
                commands += [self._roster.take(*each) for each in self._sum.ask_for(lacking, able_wc, costs)]
                self._overdue.update(lacking)
            else:
                self._sum.doubt(key)
                others = others or self._help()  # large, and the same for all that is late now
                commands += self._repaired(others)
        return commands

    def _repaired(self, given: Help) -> list[Command]:
        repairs, takes = self._sum.mend(given.done_wc, given.able_wc, given.coming, given.costs)
        self._asked_anew |= bool(repairs)
        self._roster.statistics.repairs += len(repairs)
        return [*repairs, *(self._roster.take(*each) for each in takes)]

    def _help(self) -> Help:
        tracker, fit_wc = self._tracker, self._without_the_late()
        return Help(
            tracker.counting_wc & fit_wc, tracker.askable_wc & fit_wc, tracker.coming(), self._costs()
        )

    def _note_came(self, now: float) -> bool:
        """Take note of the vectors that have come; return whether it is known from now on what is usual."""
        added = self._sum.added
        usual_known = [self._lateness.came(w, now) for w, _ in added[self._counted :]]
        self._counted = len(added)
        return any(usual_known)

    def _known_s(self, w: int) -> float:
        """Return how long this client's line is known to need for a codeword."""
        return self._roster.upload_s[w] / self._blocks

    @property
    def _on_time_w1(self) -> Bool:
        """The clients that were not late, as a column."""
        on_time_w1: Bool = np.ones((len(self._roster.plan.clients), 1), dtype=np.bool_)
        on_time_w1[list(self._late)] = False
        return on_time_w1

    def _without_the_late(self) -> Bool:
        """Return whose replicas to ask for: of clients that were late only if no other has the chunk."""
        on_time_w1 = self._on_time_w1
        others_c = np.logical_or.reduce(self._tracker.possible_wc & on_time_w1, axis=0)
        asked_wc: Bool = on_time_w1 | ~others_c
        return asked_wc

    def _costs(self) -> Costs:
        """What help costs: a link is as quick as it was just now, else as it is known to be."""
        roster, seen = self._roster, self._lateness.sent_s
        known = [each for each in roster.upload_s if each]
        usual_s = median(known) / self._blocks if known else 0.0
        upload_s = [seen.get(w, self._known_s(w) or usual_s) for w in range(len(roster.plan.clients))]
        return Costs([roster.assignment.target * each for each in roster.plan.step_s], upload_s)
