"""Test the page in a real browser on the store of a real demo, during the run and after it.

The demo has one slow client and one that is killed; the page has no other data. The pixels of screenshots
show whether the charts draw their data. Screenshots for review are in build/screenshots."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from fedgc.errors import FedgcError
from fedgc.store.database import Store
from fedgc.web.serve import Place, Served
from tests.contract.chromium import CHROMIUM, WAIT_MS, launched, until

imaging = pytest.importorskip("PIL.Image", reason="pillow is not installed")

pytestmark = pytest.mark.contract

SHOTS = Path(__file__).parents[2] / "build" / "screenshots"
PROGRAM = "import sys; sys.argv[0] = 'fedgc'; from fedgc.cli import main; main()"
ROUNDS = 24
SCALE = 2
LEFT, RIGHT = 46, 10  # of a chart: where its drawing begins and ends


class Demo:
    """A demo in a separate process, and its store."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "fedgc.db"
        environment = {**os.environ, "FEDGC_DB": str(self.path), "XDG_STATE_HOME": str(folder / "state")}
        self._said = (folder / "said").open("w+")
        words = [sys.executable, "-c", PROGRAM, "demo", "--rounds", str(ROUNDS), "--work", "coded"]
        words += ["--folder", str(folder / "demo")]
        self.process = subprocess.Popen(words, env=environment, stdout=self._said, stderr=self._said)

    def until(self, rounds: int) -> None:
        """Wait until so many rounds are over."""
        while self.rounds() < rounds:
            assert self.process.poll() is None or self.rounds() >= rounds, Path(self._said.name).read_text()
            time.sleep(0.2)

    def rounds(self) -> int:
        try:
            with Store.open(str(self.path), reads_only=True) as store:
                return store.run().rounds
        except FedgcError:
            return 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(60)
        self._said.close()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here: neither chromium nor chromium-browser found")
    demo = Demo(tmp_path_factory.mktemp("demo"))
    demo.until(2)
    yield demo
    demo.close()


@pytest.fixture(scope="module")
def served(demo: Demo) -> Iterator[Served]:
    with (
        Store.open(str(demo.path), reads_only=True) as store,
        Served(store, Place(port=0)).beside() as served,
    ):
        yield served


@pytest.fixture(scope="module")
def browser(demo: Demo):
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser, served: Served):
    """The opened page; it requests only our server and logs no error."""
    page = browser.new_page(viewport={"width": 1400, "height": 900}, device_scale_factor=SCALE)
    page.set_default_timeout(WAIT_MS)
    asked, complaints = [], []
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(served.url)
    page.wait_for_selector("#bars svg")
    yield page
    page.close()
    assert [url for url in asked if not url.startswith(served.root)] == []
    assert complaints == []


@pytest.fixture
def done(page, demo: Demo):
    """The page of the completed demo."""
    demo.until(ROUNDS)
    until(page, "document.getElementById('state').textContent === 'completed'")
    return page


def picture(page, served: Served) -> dict:
    return page.request.get(f"{served.root}picture").json()


def pixels(page, selector: str) -> np.ndarray:
    page.mouse.move(1, 1)  # no cursor over a chart
    shot = page.locator(selector).screenshot()
    return np.asarray(imaging.open(BytesIO(shot)).convert("RGB")).astype(int)


def painted(page, selector: str, kind: str) -> np.ndarray:
    """Where in the picture of an element the color of `kind` is."""
    key = "fill" if kind.startswith("f-") else "stroke"
    said = page.evaluate(f"getComputedStyle(document.querySelector('{selector} .{kind}')).{key}")
    color = np.array([int(part) for part in said.strip("rgb()").split(",")])
    return np.abs(pixels(page, selector) - color).max(axis=2) <= 24


def columns(page, selector: str, count: int) -> np.ndarray:
    """The columns of pixels in the middle of each round of a chart."""
    width = page.locator(selector).bounding_box()["width"] - LEFT - RIGHT
    return ((LEFT + (np.arange(count) + 0.5) / count * width) * SCALE).astype(int)


# ---- while it runs


def test_page_updates_during_run(page, demo: Demo, served: Served):
    newest = "Number(document.querySelector('#time svg').getAttribute('aria-valuemax'))"
    before = page.evaluate(newest)
    until(page, f"{newest} > {before + 2}")
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1  # it was not loaded again
    until(page, "document.getElementById('state').textContent === 'completed'")
    assert page.evaluate(newest) == ROUNDS - 1 == demo.rounds() - 1
    assert page.inner_text("#round-title").startswith(f"Round {ROUNDS}")


# ---- what it draws


@pytest.mark.parametrize(("chart", "values"), [("time", "working_s"), ("work", "counted")])
def test_bar_height_matches_value(done, served: Served, chart: str, values: str):
    values = np.array(picture(done, served)["series"][values])
    heights = painted(done, f"#{chart} svg", "f-counted")[:, columns(done, f"#{chart} svg", len(values))].sum(
        axis=0
    )
    exchange, expected = heights[:-1], values[:-1]  # the newest has the mark of the round that is open
    assert exchange.min() > 0
    assert exchange.max() > 30
    assert np.abs(exchange / exchange.max() - expected / expected.max()).max() < 0.06


def test_line_passes_through_measured_accuracy(done, served: Served):
    values = np.array(picture(done, served)["series"]["metrics"]["accuracy"], dtype=float)
    chart = "#measure-accuracy svg"
    there = painted(done, chart, "l-counted")[:, columns(done, chart, len(values))]
    there = there[:, :-1]  # the newest has the mark of the round that is open
    assert there.any(axis=0).all()
    heights = -there.argmax(axis=0)
    assert np.corrcoef(heights, values[:-1])[0, 1] > 0.97
    assert np.ptp(heights) > 60 * SCALE


def test_plain_averaging_line_matches_byte_figures(done, served: Served):
    series = picture(done, served)["series"]
    sent = sum(np.array(series[name]) for name in ("up_bytes", "down_bytes", "control_bytes"))
    at = columns(done, "#bytes svg", len(sent))[:-1]
    up, control, plain = (
        painted(done, "#bytes svg", kind)[:, at] for kind in ("f-up", "f-control", "l-plain")
    )
    floor = len(up) - up[::-1].argmax(axis=0)
    seen = plain.any(axis=0)  # the line is dashed
    assert seen.sum() > len(at) / 3
    drawn, bars = (floor - each.argmax(axis=0) for each in (plain, control))
    expected = bars * (np.array(series["plain_bytes"]) / sent)[:-1]
    assert np.median(np.abs(drawn - expected)[seen]) < 3 * SCALE, "pixels: a low bar has few of them"


def test_slow_and_killed_client_are_visible(done):
    rows = {
        done.inner_text(f"#clients tr:nth-child({n}) td").split()[0]: f"#clients tr:nth-child({n}) svg"
        for n in range(1, 5)
    }
    ink = {name: painted(done, selector, "f-counted").sum() for name, selector in rows.items()}
    assert ink["slow-client"] < 0.7 * min(ink["client-1"], ink["client-2"])
    assert painted(done, rows["killed-client"], "f-fault").sum() > 20
    assert done.inner_text("#fleet-count").endswith(
        " to its end"
    )  # no client is connected after the end of a run
    assert "lost" in done.inner_text("#faults")


def test_round_of_killed_client_can_be_opened_and_is_drawn(done):
    done.locator("#faults tr", has_text="killed-client").locator("button").last.click()
    done.wait_for_selector("#bars .l-fault")
    assert "lost" in done.inner_text("#bars")
    assert painted(done, "#bars svg", "l-fault").sum() > 20
    assert painted(done, "#bars svg", "f-counted").sum() > 2000
    assert not done.is_checked("#follow")


def test_light_dark_and_narrow_pages_are_saved_for_review(done):
    SHOTS.mkdir(parents=True, exist_ok=True)
    done.locator("#faults tr", has_text="killed-client").locator("button").last.click()
    done.wait_for_selector("#bars .l-fault")
    light = {}
    for scheme in ("light", "dark"):
        done.emulate_media(color_scheme=scheme)
        done.mouse.move(1, 1)
        done.evaluate("scrollTo(0, 0)")
        shot = done.screenshot(full_page=True, path=SHOTS / f"demo-{scheme}.png")
        light[scheme] = np.asarray(imaging.open(BytesIO(shot)).convert("L")).mean()
        words = "[...document.querySelectorAll('.muted, dt, th, h2, td')]"
        told = done.evaluate(f"{words}.map(each => [getComputedStyle(each).color, each.textContent])")
        ground = done.evaluate("getComputedStyle(document.querySelector('section')).backgroundColor")
        assert min(contrast(color, ground) for color, said in told if said) >= 4.5
    assert light["dark"] < 60 < 200 < light["light"]
    done.set_viewport_size({"width": 400, "height": 800})
    until(done, "document.documentElement.scrollWidth <= 400")
    until(done, "document.querySelector('#bars svg').getBoundingClientRect().width < 400")
    edges = "[...document.querySelectorAll('#bars text')].map(each => each.getBoundingClientRect().right)"
    assert max(done.evaluate(edges)) <= 400  # what each client did is read without scrolling
    done.screenshot(full_page=True, path=SHOTS / "demo-narrow.png")


def contrast(one: str, other: str) -> float:
    """The contrast ratio of two colors, as defined by WCAG."""

    def luminance(said: str) -> float:
        parts = np.array([int(part) for part in said.strip("rgb()").split(",")]) / 255
        linear = np.where(parts <= 0.03928, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    dark, bright = sorted([luminance(one), luminance(other)])
    return (bright + 0.05) / (dark + 0.05)


# ---- keyboard and screen reader


def test_charts_and_rounds_work_with_keyboard(done):
    chart = done.locator("#work svg")
    chart.focus()
    for key, round_number in (
        ("ArrowLeft", ROUNDS - 1),
        ("ArrowLeft", ROUNDS - 2),
        ("Home", 1),
        ("ArrowRight", 2),
    ):
        done.keyboard.press(key)
        assert chart.get_attribute("aria-valuetext").startswith(f"round {round_number}: counted ")
    done.keyboard.press("Enter")
    until(done, "document.getElementById('round-title').textContent.startsWith('Round 2 ')")
    done.focus("#later")
    done.keyboard.press("Space")
    until(done, "document.getElementById('round-title').textContent.startsWith('Round 3 ')")


def test_every_visible_control_has_accessible_name(done):
    unnamed = done.evaluate(
        """[...document.querySelectorAll('button, select, input, svg[role], [role=progressbar]')]
        .filter(each => !(each.getAttribute('aria-label') || each.textContent.trim() || each.labels?.length))
        .map(each => each.outerHTML)"""
    )
    assert unnamed == []
    done.keyboard.press("Tab")
    assert done.evaluate("document.activeElement.textContent") == "Skip to the run"
    reached = set()
    for _ in range(40):
        done.keyboard.press("Tab")
        reached.add(done.evaluate("document.activeElement.id || document.activeElement.parentElement.id"))
    assert {"run", "theme", "measure-accuracy", "bytes", "earlier", "follow", "find", "sort"} <= reached


def test_charts_have_table_view(done, served: Served):
    done.click("#as-table summary")
    lines = done.locator("#as-table tbody tr")
    lines.last.wait_for()
    assert lines.count() == ROUNDS
    accuracy = picture(done, served)["series"]["metrics"]["accuracy"][-1]
    assert f"{accuracy:.3f}".rstrip("0") in lines.last.inner_text()


def test_clients_are_sorted_and_found(done):
    done.select_option("#sort", "speed")
    until(done, "document.querySelector('#clients td').textContent.startsWith('slow-client')")
    done.fill("#find", "killed")
    until(done, "document.querySelectorAll('#clients tr').length === 1")
    assert "find=killed" in done.url  # an address that shows the same again
    done.reload()
    done.wait_for_selector("#clients tr")
    assert done.locator("#clients tr").count() == 1


def test_settings_and_time_are_shown(done):
    done.click("#settings summary")
    first = done.locator("#settings tbody tr").first
    first.wait_for()
    assert first.inner_text().endswith("set"), "what differs from the defaults comes first"
    assert "gate.budget" in done.inner_text("#settings")
    figures = done.inner_text("#figures")
    assert "Bytes saved" in figures or "Bytes added" in figures
    assert "Time left" not in figures, "the run is over"
    assert "Chunks a round" in done.inner_text("#work")
