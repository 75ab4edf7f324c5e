"""Chromium for tests of the page, without a window."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WAIT_MS = 120_000
LOOK_MS = 200  # between two looks at the page: each costs the browser something, while a run goes on


@contextmanager
def launched() -> Iterator[object]:
    """A browser; the test is skipped by name where there is none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here: neither chromium nor chromium-browser found")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def until(page, condition: str) -> None:
    """Wait until the page says so (its own way to wait evaluates words, which the page forbids)."""
    end = time.monotonic() + WAIT_MS / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, f"it did not come to {condition}"
        page.wait_for_timeout(LOOK_MS)
