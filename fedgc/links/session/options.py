"""Addresses and gRPC options of a session, for both of its ends.

Both ends ping when they have nothing else to send, so that a dead host or a half-open connection is found
within seconds. gRPC's keepalive works on connections and is too slow for that.
"""

from typing import Final

from fedgc.errors import BadSetting
from fedgc.links.frames import FRAME_LIMIT
from fedgc.links.session.certificate import SERVER_NAME

Options = tuple[tuple[str, int | str], ...]

PINGS: Final = 4  # in a grace time,
PING_S: Final = 60.0  # and no rarer: NATs forget a connection that is idle for some minutes
SILENCE: Final = 0.5  # of a grace time: a silent peer counts as gone after that
QUIET: Final = int(PINGS * SILENCE)  # checks in a row: a machine that was suspended itself has missed nothing
OPENING_QUIET: Final = PINGS - 1  # before a stream is open: less than a connection may take (client_options)
_LIMITS: Final = (
    ("grpc.max_receive_message_length", FRAME_LIMIT),
    ("grpc.max_send_message_length", FRAME_LIMIT),
)
AHEAD_BYTES: Final = 2**20
STREAMS: Final = 4  # on one connection: a client needs one, and a new one while the old is breaking
WILDCARDS: Final = ("0.0.0.0", "[::]", "")  # noqa: S104  recognized here, never bound by default


def ping_s(grace_s: float) -> float:
    """Return the interval between pings in seconds.

    >>> ping_s(10.0), ping_s(3600.0)
    (2.5, 60.0)
    """
    return min(grace_s / PINGS, PING_S)


def server_options(grace_s: float) -> Options:
    """Return the listener's options; a connection without a stream is closed.

    The receive window is small: gRPC's buffer of an arriving codeword adds to the memory of the codewords
    themselves. With one piece, that is 20 MB/s from one client over 100 ms.
    """
    grace_ms = int(grace_s * 1000)
    return (
        *_LIMITS,
        ("grpc.so_reuseport", 0),
        ("grpc.max_concurrent_streams", STREAMS),
        ("grpc.server_handshake_timeout_ms", grace_ms),
        ("grpc.max_connection_idle_ms", grace_ms),
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", AHEAD_BYTES),
    )


def client_options(grace_s: float, *, direct: bool = True) -> Options:
    """Return a client's options; behind a proxy the certificate must be for the name that is dialled."""
    return (
        *_LIMITS,
        *((("grpc.ssl_target_name_override", SERVER_NAME),) if direct else ()),
        ("grpc.enable_retries", 0),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.min_reconnect_backoff_ms", int(grace_s * 1000)),
        ("grpc.enable_http_proxy", 0),
    )


def advertised(advertise: str, bind: str, port: int) -> str:
    """Return the address that clients connect to.

    >>> advertised("", "127.0.0.1:0", 4711), advertised("fl.example.org", "0.0.0.0:0", 4711)
    ('127.0.0.1:4711', 'fl.example.org:4711')
    """
    host = bind.rpartition(":")[0]
    if advertise:
        return advertise if advertise.rpartition(":")[2].isdigit() else f"{advertise}:{port}"
    if host in WILDCARDS:
        raise BadSetting(
            f"setting links.advertise: needed an address that clients can reach, as bind is {bind!r}"
        )
    return f"{host}:{port}"
