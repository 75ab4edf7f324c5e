"""Coded work: every chunk is trained by itself from the common model, and copies of it are counted.

A copy is a function of (model, chunk, seed) alone, so it does not matter whose is used. As copies come in,
others are told to skip that chunk, and its finisher which to take next. Once every chunk that can be had has
one copy, the gate may be asked; an exchange waits for `aim` copies of each. Then what is finished is fixed,
the code is solved, and each device that is needed sends one codeword (collect.CodedSum).

Where no device can be steered (all hear nothing between their messages), who finishes what is foreseen, and
the coefficients go out with the work: a device that has finished all that they mix sends its codeword with
its report. If the finished sets come out as foreseen it is added, and nobody need be asked; else it is
forgotten, and all goes as ever.

A device that has no room left for what it has finished is told to fold it into its codeword, and frees it;
from then on the round aims for no more copies than it did (`early`).

Which worker leaves or takes which chunk is kept by `ledger`, which copies are the same by `copies`.

May import: collect, effort, copies, early, ledger, plan, codes, gate, messages.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fedgc.codes import (
    EPSILON,
    FrameCode,
    Solution,
    Wire,
    amplification_limit,
    carry_on,
    orders_for_round,
    shapes,
)
from fedgc.collect import CodedSum, Costs
from fedgc.copies import AGREES, Copies, Verdict
from fedgc.early import Early, Room
from fedgc.effort import Roll
from fedgc.gate import Reports
from fedgc.lateness import Lateness
from fedgc.ledger import Ledger
from fedgc.messages import (
    Codeword,
    Command,
    Continue,
    Failed,
    Fold,
    Joined,
    Mix,
    Pressed,
    Progress,
    Refuse,
    Report,
    Skip,
    Take,
    Work,
)

NOBODY: Final = -1  # stands for a device or a chunk that is not of this plan
NAMED: Final = 8  # chunks that a refusal names, however many were sent


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What collecting would be, should the finished sets turn out as they are expected to."""

    solution: Solution
    sum: CodedSum

    def holds(self, done_wc: NDArray[np.bool_], blocks: int) -> bool:
        """Whether all that it mixes is finished, and no more blocks can be had."""
        return self.solution.blocks == blocks and all(
            done_wc[worker, list(self.solution.coefficients(worker).chunks)].all()
            for worker in self.solution.needed
        )


@dataclass(frozen=True, slots=True)
class Help:
    """Whose copies can be sent, or had by asking; chunks that come unasked; and what help costs."""

    done_wc: NDArray[np.bool_]
    able_wc: NDArray[np.bool_]
    coming: frozenset[int]
    costs: Costs


class ChunkWork:
    """The effort of coded work."""

    def __init__(self, roll: Roll) -> None:
        plan = roll.plan
        self.roll = roll
        self.copies = Copies()
        self.sum: CodedSum | None = None
        self.solution: Solution | None = None
        self._ledger = Ledger(plan.placement.holders, _first_aim(roll))
        self._early = Early(plan.placement)
        self._number = [chunk.number for chunk in plan.chunks]
        self._chunk = {number: c for c, number in enumerate(self._number)}
        self._samples = {chunk.number: chunk.samples for chunk in plan.chunks}
        self._foreseen: Foreseen | None = None
        self._came_ahead: set[int] = set()  # workers whose foreseen codeword lies with the driver
        self.came: tuple[int, ...] = ()  # those of them whom the sum needs
        self._alone_c = plan.alone_c
        orders = orders_for_round(plan.placement, roll.assignment.order_seed)
        self._orders = self._with_those_who_carry_on(orders)
        self._lateness = Lateness(plan.late_s)
        self._late: set[int] = set()  # devices that kept others waiting
        self._hurry_at = math.inf
        self._overdue: set[int] = set()  # chunks that others make for what is late
        self._mends = self._hurries = True  # whether there may be something new to ask for
        self._meanwhile: dict[int, set[int]] = {}  # what workers were given lest somebody be late
        self._pressed: set[int] = set()  # workers that had no room
        self._made_elsewhere: set[tuple[int, int]] = set()  # what is late, and whose chunks others are at
        self._asked_anew = True  # whether it is not noted yet when something was asked for
        self._counted = 0  # vectors that have come, as far as that is noted
        self.covered_s: list[float] = []  # when all chunks had 1, 2, ... copies
        self._made = [0] * len(plan.chunks)  # copies, those of the lost among them
        self._without = Counter({copies: len(plan.chunks) for copies in range(1, len(plan.devices) + 1)})
        self._told: list[set[int]] = [set() for _ in orders]  # copies that the tally knows, also of the lost

    def _with_those_who_carry_on(self, orders: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        plan, carried_on, found = self.roll.plan, self.roll.assignment.orders, []
        if not carried_on:
            return orders
        for device, order in zip(plan.devices, orders, strict=True):
            asked = carried_on.get(device, ())
            same = sorted(asked) == sorted(self._numbers(order))
            found.append(tuple(self._chunk[number] for number in asked) if same else tuple(order))
        return tuple(found)

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """How devices that are alone with a chunk go on in the next round: from where they stopped."""
        plan, found = self.roll.plan, {}
        for worker in np.flatnonzero(plan.placement.holds[:, self._alone_c].any(axis=1)).tolist():
            order = self._orders[worker]
            left = [at for at, c in enumerate(order) if not self._ledger.done_wc[worker, c]]
            turned = carry_on(order, left[0] if left else 0)
            found[plan.devices[worker]] = tuple(self._numbers(turned))
        return found

    # ---- who is there

    def begin(self, present: Sequence[Joined]) -> list[Command]:
        """Give work to everybody, with coefficients where they can be foreseen."""
        return self._with_coefficients(self.give(present, self.roll.assignment.carried))

    def _with_coefficients(self, given: list[Command]) -> list[Command]:
        """Foresee who will have finished what; where nobody can be steered, that is often so."""
        ledger, this = self._ledger, self.roll.assignment
        if not this.certain or not ledger.live_w.any() or (ledger.live_w & ledger.hears_w).any():
            return given
        ends_s = [seconds * len(ledger.remaining(w)) for w, seconds in enumerate(self.roll.plan.step_s)]
        done_wc = ledger.foreseen(ends_s)
        blocks = min(ledger.aim, int(done_wc.sum(axis=0).min()))
        if blocks == 0:
            return given
        solution, wire = self._solved(done_wc, blocks)
        self._foreseen = Foreseen(solution, CodedSum(self.roll.plan, solution, this.number, wire))
        told = {each.device: each for each in self._foreseen.sum.needed()}
        return [
            replace(each, coefficients=told[each.device].mix, wire=told[each.device].wire)
            if isinstance(each, Work) and each.device in told
            else each
            for each in given
        ]

    def came_ahead(self, event: Codeword) -> str:
        """Keep in mind who has sent what nobody has asked for yet, but for the coefficients with the work."""
        worker = self.roll.worker.get(event.device)
        if not event.ahead:
            return "Codeword is not expected while working"
        if worker is not None and event.round == self.roll.assignment.number and self._ledger.live_w[worker]:
            self._came_ahead.add(worker)
        return ""

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Give these devices what is worth doing; one that is not in this plan waits for the next."""
        given: list[Command] = []
        for worker, event in self._here_again(present).items():
            order = self._ledger.queue(worker, self._orders[worker], self._kept(event))
            given.append(self._work(worker, order, carry=event.device in carried))
        return given

    def _here_again(self, present: Sequence[Joined]) -> dict[int, Joined]:
        """Put those of this plan on the books, with nothing to do yet; what they kept is heard once more."""
        planned = {self.roll.worker[event.device]: event for event in present if self._planned(event)}
        self._ledger.joined({worker: event.live for worker, event in planned.items()})
        self._came_ahead -= planned.keys()
        for worker, event in planned.items():
            self._early.forget(worker)
            kept = self._numbers(self._kept(event))
            self._count_after_all(self.copies.stands(worker, kept, self._summed))
        return planned

    def _planned(self, event: Joined) -> bool:
        """Take off the books what a device cannot load any more: it may be back with less than it had."""
        worker = self.roll.worker.get(event.device)
        if worker is None:
            return False
        holds, size = event.holds, len(event.holds)
        unsure = [  # who can load all chunks lists each at its number: no need to look on
            (number, name)
            for number, name in self.roll.plan.names_w[worker]
            if number >= size or holds[number].name != name
        ]
        names = {held.name for held in holds} if unsure else set()
        self._ledger.failed(worker, [self._chunk[number] for number, name in unsure if name not in names])
        return True

    def lost(self, worker: int) -> bool:
        """Let the device's copies count no more."""
        if not self._ledger.live_w[worker]:
            return False
        self._came_ahead.discard(worker)
        self._early.forget(worker)
        self._meanwhile.pop(worker, None)
        self._ledger.lost(worker)
        self._stir()
        self._count_after_all(self.copies.stands(worker, (), self._summed))
        return True

    def struck(self, worker: int, event: Failed) -> str:
        """Take what a device cannot give off the books, all of it where it names nothing."""
        chunks = [self._chunk[number] for number in event.chunks if number in self._chunk]
        if event.chunks and not chunks:
            return f"chunks {event.chunks[:NAMED]} are not in round {self.roll.assignment.number}"
        is_news = self._cannot(worker, chunks or range(len(self.roll.plan.chunks)))
        return "" if is_news else "nothing of it was counted on: it was said before, or is not this device's"

    def _cannot(self, worker: int, chunks: Sequence[int]) -> bool:
        """Count on a worker no more for these chunks; return whether that is news.

        One that it has folded cannot be taken out of its codeword: then it can give nothing at all.
        """
        if self._early.folds(worker, chunks):
            self._early.forget(worker)
            chunks = range(len(self.roll.plan.chunks))
        self._stir()
        self._count_after_all(self.copies.cannot(worker, self._numbers(chunks), self._summed))
        return self._ledger.failed(worker, chunks)

    @property
    def live(self) -> Sequence[int]:
        """The devices on the books."""
        live: list[int] = np.flatnonzero(self._ledger.live_w).tolist()
        return live

    # ---- working

    def heard(self, event: Progress | Report) -> list[Command]:
        """One more copy: others may leave that chunk, and its finisher may be steered."""
        found = self._found(event)
        if isinstance(found, list):
            return found
        worker, chunk, event = found
        verdict = self.copies.hear(event.chunk, worker, event)
        commands: list[Command] = []
        if verdict is not AGREES:
            if not verdict.agrees:
                return [*self._leave_out(event, verdict), *self.stirred()]
            commands = self._turn(verdict, event.chunk)
        self._book(worker, chunk, event)
        moved = self._ledger.skips(chunk)
        for other, instead in moved:  # first what to take, then what to leave for it
            if instead is not None:
                commands.append(self._take(other, instead))
            commands.append(Skip(self.roll.plan.devices[other], event.round, event.chunk))
        self.roll.tally.skips += len(moved)
        return [*commands, *self._redirect(worker)]

    def pressed(self, event: Pressed, *, certain: bool) -> list[Command]:
        """Have a device fold and free what it can; of what it was asked to send the codewords are mixed."""
        worker = self.roll.worker[event.device]
        if not self._ledger.live_w[worker]:
            return self.roll.refuse(
                event, f"device {event.device} is not in round {self.roll.assignment.number}"
            )
        self._pressed.add(worker)
        refused_c = self.roll.plan.placement.holds[worker] & ~self._ledger.able_wc[worker]
        spare: list[int] = np.flatnonzero(refused_c).tolist()
        mix = None
        left: list[int] = []
        if self.sum is not None:
            self._stir()
            has_c, extra = self._has_wc[worker], self._meanwhile.pop(worker, set())
            left = sorted(c for c in extra - self._overdue - self.sum.wanted if not has_c[c])
            first = sorted(c for c in extra if has_c[c])
            spare += first or np.flatnonzero(has_c).tolist()
            self._early.let_go(worker, spare)
            self.sum.freed(worker, spare)
        else:
            self._count_after_all(self.copies.cannot(worker, self._numbers(spare)))
            if certain and self._ledger.done_wc[worker].any():
                room = self._fixed_for(worker)
                spare += room.spare
                folded = room.fold
                mix = Mix(tuple(self._numbers(folded.chunks)), folded.matrix) if folded.chunks else None
        number = self.roll.assignment.number
        leave = [Skip(event.device, number, chunk) for chunk in self._numbers(left)]
        self.roll.tally.skips += len(leave)
        return [*leave, Fold(event.device, number, mix, tuple(self._numbers(spare)))]

    def _fixed_for(self, worker: int) -> Room:
        """Fix what a worker has finished, for as many copies as are aimed for now."""
        ledger, self._foreseen = self._ledger, None
        room = self._early.room(worker, ledger.counting_wc, self._possible_wc, ledger.aim)
        ledger.fix_aim()
        ledger.freed(worker, room.spare)
        self.copies.freed(worker, self._numbers(room.spare))
        self.roll.tally.folds += len(room.fold.chunks)
        return room

    def stirred(self) -> list[Command]:
        """Give every open chunk to whoever can be asked for it."""
        return [self._take(worker, chunk) for worker, chunk in self._ledger.hand_out()]

    @property
    def hopeless(self) -> bool:
        """Whether no live device has finished anything or can."""
        return not self._ledger.reachable

    @property
    def ready(self) -> bool:
        """Whether every chunk that can be had has a copy."""
        return self._ledger.covered_once

    @property
    def some(self) -> bool:
        """Whether there is any copy."""
        return bool(self._ledger.counting_wc.any())

    def reports(self) -> Reports:
        """Return what the believed copies say; sources are chunks."""
        return self.copies.reports(self._samples, self.roll.assignment.rounds_left)

    def more(self, now: float) -> list[Command] | None:  # noqa: ARG002  copies decide, not time
        """Aim for one more copy of everything as long as waiting for it pays."""
        commands: list[Command] = []
        while self._ledger.covered:
            if not self._waiting_pays():
                return None
            self._ledger.raise_aim(self._ledger.aim + 1)
            commands += self.stirred()
        return commands

    @property
    def look_again(self) -> float:
        """Time alone changes nothing."""
        return math.inf

    @property
    def hurry_at(self) -> float:
        """When the next vector will be late."""
        return self._hurry_at

    def _waiting_pays(self) -> bool:
        """Whether one more copy of each chunk saves more upload time than it costs to wait for."""
        ledger, plan = self._ledger, self.roll.plan
        if (
            plan.blocks_fixed
            or self._early.blocks
            or ledger.aim >= min(plan.most_blocks, ledger.most_copies())
        ):
            return False
        chunk_s = [self.roll.assignment.target * seconds for seconds in plan.step_s]
        guessed_s = ledger.wait_s(ledger.aim + 1, chunk_s)
        return self.roll.assignment.prospect.pays(ledger.aim, guessed_s, max(self.roll.upload_s))

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (chunks with a copy, chunks, copies aimed for): what a person watches."""
        covered = sum(1 for copies in self._ledger.copies if copies)
        return covered, len(self.roll.plan.chunks), self._ledger.aim

    @property
    def covered(self) -> int:
        """The chunks that have a copy which is believed."""
        return len(self.copies.believed)

    @property
    def losses(self) -> Sequence[float]:
        """The loss of every chunk that has a copy."""
        return [copy.loss for copy in self.copies.believed.values()]

    @property
    def reached(self) -> Mapping[str, int]:
        """Chunks that go on were at the target, all of them."""
        return {}

    @property
    def common_steps(self) -> float:
        """Every chunk was taken to the target."""
        return float(self.roll.assignment.target)

    # ---- collecting

    @property
    def holds(self) -> Mapping[int, int]:
        """The finished chunks of every device that has any."""
        done_w = self._ledger.counting_wc.sum(axis=1)
        return {worker: int(done_w[worker]) for worker in np.flatnonzero(done_w).tolist()}

    def lacks(self, workers: Collection[int]) -> tuple[int, ...]:
        """Return the chunks that none of these devices has finished."""
        done_c = self._ledger.done_wc[list(workers)].any(axis=0)
        return tuple(self._numbers(np.flatnonzero(~done_c).tolist()))

    def collect(self) -> CodedSum:
        """Fix what is finished, and solve for whose codewords are needed."""
        (done_wc, blocks), foreseen = self._to_be_mixed(), self._foreseen
        if foreseen and foreseen.holds(done_wc, blocks):
            self.solution, self.sum = foreseen.solution, foreseen.sum
            self.came = tuple(self._came_ahead & foreseen.solution.needed)
        else:
            self.solution, wire = self._solved(done_wc, blocks)
            self.sum = CodedSum(self.roll.plan, self.solution, self.roll.assignment.number, wire)
            if self._early.stands:
                self._open_what_is_wanting(self.sum)
        self.roll.tally.pruned = int(done_wc.any(axis=1).sum()) - len(self.solution.needed)
        return self.sum

    def _to_be_mixed(self) -> tuple[NDArray[np.bool_], int]:
        """Return the copies to mix, and the most blocks at which they are exact."""
        if self._early.blocks:
            mixed_wc = self._early.mixed(self._ledger.counting_wc)
            if self._early.stands:
                return mixed_wc, self._early.blocks
        return self._ledger.counting_wc, self._ledger.blocks

    def _open_what_is_wanting(self, collected: CodedSum) -> None:
        """Have made good what early commit counts on, and nobody has."""
        done_wc = self._ledger.counting_wc
        for (worker, _), part in list(collected.owed.items()):
            wanting = {c for c in part.terms.chunks if not done_wc[worker, c]}
            if wanting:
                collected.lacks(worker, wanting)

    def _solved(self, done_wc: NDArray[np.bool_], most_blocks: int) -> tuple[Solution, Wire]:
        """Solve for the shortest codewords that the copies allow and the error limit bears, few of them."""
        plan, early = self.roll.plan, self._early.stands
        all_full = int(done_wc.sum(axis=0).min()) >= most_blocks  # then nothing is to be made up for
        likeness = 0.0 if early or all_full else self.copies.likeness(self._samples)
        for wire, blocks in shapes(most_blocks, short=plan.short_numbers):
            if early and blocks != most_blocks:
                continue
            code = FrameCode(plan.placement, blocks)
            limit = amplification_limit(plan.error_limit, EPSILON[wire])
            solution = code.solve(
                code.prune(done_wc, cost=self.roll.upload_s, limit=limit),
                correlation=likeness,
                weights=None if early else self._weights(done_wc),
            )
            if solution.amplification <= limit:
                break
        return solution, wire

    def _weights(self, done_wc: NDArray[np.bool_]) -> tuple[float, ...] | None:
        """Return what chunks count where one is short that a single device has: nobody can stand in."""
        short = bool((self._alone_c & ~done_wc.any(axis=0)).any())
        return self.roll.assignment.weights or None if short else None

    def heard_late(self, event: Progress | Report) -> list[Command]:
        """What is fixed stays fixed, but a repair may have waited for this copy."""
        found = self._found(event)
        if isinstance(found, list):
            return found
        worker, chunk, event = found
        verdict = self.copies.judge(event.chunk, worker, event, self._summed)
        if not verdict.agrees:
            refused = self._leave_out(event, verdict)
            self.without(worker)
            return refused
        commands = self._turn(verdict, event.chunk)
        self._book(worker, chunk, event)
        if commands or chunk in self._overdue or self.sum is None or chunk in self.sum.wanted:
            self._stir()
        return commands

    def _stir(self) -> None:
        """Something has come that was lacking, or is lacking now: look whom to ask for what."""
        self._mends = self._hurries = True

    @property
    def _summed(self) -> Collection[int]:
        """The chunks of which something is in the sum."""
        return self.sum.summed if self.sum else ()

    def returned(self, event: Joined) -> list[Command]:
        """Ask again for what the device can still send, and give it what the sum lacks and nobody has."""
        worker = self.roll.worker.get(event.device)
        if worker is None or self.sum is None:
            return []
        self._here_again([event])
        self._stir()
        self._lateness.again(worker)
        self._late.discard(worker)
        self._asked_anew = True
        kept = self._kept(event)
        asked = self.sum.ask_again(worker, np.isin(np.arange(len(self.roll.plan.chunks)), kept))
        had_c = np.logical_or.reduce(self._has_wc & self._without_the_late(), axis=0)
        useful = {c for c in self.sum.wanted if not had_c[c]} | set(kept)
        order = self._ledger.queue(worker, [c for c in self._orders[worker] if c in useful], kept)
        if not (order or asked or event.live):
            return []  # it could be asked for nothing
        return [self._work(worker, order, carry=False), *asked]

    def without(self, worker: int) -> None:
        """Open what this worker owes and cannot send any more; it has the requests for the rest."""
        self._stir()
        if self.sum is not None:
            self.sum.ask_again(worker, self._ledger.able_wc[worker])

    def too_slow(self, worker: int) -> None:
        """Wait for nothing of this device any more."""
        self._cannot(worker, range(len(self.roll.plan.chunks)))

    def meanwhile(self) -> list[Command]:
        """Have devices go on with what they left, where a line is likely to be late: others then have it.

        What is on the slowest lines comes first. Nobody's memory is filled with what may not be needed.
        """
        if self.sum is None or self._early.blocks:
            return []
        ledger, owing = self._ledger, list(self.sum.owing)
        sending_s = [self._known_s(worker) for worker in owing]
        if not self._lateness.expects(sending_s):
            return []
        sending_s_w, slowest_s_c = np.zeros(len(ledger.live_w)), np.zeros(len(self._number))
        sending_s_w[owing] = sending_s
        held = self.roll.plan.placement.holders
        done_s = ledger.done_wc[held.worker_s, held.chunk_s]
        np.maximum.at(slowest_s_c, held.chunk_s[done_s], sending_s_w[held.worker_s[done_s]])
        slowest_s: list[float] = slowest_s_c.tolist()
        left_wc = ledger.askable_wc & ~ledger.done_wc
        left_wc[list(self._pressed)] = False
        commands: list[Command] = []
        for worker in np.flatnonzero(left_wc.any(axis=1)).tolist():
            left = [c for c in self._orders[worker] if left_wc[worker, c]]
            self._meanwhile[worker] = set(left)
            commands.append(self._take(worker, *sorted(left, key=slowest_s.__getitem__, reverse=True)))
        return commands

    def mend(self) -> list[Command]:
        """Ask for repairs of what is open: from who has finished it, else from who can still finish it."""
        mends, self._mends = self._mends, False
        if self.sum is None or not self.sum.open or not mends:
            return []
        return self._mend(self.sum, self._help())

    def _help(self) -> Help:
        ledger, fit_wc = self._ledger, self._without_the_late()
        return Help(self._has_wc & fit_wc, ledger.askable_wc & fit_wc, ledger.coming(), self._costs())

    def _mend(self, collected: CodedSum, given: Help) -> list[Command]:
        repairs, takes = collected.mend(given.done_wc, given.able_wc, given.coming, given.costs)
        self._asked_anew |= bool(repairs)
        self.roll.tally.repairs += len(repairs)
        return [*repairs, *(self._take(*each) for each in takes)]

    def hurry(self, now: float) -> list[Command]:
        """Have others finish what late vectors are made of, then send it; whoever is first counts."""
        if self.sum is None:
            return []
        lateness = self._lateness
        lateness.asked(self.sum.owed if self._asked_anew else (), now)
        changed = self._note_came(self.sum, now) or self._asked_anew
        self._asked_anew = False
        if not (self._hurries and self._overdue) and not changed and now < self._hurry_at:
            return []
        late = lateness.late(self.sum.owed, now)
        self._hurry_at, self._hurries = math.inf, False
        self._overdue.clear()
        commands = self._stand_in(late, now) if late else []
        lateness.asked(self.sum.owed, now)
        self._asked_anew = False
        self._hurry_at = min(self._hurry_at, lateness.next_s(self.sum.owed, now))
        return commands

    def _stand_in(self, late: Sequence[tuple[int, int]], now: float) -> list[Command]:
        """Let others send what is late where they have finished it, else have it finished: if that is sooner.

        Nobody knows when a late vector comes. It is taken to need as long again as it took until now, or as
        its line is known to need: whoever can be quicker is asked.
        """
        if self.sum is None:
            return []
        commands: list[Command] = []
        others: Help | None = None
        self._late |= {worker for worker, _ in late}
        on_time_w1, costs = self._on_time_w1, self._costs()
        done_wc, able_wc = self._has_wc & on_time_w1, self._ledger.askable_wc & on_time_w1
        done_c = np.logical_or.reduce(done_wc, axis=0).tolist()
        for key in late:
            lacking = [c for c in self.sum.owed[key].terms.chunks if not done_c[c]]
            if not (lacking and key in self._made_elsewhere):
                waited_s = self._lateness.waited_s(key[0], now)
                others_s = self.sum.others_s(key, done_wc, able_wc, costs)
                if others_s > max(waited_s, self._known_s(key[0]) - waited_s):
                    again_s = min(
                        max(others_s - waited_s, waited_s / 2), waited_s
                    )  # few looks, for however long
                    self._hurry_at = min(self._hurry_at, now + again_s)
                    continue
            if lacking:  # asked for once more, others are where who was asked is gone
                self._made_elsewhere.add(key)
                commands += [self._take(*each) for each in self.sum.ask_for(lacking, able_wc, costs)]
                self._overdue.update(lacking)
            else:
                self.sum.doubt(key)
                others = others or self._help()  # large, and the same for all that is late now
                commands += self._mend(self.sum, others)
        return commands

    def _note_came(self, collected: CodedSum, now: float) -> bool:
        """Take note of the vectors that have come; return whether it is known from now on what is usual."""
        usual_known = [self._lateness.came(worker, now) for worker, _ in collected.added[self._counted :]]
        self._counted = len(collected.added)
        return any(usual_known)

    def _known_s(self, worker: int) -> float:
        """Return how long this worker's line is known to need for a codeword."""
        return self.roll.upload_s[worker] / self._blocks

    @property
    def _blocks(self) -> int:
        return self.solution.blocks if self.solution else 1

    def unsent_s(self, now: float) -> Mapping[int, float]:
        """Return who was late to the end, and for how long it was at what would be a whole update."""
        if self.sum is None:
            return {}
        self._note_came(self.sum, now)
        lateness, live_w, waits = self._lateness, self._ledger.live_w, self._late - self.sum.came_too_late
        sends = [worker for worker in waits if live_w[worker] and lateness.is_sending(worker)]
        return {worker: self._blocks * lateness.waited_s(worker, now) for worker in sends}

    @property
    def _has_wc(self) -> NDArray[np.bool_]:
        """The copies whose devices have their updates."""
        has_wc: NDArray[np.bool_] = self._ledger.counting_wc & ~self._early.gone_wc
        return has_wc

    @property
    def _possible_wc(self) -> NDArray[np.bool_]:
        """The copies that are there or can be had by asking."""
        possible_wc: NDArray[np.bool_] = self._has_wc | self._ledger.askable_wc
        return possible_wc

    @property
    def _on_time_w1(self) -> NDArray[np.bool_]:
        """Who has kept nobody waiting, as a column."""
        on_time_w1: NDArray[np.bool_] = np.ones((len(self.roll.plan.devices), 1), dtype=np.bool_)
        on_time_w1[list(self._late)] = False
        return on_time_w1

    def _without_the_late(self) -> NDArray[np.bool_]:
        """Return whose copies to ask for: not of those who were late, unless nobody else has the chunk."""
        on_time_w1 = self._on_time_w1
        others_c = np.logical_or.reduce(self._possible_wc & on_time_w1, axis=0)
        asked_wc: NDArray[np.bool_] = on_time_w1 | ~others_c
        return asked_wc

    def _costs(self) -> Costs:
        """What help costs: a link is as quick as it was just now, else as it is known to be."""
        plan, seen = self.roll.plan, self._lateness.sent_s
        known = [each for each in self.roll.upload_s if each]
        usual_s = median(known) / self._blocks if known else 0.0
        upload_s = [seen.get(w, self._known_s(w) or usual_s) for w in range(len(plan.devices))]
        return Costs([self.roll.assignment.target * each for each in plan.step_s], upload_s)

    def missing(self) -> tuple[tuple[int, ...], float | None]:
        """Return what the sum lacks, and how far off that leaves it."""
        if self.sum is None or self.solution is None:
            return (), None
        lacking = {chunk for _, chunk in self.sum.missing} | set(self.solution.short)
        if not lacking:
            return (), None
        short = tuple(self._numbers(sorted(lacking)))
        return short, math.hypot(self.solution.error or 0.0, self.sum.missing_error())

    # ---- small print

    def _found(self, event: Progress | Report) -> tuple[int, int, Progress] | list[Command]:
        """Return the device and the chunk of a new copy, and what was said of it; or else the answer."""
        if isinstance(event, Report):
            return self.roll.refuse(event, "a report of local work, this is coded")
        worker, chunk = self.roll.worker.get(event.device, NOBODY), self._chunk.get(event.chunk, NOBODY)
        why_not = self._why_not(event, worker, chunk)
        if why_not:
            return self.roll.refuse(event, why_not)
        if self._ledger.done_wc[worker, chunk]:
            if self.sum is not None:
                self._early.has_again(worker, chunk)
                self._stir()
            return []  # a finished chunk is told again when asked for, and that may have crossed the report
        return worker, chunk, event

    def _why_not(self, event: Progress, worker: int, chunk: int) -> str:
        """Return why this copy does not count, or nothing."""
        this = self.roll.assignment
        if worker == NOBODY or event.round != this.number:
            return self.roll.here(event)
        if not self._ledger.live_w[worker]:
            return f"device {event.device} is not in round {this.number}"
        if chunk == NOBODY or not self._ledger.able_wc[worker, chunk]:
            return f"chunk {event.chunk} is not this device's"
        if event.reached != this.target:
            return f"chunk {event.chunk} reached {event.reached} steps, needed {this.target}"
        if event.samples != self._samples[event.chunk]:
            return f"chunk {event.chunk} has {event.samples} samples, needed {self._samples[event.chunk]}"
        return ""

    def _leave_out(self, event: Progress, verdict: Verdict) -> list[Command]:
        self._ledger.failed(self.roll.worker[event.device], [self._chunk[event.chunk]])
        return self.roll.refuse(
            event, f"chunk {event.chunk} differs from the first copy by {verdict.distance:.2%}"
        )

    def _turn(self, verdict: Verdict, number: int) -> list[Command]:
        """Strike the copies that the majority speaks against, and count those that it speaks for."""
        commands: list[Command] = []
        for worker in verdict.wrong:
            if self._early.folds(worker, [self._chunk[number]]):
                self._cannot(worker, [self._chunk[number]])
                commands += self.stirred()
            self._ledger.failed(worker, [self._chunk[number]])
            self.roll.tally.refused[worker] += 1
            reason = f"chunk {number} differs from two later copies, which agree"
            commands.append(Refuse(self.roll.plan.devices[worker], self.roll.assignment.number, reason))
        self._count_after_all({number: verdict.right})
        return commands

    def _count_after_all(self, right: Mapping[int, Sequence[int]]) -> None:
        """Count the copies of these workers, which were left out."""
        for number, workers in right.items():
            for worker in workers:
                self._ledger.restored(worker, self._chunk[number])

    def _book(self, worker: int, chunk: int, event: Progress) -> None:
        self._ledger.finished(worker, chunk)
        if chunk in self._told[worker]:
            return  # told again after a return: no new work
        self._told[worker].add(chunk)
        if self.sum is None:
            self._note_copy(chunk, event.now)
        tally = self.roll.tally
        tally.finished[worker] += 1
        tally.steps[worker] += event.reached
        tally.busy_s[worker] += event.seconds
        tally.step_s[worker].append(event.seconds / event.reached)

    def _note_copy(self, chunk: int, now: float) -> None:
        self._made[chunk] = copies = self._made[chunk] + 1
        self._without[copies] -= 1
        if not self._without[copies]:
            self.covered_s.append(now - self.roll.started_at)

    def _kept(self, event: Joined) -> list[int]:
        """Return the chunks that a device has finished before, as far as they belong to this round."""
        if not event.kept:
            return []
        here = (self.roll.assignment.version, self.roll.assignment.target)
        known = (each for each in event.kept if each.chunk in self._chunk)
        return [self._chunk[each.chunk] for each in known if (each.version, each.reached) == here]

    def _numbers(self, chunks: Iterable[int]) -> list[int]:
        number = self._number
        return [number[c] for c in chunks]

    def _work(self, worker: int, order: Sequence[int], *, carry: bool) -> Work | Continue:
        plan, this, limit_s = self.roll.plan, self.roll.assignment, self.roll.limit_s
        device = plan.devices[worker]
        numbers = tuple(self._numbers(order))
        if carry:
            return Continue(device, this.number, this.target, numbers, limit_s)
        names = plan.names_w[worker]
        return Work(
            device, this.number, this.version, this.target, numbers, names, this.seed, limit_s,
            first_step=this.first_step, common_steps=this.common_steps,
        )  # fmt: skip

    def _take(self, worker: int, *chunks: int) -> Take:
        self.roll.tally.takes += len(chunks)
        numbers = tuple(self._numbers(chunks))
        return Take(self.roll.plan.devices[worker], self.roll.assignment.number, numbers)

    def _redirect(self, worker: int) -> list[Command]:
        """Let a finisher leave what it has just begun for what nobody does, or else take the best next.

        It hears one command after the other, and may have begun the next chunk before it hears the last:
        so the better one is in front when it leaves the other, and again when it gets that back.
        """
        redirected = self._ledger.redirect(worker)
        if redirected is None:
            return []
        begun, instead = redirected
        first = self._take(worker, instead)
        if begun is None:
            return [first]
        self.roll.tally.skips += 1
        self.roll.tally.takes += 1  # the first is said twice
        skip = Skip(first.device, first.round, self._number[begun])
        return [first, skip, self._take(worker, begun), first]


def _first_aim(roll: Roll) -> int:
    """Return how many copies to aim for as the round begins."""
    most = roll.plan.most_blocks
    return most if roll.plan.blocks_fixed else min(most, roll.assignment.prospect.aim)
