import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedgc.errors import BadMessage, EdgeFailed
from fedgc.secagg import keystream
from fedgc.secagg.keystream import BLOCK_WORDS, RUN_WORDS, RandomBytes, Strand, add_strands

KEYS = st.binary(min_size=32, max_size=32)


def slow_add(words, strands):
    """One stream at a time, whole."""
    bits = 8 * words.itemsize
    total = [int(word) for word in words]
    for strand in strands:
        mask = np.frombuffer(keystream.keystream(strand.key, words.nbytes), words.dtype)
        total = [
            (t - int(m) if strand.minus else t + int(m)) % 2**bits for t, m in zip(total, mask, strict=True)
        ]
    return total


@given(
    keys=st.lists(st.tuples(KEYS, st.booleans()), max_size=4),
    size=st.integers(0, 50),
    kind=st.sampled_from(["<u1", "<u2", "<u4"]),
)
def test_masks_are_added_in_ring_of_their_type(keys, size, kind):
    words = np.arange(size).astype(kind)
    strands = [Strand(*each) for each in keys]
    expected = slow_add(words, strands)
    add_strands(words, strands)
    assert words.tolist() == expected
    add_strands(words, [strand.opposite() for strand in strands])
    assert words.tolist() == np.arange(size).astype(kind).tolist()


def test_stream_is_independent_of_block_boundaries():
    size = RUN_WORDS + BLOCK_WORDS + 7
    words = np.zeros(size, np.uint32)
    strand = Strand(bytes(range(32)), minus=False)
    add_strands(words, [strand])
    first = np.frombuffer(keystream.keystream(strand.key, 4 * RUN_WORDS), "<u4")
    assert np.array_equal(words[:RUN_WORDS], first)
    assert not np.array_equal(words[RUN_WORDS:], words[: BLOCK_WORDS + 7])


def test_random_bytes_continue_without_gap():
    source, whole = RandomBytes(bytes(32)), keystream.keystream(bytes(32), 300)
    assert source.next(100).tobytes() + source.next(200).tobytes() == whole


def test_random_bytes_go_on_under_next_nonce(monkeypatch):
    monkeypatch.setattr(keystream, "RUN_BYTES", 100)  # AES-GCM ends after 64 GiB under one
    source, run = RandomBytes(bytes(32)), bytearray(60)
    for number in (0, 1, 2):
        keystream.aes_stream(bytes(32), number).update_into(bytes(60), run)
        assert source.next(60).tobytes() == run


def test_key_of_wrong_length_is_refused():
    with pytest.raises(BadMessage, match="saw 16 bytes, needed 32"):
        Strand(bytes(16), minus=False)


def test_library_with_other_bytes_is_detected_at_first_use():
    """In a process of its own, since the answer is remembered."""
    script = (
        "import numpy as np\n"
        "from fedgc.errors import EdgeFailed\n"
        "from fedgc.secagg import keystream\n"
        "real = keystream.aes_stream\n"
        "keystream.aes_stream = lambda key, run: real(key, run + 1)\n"
        "for use in (lambda: keystream.keystream(bytes(32), 4), lambda: keystream.RandomBytes(bytes(32)),\n"
        "            lambda: keystream.add_strands(np.zeros(3, np.uint32), [])):\n"
        "    try:\n"
        "        use()\n"
        "    except EdgeFailed as error:\n"
        "        print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert out.count("needed 98a1c262c3be954d685249f145f755e2") == 3
    assert issubclass(EdgeFailed, Exception)
