"""A rate limit on wrong tokens, for each address.

An address that has used up its guesses is refused without a check of its token, so that even the right one
costs time. A browser with the cookie is never refused.
"""

from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Final

AT_ONCE: Final = 10
EACH_S: Final = 6.0
MOST_ADDRESSES: Final = 4096
NETWORK_BITS: Final = 64  # of an IPv6 address: one site usually has all addresses in it


class Guesses:
    """The rate limit. Beyond `MOST_ADDRESSES` with recent guesses, new addresses are refused."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used_until: dict[str, float] = {}  # by address: when all its guesses are forgotten

    def wait_s(self, address: str) -> float:
        """Return how long this address must wait before its next guess; 0: not at all."""
        now, network = self._clock(), _network(address)
        self._forget(now)
        if network not in self._used_until and len(self._used_until) >= MOST_ADDRESSES:
            return EACH_S
        return max(self._used_until.get(network, now) - now - (AT_ONCE - 1) * EACH_S, 0.0)

    def wrong(self, address: str) -> None:
        """Count a wrong token of this address."""
        now, network = self._clock(), _network(address)
        self._used_until[network] = max(self._used_until.get(network, now), now) + EACH_S

    def _forget(self, now: float) -> None:
        if len(self._used_until) >= MOST_ADDRESSES:
            self._used_until = {each: until for each, until in self._used_until.items() if until > now}


def _network(address: str) -> str:
    """Return the unit of the rate limit: an IPv4 address, or an IPv6 network.

    >>> _network("192.0.2.7"), _network("2001:db8::7") == _network("2001:db8::8"), _network("?")
    ('192.0.2.7', True, '?')
    """
    try:
        parsed = ip_address(address)
    except ValueError:
        return address[:64]
    if not isinstance(parsed, IPv6Address):
        return str(parsed)
    mapped = parsed.ipv4_mapped
    return str(mapped) if mapped else f"{int(parsed) >> (128 - NETWORK_BITS):x}::/{NETWORK_BITS}"
