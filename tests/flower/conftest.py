"""The session fixtures of tests/links, for tests in this folder."""

from tests.links.conftest import link, make_link, make_relay

__all__ = ["link", "make_link", "make_relay"]
