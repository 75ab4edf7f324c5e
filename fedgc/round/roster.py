"""The clients of a round, and the assignment of this round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fedgc.messages import Command, Loaded, Lost, Offered, Progress, Refuse, Report, Take
from fedgc.round.plan import Plan
from fedgc.round.replication import ReplicationCosts
from fedgc.round.statistics import RoundStatistics


@dataclass(frozen=True, slots=True)
class Assignment:
    """The parameters of one round; `target` counts all steps since the last exchange.

    `first_step` and `most_steps` are those of `Work`. `common_steps` led to each of the last models from the
    one before it, the newest first.
    """

    number: int
    version: int
    target: int
    seed: int
    carried: frozenset[str] = frozenset()  # clients that continue from a skipped round
    rounds_left: int | None = None
    first_step: int = 0
    common_steps: tuple[float, ...] = ()
    most_steps: int = 0
    most_kept: int = 0  # local steps that a client can hold; after a resume they are beyond the target
    loading: frozenset[str] = frozenset()  # carried clients whose model may still be in transit
    reached: Mapping[str, int] = field(default_factory=dict)  # steps that carried clients have reported
    open: Mapping[str, int] = field(default_factory=dict)  # steps of any client that are in no sum yet
    weights: tuple[float, ...] = ()  # of each chunk of the plan, used if the round ends early
    orders: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # of clients that continue
    replication_costs: ReplicationCosts = field(
        default_factory=ReplicationCosts
    )  # costs and gains of one more replica of each chunk in recent rounds
    upload_s: tuple[float, ...] = ()  # of a whole update, as measured by now; empty: as in the plan
    model_limit_s: float = 0.0  # limit for sending the model, before the working time counts
    pinned: Mapping[str, int] = field(default_factory=dict)  # samples that clients of local work count for
    forced_from: float = 0.0  # from when on an exchange may be forced for a client that is leaving
    closes: Mapping[str, float] = field(default_factory=dict)  # when the hours of clients end

    def steps_from(self, before: int) -> float:
        """Return the steps that led to the model from an earlier one; 0 if they are unknown."""
        models = self.version - before
        return sum(self.common_steps[:models]) if 0 < models <= len(self.common_steps) else 0.0

    @property
    def order_seed(self) -> int:
        """The shift of the order of work in this round."""
        return self.seed + self.number


@dataclass(frozen=True, slots=True)
class LateUpdate:
    """An update of an earlier round that is in a sum: its steps, their seconds, its weight and its chunks."""

    steps: int
    seconds: float
    weight: float
    chunks: tuple[int, ...]  # numbers


@dataclass(slots=True)
class Roster:
    """The clients of a round: by name in messages, by number (w, as in the plan) everywhere else."""

    plan: Plan
    assignment: Assignment
    limit_s: float  # of the working phase
    statistics: RoundStatistics = field(init=False)
    started_at: float = 0.0  # no client has worked in this round before that
    w: dict[str, int] = field(init=False)
    live: set[int] = field(init=False, default_factory=set)  # clients that joined and are not lost
    deaf: set[str] = field(init=False, default_factory=set)  # those that hear nothing between messages
    upload_s: tuple[float, ...] = field(init=False)  # of a whole update, for each client; 0: unknown
    loading: set[str] = field(init=False)  # clients whose model may be in transit
    model_at: dict[int, float] = field(init=False, default_factory=dict)  # when the model came, if known
    late: dict[str, LateUpdate] = field(init=False, default_factory=dict)  # those in this round's sum
    came: set[int] = field(init=False, default_factory=set)  # the clients whose one came in this round
    behind: set[int] = field(init=False, default_factory=set)  # those whose one may still come
    before: dict[str, int] = field(init=False, default_factory=dict)  # earlier models of late clients
    given: set[str] = field(init=False, default_factory=set)  # clients that were given local work

    def __post_init__(self) -> None:
        self.statistics = RoundStatistics.empty(len(self.plan.clients))
        self.statistics.open = [self.assignment.open.get(client, 0) for client in self.plan.clients]
        self.loading = set(self.plan.clients) & self.assignment.loading
        self.w = {client: w for w, client in enumerate(self.plan.clients)}
        self.upload_s = self.assignment.upload_s or self.plan.upload_s

    def enter(self, client: str, *, live: bool) -> int | None:
        """Mark a client as here; return its number, or None if it is not in this plan."""
        w = self.w.get(client)
        if w is not None:
            self.live.add(w)
            (self.deaf.discard if live else self.deaf.add)(client)
        return w

    def leave(self, client: str) -> int | None:
        """Mark a client as lost; return its number, or None if it was not live."""
        w = self.w.get(client)
        if w not in self.live:
            return None
        self.live.discard(w)
        return w

    def counts(self, client: str, update: LateUpdate) -> None:
        """Note an update of an earlier round that is in this round's sum."""
        self.late[client] = update
        w = self.w.get(client)
        if w is not None:
            self.statistics.came_late(w, update.steps, update.seconds)

    def comes(self, client: str, update: LateUpdate) -> None:
        """Note an update of an earlier round that has come in this one."""
        self.counts(client, update)
        if client in self.w:
            self.came.add(self.w[client])

    @property
    def counted(self) -> set[int]:
        """The clients of this plan whose updates of earlier rounds are in this round's sum."""
        return {self.w[client] for client in self.late if client in self.w}

    def fails(self, client: str, reason: str) -> None:
        """Note why no update of an earlier round comes from a client."""
        w = self.w.get(client)
        if w is not None:
            self.statistics.failure[w] = reason

    def discards(self, client: str, steps: int) -> None:
        """Note that an update of an earlier round, of so many local steps, comes into no sum."""
        w = self.w.get(client)
        if w is not None:
            self.statistics.steps[w] = max(0, steps - self.statistics.open[w])
            self.statistics.open[w] = max(steps, self.statistics.open[w])
            self.statistics.moved(w, 0)

    def refuse(self, event: Any, reason: str) -> list[Command]:  # noqa: ANN401  an event of any kind
        """Refuse an event: notify the sender, if any, and count it against a client of this plan.

        An event of an earlier round has crossed a command on its way: that is not the client's fault. Steps
        that it reports are in later reports too, so its sender is not notified.
        """
        client = getattr(event, "client", None)
        if isinstance(event, Lost | Loaded | Offered) or not client:
            return []
        w = self.w.get(client)
        number = self.assignment.number
        if isinstance(event, Progress | Report) and event.round < number:
            return []
        if w is not None and getattr(event, "round", number) >= number:
            self.statistics.refused[w] += 1
        return [Refuse(client, number, reason)]

    def take(self, w: int, *chunks: int) -> Take:
        """Let a client continue with these chunks."""
        self.statistics.takes += len(chunks)
        numbers = tuple(self.plan.chunks[c].number for c in chunks)
        return Take(self.plan.clients[w], self.assignment.number, numbers)

    def here(self, event: Any) -> str:  # noqa: ANN401  an event of a client
        """Return why this event is not of this round, or an empty string."""
        number = self.assignment.number
        if event.client not in self.w:
            return f"client {event.client} is not in round {number}"
        if event.round != number:
            return f"{type(event).__name__.lower()} of round {event.round}, this is round {number}"
        return ""
