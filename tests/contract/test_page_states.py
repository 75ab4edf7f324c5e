"""Test the page in Chromium with runs that have no rounds yet, are unknown, or have long names."""

from dataclasses import replace
from pathlib import Path

import pytest

import fedgc.web
from fedgc.config import RunConfig
from fedgc.sim import Request, simulate
from fedgc.sim import page as simulation_page
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Ended, Evaluated
from fedgc.web.report import report_of
from fedgc.web.report_page import report_page
from fedgc.web.serve import Place, Served
from tests.contract.chromium import WAIT_MS, launched, until
from tests.web.run_of_four import START, round_of, tell_a_run

pytestmark = pytest.mark.contract

NAME = "accuracy-of-the-" + "model" * 20


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory):
    with Store.open(str(tmp_path_factory.mktemp("store") / "fedgc.db")) as store:
        tell_a_run(store, "spring", 6)
        for number in (4, 5, 6):
            store.write(Evaluated(START, "spring", number, {NAME: 0.5}))
        store.write(Begun(START - 200, "odd", RunConfig(task="digits", rounds=9, work="local").table()))
        for number, likelihood in ((1, -3.5), (2, None), (3, None)):
            figures = {"log likelihood": likelihood} if likelihood else {}
            odd = replace(round_of(number), metrics=figures, loss=6e-5 / number, working_s=1800.0)
            store.write(Appended(START - 190 + number, "odd", odd))
        for run, began in (("again", START - 400), ("ended", START - 500)):
            store.write(Begun(began, run, RunConfig(rounds=9).table()))
            store.write(Appended(began + 3, run, round_of(1)))
            store.write(Begun(began + 10, run, RunConfig(rounds=9).table()))
        store.write(Ended(START - 480, "ended", "failed", "no client came"))
        store.write(Begun(START - 600, "stock", RunConfig(task="stock", rounds=9, work="local").table()))
        store.write(Appended(START - 590, "stock", round_of(1)))
        store.write(Begun(START - 700, "quiet", RunConfig(rounds=9, work="local").table()))
        store.write(Appended(START - 690, "quiet", round_of(1, "skipped")))
        store.write(Begun(START - 800, "set back", RunConfig(rounds=9).table()))
        store.write(Ended(START - 4400, "set back", "failed", "no client came"))
        store.write(Begun(START + 100, "new", RunConfig(rounds=9).table()))
        yield store


@pytest.fixture(scope="module")
def served(store: Store):
    with Served(store, Place(port=0)).beside() as served:
        yield served


@pytest.fixture(scope="module")
def browser(served: Served):
    with launched() as browser:
        yield browser


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 360, "height": 800})
    page.set_default_timeout(WAIT_MS)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if "attribute" in message.text else None)
    yield page
    page.close()
    assert errors == []


def test_run_without_rounds_has_no_round_to_open(page, served: Served):
    page.goto(f"{served.root}?run=new")
    until(page, "document.getElementById('line').textContent === 'live'")
    until(page, "document.getElementById('run').value === 'new'")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.locator("#loss svg").click()
    page.locator("#loss svg").press("Enter")
    page.evaluate("document.getElementById('follow').click()")
    page.evaluate("document.getElementById('follow').click()")
    page.evaluate("document.getElementById('earlier').click()")
    assert [each for each in asked if "/round" in each] == []
    assert page.locator("#trouble").is_hidden()


def test_unknown_run_leads_to_newest_one(page, served: Served):
    page.goto(f"{served.root}?run=nosuch")
    until(page, "document.getElementById('run').value === 'new'")
    assert "nosuch" in page.locator("#trouble").inner_text()
    assert page.locator("#trouble").inner_text().endswith("this is the newest run")


def test_run_without_plan_shows_no_plans_of_another_run(page, served: Served):
    page.goto(f"{served.root}?run=spring")
    until(page, "document.querySelectorAll('#plans tr').length === 2")
    page.select_option("#run", "new")
    until(page, "document.getElementById('plan-choice').textContent === 'No plan yet'")
    assert page.locator("#plans tr").count() == 0


@pytest.mark.parametrize("of", ["run", "simulation"])
def test_printed_tables_are_not_cut(page, served: Served, tmp_path: Path, of: str):
    page.emulate_media(media="print")
    page.set_viewport_size({"width": 718, "height": 1000})  # A4, without its margins
    simulated = tmp_path / "sim.html"
    style = Path(fedgc.web.__file__).with_name("page") / "page.css"
    predictions = simulate(Request(clients=8, rounds=2, beside=True), watch=True)
    simulated.write_text(simulation_page(predictions, style.read_text()))
    page.goto(f"{served.root}?run=spring" if of == "run" else simulated.as_uri())
    until(page, "document.querySelectorAll('.scroll td').length > 12")
    cut = (
        "[...document.querySelectorAll('.scroll, #bars')].filter(each => each.scrollWidth > each.clientWidth)"
    )
    hidden = f"{cut}.filter(each => getComputedStyle(each).overflowX !== 'visible').length"
    assert page.evaluate(hidden) == 0
    assert page.evaluate("document.documentElement.scrollWidth") == 718


@pytest.mark.parametrize(("run", "unit"), [("spring", "chunks"), ("odd", "steps"), ("stock", "answers")])
def test_page_names_unit_of_work_as_report_does(page, served: Served, run: str, unit: str):
    page.goto(f"{served.root}?run={run}")
    until(page, "document.querySelector('#bars svg') !== null")
    assert page.inner_text("#work b") == f"{unit.capitalize()} a round"
    assert f" {unit} counted in" in page.get_attribute("#bars svg", "aria-label")
    assert unit in page.inner_text("#figures")


def test_work_of_skipped_round_is_not_drawn_as_discarded(page, served: Served):
    page.goto(f"{served.root}?run=quiet")
    until(page, "document.querySelector('#bars svg .f-counted') !== null")
    assert page.locator("#bars svg .f-discarded").count() == 0
    assert "counts in a later sum" in page.text_content("#bars svg")
    assert page.locator("#clients svg .f-counted").count() > 0
    assert page.locator("#clients svg .f-discarded").count() == 0


def test_link_in_table_keeps_focus_when_page_is_drawn_again(page, store: Store, served: Served):
    page.goto(f"{served.root}?run=spring")
    until(page, "document.querySelector('#plans button') !== null")
    page.focus("#plans tr:nth-child(2) button")
    page.evaluate("document.querySelector('#plans tr').id = 'drawn'")
    store.write(Appended(START + 16, "spring", round_of(7)))
    store.write(Evaluated(START + 16, "spring", 7, {NAME: 0.5}))
    until(page, "document.getElementById('drawn') === null")
    assert page.evaluate("document.activeElement.closest('tbody')?.id") == "plans"
    assert page.evaluate("document.activeElement.textContent") == "1"


def test_long_name_of_measure_does_not_widen_page_or_report(
    page, store: Store, served: Served, tmp_path: Path
):
    page.goto(f"{served.root}?run=spring")
    for place, name in (("charts", NAME.capitalize()), ("round-words", NAME)):
        until(page, f"document.getElementById('{place}').textContent.includes('{name}')")
    assert page.evaluate("document.documentElement.scrollWidth") == 360
    report = tmp_path / "report.html"
    report.write_text(report_page(report_of(store, store.run("spring"), START + 200), START + 200))
    page.goto(report.as_uri())
    assert NAME in page.inner_text("body")
    assert page.evaluate("document.documentElement.scrollWidth") == 360


def test_single_negative_value_is_drawn_inside_its_chart(page, served: Served):
    page.goto(f"{served.root}?run=odd")
    figure = "document.getElementById('measure-log likelihood')"
    until(page, f"{figure} !== null")
    place = f"Number({figure}.querySelector('circle').getAttribute('cy'))"
    until(page, f"{figure}.querySelector('circle') !== null")
    assert 8 < page.evaluate(place) <= 120
    assert "-3.5" in page.evaluate(f"{figure}.textContent")


def test_small_figures_are_not_shown_as_zero(page, served: Served):
    page.goto(f"{served.root}?run=odd")
    until(page, "document.getElementById('loss').textContent.includes('clients 2.0e-5')")
    words = page.evaluate("[...document.querySelectorAll('#loss text')].map(each => each.textContent)")
    assert len(set(words)) == len(words), "each mark of the axis has its own number"
    assert "2.0e-5" in page.inner_text("#figures")


def test_long_times_fit_beside_axis(page, served: Served):
    page.goto(f"{served.root}?run=odd")
    until(page, "document.getElementById('time').textContent.includes('working 30 min')")
    words = page.evaluate("[...document.querySelectorAll('#time text')].map(each => each.textContent)")
    assert words[:4] == ["0 s", "10 min", "20 min", "30 min"]
    edges = "[...document.querySelectorAll('#time text')].map(each => each.getBoundingClientRect().left)"
    assert min(page.evaluate(edges)) > page.evaluate(
        "document.getElementById('time').getBoundingClientRect().left"
    )


@pytest.mark.parametrize(("run", "words"), [("again", "Goes on"), ("ended", "Failed")])
def test_resumed_run_names_its_last_round_until_next_one(page, served: Served, run: str, words: str):
    page.goto(f"{served.root}?run={run}")
    until(page, f"document.getElementById('run').value === '{run}'")
    assert page.inner_text("#now-round") == f"{words} after round 1"


def test_run_that_ends_before_its_begin_shows_no_duration(page, served: Served):
    """The clock was set back."""
    page.goto(f"{served.root}?run=set%20back")
    until(page, "document.getElementById('run').value === 'set back'")
    assert page.inner_text("#now-words") == "0 of 9 rounds · no client came"
