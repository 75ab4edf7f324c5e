"""The chunks of a run: which clients announced each, which client owns it, and its number.

A chunk belongs to the client that announces it: three clients that each announce `part-0` have three chunks.
Only a chunk that a task declares as shared (`Held.digest` is set) is the same chunk on every client that
announces it, and only if samples and digest agree. A chunk that could not be read for its digest (`UNREAD`)
is matched by name and samples.

An announcement is only a claim. Two rules say which claims a plan may use (`present`):

*   If clients announce a shared chunk differently, what more of them announce is used, and of equally many
    what was announced first. The others are refused that chunk. Lost clients count too: a client that is away
    for a moment gives its data to no other.
*   If more than half of the present clients announce a shared chunk that another client announces too, the
    run's data is shared. Then a chunk that only one client announces is left out, so that invented chunks do
    not slow the rounds. Data that clients bring themselves is not shared by most, and is used. The only
    client of a run loses no chunk.

What is left out is counted in `samples`, but as no larger than the largest chunk in use.

A number is assigned once per run, so rounds, the history and client caches may keep it. An announcement
replaces the client's earlier one. The chunks of lost clients stay known, so that a returning client gets its
numbers again, but only as many as one client may announce (`LARGEST_HOLDINGS`): the table is bounded by what
the present clients announce.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from fedgc.errors import printable
from fedgc.messages import CHUNK_BYTES, LARGEST_HOLDINGS, Held
from fedgc.round.plan import Chunk

Known = tuple[int, str, str, int, str]  # number, owner, name, samples, digest
SHARED: Final = ""  # the owner of shared chunks
MOST_PRIVATE: Final = 2_000  # private chunks of one client in coded work: only it can train them
LONGEST_NAME: Final = 64  # characters of a chunk's name that a refusal repeats


@dataclass(frozen=True, slots=True)
class Admitted:
    """The numbers of the chunks of an announcement, and the reason why some are refused."""

    holds: tuple[Held, ...]
    numbers: frozenset[int]
    refused: str = ""
    unnumbered: int = 0  # samples of chunks beyond the limit of private ones


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

    def __init__(
        self, known: Iterable[Known] = (), next_number: int = 0, *, most_private: float = math.inf
    ) -> None:
        """`known` and `next_number` are of a run that is resumed."""
        self._most_private = most_private
        self._chunks: dict[int, Chunk] = {}
        self._numbers: dict[tuple[str, str], list[int]] = {}  # by owner and name: what was announced of it
        self._first: dict[int, str] = {}  # the client that announced it first
        self._rivals: set[str] = set()  # names of shared chunks that were announced differently
        self._vouched: set[int] = set()  # shared chunks of the run before a resume
        self._announced: dict[str, frozenset[int]] = {}  # by present clients
        self._gone: dict[str, frozenset[int]] = {}  # what lost clients announced
        self._alike: Admitted | None = None  # the last announcement in which all chunks were shared
        self._unnumbered: dict[str, tuple[int, str]] = {}  # samples beyond the limit, and that, by client
        self._left_out: frozenset[int] | None = None  # cached
        self._forgotten: dict[str, int] = {}  # samples of private chunks that were swept, by owner
        self._bytes = self._samples = 0  # of the whole table
        self._amounts: Amounts | None = None  # until the next change
        self._swept_bytes = 0  # size of the table after the last sweep
        for number, owner, name, samples, digest in known:
            self._enter(Chunk(number, name, samples, owner, digest), owner)
            if owner:
                self._gone[owner] = self._gone.get(owner, frozenset()) | {number}
            else:
                self._vouched.add(number)
        self.next_number: int = next_number

    # ---- queries

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """All chunks that are known."""
        return tuple(self._chunks.values())

    @property
    def present(self) -> Mapping[str, frozenset[int]]:
        """The numbers of the chunks that each present client can load, without those left out."""
        left_out = self.left_out
        return {
            client: numbers if numbers.isdisjoint(left_out) else numbers - left_out
            for client, numbers in self._announced.items()
        }

    @property
    def left_out(self) -> frozenset[int]:
        """The chunks that no plan may use: outvoted, or of one client where data is shared."""
        if self._left_out is None:
            votes = self._votes()
            outvoted = self._outvoted(self._rivals, votes)
            self._left_out = outvoted | self._alone(votes, outvoted)
        return self._left_out

    @property
    def samples(self) -> int:
        """The samples of all chunks announced and not withdrawn, also of lost clients, also if left out."""
        left_out, beyond = self.left_out, sum(samples for samples, _ in self._unnumbered.values())
        used = (chunk.samples for number, chunk in self._chunks.items() if number not in left_out)
        most = max(used, default=0) if left_out else 0
        excess = sum(max(0, self._chunks[number].samples - most) for number in left_out) if most else 0
        return self._samples - excess + beyond + sum(self._forgotten.values())

    @property
    def amounts(self) -> Amounts:
        """How much data there is, and whose it is."""
        if self._amounts is None:
            present_sets = self.present
            holders = {**present_sets, **self._gone}
            present = self._amount(frozenset().union(*present_sets.values()))
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
        """The clients of which chunks are left out, and why."""
        told = {client: why for client, (_, why) in self._unnumbered.items()}
        if left_out := self.left_out:
            for client, numbers in (self._gone | self._announced).items():
                if why := self._why(sorted(numbers & left_out)):
                    told[client] = why
        return told

    def known(self) -> tuple[Known, ...]:
        """Return what a resumed process needs to keep these numbers."""
        self._sweep()
        used = (chunk for chunk in self.chunks if chunk.number not in self.left_out)
        return tuple((c.number, c.owner, c.name, c.samples, c.digest) for c in used)

    # ---- changes

    def announced(self, client: str, holds: tuple[Held, ...]) -> Admitted:
        """Replace what a client announced before by what it can load now."""
        self._amounts = None
        alike = self._alike
        if alike is None or holds != alike.holds:
            alike = self._admitted(client, holds)
        before = self._gone.pop(client, frozenset()) | self._announced.get(client, frozenset())
        self._announced[client] = alike.numbers
        self._left_out = None
        self._withdraw(client, before - alike.numbers)
        self._forgotten.pop(client, None)
        self._unnumbered.pop(client, None)
        if alike.unnumbered:
            self._unnumbered[client] = alike.unnumbered, alike.refused
        if self._bytes > 2 * self._swept_bytes + LARGEST_HOLDINGS:
            self._sweep()
        if all(held.digest for held in holds):
            self._alike = alike
        if not self._rivals:
            return alike
        mine = {self._chunks[number].name for number in alike.numbers} & self._rivals
        outvoted = self._outvoted(mine, self._votes()) & alike.numbers
        return replace(alike, refused=self._why(sorted(outvoted)) or alike.refused)

    def lost(self, client: str) -> None:
        """Mark a client as lost; its chunks stay known."""
        self._amounts = None
        if client in self._announced:
            self._gone[client] = self._announced.pop(client)
            self._left_out = None

    def _admitted(self, client: str, holds: tuple[Held, ...]) -> Admitted:
        numbers: set[int] = set()
        private = beyond = 0
        for held in holds:
            private += not held.digest
            if not held.digest and private > self._most_private:
                beyond += held.samples
            else:
                numbers.add(self._numbered(client, held))
        why = f"it announced {private} private chunks, needed at most {self._most_private}" if beyond else ""
        return Admitted(holds, frozenset(numbers), why, beyond)

    def _numbered(self, client: str, held: Held) -> int:
        """Return the number of an announced chunk, a new one if it is known by no other announcement."""
        owner = SHARED if held.digest else client
        known = self._numbers.get((owner, held.name), ())
        fits = [number for number in known if self._chunks[number].fits(held)]
        if not fits:
            for number in tuple(known) if owner else ():
                self._leave(number)  # the client's own has changed
            return self._new(client, owner, held)
        exact = [number for number in fits if self._chunks[number].digest == held.digest]
        if not exact and len(fits) > 1:
            votes = self._votes()
            fits.sort(key=lambda number: (-votes[number], number))
        return self._read((exact or fits)[0], held)

    # ---- which claims are used

    def _votes(self) -> Counter[int]:
        """Return how many clients, present or lost, announce each chunk."""
        votes = Counter(self._vouched)
        for numbers, clients in Counter((*self._announced.values(), *self._gone.values())).items():
            for number in numbers:
                votes[number] += clients
        return votes

    def _outvoted(self, names: Iterable[str], votes: Mapping[int, int]) -> frozenset[int]:
        """Return what fewer clients announce of these shared chunks."""
        found: set[int] = set()
        for name in names:
            found.update(sorted(self._numbers[SHARED, name], key=lambda n: (-votes[n], n))[1:])
        return frozenset(found)

    def _alone(self, votes: Mapping[int, int], outvoted: frozenset[int]) -> frozenset[int]:
        """Return the chunks of one client, if the run's data is shared."""
        if len(self._announced) + len(self._gone) < 2:  # after a resume the chunks of before count as shared
            return frozenset()
        agreed = {number for number, count in votes.items() if count > 1} - outvoted
        sharing = sum(not numbers.isdisjoint(agreed) for numbers in self._announced.values())
        if 2 * sharing <= len(self._announced):
            return frozenset()
        return frozenset(self._chunks.keys() - agreed - self._vouched)

    def _why(self, numbers: Sequence[int]) -> str:
        """Describe the first of a client's chunks that are left out."""
        if not numbers:
            return ""
        chunk = self._chunks[numbers[0]]
        name = printable(chunk.name, LONGEST_NAME) + "..." * (len(chunk.name) > LONGEST_NAME)
        rivals = self._numbers[chunk.owner, chunk.name] if chunk.name in self._rivals else []
        used = [self._chunks[number] for number in rivals if number not in self.left_out]
        more = len(numbers) - 1
        if not used:
            others = f"; nor {more} more" if more else ""
            return f"chunk {name}: no other client announces it, and the run's data is shared{others}"
        differ = f"; {more} more chunks differ: data made at random need a seed" if more else ""
        if chunk.samples != used[0].samples:
            return f"chunk {name}: saw {chunk.samples} samples, others have {used[0].samples}{differ}"
        seen, needed = printable(chunk.digest), printable(used[0].digest)
        return f"chunk {name}: saw content of digest {seen}, others have {needed}{differ}"

    # ---- the table

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
        sets = {numbers for other, numbers in self._announced.items() if other != client}
        return frozenset().union(*sets)

    def _withdraw(self, client: str, numbers: frozenset[int]) -> None:
        """Forget chunks that a client no longer announces, unless others announce them."""
        mine = [number for number in numbers if self._first.get(number) == client]
        others = self._of_others(client) if mine else frozenset()
        for number in mine:
            if number not in others:
                self._leave(number)

    def _enter(self, chunk: Chunk, client: str) -> None:
        self._chunks[chunk.number] = chunk
        same = self._numbers.setdefault((chunk.owner, chunk.name), [])
        same.append(chunk.number)
        if len(same) > 1:
            self._rivals.add(chunk.name)
        self._first[chunk.number] = client
        self._bytes += _bytes(chunk)
        self._samples += chunk.samples

    def _leave(self, number: int) -> None:
        chunk = self._chunks.pop(number)
        same = self._numbers[chunk.owner, chunk.name]
        same.remove(number)
        if not same:
            del self._numbers[chunk.owner, chunk.name]
        if len(same) == 1 and not chunk.owner:
            self._rivals.discard(chunk.name)
        del self._first[number]
        self._vouched.discard(number)
        self._left_out = None
        self._bytes -= _bytes(chunk)
        self._samples -= chunk.samples
        self._alike = None

    def _sweep(self) -> None:
        """Forget the oldest chunks that no present client announces, if there are too many."""
        held = frozenset().union(*set(self._announced.values()))
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
            left = {
                client: frozenset(numbers & self._chunks.keys()) for client, numbers in self._gone.items()
            }
            self._gone = {client: numbers for client, numbers in left.items() if numbers}
        self._swept_bytes = self._bytes


def _bytes(chunk: Chunk) -> int:
    return len(chunk.name) + CHUNK_BYTES
