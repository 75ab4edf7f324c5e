"""Repairs: contributions that other clients send in place of those that are lost or late.

Once vectors are requested, some never come and some come late. The terms of a lost vector are requested from
clients that have finished its chunks, else from those that can still finish them. A late vector is also
requested from others that would be faster: the first one counts. If an uplink is known to be that slow,
clients meanwhile continue chunks that they skipped, to have them ready.

Planning is expensive with many clients, and reports come in thousands: so it runs only after a change
(`stir`), or at its time (`hurry_at`).
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
from fedgc.round.coded.lateness import Key, Lateness, expects_late
from fedgc.round.coded.replicas import ReplicaTracker
from fedgc.round.roster import Roster

Bool = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Help:
    """The replicas that can be sent or requested, chunks that come without a request, and their costs."""

    done_wc: Bool
    able_wc: Bool
    coming: frozenset[int]
    costs: Costs


class RepairPlanner:
    """Tracks late clients, and the repairs requested from others."""

    def __init__(self, roster: Roster, tracker: ReplicaTracker, collected: CodedSum, blocks: int) -> None:
        """`blocks` are those of the codewords."""
        self.hurry_at = math.inf  # when the next vector will be late
        self._roster: Final = roster
        self._tracker: Final = tracker
        self._sum: Final = collected
        self._blocks: Final = blocks
        self._lateness: Final = Lateness(roster.plan.late_s)
        self._late: set[int] = set()  # clients whose vector was late
        self._overdue: set[int] = set()  # chunks that others make for a late vector
        self._made_elsewhere: set[Key] = set()  # late vectors whose chunks others are training
        self._mends = self._hurries = True  # whether a new request may be possible
        self._asked_anew = True  # whether requests were made since the last note
        self._counted = 0  # vectors that have arrived, up to the last note

    # ---- changes

    def stir(self) -> None:
        """Note a change: a missing replica has come, or a term is missing now."""
        self._mends = self._hurries = True

    def finished(self, chunk: int) -> None:
        """Note one more replica of this chunk, which a repair may have waited for."""
        if chunk in self._overdue or chunk in self._sum.wanted:
            self.stir()

    def back(self, w: int) -> None:
        """Note that a client is here again: it is not late any more."""
        self._lateness.again(w)
        self._late.discard(w)
        self._asked_anew = True
        self.stir()

    # ---- requests

    def meanwhile(self, orders: Sequence[Sequence[int]]) -> list[Command]:
        """Let clients continue skipped chunks if an uplink is likely to be late.

        Chunks on the slowest uplinks come first; the rest stays in the client's order.
        """
        tracker, owing = self._tracker, list(self._sum.owing)
        sending_s = [self._known_s(w) for w in owing]
        if not expects_late(sending_s, self._roster.plan.late_s):
            return []
        sending_s_w, slowest_s_c = np.zeros(tracker.done_wc.shape[0]), np.zeros(tracker.done_wc.shape[1])
        sending_s_w[owing] = sending_s
        held = self._roster.plan.placement.holders
        done_s = tracker.done_wc[held.client_s, held.chunk_s]
        np.maximum.at(slowest_s_c, held.chunk_s[done_s], sending_s_w[held.client_s[done_s]])
        left_wc = tracker.askable_wc & ~tracker.done_wc
        commands: list[Command] = []
        for w in np.flatnonzero(left_wc.any(axis=1)).tolist():
            left = [c for c in orders[w] if left_wc[w, c]]
            commands.append(self._roster.take(w, *sorted(left, key=slowest_s_c.__getitem__, reverse=True)))
        return commands

    def mend(self) -> list[Command]:
        """Request repairs of open terms, from clients that have finished their chunks or still can."""
        mends, self._mends = self._mends, False
        return self._repaired(self._help()) if self._sum.open and mends else []

    def hurry(self, now: float) -> list[Command]:
        """Have others finish the chunks of late vectors and send them; the first to arrive counts."""
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

    # ---- results

    def had_c(self) -> Bool:
        """Return the chunks of which an available client has a replica."""
        had_c: Bool = np.logical_or.reduce(self._tracker.counting_wc & self._without_the_late(), axis=0)
        return had_c

    def unsent_s(self, now: float) -> Mapping[int, float]:
        """Return the clients that were late to the end, with the time each would need for a whole update."""
        self._note_came(now)
        lateness, live_w = self._lateness, self._tracker.live_w
        waits = [w for w in self._late - self._sum.came_too_late if live_w[w]]
        return {v: self._blocks * lateness.waited_s(v, now) for v in waits if lateness.is_sending(v)}

    def _stand_in(self, late: Sequence[Key], now: float) -> list[Command]:
        """Let others send what is late, or finish its chunks first, if that is faster.

        The remaining time of a late vector is unknown. It is estimated as the time it has taken so far, or as
        the known time of its uplink: a client that can be faster is asked.
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
                    self.hurry_at = min(self.hurry_at, now + min(again_s, waited_s))  # few checks, for long
                    continue
            if lacking:  # if requested again, others replace a client that is gone
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
        """Note the vectors that have come; return whether the usual time is now known."""
        added = self._sum.added
        usual_known = [self._lateness.came(w, now) for w, _ in added[self._counted :]]
        self._counted = len(added)
        return any(usual_known)

    def _known_s(self, w: int) -> float:
        """Return the known time of this client's uplink for a codeword."""
        return self._roster.upload_s[w] / self._blocks

    @property
    def _on_time_w1(self) -> Bool:
        """The clients that were not late, as a column."""
        on_time_w1: Bool = np.ones((len(self._roster.plan.clients), 1), dtype=np.bool_)
        on_time_w1[list(self._late)] = False
        return on_time_w1

    def _without_the_late(self) -> Bool:
        """Return the replicas to request: of late clients only if no other has the chunk."""
        on_time_w1 = self._on_time_w1
        others_c = np.logical_or.reduce(self._tracker.possible_wc & on_time_w1, axis=0)
        asked_wc: Bool = on_time_w1 | ~others_c
        return asked_wc

    def _costs(self) -> Costs:
        """Return the costs of help: a link is as fast as it was just now, else as it is known to be."""
        roster, seen = self._roster, self._lateness.sent_s
        known = [each for each in roster.upload_s if each]
        usual_s = median(known) / self._blocks if known else 0.0
        upload_s = [seen.get(w, self._known_s(w) or usual_s) for w in range(len(roster.plan.clients))]
        return Costs([roster.assignment.target * each for each in roster.plan.step_s], upload_s)
