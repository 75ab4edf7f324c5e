"""What is worked on in a round, and what both kinds of work have in common.

The round says when: when the gate is asked, when is enough, when it is over. An `Effort` says what: who is
given which work, what a report means, what can be collected. There are two rooms:

    chunks      coded work: every chunk is trained by itself, copies of it are counted
    attendance  local work: each client trains one model on all that it holds, its steps are counted

and one around either of them, `sites`, where vectors are summed under masks.

May import: plan, messages, codes, gate; statistics.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedgc.codes import Solution
from fedgc.gates import Reports
from fedgc.messages import (
    Add,
    Command,
    Failed,
    Joined,
    Loaded,
    Lost,
    Progress,
    Refuse,
    Report,
    Take,
)
from fedgc.round.plan import Plan
from fedgc.round.replication import ReplicationCosts
from fedgc.round.statistics import RoundStatistics


@dataclass(frozen=True, slots=True)
class Assignment:
    """What makes this round this round; `target` counts all steps since the last sync.

    `first_step`, `common_steps` and `most_steps` are those of `Work`.
    """

    number: int
    version: int
    target: int
    seed: int
    carried: frozenset[str] = frozenset()  # clients that go on from a skipped round
    rounds_left: int | None = None
    first_step: int = 0
    common_steps: float = 0.0
    most_steps: int = 0
    loading: frozenset[str] = frozenset()  # of these, those whose model may be on its way still
    reached: Mapping[str, int] = field(default_factory=dict)  # steps told by those that go on
    weights: tuple[float, ...] = ()  # of each chunk of the plan, should the round be cut short
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of who carries on where it stopped
    replication_costs: ReplicationCosts = field(
        default_factory=ReplicationCosts
    )  # what more copies cost and save, of late
    upload_s: tuple[float, ...] = ()  # of a whole update on each line as known by now, or as in the plan
    model_limit_s: float = 0.0  # how long the model may be on its way, before there is time to work

    @property
    def order_seed(self) -> int:
        """By how much this round shifts the order of work."""
        return self.seed + self.number


@dataclass(slots=True)
class Roster:
    """The clients of a round: known by name here, by number (w, as in the plan) everywhere else."""

    plan: Plan
    assignment: Assignment
    limit_s: float  # of the working phase
    statistics: RoundStatistics = field(init=False)
    started_at: float = 0.0  # some have been there for longer: nobody has worked since before that
    w: dict[str, int] = field(init=False)
    upload_s: tuple[float, ...] = field(init=False)  # of a whole update on each client's line; 0: unknown
    model_at: dict[int, float] = field(init=False, default_factory=dict)  # when it came, where that is heard

    def __post_init__(self) -> None:
        self.statistics = RoundStatistics.empty(len(self.plan.clients))
        self.w = {client: w for w, client in enumerate(self.plan.clients)}
        self.upload_s = self.assignment.upload_s or self.plan.upload_s

    def refuse(self, event: Any, reason: str) -> list[Command]:  # noqa: ANN401  whatever was said
        """Tell the sender, where there is one, and count it against a client of this plan.

        What it says of a round before has crossed a command on its way, which is nobody's fault.
        """
        client = getattr(event, "client", None)
        if isinstance(event, Lost | Loaded) or not client:
            return []
        w = self.w.get(client)
        number = self.assignment.number
        if w is not None and getattr(event, "round", number) >= number:
            self.statistics.refused[w] += 1
        return [Refuse(client, number, reason)]

    def take(self, w: int, *chunks: int) -> Take:
        """Have a client go on with these chunks next."""
        self.statistics.takes += len(chunks)
        numbers = tuple(self.plan.chunks[c].number for c in chunks)
        return Take(self.plan.clients[w], self.assignment.number, numbers)

    def here(self, event: Any) -> str:  # noqa: ANN401  an event of a client
        """Return why this event is not of this round, or nothing."""
        number = self.assignment.number
        if event.client not in self.w:
            return f"client {event.client} is not in round {number}"
        if event.round != number:
            return f"{type(event).__name__.lower()} of round {event.round}, this is round {number}"
        return ""


class Aggregation(Protocol):
    """What is collected at the end of a round: every vector enters the sum once."""

    def needed(self) -> Sequence[Command]:
        """Return who is to send what."""

    def accept(self, w: int, attempt: int) -> Add | Refuse | str:
        """Take this vector into the sum, refuse what is not wanted any more, or return what is wrong."""

    def lost(self, w: int) -> None:
        """What this client owed will not come."""

    def give_up(self) -> None:
        """Nothing more will come at all."""

    @property
    def owing(self) -> tuple[int, ...]:
        """Clients that still owe a vector."""

    @property
    def complete(self) -> bool:
        """Whether nothing is awaited any more."""

    @property
    def counted(self) -> Mapping[int, int]:
        """How much of each client's work is in the sum: chunks, or local steps."""

    @property
    def weight(self) -> float:
        """What the sum is to be divided by."""


class Scheduler(Protocol):
    """What the round needs of any kind of work."""

    @property
    def solution(self) -> Solution | None:
        """What was solved for the collection, where anything has to be."""

    # ---- who is there

    def begin(self, present: Sequence[Joined]) -> list[Command]:
        """Give work to everybody who is there at the start."""

    def give(self, present: Sequence[Joined], carried: Collection[str] = ()) -> list[Command]:
        """Put clients on the books, and give them what is worth doing."""

    def lost(self, w: int) -> bool:
        """Take a client off the books; return whether it was on them."""

    def struck(self, w: int, event: Failed) -> str:
        """Take off the books what a client cannot give; return why that changes nothing, if so."""

    @property
    def live(self) -> Sequence[int]:
        """The clients on the books."""

    # ---- working

    def heard(self, event: Progress | Report) -> list[Command]:
        """Take a report of work in."""

    def stirred(self) -> list[Command]:
        """Somebody has left: hand out anew what is wanted still."""

    @property
    def hopeless(self) -> bool:
        """Whether nobody is left who could give anything."""

    @property
    def ready(self) -> bool:
        """Whether there is enough to ask the gate."""

    @property
    def some(self) -> bool:
        """Whether there is anything to collect at all."""

    def reports(self) -> Reports:
        """Return what the gate may look at, as far as the clients tell it."""

    def more(self, now: float) -> list[Command] | None:
        """The gate wants an exchange: return what is to be done first, or None where nothing is."""

    @property
    def look_again(self) -> float:
        """When `more` may change its mind although nothing happens."""

    @property
    def progress(self) -> tuple[int, int, int]:
        """Return (what is done, what there is to do, what is aimed for): what a person watches."""

    @property
    def covered(self) -> int:
        """The chunks on which somebody has done what was asked."""

    @property
    def losses(self) -> Sequence[float]:
        """The losses of what was reported."""

    @property
    def reached(self) -> Mapping[str, int]:
        """The steps since the last common model that clients have told, where they go on from there."""

    @property
    def common_steps(self) -> float:
        """How many local steps, by the mean, what was collected is made of."""

    @property
    def covered_s(self) -> Sequence[float]:
        """When all chunks had 1, 2, ... copies while there was work, after the round began."""

    @property
    def next_orders(self) -> Mapping[str, tuple[int, ...]]:
        """How clients that are alone with a chunk go on in the next round: from where they stopped."""

    # ---- collecting

    @property
    def holds(self) -> Mapping[int, int]:
        """How much of its work each client could send now: chunks, or the local steps that it has told."""

    def lacks(self, clients_w: Collection[int]) -> tuple[int, ...]:
        """Return the numbers of the chunks that are in none of these clients' work."""

    def collect(self) -> Aggregation:
        """Fix what there is, and return what is to be collected."""

    def meanwhile(self) -> list[Command]:
        """Return what clients are to work on while vectors come in, lest somebody be late."""

    def heard_late(self, event: Progress | Report) -> list[Command]:
        """Take in a report of work that comes while vectors are awaited."""

    def returned(self, event: Joined) -> list[Command]:
        """A client is back while vectors are awaited: ask again for what it can still send."""

    def without(self, w: int) -> None:
        """A client cannot send all that it owes."""

    def too_slow(self, w: int) -> None:
        """Nothing more of this client is waited for."""

    def mend(self) -> list[Command]:
        """Ask others for what nobody will send any more; nothing where that cannot be had."""

    def hurry(self, now: float) -> list[Command]:
        """Ask others for what takes much longer than usual, where they can give it."""

    @property
    def hurry_at(self) -> float:
        """When `hurry` may have more to ask although nothing happens."""

    def unsent_s(self, now: float) -> Mapping[int, float]:
        """Return who was late to the end, and for how long it was at what would be a whole update."""

    def missing(self) -> tuple[tuple[int, ...], float | None]:
        """Return the numbers of the chunks that the sum lacks, and the error that this causes, if known."""
