"""Test that Flower's logger shows an error of fedgc as its message, and a foreign one with its traceback."""

import logging
from collections.abc import Iterator

import pytest

from fedgc.errors import EdgeFailed
from fedgc.links.log import log_errors_in_one_line


@pytest.fixture
def flower() -> Iterator[logging.Logger]:
    logger = logging.getLogger("flwr")
    before = list(logger.filters)
    log_errors_in_one_line()
    yield logger
    logger.filters[:] = before


@pytest.mark.parametrize(
    ("error", "message", "traced"),
    [
        (EdgeFailed("the run did not complete"), "the run did not complete", False),
        (ValueError("no labels"), "ServerApp thread raised an exception: no labels", True),
    ],
)
def test_error_of_fedgc_is_logged_by_its_message(
    flower: logging.Logger, caplog, error: Exception, message: str, traced: bool
) -> None:
    flower.addHandler(caplog.handler)
    try:
        flower.error("ServerApp thread raised an exception: %s", error, exc_info=error)
    finally:
        flower.removeHandler(caplog.handler)
    record = caplog.records[0]
    assert record.getMessage() == message
    assert bool(record.exc_info) == traced
