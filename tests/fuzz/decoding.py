"""The rules of a decoder, and the check of one input."""

import random
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Final

from fedgc.errors import FedgcError
from fedgc.guards import COUNTS
from tests.fuzz.mutation import mutated

MEASURED: Final = 8  # one input in so many
SHOWN: Final = 200  # bytes of an input in a failure
TIMES: Final = 10
CONSTANT: Final = 1 << 20  # bytes that a decoder may allocate beside ten times its input
TOML: Final = 16 << 20  # the same of Python's reader of TOML, for files of the user's own


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder, valid encodings, and how often it is tried compared with others."""

    name: str
    seeds: Sequence[bytes]
    decode: Callable[[bytes], object]
    share: int = 10
    constant: int = CONSTANT


def check(decoder: Decoder, data: bytes) -> None:
    """Decode an input; raise AssertionError if that breaks the rules. Memory counts inside `traced`.

    Too much memory counts only if a second time takes it too: caches of Python and its libraries grow once.
    """
    most = TIMES * len(data) + decoder.constant
    if _peak(decoder, data) > most and (peak := _peak(decoder, data)) > most:
        raise AssertionError(f"{len(data)} bytes took {peak}")


def _peak(decoder: Decoder, data: bytes) -> int:
    """Decode an input; return the bytes that it took."""
    COUNTS.clear()
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        decoder.decode(data)
    except FedgcError:
        pass
    except Exception as error:
        raise AssertionError(f"it raised {type(error).__name__}: {error}") from error
    if COUNTS:
        raise AssertionError(f"only a guard caught it: {dict(COUNTS)}")
    return tracemalloc.get_traced_memory()[1] - before


@contextmanager
def traced() -> Iterator[None]:
    """Measure memory in this block."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def decode(every: Sequence[Decoder], seed: int) -> None:
    """Decode the input of this seed; one in eight is measured.

    Raises:
        AssertionError: The rules are broken; it names the decoder, the seed and the input.
    """
    chance = random.Random(seed)  # noqa: S311  a seed makes an input again
    (decoder,) = chance.choices(every, [decoder.share for decoder in every])
    data = mutated(chance, decoder.seeds)
    try:
        with traced() if seed % MEASURED == 0 else nullcontext():
            check(decoder, data)
    except AssertionError as error:
        again = f"python -m tests.fuzz --input {seed}"
        raise AssertionError(f"{decoder.name}: {error}; again: {again}; {data[:SHOWN]!r}") from error
