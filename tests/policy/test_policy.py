"""Test that whatever breaks a policy, or contradicts it, is refused by the name of the rule."""

import io
import tracemalloc
import zipfile
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from fedgc.errors import Unusable
from fedgc.messages import Closing
from fedgc.policy import (
    Exchange,
    Hours,
    Request,
    Totals,
    check,
    check_exchange,
    digests,
    explained,
    figures_that_leave,
    loss_leaves,
    read_policy,
)
from fedgc.policy.digests import STATEMENT, app_digest, files_in_bundle, script_digest, task_digest
from fedgc.training.script.place import in_app

APP, TASK, SCRIPT, OTHER = (f"sha256:{digit * 64}" for digit in "abcd")
MASKED = f"""# what the ward allows
[allow]
apps = ["{APP}"]
tasks = ["digits", "{TASK}"]
scripts = ["{SCRIPT}"]

[secrecy]
least = "masked"
threshold = 3
n-min = 4

[privacy]
epsilon = 20.0
delta = 1e-6

[limits]
bytes-per-day = 1_000_000
exchanges-per-day = 10

[hours]
zone = "Europe/Berlin"
open = ["Mon-Fri 20:00-06:00"]

[gpu]
share = 0.5
"""
OPEN = """[metrics]
names = ["accuracy"]
smallest-group = 20
"""
MANY_WINDOWS = ", ".join(f'"{hour:02}:00-{hour:02}:30"' for hour in range(10))  # of each day
NIGHT = datetime(2026, 11, 24, 20, 0, tzinfo=UTC).timestamp()  # a Tuesday, 21:00 in Berlin
DAY = "2026-11-24"
REQUEST = Request(
    "ward", "digits", "", app_digest=APP, masked=True, threshold=3, n_min=4, noise=8.0, releases=20
)
SPENT = Totals(DAY, 999_000, 9, {"before": 1.0})


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text(MASKED)
    return path


FILES = {  # what is replaced, by what, and the rule that the error names
    "unknown key": ("threshold = 3", "treshold = 3", "line 9 (secrecy.treshold)"),
    "unknown section": ("[gpu]", "[gpus]", "line 25 (gpus.share)"),
    "key outside": ("[allow]\n", "[allow]\n[x]\n", "line 4 (x.apps)"),
    "bare key": ("# what the ward allows", "apps = 3", "line 1 (apps)"),
    "no app": (f'apps = ["{APP}"]', "apps = []", "line 3 (allow.apps)"),
    "short digest": (APP, APP[:-1], "line 3 (allow.apps)"),
    "capitals": (APP, APP.upper(), "line 3 (allow.apps)"),
    "task of an app by name": ('"digits"', '"ward:task"', "line 4 (allow.tasks)"),
    "script by name": (SCRIPT, "train.py", "line 5 (allow.scripts)"),
    "tasks no list": (f'["digits", "{TASK}"]', '"digits"', "line 4 (allow.tasks)"),
    "unknown secrecy": ('"masked"', '"hidden"', "line 8 (secrecy.least)"),
    "open sums": ('least = "masked"', 'least = "open"', "line 9 (secrecy.threshold)"),
    "two sites": ("n-min = 4", "n-min = 2", "line 10 (secrecy.n-min)"),
    "n-min below threshold": ("threshold = 3", "threshold = 5", "line 10 (secrecy.n-min)"),
    "true for a number": ("threshold = 3", "threshold = true", "line 9 (secrecy.threshold)"),
    "no budget": ("epsilon = 20.0", "epsilon = 0", "line 13 (privacy.epsilon)"),
    "endless budget": ("epsilon = 20.0", "epsilon = inf", "line 13 (privacy.epsilon)"),
    "delta alone": ("epsilon = 20.0\n", "", "line 13 (privacy.delta)"),
    "certain delta": ("delta = 1e-6", "delta = 1.0", "line 14 (privacy.delta)"),
    "no bytes": ("1_000_000", "0", "line 17 (limits.bytes-per-day)"),
    "negative exchanges": ("day = 10\n", "day = -1\n", "line 18 (limits.exchanges-per-day)"),
    "unknown zone": ("Europe/Berlin", "Europe/Bonn", "line 21 (hours.zone)"),
    "window never opens": ("20:00-06:00", "20:00-20:00", "line 22 (hours.open)"),
    "no window": ('["Mon-Fri 20:00-06:00"]', "[]", "line 22 (hours.open)"),
    "too many windows": ('"Mon-Fri 20:00-06:00"', MANY_WINDOWS, "line 22 (hours.open)"),
    "25 hours": ("20:00-06:00", "20:00-25:00", "line 22 (hours.open)"),
    "unknown day": ("Mon-Fri", "Mon-Fry", "line 22 (hours.open)"),
    "whole GPU and more": ("share = 0.5", "share = 1.5", "line 25 (gpu.share)"),
    "log of no name": ("[gpu]", '[audit]\nlog = "a\\u0000b"\n[gpu]', "line 25 (audit.log)"),
    "figures of masked runs": ("[gpu]", '[metrics]\nnames = ["accuracy"]\n[gpu]', "line 25 (metrics.names)"),
    "not TOML": ("[gpu]", "[gpu", "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", FILES)
def test_changed_policy_is_refused_by_its_rule(site: Path, mutation: str):
    before, after, named = FILES[mutation]
    assert MASKED.count(before) == 1
    site.write_text(MASKED.replace(before, after))
    with pytest.raises(Unusable) as refused:
        read_policy(site)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value) or mutation == "not TOML"


REQUESTS = {
    "other app": ({"app_digest": OTHER}, "allow.apps"),
    "app not found": ({"app_digest": ""}, "allow.apps"),
    "other task": ({"task": "breast-cancer"}, "allow.tasks"),
    "task of an app with a shipped name": ({"task": "digits:task"}, "allow.tasks"),
    "changed task": ({"task": "ward:task", "task_digest": OTHER}, "allow.tasks"),
    "digest as a name": ({"task": TASK, "task_digest": OTHER}, "allow.tasks"),
    "changed script": ({"task": "", "script": "train.py", "script_digest": OTHER}, "allow.scripts"),
    "script not found": ({"task": "", "script": "sh -c ls", "script_digest": ""}, "allow.scripts"),
    "open run": ({"masked": False}, "secrecy.least"),
    "small threshold": ({"threshold": 2}, "secrecy.threshold"),
    "small sums": ({"n_min": 3}, "secrecy.n-min"),
    "no noise": ({"noise": 0.0}, "privacy.epsilon"),
    "little noise": ({"noise": 1.0}, "privacy.epsilon"),
    "many releases": ({"releases": 1000}, "privacy.epsilon"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", REQUESTS)
def test_changed_run_is_refused_by_its_rule(site: Path, mutation: str):
    policy, (change, rule) = read_policy(site), REQUESTS[mutation]
    assert check(policy, REQUEST, SPENT, NIGHT) == ()
    (refusal,) = check(policy, replace(REQUEST, **change), SPENT, NIGHT)
    assert refusal.rule == rule
    assert refusal.text.startswith(f"site.toml, line {policy.lines[rule]} ({rule}): ")


STATES = {
    "noon": (NIGHT - 9 * 3600, SPENT, "hours.open"),
    "weekend": (NIGHT + 4 * 86400, SPENT, "hours.open"),
    "bytes of the day": (NIGHT, replace(SPENT, bytes=1_000_000), "limits.bytes-per-day"),
    "exchanges of the day": (NIGHT, replace(SPENT, exchanges=10), "limits.exchanges-per-day"),
    "privacy of other runs": (NIGHT, replace(SPENT, privacy={"before": 20.0}), "privacy.epsilon"),
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_spent_limit_is_refused_by_its_rule(site: Path, state: str):
    now, totals, rule = STATES[state]
    (refusal,) = check(read_policy(site), REQUEST, totals, now)
    assert refusal.rule == rule
    assert (refusal.again_s < 2 * 86400) is (rule != "privacy.epsilon")


def test_listed_task_and_script_are_allowed_by_digest(site: Path):
    policy = read_policy(site)
    for change in (
        {"task": "ward:task", "task_digest": TASK},
        {"task": "", "script": "train.py", "script_digest": SCRIPT},
    ):
        assert check(policy, replace(REQUEST, **change), SPENT, NIGHT) == ()


def test_exchange_beyond_limit_is_refused(site: Path):
    policy = read_policy(site)
    assert check_exchange(policy, Exchange(1000, 0, 8.0), SPENT, NIGHT) == ()
    for exchange, totals, rule in (
        (Exchange(1001), SPENT, "limits.bytes-per-day"),
        (Exchange(1, 1000), SPENT, "limits.bytes-per-day"),
        (Exchange(1), replace(SPENT, exchanges=10), "limits.exchanges-per-day"),
        (Exchange(1, 0, 0.3), SPENT, "privacy.epsilon"),
    ):
        assert [each.rule for each in check_exchange(policy, exchange, totals, NIGHT)] == [rule]
    tomorrow = NIGHT + 4 * 3600
    assert check_exchange(policy, Exchange(1001), SPENT, tomorrow) == (), "a new day"


def test_charges_of_earlier_logs_stay_under_their_runs(site: Path):
    """They had no descriptor, so all that the descriptor declares is counted on top of them."""
    policy, asked = read_policy(site), replace(REQUEST, descriptor="fe50e77cdc94784c", releases=500)
    earlier, now = (Totals(privacy={name: 4.0}) for name in ("ward", asked.descriptor))
    assert check(policy, asked, now, NIGHT) == ()
    assert [each.rule for each in check(policy, asked, earlier, NIGHT)] == ["privacy.epsilon"]


def test_steps_on_records_spend_budget_of_site_in_open_run_too(site: Path):
    """With other runs' exchanges, as they protect the records too."""
    site.write_text("[privacy]\nepsilon = 3.0\n")
    policy, records = read_policy(site), Request("ward", "digits", protects_records=True)
    assert [each.rule for each in check(policy, Request("ward", "digits"), Totals(), NIGHT)] == [
        "privacy.epsilon"
    ]
    few, many = ((1.0, 0.01, 1000),), ((1.0, 0.01, 2000),)
    assert check(policy, records, Totals(), NIGHT) == ()
    assert check_exchange(policy, Exchange(1, steps=few), Totals(), NIGHT) == ()
    assert [each.rule for each in check_exchange(policy, Exchange(1, steps=many), Totals(), NIGHT)]
    spent = Totals().spent(DAY, "ward", 1, 1, 0.0, few)
    assert spent.epsilon(policy.delta) == pytest.approx(2.44, rel=0.01)
    assert check(policy, records, spent, NIGHT) == ()
    assert [each.rule for each in check_exchange(policy, Exchange(1, steps=few), spent, NIGHT)]
    over = spent.spent(DAY, "other", 1, 1, 1.0)
    assert [each.rule for each in check(policy, records, over, NIGHT)] == ["privacy.epsilon"]


def test_figures_of_small_groups_and_other_names_stay(site: Path):
    site.write_text(OPEN)
    policy = read_policy(site)
    assert figures_that_leave(policy, ("accuracy",), 20) == (("accuracy",), ())
    kept, (refusal,) = figures_that_leave(policy, ("accuracy", "age"), 20)
    assert (kept, refusal.text) == (
        ("accuracy",), "site.toml, line 2 (metrics.names): saw age, which may not leave",
    )  # fmt: skip
    kept, (refusal,) = figures_that_leave(policy, ("accuracy",), 19)
    assert (kept, refusal.rule) == ((), "metrics.smallest-group")
    (refusal,) = check(policy, Request("ward", "digits", weighs_loss=True), Totals(), NIGHT)
    assert refusal.rule == "metrics.names"


def test_loss_of_small_batches_stays(site: Path):
    """The mean over several steps tells each of them to a server that asks after every step."""
    site.write_text("[metrics]\nsmallest-group = 20\n")
    policy, request = read_policy(site), Request("ward", "digits", weighs_loss=True, batch_samples=20)
    assert (loss_leaves(policy, request, 1000), loss_leaves(policy, request, 19)) == (True, False)
    assert check(policy, request, Totals(), NIGHT) == ()
    for batch, seen in ((19, "19 samples"), (0, "an unknown number of samples")):
        small = replace(request, batch_samples=batch)
        assert not loss_leaves(policy, small, 1000)
        (refusal,) = check(policy, small, Totals(), NIGHT)
        assert refusal.rule == "metrics.smallest-group"
        assert f"needs the loss of each client, over batches of {seen}, needed" in refusal.text


def test_explanation_names_each_rule_with_its_line(site: Path):
    said = explained(read_policy(site))
    assert "site.toml, line 9 (secrecy.threshold): at least 3 sites are needed to remove masks." in said
    assert len(said) == len(MASKED.split("=")), "a sentence for each rule, and the log"


@pytest.mark.parametrize(
    "text",
    [
        "\nlimits.exchanges-per-day = 3\n",
        '[limits]\n"exchanges-per-day" = 3\n',
        "['limits']\nexchanges-per-day = 3\n",
        "\n limits . 'exchanges-per-day'=3\n",
        "\nlimits = { exchanges-per-day = 3 }\n",
        "# of a day\u2028or two\nlimits = { exchanges-per-day = 3 }\n",
    ],
)
def test_rule_is_explained_in_each_form_of_toml(site: Path, text: str):
    site.write_text(text)
    policy, rule = read_policy(site), "site.toml, line 2 (limits.exchanges-per-day)"
    assert [each.partition(":")[0] for each in explained(policy)] == [rule, "site.toml (audit.log)"]
    (refusal,) = check(policy, REQUEST, SPENT, NIGHT)
    assert refusal.text.startswith(f"{rule}: ")


def test_text_that_looks_like_rule_is_not_explained(site: Path):
    site.write_text('[audit]\nlog = """x\n[gpu]\nshare = 3"""\n')
    assert [each.partition(" (")[2][:9] for each in explained(read_policy(site))] == ["audit.log"]


def test_empty_policy_allows_everything(site: Path):
    site.write_text("")
    asked = Request("ward", "any:task", app_digest=OTHER)
    assert check(read_policy(site), asked, SPENT, NIGHT) == ()


@pytest.mark.parametrize(
    ("windows", "open_s", "close_s"),
    [
        (["Mon-Sun 00:00-24:00"], 0, float("inf")),
        (["22:00-06:00", "06:00-22:00"], 0, float("inf")),
        (["Tue 20:00-24:00", "Wed 00:00-02:00"], 0, 5 * 3600),
        (["Sun 22:00-24:00", "Mon 00:00-01:00"], 5 * 86400 + 3600, 0),
        (["Fri-Mon 20:00-21:00"], 3 * 86400 - 3600, 0),
    ],
)
def test_hours_join_windows_and_wrap_weeks(windows: list[str], open_s: float, close_s: float):
    hours = Hours.of("Europe/Berlin", windows)  # Tuesday, 21:00
    assert (hours.opens_s(NIGHT), hours.closes_s(NIGHT)) == (open_s, close_s)


def test_hours_follow_change_of_clock():
    before = datetime(2026, 10, 24, 20, 0, tzinfo=UTC).timestamp()  # 22:00 in Berlin; a night of 25 hours
    hours = Hours.of("Europe/Berlin", ["Sat 22:00-06:00"])
    assert hours.closes_s(before) == 9 * 3600


def test_windows_stay_in_order_where_clock_is_set_forward():
    """On 29 March 2026 the clocks of Berlin go from 02:00 to 03:00, so 02:30 is 03:00."""
    hours = Hours.of("Europe/Berlin", ["20:00-02:30", "02:45-02:50", "03:00-06:00", "07:30-08:00"])
    for day in range(16, 32):
        now = datetime(2026, 3, day, 0, 50, tzinfo=UTC).timestamp()
        Closing(0.0, "north", hours.closes_s(now), hours.week(now))  # which refuses another order
    night = datetime(2026, 3, 29, 0, 50, tzinfo=UTC).timestamp()
    assert hours.closes_s(night) == 3 * 3600 + 600, "until 06:00"


@pytest.mark.parametrize("window", ["20:00-02:30", "02:30-06:00", "00:30-01:45"])
@pytest.mark.parametrize(
    ("zone", "day"),
    [
        ("Europe/Berlin", "2026-03-28"), ("Europe/Berlin", "2026-10-24"), ("America/Havana", "2026-10-31"),
    ],
)  # fmt: skip
def test_window_is_closed_where_clock_shows_other_hours(zone: str, day: str, window: str):
    """Clocks are set forward or back in the night after this day."""
    hours, clock, (begin, end) = Hours.of(zone, [window]), ZoneInfo(zone), window.split("-")
    evening = datetime.fromisoformat(f"{day}T22:00").replace(tzinfo=clock).timestamp()
    seen = [0, 0]
    for now in (evening + 900 * quarter for quarter in range(9 * 4)):
        shown = f"{datetime.fromtimestamp(now, clock):%H:%M}"
        within = begin <= shown < end if begin < end else not end <= shown < begin
        is_open = hours.closes_s(now) > 0
        assert within or not is_open, shown
        seen[is_open] += 1
        assert is_open or hours.closes_s(now + hours.opens_s(now)) > 0
    assert min(seen) >= 4


@pytest.mark.parametrize("name", ["client/__pycache__/app.cpython-311.pyc", "client/app.pyc"])
def test_compiled_code_has_no_digest(name: str):
    with pytest.raises(Unusable, match="compiled code"):
        app_digest({"client/app.py": b"", name: b""})


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ["./a.py", "b//a.py", "/a.py", "b/../a.py", "b\\\\a.py", "a.py"])
def test_bundle_with_second_path_of_file_is_refused(name: str):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        for each in ("a.py", name):
            bundle.writestr(each, b"")
    with pytest.raises(Unusable, match="needed"):
        files_in_bundle(content.getvalue())


def test_bundle_with_impossible_offsets_or_names_is_refused():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as bundle:
        bundle.writestr("\u00e4.py", b"app = 1")
    whole = content.getvalue()
    at = whole.index(b"PK\x05\x06") + 16  # the offset of the list of files
    beyond = whole[:at] + (10**6).to_bytes(4, "little") + whole[at + 4 :]
    for changed in (beyond, whole.replace("\u00e4".encode(), b"\xff\xff")):
        with pytest.raises(Unusable, match="no bundle of Flower"):
            files_in_bundle(changed)


def test_bundle_that_unpacks_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(digests, "LARGEST_APP_BYTES", 1000)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name in ("a.py", "b.py"):
            bundle.writestr(name, bytes(501))
    with pytest.raises(Unusable, match="app: saw 1002 bytes of files, needed at most 1000"):
        files_in_bundle(content.getvalue())


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        (zipfile.ZIP_DEFLATED, "no bundle of Flower"),
        (zipfile.ZIP_BZIP2, "saw the compression 12 of a file, needed deflate, or none"),
        (zipfile.ZIP_LZMA, "saw the compression 14 of a file, needed deflate, or none"),
    ],
)
def test_bundle_that_unpacks_to_more_than_it_says_takes_little_memory(method: int, needed: str):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as bundle:
        bundle.writestr("a.py", bytes(100 << 20))
    false = bytearray(content.getvalue())
    for at in (22, false.index(b"PK\x01\x02") + 24):  # the file's size, in both of its headers
        false[at : at + 4] = (1).to_bytes(4, "little")
    tracemalloc.start()
    with pytest.raises(Unusable, match=needed):
        files_in_bundle(bytes(false))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 << 20


def test_digests_follow_code_and_not_settings(tmp_path: Path):
    settings = b"tool.flwr.app.config.rounds = "
    app = {"client/app.py": b"app = 1", "pyproject.toml": settings + b"3", ".info/CONTENT": b"x"}
    same = app_digest({**app, "pyproject.toml": settings + b"4", ".info/CONTENT": b"y"})
    assert app_digest(app) == same != app_digest({**app, "client/app.py": b"app = 2"})
    assert app_digest({"a": b"bc"}) != app_digest({"ab": b"c"})
    included = b"tool.flwr.app.fab-include = ['client/*.py']"
    assert app_digest({**app, "pyproject.toml": included, STATEMENT: b"{}"}) == same
    wired = {**app, "pyproject.toml": b'tool.flwr.app.components.clientapp = "json.tool:main"'}
    assert len({app_digest(each) for each in (app, wired, {**app, ".hidden/code.py": b""})}) == 3
    (tmp_path / "ward.py").write_text("task = 1")
    (tmp_path / "train.py").write_text("train()")
    folders = [str(tmp_path / "none"), str(tmp_path)]
    task = task_digest("ward:task", folders)
    assert task != task_digest("ward:other", folders)
    script = str(tmp_path / "train.py")
    assert script_digest("train.py", script) == script_digest(" train.py ", script)
    assert script_digest("sh -c 'x' train.py", script) != script_digest("train.py", script)
    (tmp_path / "ward.py").write_text("task = 2")
    assert task_digest("ward:task", folders) != task
    assert task_digest("gone:task", folders) == script_digest("sh -c x", "") == ""


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 5000, "x." * 5000], ids=len)
def test_names_that_are_no_path_have_no_digest(tmp_path: Path, name: str):
    """A server may send any name: its site refuses it by a rule, and does not stumble over it."""
    assert task_digest(f"{name}:task", [str(tmp_path)]) == ""
    script = f"{'../' * len(name)}{name}/train.py"
    assert script_digest(script, script) == ""
    assert in_app(script, [str(tmp_path)]) == script
