"""Addresses and times of a session, for both of its ends.

Both ends ping when they have nothing else to send, so that a dead host or a half-open connection is found
within seconds. The keepalive of TCP is too slow for that.
"""

from typing import Final

from fedgc.errors import BadSetting

PINGS: Final = 4  # in a grace time,
PING_S: Final = 60.0  # and no rarer: NATs forget a connection that is idle for some minutes
SILENCE: Final = 0.5  # of a grace time: a silent peer counts as gone after that
QUIET: Final = int(PINGS * SILENCE)  # checks in a row: a machine that was suspended itself has missed nothing
OPENING_QUIET: Final = PINGS - 1  # before a stream is open: a busy listener opens one after the other
WILDCARDS: Final = ("0.0.0.0", "[::]", "")  # noqa: S104  recognized here, never bound by default


def ping_s(grace_s: float) -> float:
    """Return the interval between pings in seconds.

    >>> ping_s(10.0), ping_s(3600.0)
    (2.5, 60.0)
    """
    return min(grace_s / PINGS, PING_S)


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
