"""Test the report of a run against the rows of its store, and its page against hostile names."""

from collections import Counter
from html.parser import HTMLParser
from statistics import fmean, median

import pytest

from fedgc.config import RunConfig
from fedgc.history import ClientRow
from fedgc.store.records import Appended, Audited, Begun, Decided, Ended, Evaluated, Present, Seen
from fedgc.store.work import AT_END, LONGEST_REASON, NO_EXCHANGE, OTHERS
from fedgc.web import report_page as page
from fedgc.web.report import report_of
from tests.web.run_of_four import NAMES, START, round_of, tell_a_run

NOW = START + 1000.0
TAGS = {
    "html", "head", "meta", "title", "style", "body", "section", "h1", "h2", "p", "ul", "li", "dl", "div",
    "dt", "dd", "figure", "figcaption", "svg", "polyline", "table", "thead", "tbody", "tr", "th", "td",
    "details", "summary", "footer",
}  # fmt: skip
EVIL = '</style></title><script>alert(1)</script><img src=x onerror="alert(2)">\'"&\u202e\x00'


class Parsed(HTMLParser):
    """The tags, the attributes and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.policy = ""
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags[tag] += 1
        named = dict(attrs)
        self.attributes |= set(named)
        if named.get("http-equiv") == "Content-Security-Policy":
            self.policy = named["content"]

    def handle_data(self, data):
        self.text += data


def shown(store, run: str = "spring") -> Parsed:
    return Parsed(page.report_page(report_of(store, store.run(run), NOW), NOW))


def rows_of(store, run: str = "spring"):
    return [(each, row) for each in store.rounds(run) for row in store.client_rows(run, each.row.round)]


def test_report_sums_equal_rows_of_store(told):
    made, rows = report_of(told, told.run(), NOW), rows_of(told)
    kept = [row for each, row in rows if each.row.outcome != "skipped"]
    assert made.finished == sum(row.finished for row in kept)
    assert made.counted == sum(row.counted for row in kept)
    assert made.total("up_bytes") == sum(row.up_bytes for _, row in rows)
    assert {each.outcome: each.rounds for each in made.outcomes} == {"synced": 9, "skipped": 3}
    by_name = {each.name: each for each in made.clients}
    assert set(by_name) == set(NAMES.values())
    for client, name in NAMES.items():
        own = [row for _, row in rows if row.client == client]
        assert by_name[name].steps == sum(row.steps for row in own)
        assert by_name[name].down_bytes == sum(row.down_bytes for row in own)
        assert by_name[name].failures == sum(bool(row.failure) for row in own)


def test_page_says_times_as_exactly_as_its_tables(told):
    made, text = report_of(told, told.run(), NOW), shown(told).text
    assert f"time of the rounds{made.seconds:.3g} s" in text
    quick = next(each for each in made.clients if each.name == "quick")
    assert f"{quick.step_s:.4f}{quick.busy_s:.3g} s" in text


def test_report_names_lost_work_with_reason(told):
    made = report_of(told, told.run(), NOW)
    assert [(each.name, each.why, each.rounds, each.first, each.last, each.amount) for each in made.lost] == [
        ("slow", OTHERS, 9, 1, 11, 9),
        ("dead", "lost", 1, 3, 3, 2),
    ]


def test_clients_of_one_name_are_told_apart(told):
    for client in ("cc", "dd"):
        told.write(Seen(START, client, "laptop"))
    assert [each.name for each in report_of(told, told.run(), NOW).lost] == ["laptop cc", "laptop dd"]
    assert "<td>laptop dd (north)</td>" in page.report_page(report_of(told, told.run(), NOW), NOW)


def test_local_steps_are_lost_if_client_fails_before_exchange(empty):
    rounds = {  # outcome; steps, finished and counted steps of each client; "aa" fails in round 3
        1: ("skipped", {"aa": (10, 0, 0), "bb": (10, 0, 0)}),
        2: ("synced", {"aa": (8, 18, 18), "bb": (9, 19, 19)}),
        3: ("skipped", {"aa": (5, 5, 0), "bb": (10, 0, 0)}),
        4: ("synced", {"bb": (10, 20, 20)}),
        5: ("skipped", {"aa": (4, 0, 0)}),
    }
    empty.write(Begun(START, "local", RunConfig(work="local").table()))
    for number, (outcome, steps) in rounds.items():
        rows = [
            ClientRow(name, *settled, done, failure="lost" if (name, number) == ("aa", 3) else "")
            for name, (done, *settled) in steps.items()
        ]
        empty.write(Appended(START + number, "local", round_of(number, outcome, rows)))
    assert report_of(empty, empty.run("local"), NOW).lost_work == 5
    empty.write(Ended(START + 6, "local", "completed"))
    made = report_of(empty, empty.run("local"), NOW)
    assert [(each.name, each.why, each.first, each.amount) for each in made.lost] == [
        ("aa", "lost", 3, 5),
        ("aa", AT_END, 5, 4),
    ]
    assert [(each.client, each.finished, each.counted, each.lost) for each in made.clients] == [
        ("aa", 27, 18, 9),
        ("bb", 39, 39, 0),
    ]
    assert (made.counted, made.lost_work) == (57, 9)


def test_steps_of_update_that_is_left_out_are_lost(empty):
    empty.write(Begun(START, "local", RunConfig(work="local").table()))
    for number, outcome in enumerate(["skipped", "synced", "synced"], start=1):
        counted = {1: 0, 2: 20, 3: 10}[number]
        row = round_of(number, outcome, [ClientRow(name, counted, counted, 10) for name in ("aa", "bb")])
        row = row.without_update("it is not finite") if number == 2 else row
        empty.write(Appended(START + number, "local", row))
    made = report_of(empty, empty.run("local"), NOW)
    assert {(each.name, each.first, each.amount) for each in made.lost} == {("aa", 2, 20), ("bb", 2, 20)}
    assert all("the mean update is left out: it is not finite" in each.why for each in made.lost)
    assert (made.counted, made.lost_work) == (20, 40)
    assert "in 2 exchanges" in shown(empty, "local").text


def test_slowest_counted_client_is_waited_for(told):
    waited = {each.name: each.waited for each in report_of(told, told.run(), NOW).clients}
    assert waited == {"slow": 9, "quick": 0, "steady": 0, "dead": 0}


def test_report_compares_plans_with_their_rounds(told):
    found = report_of(told, told.run(), NOW).predictions
    took = [each.row.working_s + each.row.collecting_s for each in told.rounds() if each.row.round >= 4]
    assert (len(found.plans), found.compared, found.within) == (2, 1, 1)
    assert found.median_ratio == pytest.approx(median(took) / 1.3)


def test_report_tells_share_of_samples_and_of_clients(empty):
    empty.write(Begun(START, "shares", RunConfig(work="local").table()))
    for number, counted in ((1, 100), (2, 60), (3, 0)):
        outcome = "synced" if counted else "skipped"
        row = round_of(number, outcome, [ClientRow("aa", 4, 4), ClientRow("bb", 4, 4)])
        values = {name: getattr(row, name) for name in row.__slots__}
        values |= {"known_samples": 100, "counted_samples": counted}
        empty.write(Appended(START + number, "shares", type(row)(**values)))
    data = {"known_samples": 100}
    clients = [{"client": "aa", "samples": 40}, {"client": "bb", "samples": 60}]
    empty.write(Present(START + 4, "shares", {"data": data, "clients": clients}))
    made = report_of(empty, empty.run("shares"), NOW)
    assert made.samples is not None
    assert (made.samples.rounds, made.samples.whole, made.samples.least_share) == (2, 1, 0.6)
    assert made.samples.mean_share == pytest.approx(fmean([1.0, 0.6]))
    assert {each.client: each.data_share for each in made.clients} == {"aa": 0.4, "bb": 0.6}
    assert "of 2 rounds that wanted a sum had all" in shown(empty, "shares").text


def test_report_of_folded_rounds_says_so(empty):
    tell_a_run(empty, rounds=80)
    empty.fold(keep_rounds=2)
    made = report_of(empty, empty.run(), NOW)
    rounds, rows = empty.rounds(), Counter(each.row.round for each, _ in rows_of(empty))
    assert made.folded == sum(rows[each.row.round] < each.clients for each in rounds) > 0
    assert made.counted == sum(each.counted for each in rounds if each.row.outcome != "skipped")
    assert f"Client rows of {made.folded} rounds were folded" in shown(empty).text


def test_report_of_run_without_rounds_has_all_sections(empty):
    empty.write(Begun(START, "new", {"task": "digits"}))
    parsed = shown(empty, "new")
    assert parsed.tags["h2"] == 7
    assert "No client has worked in this run." in parsed.text


def test_masked_run_reports_epsilon_of_last_exchange(empty):
    settings = RunConfig(secrecy="masked", federation="x.fed").table()
    empty.write(Begun(START, "secret", settings))
    for number in (1, 2):
        empty.write(Appended(START + number, "secret", round_of(number)))
        empty.write(Evaluated(START + number, "secret", number, {"epsilon": 1.5 * number}))
    made = report_of(empty, empty.run("secret"), NOW)
    assert (made.privacy.epsilon, made.privacy.releases) == (3.0, 2)
    text = shown(empty, "secret").text
    assert "the server has seen 2 sums" in text
    assert "3.000" in text


def test_private_run_reports_epsilon_of_clients(empty):
    empty.write(Begun(START, "noised", RunConfig(privacy_noise=1.0).table()))
    empty.write(Appended(START + 1, "noised", round_of(1)))
    empty.write(Evaluated(START + 1, "noised", 1, {"epsilon": 1.5}))
    text = shown(empty, "noised").text
    assert "the server has read the update of every client in 1 exchanges" in text
    assert "Epsilon spent for each client: 1.500" in text


def test_private_run_without_exchange_is_not_called_unprotected(empty):
    empty.write(Begun(START, "noised", RunConfig(privacy_noise=1.0).table()))
    text = shown(empty, "noised").text
    assert "No differential privacy" not in text
    assert "No exchange has spent any epsilon." in text


def test_run_with_noised_steps_reports_limit_of_clients(empty):
    settings = RunConfig(privacy_unit="record", privacy_epsilon=2.0).table()
    empty.write(Begun(START, "noised", settings))
    empty.write(Appended(START + 1, "noised", round_of(1)))
    assert report_of(empty, empty.run("noised"), NOW).privacy.of_records == 2.0
    assert "counts the epsilon of its records itself: at most 2.000" in shown(empty, "noised").text


def test_hostile_names_reach_page_as_text(empty):
    """Every text that a peer can choose: names, sites, links, failures, figures, reasons, audit."""
    settings = {**RunConfig().table(), "task": EVIL}
    empty.write(Begun(START, EVIL, settings))
    empty.write(Seen(START, "aa", EVIL, EVIL, "session"))
    row = ClientRow("aa", 4, 2, failure=EVIL * 9)
    made = round_of(1, "approximate", [row])
    values = {name: getattr(made, name) for name in made.__slots__}
    empty.write(Appended(START, EVIL, type(made)(**{**values, "reason": EVIL, "left_out": EVIL})))
    empty.write(Evaluated(START, EVIL, 1, {EVIL: 0.5}))
    empty.write(Decided(START, EVIL, 1, "plan", {}, EVIL))
    empty.write(Audited(START, "refused", EVIL, EVIL, EVIL))
    empty.write(Ended(START, EVIL, "failed", EVIL))
    parsed = shown(empty, EVIL)
    assert set(parsed.tags) <= TAGS
    assert not {
        each for each in parsed.attributes if each.startswith("on") or each in ("src", "href", "style")
    }
    assert parsed.text.count("<script>alert(1)</script>") > 5
    assert not {"\u202e", "\x00"} & set(parsed.text)
    assert parsed.policy.startswith("default-src 'none'; style-src 'sha256-")
    lost = report_of(empty, empty.run(EVIL), NOW).lost
    assert len(lost[0].why) <= LONGEST_REASON


def test_chart_of_many_rounds_keeps_figures_of_every_second_one(told, monkeypatch):
    monkeypatch.setattr(page, "MOST_POINTS", 6)
    text = shown(told).text
    assert "accuracy: 0.5 to 0.9167, rounds 2 to 12" in text
    assert "seconds of a round: 1.27 to 1.37, rounds 2 to 12" in text


def test_steps_of_run_without_exchange_are_lost_for_that_reason(empty):
    empty.write(Begun(START, "local", RunConfig(work="local").table()))
    for number, outcome in enumerate(("skipped", "aborted"), start=1):
        row = ClientRow("aa", 0, 0, 10)
        empty.write(Appended(START + number, "local", round_of(number, outcome, [row])))
    assert not report_of(empty, empty.run("local"), NOW).lost, "the run goes on"
    empty.write(Ended(START + 3, "local", "failed"))
    (lost,) = report_of(empty, empty.run("local"), NOW).lost
    assert (lost.why, lost.amount) == (NO_EXCHANGE, 20)


def test_long_tables_are_bounded(empty, monkeypatch):
    monkeypatch.setattr(page, "MOST_CLIENTS", 3)
    empty.write(Begun(START, "wide", RunConfig().table()))
    empty.write(Appended(START, "wide", round_of(1, clients=[ClientRow(f"{n}", 2, 2) for n in range(5)])))
    assert "2 more are not shown." in shown(empty, "wide").text


def test_report_shows_newest_plans_and_counts_others(empty, monkeypatch):
    monkeypatch.setattr(page, "MOST_PLANS", 3)
    empty.write(Begun(START, "long", RunConfig().table()))
    empty.write(Appended(START, "long", round_of(1)))
    for n in range(1, 6):
        empty.write(Decided(START, "long", n, "plan", {"replicas": 2}, f"reason-{n}"))
    text = shown(empty, "long").text
    assert [n for n in range(1, 6) if f"reason-{n}" in text] == [3, 4, 5]
    assert "2 more are not shown." in text
