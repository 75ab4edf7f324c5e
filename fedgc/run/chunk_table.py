"""The chunks of a run: which client announced which chunk, who owns it, and its number.

A chunk belongs to the client that announces it: three clients that each announce `part-0` have three chunks.
Only a chunk that a task declares as shared (`Held.digest` is set) is the same chunk on every client that
announces it, and only if the digests of its content agree; a client whose content differs is refused that
chunk. A chunk that could not be read for its digest (`UNREAD`) is matched by name and samples.

A number is assigned once per run, so rounds, the history and client caches may keep it. An announcement
replaces the client's earlier one. The chunks of lost clients stay known, so that a returning client gets its
numbers again, but only as many as one client may announce (`LARGEST_HOLDINGS`): the table is bounded by what
the present clients announce.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from fedgc.messages import CHUNK_BYTES, LARGEST_HOLDINGS, Held
from fedgc.round.plan import Chunk

Known = tuple[int, str, str, int, str]  # number, owner, name, samples, digest
SHARED: Final = ""  # the owner of shared chunks
LONGEST_NAME: Final = 64  # characters of a chunk's name that a refusal repeats


@dataclass(frozen=True, slots=True)
class Admitted:
    """The accepted chunks of an announcement, by number too, and the reasons for those refused."""

    holds: tuple[Held, ...]
    numbers: frozenset[int]
    refused: str = ""


@dataclass(frozen=True, slots=True)
class Amount:
    """An amount of data: whole chunks, and the samples in them."""

    chunks: int = 0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class Amounts:
    """The data of each client, also of lost ones, of all present ones, and of all: shared chunks once."""

    by_client: Mapping[str, Amount] = field(default_factory=dict)
    present: Amount = Amount()
    known: Amount = Amount()


class Holdings:
    """The chunk table and the announcements. A client is present from `announced` until `lost`."""

    def __init__(self, known: Iterable[Known] = (), next_number: int = 0) -> None:
        self._chunks: dict[int, Chunk] = {}
        self._number: dict[tuple[str, str], int] = {}  # by owner and name
        self._first: dict[int, str] = {}  # the client that announced it first
        self._present: dict[str, frozenset[int]] = {}
        self._gone: dict[str, frozenset[int]] = {}  # what lost clients announced
        self._alike: Admitted | None = None  # the last announcement in which all chunks were shared
        self._refused: dict[str, tuple[int, str]] = {}  # samples, and the reason for the first, by client
        self._forgotten: dict[str, int] = {}  # samples of private chunks that were swept, by owner
        self._bytes = self._samples = 0  # of the whole table
        self._amounts: Amounts | None = None  # until the next change
        self._swept_bytes = 0  # size of the table after the last sweep
        for number, owner, name, samples, digest in known:
            self._enter(Chunk(number, name, samples, owner, digest), owner)
            if owner:
                self._gone[owner] = self._gone.get(owner, frozenset()) | {number}
        self.next_number: int = next_number

    # ---- queries

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks that are known."""
        return tuple(self._chunks.values())

    @property
    def present(self) -> Mapping[str, frozenset[int]]:
        """The numbers of the chunks that each present client can load."""
        return self._present

    @property
    def samples(self) -> int:
        """The samples of all chunks announced and not withdrawn, also of lost clients, also if refused."""
        refused = sum(samples for samples, _ in self._refused.values())
        return self._samples + refused + sum(self._forgotten.values())

    @property
    def amounts(self) -> Amounts:
        """How much data there is, and whose it is."""
        if self._amounts is None:
            holders = self._present | self._gone
            present = self._amount(frozenset().union(*self._present.values()))
            known = replace(self._amount(self._chunks.keys()), samples=self.samples)
            self._amounts = Amounts({who: self._amount(holders[who]) for who in holders}, present, known)
        return self._amounts

    def _amount(self, numbers: Collection[int]) -> Amount:
        held = [self._chunks[number].samples for number in numbers if number in self._chunks]
        return Amount(len(held), sum(held))

    def knows(self, number: int) -> bool:
        """Whether this chunk was announced and not withdrawn."""
        return number in self._chunks

    @property
    def refused(self) -> Mapping[str, str]:
        """The clients whose last announcement was partly refused, and why."""
        return {client: why for client, (_, why) in self._refused.items()}

    def known(self) -> tuple[Known, ...]:
        """Return what a resumed process needs to keep these numbers."""
        self._sweep()
        return tuple((c.number, c.owner, c.name, c.samples, c.digest) for c in self.chunks)

    # ---- changes

    def announced(self, client: str, holds: tuple[Held, ...]) -> Admitted:
        """Replace what a client announced before by what it can load now."""
        self._amounts = None
        alike = self._alike
        if alike is None or holds != alike.holds:
            alike = self._admitted(client, holds)
        before = self._gone.pop(client, frozenset()) | self._present.get(client, frozenset())
        self._present[client] = alike.numbers
        self._withdraw(client, before - alike.numbers)
        self._forgotten.pop(client, None)
        self._note_refused(client, holds, alike)
        if self._bytes > 2 * self._swept_bytes + LARGEST_HOLDINGS:
            self._sweep()
        if alike.holds is holds and all(held.digest for held in holds):
            self._alike = alike
        return alike

    def lost(self, client: str) -> None:
        """Mark a client as lost; its chunks stay known."""
        self._amounts = None
        if client in self._present:
            self._gone[client] = self._present.pop(client)

    def _admitted(self, client: str, holds: tuple[Held, ...]) -> Admitted:
        numbers: set[int] = set()
        refused: list[tuple[Held, Chunk]] = []
        others: frozenset[int] | None = None
        for held in holds:
            owner = SHARED if held.digest else client
            number = self._number.get((owner, held.name))
            if number is not None and not self._chunks[number].fits(held):
                if others is None:
                    others = self._of_others(client)
                if self._first[number] != client or number in others:
                    refused.append((held, self._chunks[number]))
                    continue
                self._leave(number)
                number = None
            numbers.add(self._new(client, owner, held) if number is None else self._read(number, held))
        left_out = {held for held, _ in refused}
        kept = tuple(held for held in holds if held not in left_out) if refused else holds
        return Admitted(kept, frozenset(numbers), _refusal(refused))

    def _new(self, client: str, owner: str, held: Held) -> int:
        number = self.next_number
        self.next_number += 1
        self._enter(Chunk(number, held.name, held.samples, owner, held.digest), client)
        return number

    def _read(self, number: int, held: Held) -> int:
        """Enter the digest of a chunk that no client could read before."""
        chunk = self._chunks[number]
        if chunk.unread and chunk.digest != held.digest:
            self._chunks[number] = Chunk(number, chunk.name, chunk.samples, chunk.owner, held.digest)
        return number

    def _of_others(self, client: str) -> frozenset[int]:
        """Return what other present clients can load."""
        sets = {numbers for other, numbers in self._present.items() if other != client}
        return frozenset().union(*sets)

    def _withdraw(self, client: str, numbers: frozenset[int]) -> None:
        """Forget chunks that a client no longer announces, unless others announce them."""
        mine = [number for number in numbers if self._first.get(number) == client]
        others = self._of_others(client) if mine else frozenset()
        for number in mine:
            if number not in others:
                self._leave(number)

    def _note_refused(self, client: str, holds: tuple[Held, ...], admitted: Admitted) -> None:
        self._refused.pop(client, None)
        if admitted.refused:
            every, kept = (sum(held.samples for held in each) for each in (holds, admitted.holds))
            self._refused[client] = every - kept, admitted.refused

    def _enter(self, chunk: Chunk, client: str) -> None:
        self._chunks[chunk.number] = chunk
        self._number[chunk.owner, chunk.name] = chunk.number
        self._first[chunk.number] = client
        self._bytes += _bytes(chunk)
        self._samples += chunk.samples

    def _leave(self, number: int) -> None:
        chunk = self._chunks.pop(number)
        del self._number[chunk.owner, chunk.name], self._first[number]
        self._bytes -= _bytes(chunk)
        self._samples -= chunk.samples
        self._alike = None

    def _sweep(self) -> None:
        """Forget the oldest chunks that no present client announces, if there are too many."""
        held = frozenset().union(*set(self._present.values()))
        orphans = [chunk for number, chunk in self._chunks.items() if number not in held]
        excess = sum(map(_bytes, orphans)) - LARGEST_HOLDINGS
        for chunk in orphans:
            if excess <= 0:
                break
            excess -= _bytes(chunk)
            self._leave(chunk.number)
            if chunk.owner:
                self._forgotten[chunk.owner] = self._forgotten.get(chunk.owner, 0) + chunk.samples
        if any(number not in self._chunks for numbers in self._gone.values() for number in numbers):
            left = {client: numbers & self._chunks.keys() for client, numbers in self._gone.items()}
            self._gone = {client: numbers for client, numbers in left.items() if numbers}
        self._swept_bytes = self._bytes


def _bytes(chunk: Chunk) -> int:
    return len(chunk.name) + CHUNK_BYTES


def _refusal(refused: list[tuple[Held, Chunk]]) -> str:
    """Describe the difference of the first refused chunk."""
    if not refused:
        return ""
    held, known = refused[0]
    name = held.name if len(held.name) <= LONGEST_NAME else f"{held.name[:LONGEST_NAME]}..."
    more = f"; {len(refused) - 1} more chunks differ" if len(refused) > 1 else ""
    if held.samples != known.samples:
        return f"chunk {name}: saw {held.samples} samples, others have {known.samples}{more}"
    return f"chunk {name}: saw content of digest {held.digest}, others have {known.digest}{more}"
