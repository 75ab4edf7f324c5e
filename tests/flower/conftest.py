"""The sessions of tests/links, for what runs on them."""

from tests.links.conftest import link, make_link, make_relay

__all__ = ["link", "make_link", "make_relay"]
