"""Test a connection of its own: turns, limits, the upgrade, and what a hostile end may make of it."""

import _ssl
import ctypes
import socket
import ssl
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, suppress

import numpy as np
import pytest

from fedgc.errors import BadMessage
from fedgc.links.session.certificate import SERVER_NAME, client_context, make_certificate, server_context
from fedgc.links.session.connection import Connection, request
from tests.links.raw_stream import framed

CERTIFICATE = make_certificate(time.time())
LIMIT = 2**20
ASK_FOR_ONE = 1  # SSL_KEY_UPDATE_REQUESTED
SSL_POINTER = 24  # where an ssl object of CPython has its pointer to that of OpenSSL


class Other:
    """The other end: TLS in memory, so that a test decides what becomes of each record."""

    def __init__(self, plain: socket.socket) -> None:
        self.plain = plain
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = client_context(CERTIFICATE.public)
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname=SERVER_NAME)

    def shakes(self) -> bool:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self.plain.sendall(self.outgoing.read())
        return True

    def records(self, *contents: bytes) -> bytes:
        """Return a record for each of these."""
        made = []
        for each in contents:
            self.tls.write(each)
            made.append(self.outgoing.read())
        return b"".join(made)

    def key_updates(self, count: int) -> bytes:
        library = ctypes.CDLL(_ssl.__file__)
        if not hasattr(library, "SSL_key_update"):
            pytest.skip("this Python does not show OpenSSL's functions")
        library.SSL_key_update.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.SSL_do_handshake.argtypes = [ctypes.c_void_p]
        of_openssl = ctypes.c_void_p.from_address(id(self.tls._sslobj) + SSL_POINTER).value
        for _ in range(count):
            assert library.SSL_key_update(of_openssl, ASK_FOR_ONE) == 1
            assert library.SSL_do_handshake(of_openssl) == 1
        return self.outgoing.read()


@pytest.fixture
def both() -> Iterator[tuple[Connection, Other]]:
    """A connection, as the listener has it after the upgrade, and its other end."""
    near, far = tcp_pair()
    with closing(Connection(near, server_context(CERTIFICATE), LIMIT)) as connection, closing(far):
        other = Other(far)
        shaken = other.shakes()
        while not shaken:
            while connection.receive_head() is None and not connection.received:
                pass
            connection.flush()
            other.incoming.write(far.recv(65536))
            shaken = other.shakes()
        far.sendall(other.records(request("here:1")))
        eventually(lambda: connection.receive_head() is not None)
        yield connection, other


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        far = socket.create_connection(listening.getsockname())
        near, _ = listening.accept()
    return near, far


def eventually(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 30.0
    while not holds():
        assert time.monotonic() < end, "it did not happen"


def test_messages_arrive_whole_however_records_cut_them(both) -> None:
    connection, other = both
    messages = [b"a", b"b" * 40_000, b"c" * 3]
    data = b"".join(map(framed, messages))
    cuts = [data[:2], data[2:9], data[9:100], data[100:20_000], data[20_000:-1], data[-1:]]
    other.plain.sendall(other.records(*cuts))
    seen: list[bytes] = []
    eventually(lambda: seen.extend(connection.receive()) or len(seen) == 3)
    assert seen == messages


def test_long_message_of_parts_arrives_as_one(both) -> None:
    connection, other = both
    body = bytes(range(256)) * 400
    for header in (b"", b"header", b"h" * 20_000):
        connection.send(header, memoryview(body))
        assert connection.flush()
        wanted, seen = framed(header + body), b""
        while len(seen) < len(wanted):
            other.incoming.write(other.plain.recv(65536))
            with suppress(ssl.SSLWantReadError):
                while True:
                    seen += other.tls.read(65536)
        assert seen == wanted


def test_piece_behind_full_socket_lets_go_of_vector(both) -> None:
    connection, other = both
    vector = np.arange(1_000_000, dtype=np.uint8)
    expected, vector_is_there = vector.tobytes(), weakref.ref(vector)
    sent = 0
    while connection.flush():  # until the socket takes no more
        connection.send(vector.data)
        sent += 1
    del vector
    assert connection.blocked
    assert vector_is_there() is not None, "it is not copied as long as it may leave soon"
    connection.flush()
    assert vector_is_there() is None
    seen, wanted = b"", sent * framed(expected)
    while len(seen) < len(wanted):
        connection.flush()
        other.incoming.write(other.plain.recv(2**20))
        with suppress(ssl.SSLWantReadError):
            while True:
                seen += other.tls.read(2**20)
    assert seen == wanted


def test_long_message_and_next_one_in_one_record_are_told_apart(both) -> None:
    connection, other = both
    data = framed(b"a" * 20_000) + framed(b"next")
    other.plain.sendall(other.records(data[:100], data[100:]))
    seen: list[bytes] = []
    eventually(lambda: seen.extend(map(bytes, connection.receive())) or len(seen) == 2)
    assert seen == [b"a" * 20_000, b"next"]


def test_long_message_is_freed_once_it_was_taken(both) -> None:
    connection, other = both
    other.plain.sendall(other.records(framed(b"a" * 20_000)))
    seen: list[memoryview] = []
    eventually(lambda: bool(seen.extend(connection.receive()) or seen))
    memory = weakref.ref(seen.pop().obj)
    assert memory() is None


def test_turn_reads_limited_bytes_of_short_records(both) -> None:
    connection, other = both
    other.plain.settimeout(0.2)
    data = other.records(*(bytes([each]) for each in framed(b"x" * 20_000)))
    with suppress(TimeoutError):  # the socket takes no more until it is read
        other.plain.sendall(data)
    before = connection.received
    list(connection.receive())
    assert 0 < connection.received - before <= 2**17


def test_flood_of_key_updates_ends_connection(both) -> None:
    connection, other = both
    other.plain.sendall(other.key_updates(2000))
    with pytest.raises(ConnectionError, match="ask for"):
        eventually(lambda: bool(list(connection.receive())))


def test_few_key_updates_are_answered(both) -> None:
    connection, other = both
    other.plain.sendall(other.key_updates(3) + other.records(framed(b"after")))
    seen: list[bytes] = []
    eventually(lambda: seen.extend(connection.receive()) or bool(seen))
    connection.send(b"heard")
    assert connection.flush()
    other.incoming.write(other.plain.recv(65536))
    assert other.tls.read(100) == framed(b"heard")


@pytest.mark.parametrize(("size", "first"), [(100, 60), (100_000, 20_000), (100_000, 10)])
def test_bytes_of_arriving_message_are_known(both, size: int, first: int) -> None:
    connection, other = both
    assert connection.arriving == 0
    data = framed(b"x" * size)
    other.plain.sendall(other.records(data[: 4 + first]))
    eventually(lambda: list(connection.receive()) or connection.arriving == first)
    other.plain.sendall(other.records(data[4 + first :]))
    eventually(lambda: [len(each) for each in connection.receive()] == [size])
    assert connection.arriving == 0


@pytest.mark.parametrize("size", [0, LIMIT + 1])
def test_refused_length_is_told_before_message_comes(both, size: int) -> None:
    connection, other = both
    other.plain.sendall(other.records(struct.pack("<I", size)))
    with pytest.raises(BadMessage, match=f"a message of {size} bytes"):
        eventually(lambda: bool(list(connection.receive())))


def test_end_of_other_end_is_told_with_and_without_goodbye(both) -> None:
    connection, other = both
    with suppress(ssl.SSLWantReadError):
        other.tls.unwrap()
    other.plain.sendall(other.outgoing.read())
    with pytest.raises(EOFError):
        eventually(lambda: bool(list(connection.receive())))


def test_nothing_is_written_after_finish(both) -> None:
    connection, other = both
    connection.send(b"last")
    assert connection.flush()
    connection.finish()
    connection.send(b"never")
    assert connection.flush()
    other.plain.settimeout(30.0)
    while data := other.plain.recv(65536):
        other.incoming.write(data)
    assert other.tls.read(100) == framed(b"last")
    assert other.tls.read(100) == b"", "TLS says goodbye"


def test_limited_rate_spreads_writes(both) -> None:
    connection, _ = both
    connection._bytes_s = 400_000.0
    connection.send(b"x" * 200_000)
    began, rests = time.monotonic(), 0
    while not connection.flush():
        assert not connection.blocked, "it rests, the socket has room"
        time.sleep(max(0.0, connection.rests_until - time.monotonic()))
        rests += 1
    assert time.monotonic() - began >= 0.5
    assert rests >= 5, "the other end sees that more comes"


def test_limited_connection_reads_while_it_writes(both) -> None:
    connection, other = both
    connection._bytes_s = 400_000.0
    connection.send(b"x" * 200_000)
    assert not connection.flush()
    other.plain.sendall(other.records(framed(b"hello")))
    seen: list[bytes] = []
    eventually(lambda: seen.extend(connection.receive()) or seen == [b"hello"])
