"""Values that messages contain."""

from itertools import chain
from typing import Annotated

from fedgc.errors import BadMessage
from fedgc.messages.fields import (
    LARGEST_COUNT,
    LONGEST_DIGEST,
    RING_BITS,
    Count,
    Samples,
    check,
    check_finite,
    check_sketch,
)
from fedgc.values import Filled, Within, value


@value
class Held:
    """A chunk that a client can load, by the task's name for it.

    Without a `digest` it belongs to the client alone, under any name. With one the task declares its data
    as shared: it is the same chunk on all clients that announce this name and digest.
    """

    name: Annotated[str, Filled("a chunk's name")]
    samples: Samples
    digest: str = ""

    def __post_init__(self) -> None:
        if len(self.digest) > LONGEST_DIGEST:
            seen = f"a digest of {len(self.digest)} characters"
            raise BadMessage(f"Held: saw {seen}, needed at most {LONGEST_DIGEST}")


@value
class Kept:
    """A trajectory that a returning client still has: steps reached from model `version`."""

    version: Count
    chunk: Count
    reached: Count
    sketch: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        check_sketch(self, self.sketch)


@value
class Mix:
    """The mix of one codeword: a row of `blocks` factors for each chunk."""

    chunks: tuple[int, ...]
    matrix: tuple[tuple[float, ...], ...]

    def __post_init__(self) -> None:
        check(len(self.chunks) == len(self.matrix) >= 1, self, "one row for each of at least one chunk")
        check(len(set(self.chunks)) == len(self.chunks), self, "each chunk once")
        check(min(self.chunks) >= 0, self, "chunks of 0 or more")
        check(set(map(len, self.matrix)) == {self.blocks} != {0}, self, "rows of one length")
        check_finite(self, chain.from_iterable(self.matrix), "factors")

    @property
    def blocks(self) -> int:
        """The number of blocks into which each update is cut."""
        return len(self.matrix[0])


@value
class Ring:
    """The format of a masked vector: so many words of so many bits."""

    words: Annotated[int, Within(1, LARGEST_COUNT, f"at least one word, at most {LARGEST_COUNT:g}")]
    bits: int

    def __post_init__(self) -> None:
        check(self.bits in RING_BITS, self, f"words of {RING_BITS} bits")


@value
class Pool:
    """The sample pool of one site at each local step: `givers` clients give `given` samples each to all.

    `holders` are the clients, each with the names of its chunks, in the order of their numbers.
    """

    givers: int
    given: Samples
    holders: tuple[tuple[str, tuple[str, ...]], ...]

    def __post_init__(self) -> None:
        clients = [client for client, _ in self.holders]
        check(len(set(clients)) == len(clients), self, "each client once")
        check(all(names for _, names in self.holders), self, "a chunk for every client")
        check(1 <= self.givers <= len(clients), self, "one client that gives at least, and no more than all")
