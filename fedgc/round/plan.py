"""The plan of a round: each client's chunks, the time limits, and the length of codewords.

`make_plan` turns the fleet (the present clients and the chunks that each can load), the known speeds and the
settings into one frozen `Plan`. If every client can load every chunk the placement is chosen (classes
balanced by speed); if the data dictates it, the placement is adopted as it is.

Chunks have two numbers. A chunk's number in the run's table never changes and is used in messages; its index
in a plan (0 .. chunks-1) counts the chunks that some present client can load, and is used by codes.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import chain
from statistics import median
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from fedgc import messages
from fedgc.aggregators import PLAIN
from fedgc.codecs import codec_of, shortest_wire
from fedgc.codes import Placement, adopt, place
from fedgc.config import AUTO, RunConfig
from fedgc.errors import BadPlacement, numbered
from fedgc.fragments import largest_fragment
from fedgc.history import Speeds
from fedgc.round.coded.lateness import expects_late
from fedgc.round.groups import Groups, RoundWork, fewest_of, groups_by_speed, told_of
from fedgc.round.limits import deadline_s, late_s, upload_deadline_s, upload_s
from fedgc.round.local.weights import FEWEST

UNKNOWN_STEP_S: Final = 0.05  # only the ratio between clients matters until the first round is measured
QUORUM: Final = 0.75  # of the clients, by default: one in four may be slow or gone
UNKNOWN_REPLICAS: Final = 3  # by default: one client may fail while another is slow
GROUPS_EACH: Final = 0.4  # groups of chunks for each client, if an upload takes as long as the work of all
MOST_GROUPS_EACH: Final = 4
LIES: Final = "placed where the data lies"


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk as the run knows it: its number never changes.

    It belongs to its `owner`. A shared one has no owner, but the `digest` of its content.
    """

    number: int
    name: str
    samples: int
    owner: str = ""
    digest: str = ""

    @property
    def unread(self) -> bool:
        """Whether it is shared, and no client could read it yet."""
        return self.digest == messages.UNREAD

    def fits(self, held: messages.Held) -> bool:
        """Whether an announced chunk is this chunk, for a client that may have it."""
        same = held.digest == self.digest or (
            bool(held.digest) and bool(self.digest) and messages.UNREAD in (held.digest, self.digest)
        )
        return same and held.name == self.name and held.samples == self.samples


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is fixed before a round begins; index w is a client, index c a chunk of `chunks`."""

    clients: tuple[str, ...]
    chunks: tuple[Chunk, ...]
    placement: Placement
    most_blocks: int
    blocks_fixed: bool
    steps: int
    held: Mapping[str, frozenset[int]]
    measured: bool
    step_s: tuple[float, ...]
    update_bytes: int  # of a whole update on the wire
    upload_s: tuple[float, ...]  # of it for each client's uplink, as known when the plan was made; 0: unknown
    deadline_s: float
    upload_deadline_s: float
    error_limit: float
    late_s: float  # minimum time before a codeword or an update is late
    short_numbers: bool
    reason: str
    work: Literal["coded", "local"] = "coded"
    quorum: float = 1.0  # of local work, as are patience, wire and pool
    patience: float = 0.0
    wire: messages.Wire = "float32"
    code: str = "frame"  # of coded work
    gives_up_stalled: bool = False  # before the deadline
    gives_up_late: bool = False  # updates of local work, before the upload deadline
    counts_late: bool = False  # updates of local work, in a later round
    fewest: int = 1  # clients in a sum then, where there are as many
    groups: Groups = ()  # by speed: any one makes a model
    round_s: tuple[float, ...] = ()  # of each client, as known when the groups were made
    pool: messages.Pool | None = None
    largest_share: float = 1.0  # of the samples that one client counts for, in local work
    chosen_from: int = 0  # so many clients; 0: all take part
    # Number and name of every chunk that a client may be asked for; each round repeats them
    names_w: tuple[tuple[tuple[int, str], ...], ...] = field(init=False, repr=False, compare=False)
    # The chunks that only one client can load: no other client can train them
    alone_c: NDArray[np.bool_] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        shape = (len(self.clients), len(self.chunks))
        placed = (self.placement.clients_w, self.placement.chunks)
        if placed != shape:
            raise BadPlacement(f"plan: saw a placement of {placed}, needed {shape}")
        names_c = [(chunk.number, chunk.name) for chunk in self.chunks]
        names_w = tuple(tuple(names_c[c] for c in sorted(order)) for order in self.placement.orders)
        object.__setattr__(self, "names_w", names_w)
        object.__setattr__(self, "alone_c", self._alone())

    def _alone(self) -> NDArray[np.bool_]:
        lies = len(self.clients) == 1 or any(len(held) < len(self.chunks) for held in self.held.values())
        alone_c: NDArray[np.bool_] = (self.placement.replicas_n == 1) & lies
        if alone_c.any():
            holders = Counter(chain.from_iterable(self.held[client] for client in self.clients))
            alone_c &= np.asarray([holders[chunk.number] == 1 for chunk in self.chunks])
        return alone_c

    @property
    def shares(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of the chunks that each client works on."""
        numbers = [chunk.number for chunk in self.chunks]
        held_w = (tuple(numbers[c] for c in sorted(order)) for order in self.placement.orders)
        return dict(zip(self.clients, held_w, strict=True))

    @property
    def samples(self) -> int:
        """Samples of all chunks together."""
        return sum(chunk.samples for chunk in self.chunks)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The present clients, and the chunks (by number) that each can load."""

    holds: Mapping[str, frozenset[int]]
    chunks: tuple[Chunk, ...]
    size: int = 0
    deaf: bool = False  # some of them receive nothing between their messages
    buffers: int = 0  # numbers of the model that travel in float32

    @property
    def able(self) -> tuple[str, ...]:
        """Clients that can load anything, in the order of `holds`."""
        return tuple(client for client, held in self.holds.items() if held)

    @property
    def reachable(self) -> tuple[Chunk, ...]:
        """The chunks that a present client can load; the table may hold others, of lost clients."""
        held = frozenset().union(*set(self.holds.values()))
        return tuple(chunk for chunk in self.chunks if chunk.number in held)

    @property
    def common(self) -> frozenset[int]:
        """The chunks that all clients can load, if these are at least half: then they are dealt out."""
        return _common({held for held in self.holds.values() if held})


@dataclass(frozen=True, slots=True)
class _Costs:
    """Steps of a chunk, and for each client the seconds of a step and of an upload (0: unknown)."""

    steps: int
    step_s: Sequence[float]
    upload_s: Sequence[float]


def make_plan(
    fleet: Fleet, speeds: Speeds, config: RunConfig, *, steps: int, asked: Collection[str] | None = None
) -> Plan:
    """Return the plan for these clients, or raise BadPlacement where none can be made.

    If only some are `asked`, each has the same chunks as if all were.
    """
    clients = fleet.able
    if not clients:
        raise BadPlacement(
            f"plan: saw {len(fleet.holds)} clients that hold nothing, needed one that holds a chunk"
        )
    held = {client: fleet.holds[client] for client in clients}
    clients, dealt = _dealt_to(held, config)
    chunks = tuple(chunk for chunk in fleet.reachable if chunk.number in dealt)
    typical_s = _typical_step_s(clients, speeds)
    step_s = tuple(speeds.step_s(client, typical_s) for client in clients)
    short = config.wire == "short" and config.work == "coded"
    wire = shortest_wire(1.0, config.error_limit).value if short else config.codec
    size_bytes = codec_of(wire, fleet.buffers).expected(largest_fragment(config.fragments, fleet.size))
    uplinks_s = _uplinks_s(clients, speeds, size_bytes)
    placement, how = _placed(clients, chunks, fleet, _Costs(steps, step_s, uplinks_s), config)
    chosen_from = 0
    if asked is not None and len(asked) < len(clients):
        chosen_from = len(clients)
        clients, chunks, placement = _only(asked, clients, chunks, placement)
        held = {client: held[client] for client in clients}
        step_s = tuple(speeds.step_s(client, typical_s) for client in clients)
    replicas = placement.replicas
    most = replicas if config.blocks == AUTO else min(int(config.blocks), replicas)
    measured = speeds.known.keys() >= set(clients)
    round_s = seconds_of_round(clients, fleet, speeds, config)
    groups = groups_by_speed(round_s)
    over = f"{numbered(len(chunks), 'chunk')} on {numbered(len(clients), 'client')}"
    return Plan(
        clients=clients,
        chunks=chunks,
        placement=placement,
        most_blocks=most,
        blocks_fixed=config.blocks != AUTO,
        steps=steps,
        held=held,
        measured=measured,
        step_s=step_s,
        update_bytes=size_bytes,
        upload_s=_uplinks_s(clients, speeds, size_bytes),
        deadline_s=deadline_s(config, placement, steps, step_s if measured else (), deaf=fleet.deaf),
        upload_deadline_s=upload_deadline_s(config, clients, speeds, size_bytes),
        error_limit=config.error_limit,
        late_s=late_s(config),
        short_numbers=short,
        reason=f"{over}, {how}{told_of(groups)}",
        work=config.work,
        quorum=QUORUM if config.quorum == AUTO else float(config.quorum),
        patience=config.patience,
        largest_share=config.largest_share,
        wire=wire,
        code=config.code,
        gives_up_stalled=config.deadline_s == AUTO,  # a chosen deadline is how long the user wants to wait
        gives_up_late=config.upload_deadline_s == AUTO,
        counts_late=config.late_updates == "count",
        fewest=_fewest(len(clients), config),
        groups=groups,
        round_s=round_s,
        pool=_pool(config, clients, chunks, placement),
        chosen_from=chosen_from,
    )


def _only(
    asked: Collection[str], clients: Sequence[str], chunks: Sequence[Chunk], placement: Placement
) -> tuple[tuple[str, ...], tuple[Chunk, ...], Placement]:
    """Return these clients of a placement, with their chunks."""
    kept = {client: placement.orders[w] for w, client in enumerate(clients) if client in asked}
    numbers = sorted({c for order in kept.values() for c in order})
    index = {c: at for at, c in enumerate(numbers)}
    orders = [[index[c] for c in order] for order in kept.values()]
    return tuple(kept), tuple(chunks[c] for c in numbers), adopt(orders, len(numbers))


def _dealt_to(
    held: Mapping[str, frozenset[int]], config: RunConfig
) -> tuple[tuple[str, ...], frozenset[int]]:
    """Return the participating clients and their chunks: all, except where local work deals data out.

    Then most must hold the same chunks; a client that lacks some of them, or comes when all are dealt, waits.
    """
    clients, every = tuple(held), frozenset[int]().union(*held.values())
    if config.work != "local" or config.secrecy == "masked":
        return clients, every
    if config.placement != "private":
        every, _ = Counter(held.values()).most_common(1)[0]
        clients = tuple(client for client in clients if held[client] >= every)
        if 2 * len(clients) <= len(held):
            seen = f"{len(held)} clients of which {len(clients)} can load the same chunks"
            raise BadPlacement(f"placement {config.placement}: saw {seen}, needed more than half")
    movable = all(held[client] >= every for client in clients)
    return (clients[: len(every)] if movable else clients), every


def injected(config: RunConfig, clients: int) -> tuple[int, int]:
    """Return how many clients give samples at each step, and how many each; zeros without injection.

    >>> injected(RunConfig(work="local", placement="cyclic", inject_clients=0.5, batch_size=32), 8)
    (4, 5)
    """
    if not config.inject_clients:
        return 0, 0
    givers, batch = max(1, round(config.inject_clients * clients)), config.batch_size
    given = max(1, int(config.inject_share * batch / (1.0 + config.inject_share * givers)))
    if givers * given >= batch:
        raise BadPlacement(
            f"setting batch-size: saw {batch} with {givers} clients that give samples at each step, "
            f"needed at least {givers * given + 1}"
        )
    return givers, given


def _pool(
    config: RunConfig, clients: Sequence[str], chunks: Sequence[Chunk], placement: Placement
) -> messages.Pool | None:
    givers, given = injected(config, len(clients))
    if not givers:
        return None
    names = [tuple(chunks[c].name for c in sorted(order)) for order in placement.orders]
    return messages.Pool(givers, given, tuple(zip(clients, names, strict=True)))


def _placed(
    clients: Sequence[str],
    chunks: Sequence[Chunk],
    fleet: Fleet,
    costs: _Costs,
    config: RunConfig,
) -> tuple[Placement, str]:
    index = {chunk.number: at for at, chunk in enumerate(chunks)}
    among = {held: held & frozenset(index) for held in set(fleet.holds.values())}
    held_w = [among[fleet.holds[client]] for client in clients]
    common = _common(set(held_w))
    if len(common) == len(chunks):
        return _shared_out(len(clients), len(chunks), costs, config)
    if len(common) < len(clients) or config.secrecy == "masked":  # too few to deal out
        return adopt([[index[number] for number in held] for held in held_w], len(chunks)), LIES
    placement, how = _shared_out(len(clients), len(common), costs, config)
    numbers = sorted(common)
    given = [{numbers[at] for at in order} for order in placement.orders]
    _give_rest(given, held_w, costs.step_s, placement.replicas)
    placement = adopt([[index[number] for number in each] for each in given], len(chunks))
    return placement, f"{how}; {numbered(len(chunks) - len(common), 'chunk')} {LIES}"


def _common(held: Set[frozenset[int]]) -> frozenset[int]:
    """Return the chunks that are in all of these sets, if they are at least half of all chunks.

    >>> sorted(_common({frozenset({1, 2, 3}), frozenset({1, 2})})), _common({frozenset({1}), frozenset({2})})
    ([1, 2], frozenset())
    """
    common = frozenset.intersection(*held)
    return common if 2 * len(common) >= len(frozenset().union(*held)) else frozenset()


def _give_rest(
    given: Sequence[set[int]], held_w: Sequence[frozenset[int]], step_s: Sequence[float], replicas: int
) -> None:
    """Give each chunk that some clients lack to those of the others that are done first."""
    holders: dict[int, list[int]] = {}
    for w, held in enumerate(held_w):
        for number in held:
            holders.setdefault(number, []).append(w)
    lacked = [number for number, able in holders.items() if len(able) < len(held_w)]
    for number in sorted(lacked, key=lambda each: (len(holders[each]), each)):
        soonest = sorted(holders[number], key=lambda w: (len(given[w]) + 1) * step_s[w])
        for w in soonest[:replicas]:
            given[w].add(number)


def _shared_out(clients: int, chunks: int, costs: _Costs, config: RunConfig) -> tuple[Placement, str]:
    """Share out chunks that all clients can load."""
    if config.work == "local":
        return _dealt(clients, chunks, config)
    speeds = [1 / seconds for seconds in costs.step_s]
    if config.secrecy == "masked":  # a replica would count twice in the sum
        placement = place(chunks, _none_without(chunks, speeds), 1, seed=config.seed)
        return placement, "1 replica each, shared out by speed, one chunk to each site at least"
    asked = UNKNOWN_REPLICAS if config.replicas == AUTO else int(config.replicas)
    replicas = min(asked, clients)
    fewer = f" ({asked} asked for)" if replicas < asked else ""
    groups = _groups(chunks, costs, config) if replicas > 1 else chunks
    placement = place(chunks, speeds, replicas, groups=groups, seed=config.seed)
    grouped = f" in {groups} groups, as uplinks are uneven" if groups < chunks else ""
    return placement, f"{numbered(replicas, 'replica')} each{fewer}, shared out by speed{grouped}"


def _groups(chunks: int, costs: _Costs, config: RunConfig) -> int:
    """Return in how many groups to place the chunks; as many as chunks, unless uploads may be late.

    A late codeword is replaced by those of the other holders of its chunks, which are fewer with groups. With
    small groups that is no gain, and with few chunks in each the work is shared out unevenly.

    >>> late = _Costs(1, [1.0] * 4, [8.0, 8.0, 8.0, 40.0])
    >>> even = _Costs(1, [1.0] * 4, [8.0] * 4)
    >>> coded = RunConfig(work="coded", late_s=2.0)
    >>> _groups(80, late, coded), _groups(7, late, coded), _groups(80, even, coded)
    (4, 7, 80)
    """
    blocks = 1 if config.blocks == AUTO else int(config.blocks)
    sending_s = [seconds / blocks for seconds in costs.upload_s]
    if not expects_late(sending_s, late_s(config)):
        return chunks
    clients = len(costs.step_s)
    working_s = chunks * costs.steps / sum(1.0 / seconds for seconds in costs.step_s)
    usual_s = median(seconds for seconds in sending_s if seconds)
    each = max(1, round(GROUPS_EACH * working_s / usual_s))
    return clients * each if each <= MOST_GROUPS_EACH and 2 * clients * each <= chunks else chunks


def _none_without(chunks: int, speeds: Sequence[float]) -> list[float]:
    """Return each site's share of the chunks: by speed, but at least one.

    A site without a chunk has no vector to send, and with too few vectors a masked sum is aborted.

    >>> _none_without(8, [1.0, 1.0, 0.1])
    [3.5, 3.5, 1.0]
    """
    if chunks < len(speeds):
        raise BadPlacement(
            f"plan: saw {chunks} chunks, needed one for each of {len(speeds)} sites of a masked run"
        )
    shares = np.ones(len(speeds))
    faster = np.arange(len(speeds))  # faster than sites that get one chunk only because of this rule
    while faster.size:
        pull = np.asarray(speeds)[faster]
        shares[faster] = (chunks - len(speeds) + faster.size) * (pull / pull.sum())
        slow = shares[faster] < 1.0
        if not slow.any():
            break
        shares[faster[slow]] = 1.0
        faster = faster[~slow]
    return [float(share) for share in shares]


def _dealt(clients: int, chunks: int, config: RunConfig) -> tuple[Placement, str]:
    """Share out chunks evenly for local work, in which all clients do the same number of steps.

    Cyclic is the placement of SelSync (arXiv 2307.07950), where every client holds everything.
    """
    replicas = min(UNKNOWN_REPLICAS if config.replicas == AUTO else int(config.replicas), clients)
    if config.placement in ("scattered", "shuffled-once"):
        wanted = replicas if config.placement == "scattered" else 1
        return place(
            chunks, [1.0] * clients, wanted, seed=config.seed
        ), f"{config.placement}, {wanted} wanted"
    overlap = replicas if config.placement == "cyclic" else 1
    ends = [chunks * at // clients for at in range(clients + 1)]
    shares = [list(range(ends[at], ends[at + 1])) for at in range(clients)]
    held = [
        [chunk for on in range(overlap) for chunk in shares[(at + on) % clients]] for at in range(clients)
    ]
    return adopt(held, chunks), f"{config.placement}, {overlap} of {clients} shares each"


def _fewest(clients: int, config: RunConfig) -> int:
    """Return how many clients a sum has at least, where there are as many."""
    if config.groups == "speed":
        return fewest_of(clients)
    return FEWEST if config.late_updates == "count" and config.chosen_rule != PLAIN else 1


def seconds_of_round(
    clients: Sequence[str], fleet: Fleet, speeds: Speeds, config: RunConfig
) -> tuple[float, ...]:
    """Return how long each client takes for a round of local work, or nothing without groups by speed."""
    if config.groups == "off":
        return ()
    down, up = (codec_of(codec, fleet.buffers) for codec in (config.download_codec, config.codec))
    work = RoundWork(down.expected(fleet.size), config.round_steps, up.expected(fleet.size))
    return work.seconds(clients, speeds)


def _typical_step_s(clients: Sequence[str], speeds: Speeds) -> float:
    known = sorted(speeds.known[client].step_s for client in clients if client in speeds.known)
    return known[len(known) // 2] if known else UNKNOWN_STEP_S


def _uplinks_s(clients: Sequence[str], speeds: Speeds, size_bytes: int) -> tuple[float, ...]:
    uplinks = (speeds.known[client].up_bytes_s if client in speeds.known else None for client in clients)
    return upload_s(uplinks, size_bytes)
