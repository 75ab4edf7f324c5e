"""Masks: pseudo-random words from AES-256, added to a vector tile by tile while the tile is in cache.

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
BLOCK_WORDS: Final = 1 << 16  # of a tile; tile, stream and zeros stay in the L2 cache
ZEROS: Final = memoryview(bytes(4 * BLOCK_WORDS))
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
        self._buffer = np.empty(BLOCK_WORDS * 2, np.uint8)

    def next(self, size: int) -> NDArray[np.uint8]:
        """Return the next bytes, at most 2 * BLOCK_WORDS; the array is overwritten by the next call."""
        if size > self._left:
            self._open(self._run + 1)
        self._left -= size
        part = self._buffer[:size]
        self._stream.update_into(ZEROS[:size], part.data)
        return part

    def seek(self, position: int) -> None:
        """Go to this byte of the stream."""
        if position != RUN_BYTES * (self._run + 1) - self._left:
            run, skipped = divmod(position, RUN_BYTES)
            self._open(run)
            for at in range(0, skipped, self._buffer.size):
                self.next(min(self._buffer.size, skipped - at))

    def _open(self, run: int) -> None:
        self._run, self._left, self._stream = run, RUN_BYTES, aes_stream(self._key, run)


class Masks:
    """The sum of masks over a vector, added tile by tile; quickest from the first tile to the last."""

    def __init__(self, strands: Sequence[Strand], kind: np.dtype[Any]) -> None:
        """The words of the vector are of this type."""
        known_answer()
        self._strands = strands
        self._signs = [np.subtract if strand.minus else np.add for strand in strands]
        self._streams: list[AEADEncryptionContext] = []
        self._at = 0  # the word at which the streams are, unless it begins a run
        self._mask: Words = np.empty(BLOCK_WORDS, kind)

    def add_to(self, words: Words, first: int) -> None:
        """Add the masks to a tile in place: at most BLOCK_WORDS words, from a multiple of that on."""
        if first != self._at or first % RUN_WORDS == 0:
            self._open(first)
        self._at = -1  # until all streams are at the end of the tile
        mask = self._mask[: words.size]
        plain, raw = ZEROS[: words.nbytes], mask.view(np.uint8).data
        for stream, combine in zip(self._streams, self._signs, strict=True):
            stream.update_into(plain, raw)
            combine(words, mask, out=words)
        self._at = first + words.size

    def _open(self, first: int) -> None:
        """Enter the streams at a tile: at the beginning of its run, and on from there."""
        run, skipped = divmod(first, RUN_WORDS)
        self._streams = [aes_stream(strand.key, run) for strand in self._strands]
        raw = self._mask.view(np.uint8).data
        for stream in self._streams:
            for _ in range(0, skipped, BLOCK_WORDS):
                stream.update_into(ZEROS[: raw.nbytes], raw)


def add_strands(words: Words, strands: Sequence[Strand]) -> None:
    """Add masks to `words` in place, in the ring of its type.

    >>> words = np.arange(3, dtype=np.uint32)
    >>> mask = Strand(bytes(range(32)), minus=False)
    >>> add_strands(words, [mask, mask.opposite()])
    >>> words.tolist()
    [0, 1, 2]
    """
    masks = Masks(strands, words.dtype)
    for tile in tiles(words.size):
        masks.add_to(words[tile], tile.start)


def tiles(size: int) -> Iterator[slice]:
    """Return the tiles of a vector, each of BLOCK_WORDS words but for the last.

    >>> [tile.stop - BLOCK_WORDS for tile in tiles(BLOCK_WORDS + 3)]
    [0, 3]
    """
    return (slice(first, min(first + BLOCK_WORDS, size)) for first in range(0, size, BLOCK_WORDS))


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
