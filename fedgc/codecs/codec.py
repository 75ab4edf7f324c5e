"""The interface of a codec: how the numbers of an update are encoded."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

Numbers = np.ndarray[Any, np.dtype[Any]]
Bytes = NDArray[np.uint8]


class Codec(ABC):
    """The base class of every codec: turns a vector of float32 numbers into bytes and back.

    To add a codec, write one class and register it as an entry point of the group `fedgc.codecs`; the setting
    `links.codec` then takes its name. Keyword-only arguments of the constructor are the codec's own options,
    which follow the name in the setting: `links.codec = "top-k share=0.01"`.

    A codec has no state. The client keeps the encoding error and adds it to its next update (error feedback,
    Karimireddy et al., arXiv 1901.09847).

    >>> from fedgc.codecs.shipped import Int8
    >>> codec = Int8()
    >>> data = codec.encode(np.float32([0.5, -1.0]), np.random.default_rng(0))
    >>> codec.decode(data, 2).shape, data.nbytes == codec.largest(2)
    ((2,), True)
    """

    summary: ClassVar[str] = ""
    """A description of the codec for `fedgc config`, in a few words."""
    fixed: ClassVar[bool] = True
    """Whether every vector of one length has the same number of bytes, which is then `largest`."""
    decay: float = 1.0
    """The factor by which the encoding error is multiplied before it is added to the next update."""

    @abstractmethod
    def encode(self, vector: NDArray[np.float32], rng: np.random.Generator) -> Bytes:
        """Return the bytes of a vector, at least one.

        Args:
            vector: Finite numbers.
            rng: Seeded by client, round and attempt, so that a restarted client sends the same bytes.
        """

    @abstractmethod
    def decode(self, data: Bytes, size: int) -> NDArray[np.float32]:
        """Return the `size` numbers in these bytes.

        The bytes come from another process. Any exception refuses the update by name.
        """

    def tiles(self, data: Bytes, size: int) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Return the `size` numbers a tile at a time, each with the position of its first number.

        A tile is valid until the next one. Override this where `decode` would double the memory of a vector.
        """
        yield 0, self.decode(data, size)

    @abstractmethod
    def largest(self, size: int) -> int:
        """Return the largest number of bytes for a vector of `size` numbers; a longer message is refused."""

    def expected(self, size: int) -> int:
        """Return the usual number of bytes for a vector of `size` numbers, for predicting deadlines."""
        return self.largest(size)
