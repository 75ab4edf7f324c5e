"""Codecs: number formats for vectors on the wire."""

from fedgc.codecs.checked import encoded, naming, needed, sizes_of, tiles_of
from fedgc.codecs.codec import Bytes, Codec
from fedgc.codecs.exact_end import codec_of, share_of
from fedgc.codecs.formats import EPSILON, Wire, pack, packed_bytes, rounding, shapes, shortest_wire, unpack
from fedgc.codecs.make import EXACT, codec_summaries, make_codec

__all__ = [
    "EPSILON", "EXACT", "Bytes", "Codec", "Wire", "codec_of", "codec_summaries", "encoded",
    "make_codec", "naming", "needed", "pack", "packed_bytes", "rounding", "shapes", "share_of",
    "shortest_wire", "sizes_of", "tiles_of", "unpack",
]  # fmt: skip
