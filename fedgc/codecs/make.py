"""Make a codec by name; all codecs are entry points of the group `fedgc.codecs`."""

import re
from functools import lru_cache
from typing import Final

import numpy as np

from fedgc import plugins
from fedgc.codecs.codec import Codec
from fedgc.errors import BadSetting
from fedgc.guards import guarded
from fedgc.plugins import returned

GROUP: Final = "fedgc.codecs"
EXACT: Final = "float32"
SETTING: Final = "links.codec"
NAME: Final = re.compile(r"[\w.-]*")
MANY: Final = 1 << 20  # numbers, so that the overhead of each group counts in proportion


def codec_named(name: str) -> type[Codec]:
    """Return the class of the codec of this name."""
    found: type[Codec] = plugins.subclass(Codec, GROUP, name, SETTING)
    return found


@lru_cache(maxsize=64)
def make_codec(text: str) -> Codec:
    """Return the codec that a setting names, with its own options.

    >>> make_codec("int8").largest(1000)
    1004
    """
    name, _, own = text.strip().partition(" ")
    if not NAME.fullmatch(name):
        needed = "needed a codec, then a space and its options, such as 'top-k share=0.1'"
        raise BadSetting(f"setting {SETTING}: saw {text!r}, {needed}")
    kind, owner = codec_named(name), f"codec {name}"
    options = plugins.options(kind, own, SETTING, owner)
    with guarded(owner, error=BadSetting):
        made = kind(**options)
        sizes = {"largest": made.largest(MANY), "expected": made.expected(MANY)}
    for method, size in sizes.items():
        if not isinstance(size, int | np.integer) or size < 1:
            seen = f"{method}({MANY}) returned {size if isinstance(size, int) else returned(size)}"
            raise BadSetting(f"{owner}: {seen}, needed a whole number of bytes")
    return made


def codec_summaries() -> str:
    """Return every installed codec with its summary, in one sentence."""
    return plugins.summaries(GROUP, codec_named)
