"""Limits, field types and checks that several messages share."""

import math
from collections.abc import Collection, Iterable
from typing import Annotated, Final, Literal

from fedgc.errors import BadMessage
from fedgc.values import Filled, Within

WIRE_VERSION: Final = 8  # both sides refuse another one at the first hello
SKETCH_NUMBERS: Final = 16  # length of the seeded projection by which replicas are compared
LARGEST_SKETCH: Final = 1e60  # far above any update, and its square times any number of samples is finite
LONGEST_REASON: Final = 1000
LONGEST_FIGURE: Final = 100  # characters of a figure's name
WEEK_S: Final = 7 * 86_400.0
MOST_WINDOWS: Final = 64  # that a client announces of a week
MOST_FIGURES: Final = 64  # that a client reports of one model
LARGEST_COUNT: Final = 10**15  # of steps, samples, bytes: sums stay exact
LARGEST_PACKET: Final = 700_000  # bytes of a masked exchange's packet: as base64 it still fits a line
LARGEST_HOLDINGS: Final = 800_000  # bytes of a line that the chunks of one client may take in its work
CHUNK_BYTES: Final = 17  # of them for each chunk besides its name: its number, twice, and separators
LONGEST_DIGEST: Final = 16  # characters of a shared chunk's content digest
UNREAD: Final = "?"  # in place of a digest: the chunk is shared, but could not be read when it was announced
SIGNATURE_BYTES: Final = 64
HASH_BYTES: Final = 32
RING_BITS: Final = (8, 16, 32)
LARGEST_AMOUNT: Final = 1e30  # of seconds, of a squared norm: squares stay finite
Kind = Literal["coded", "local", "masked"]
Wire = Annotated[str, Filled("a codec")]  # its name and its options
Outcome = Literal["synced", "approximate", "skipped", "empty", "aborted", "stopped"]
SUMMED: Final = ("synced", "approximate")  # outcomes of rounds with a sum, thus with a new model
Count = Annotated[int, Within(0, LARGEST_COUNT, f"{{name}} of 0 or more, at most {LARGEST_COUNT:g}")]
Samples = Annotated[int, Within(1, LARGEST_COUNT, f"at least one sample, at most {LARGEST_COUNT:g}")]
Steps = Annotated[int, Within(1, LARGEST_COUNT, f"a target of at least one step, at most {LARGEST_COUNT:g}")]
Amount = Annotated[
    float, Within(0, LARGEST_AMOUNT, f"a finite {{name}} of 0 or more, at most {LARGEST_AMOUNT:g}")
]
Loss = Annotated[float, Within(-LARGEST_AMOUNT, LARGEST_AMOUNT, f"a loss up to {LARGEST_AMOUNT:g}")]
Client = Annotated[str, Filled("a client")]


def check(condition: bool, message: object, needed: str) -> None:
    """Raise BadMessage unless the condition holds."""
    if not condition:
        raise BadMessage(f"{message!r}: needed {needed}")


def check_distinct(message: object, chunks: Collection[int], what: str) -> None:
    """Raise BadMessage unless each chunk is named once, by a number of 0 or more."""
    if len(set(chunks)) != len(chunks):
        raise BadMessage(f"{message!r}: needed each chunk once in {what}")
    if chunks and min(chunks) < 0:
        raise BadMessage(f"{message!r}: needed chunks of 0 or more in {what}")


def check_sketch(message: object, sketch: tuple[float, ...]) -> None:
    """Raise BadMessage unless the sketch is finite and has its length or none."""
    if len(sketch) not in (0, SKETCH_NUMBERS):
        raise BadMessage(f"{message!r}: needed {SKETCH_NUMBERS} sketch numbers, or none")
    within = math.hypot(*sketch) <= LARGEST_SKETCH  # bounds each number too; fast, as every report has one
    if not (within or all(abs(each) <= LARGEST_SKETCH for each in sketch)):
        raise BadMessage(f"{message!r}: needed a sketch up to {LARGEST_SKETCH:g}")


def check_packet(message: object, packet: bytes) -> None:
    """Raise BadMessage if the packet is too large; `secagg` reads its content."""
    if not 1 <= len(packet) <= LARGEST_PACKET:
        name = type(message).__name__
        raise BadMessage(f"{name}: saw a packet of {len(packet)} bytes, needed 1 to {LARGEST_PACKET}")


def check_finite(message: object, values: Iterable[float], what: str) -> None:
    """Raise BadMessage unless all values are finite."""
    check(all(map(math.isfinite, values)), message, f"finite {what}")
