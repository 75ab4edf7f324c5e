"""Masks: pseudo-random words from AES-256, added to a vector block by block while the block is in cache.

The stream of a 32-byte key is the ciphertext of zeros under AES-256-GCM, without its tag: AES-256 in counter
mode from counter block (nonce || 00000002) on (NIST SP 800-38D, 6.5). OpenSSL runs GCM on wide vector
instructions, but not its plain counter mode. Distinguishing the stream from uniform words means
distinguishing AES-256 from a random permutation.

Each run of 2^20 words has its own nonce, 00000000 || run number, so a stream can be entered at any run. Words
are little-endian on every machine. A library with different output would silently turn sums to noise, so the
first use in a process checks a known answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher, algorithms, modes
from numpy.typing import NDArray

from fedgc.errors import BadMessage, EdgeFailed

Words = NDArray[np.unsignedinteger[Any]]

RING_TYPES: Final[dict[int, np.dtype[np.unsignedinteger[Any]]]] = {
    8: np.dtype("<u1"), 16: np.dtype("<u2"), 32: np.dtype("<u4"),
}  # fmt: skip
RUN_WORDS: Final = 1 << 20  # words under one nonce
RUN_BYTES: Final = 4 * RUN_WORDS  # bytes of `RandomBytes` under one nonce: AES-GCM ends after 64 GiB
BLOCK_WORDS: Final = 1 << 16  # words at a time; block, stream and zeros stay in the L2 cache
_KNOWN_RUN: Final = 5
_KNOWN_ANSWER: Final = "98a1c262c3be954d685249f145f755e2"  # key 00..1f, run 5, first 16 bytes


@dataclass(frozen=True, slots=True)
class Strand:
    """One mask: its key, and whether it is subtracted."""

    key: bytes = field(repr=False)
    minus: bool

    def __post_init__(self) -> None:
        if len(self.key) != 32:
            raise BadMessage(f"mask key: saw {len(self.key)} bytes, needed 32")

    def opposite(self) -> "Strand":
        """Return the mask that cancels this one."""
        return Strand(self.key, not self.minus)


def keystream(key: bytes, size: int) -> bytes:
    """Return the first bytes of the stream of a key, for small secrets."""
    known_answer()
    buffer = bytearray(size)
    aes_stream(key, 0).update_into(bytes(size), buffer)
    return bytes(buffer)


class RandomBytes:
    """The stream of a key read sequentially as bytes, without an end, for randomness local to the site."""

    def __init__(self, key: bytes) -> None:
        known_answer()
        self._key = key
        self._open(0)
        self._zeros = bytes(BLOCK_WORDS * 2)
        self._buffer = np.empty(BLOCK_WORDS * 2, np.uint8)

    def next(self, size: int) -> NDArray[np.uint8]:
        """Return the next bytes, at most 2 * BLOCK_WORDS; the array is overwritten by the next call."""
        if size > self._left:
            self._open(self._run + 1)
        self._left -= size
        part = self._buffer[:size]
        self._stream.update_into(memoryview(self._zeros)[:size], part.data)
        return part

    def _open(self, run: int) -> None:
        self._run, self._left, self._stream = run, RUN_BYTES, aes_stream(self._key, run)


def expand(size: int, ring: int, strands: Sequence[Strand]) -> Words:
    """Return the sum of at least one mask, as words of a new vector.

    >>> mask = Strand(bytes(range(32)), minus=False)
    >>> expand(3, 32, [mask, mask.opposite()]).tolist()
    [0, 0, 0]
    """
    words: Words = np.empty(size, RING_TYPES[ring])
    _mix(words, strands[0], strands[1:])
    return words


def add_strands(words: Words, strands: Sequence[Strand]) -> None:
    """Add masks to `words` in place, in the ring of its type.

    >>> words = np.arange(3, dtype=np.uint32)
    >>> mask = Strand(bytes(range(32)), minus=False)
    >>> add_strands(words, [mask, mask.opposite()])
    >>> words.tolist()
    [0, 1, 2]
    """
    _mix(words, None, strands)


def _mix(words: Words, first: Strand | None, strands: Sequence[Strand]) -> None:
    """Overwrite the words with `first`, if given, then add the others, block by block."""
    known_answer()
    zeros = memoryview(bytes(BLOCK_WORDS * words.itemsize))
    buffer = np.empty(BLOCK_WORDS, words.dtype)
    signs = [np.subtract if strand.minus else np.add for strand in strands]
    for run in range(0, words.size, RUN_WORDS):
        streams = [aes_stream(strand.key, run // RUN_WORDS) for strand in strands]
        start = aes_stream(first.key, run // RUN_WORDS) if first else None
        for part in blocks(words[run : run + RUN_WORDS]):
            mask = buffer[: part.size]
            plain, raw = zeros[: part.nbytes], mask.view(np.uint8).data
            if first and start:
                start.update_into(plain, part.view(np.uint8).data)
                if first.minus:
                    np.negative(part, out=part)
            for stream, combine in zip(streams, signs, strict=True):
                stream.update_into(plain, raw)
                combine(part, mask, out=part)


def blocks(words: Words) -> Iterator[Words]:
    """Split an array into views of at most BLOCK_WORDS words."""
    for start in range(0, words.size, BLOCK_WORDS):
        yield words[start : start + BLOCK_WORDS]


@cache
def known_answer() -> None:
    """Raise EdgeFailed if this machine's library gives other bytes than the reference."""
    buffer = bytearray(16)
    aes_stream(bytes(range(32)), _KNOWN_RUN).update_into(bytes(16), buffer)
    if buffer.hex() != _KNOWN_ANSWER:
        raise EdgeFailed(f"cryptography: saw AES-256-GCM give {buffer.hex()}, needed {_KNOWN_ANSWER}")


def aes_stream(key: bytes, run: int) -> AEADEncryptionContext:
    """Return the stream of a key from the beginning of a run, as an encryptor of zeros."""
    nonce = bytes(4) + run.to_bytes(8, "big")
    return Cipher(algorithms.AES(key), modes.GCM(nonce)).encryptor()
