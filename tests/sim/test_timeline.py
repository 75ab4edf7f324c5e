"""Test the image of a round: every span once, in its color, on a self-contained page."""

import re
import struct
import zlib
from xml.etree import ElementTree

import numpy as np
import pytest

from fedgc.sim import Request, page, png, simulate
from fedgc.sim.clock import Span
from fedgc.sim.timeline import COLOURS, MOST_ROWS, encoded, shown, svg

SPANS = (
    Span("a", 0, 0.0, 1.0, finished=True, counted=True),
    Span("a", 1, 1.0, 2.0, finished=True, counted=False),
    Span("b<&>", 0, 0.0, 1.0, finished=False),
)


def decoded(content: bytes) -> np.ndarray:
    """A plain reader of a PNG with three colors and without filters."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(content):
        size, kind = struct.unpack(">I4s", content[at : at + 8])
        data = content[at + 8 : at + 8 + size]
        assert struct.unpack(">I", content[at + 8 + size : at + 12 + size])[0] == zlib.crc32(kind + data)
        chunks[kind] = data
        at += 12 + size
    width, height, depth, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (depth, color) == (8, 2)
    rows = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    return rows[:, 1:].reshape(height, width, 3)


def test_image_is_read_back_equal():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3)).astype(np.uint8)
    assert (decoded(encoded(pixels)) == pixels).all()


def test_every_span_has_bar_in_its_color():
    tree = ElementTree.fromstring(svg(SPANS, 2.0))  # noqa: S314 - our own
    bars = [each.get("fill") for each in tree.iter("{http://www.w3.org/2000/svg}rect")]
    assert bars == [f"rgb{COLOURS[name]}" for name in ("counted", "discarded", "not finished")]


def test_client_name_cannot_break_image():
    assert "b&lt;&amp;&gt;" in svg(SPANS, 2.0)


def test_long_name_ends_before_its_bars():
    labels = re.findall(r"<text x=.0.[^>]*>([^<]*)<", svg([Span("n" * 50, 0, 0.0, 1.0, finished=True)], 1.0))
    assert labels == ["n" * 19 + "…"]


def test_bar_length_matches_time():
    pixels = decoded(png(SPANS, 4.0))
    top = pixels[3]
    share = [(top == color).all(axis=1).mean() for color in COLOURS.values()]
    assert share == pytest.approx([0.25, 0.25, 0.0], abs=0.01)


def test_many_clients_are_thinned_evenly():
    many = [
        Span(f"d{at}", chunk, float(chunk), chunk + 1.0, finished=True)
        for at in range(500)
        for chunk in range(at % 7)
    ]
    clients = shown(many)
    assert len(clients) == MOST_ROWS
    assert len(set(clients)) == MOST_ROWS
    assert shown([]) == []


def test_page_requests_nothing_from_network():
    predictions = simulate(
        Request(clients=6, rounds=2, replicas=2, policies=("fedgc steer, 2 replicas, 1", "uncoded")),
        watch=True,
    )
    text = page(predictions)
    assert not re.search(r"(src|href)=|@import|url\(|<script", text)
    assert text.count("<svg") == sum(bool(each.spans) for each in predictions) >= 1
    assert all(each.policy in text for each in predictions)
