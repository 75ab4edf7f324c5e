"""The settings of data, of the gradient code and of the start: `[data]`, `[code]`."""

from dataclasses import dataclass
from typing import Literal

from fedgc.config.fields import AUTO, Auto, count, positive, setting, share
from fedgc.config.partition import NEEDS as PARTITION_NEEDS
from fedgc.config.partition import Partition

FRAME = "frame"


@dataclass(frozen=True)
class DataSettings:
    """Where the data is, how often, and which clients a run needs to begin."""

    __slots__ = ()

    chunks: int = setting(
        "data.chunks", 16, "chunks of the shared data, if the task allows a choice", count, "at least 1"
    )
    partition: str = setting(
        "data.partition",
        "iid",
        "how fedgc.over and the shipped tasks divide samples into chunks: iid; dirichlet:ALPHA, by label; "
        "quantity:ALPHA, uneven sizes; shards:COUNT, so many of the samples sorted by label; owner",
        Partition.allows,
        PARTITION_NEEDS,
    )
    placement: Literal["private", "scattered", "shuffled-once", "cyclic"] = setting(
        "data.placement",
        "private",
        "local work: which chunks a client trains on. private: its own; if every client can load every "
        "chunk, as with fedgc.over, an equal share of them. The others need a task with may_move. scattered: "
        "each chunk on code.replicas random clients. shuffled-once: each chunk on one random client. cyclic: "
        "as many equal shares as there are clients, and code.replicas neighboring shares on each client",
    )
    inject_clients: float = setting(
        "data.inject-clients",
        0.0,
        "local work, where the task lets data move: share of the clients that at each step give samples to "
        "all (0: none; SelSync's alpha)",
        lambda v: 0 <= v <= 1,
        "0 to 1",
    )
    inject_share: float = setting(
        "data.inject-share",
        0.5,
        "how much of its batch each of them gives (SelSync's beta)",
        share,
        "above 0 and at most 1",
    )
    code: str = setting(
        "code.name", FRAME, "coded work: the gradient code; frame: well conditioned, gaussian: as published"
    )
    replicas: int | Auto = setting(
        "code.replicas",
        AUTO,
        "clients that hold each chunk (fewer clients: all of them); auto: in coded work chosen by the tuner "
        "from the speed history, 3 without history and in local work",
        count,
        "at least 1, or auto",
    )
    blocks: int | Auto = setting(
        "code.blocks",
        AUTO,
        "a codeword is 1/blocks of an update; each chunk needs as many replicas; auto: the tuner may fix it "
        "before a round, otherwise each round decides when its training ends",
        count,
        "at least 1, or auto",
    )
    min_clients: int = setting(
        "min-clients",
        2,
        "clients needed to begin or resume a run; after its first round fewer may remain; `fedgc run` waits "
        "for all clients that it starts, unless this is set",
        count,
        "at least 1",
    )
    start_timeout_s: float = setting(
        "timing.start-timeout-s",
        120.0,
        "how long to wait for min-clients (later: for any client) before the run ends",
        positive,
        "above 0",
    )
