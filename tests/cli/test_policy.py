"""Test `fedgc policy` and `fedgc audit`."""

import json
import time
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from typer.testing import CliRunner, Result

from fedgc.cli.clients import parse_clients
from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.deploy.local_federation import write_app
from fedgc.errors import EdgeFailed, FedgcError, Unusable
from fedgc.history import ClientRow
from fedgc.policy import AuditLog, Entry
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Scored, Seen
from tests.store.test_explanation import row

NOON = 1_700_049_600.0  # 2023-11-15, 12:00 UTC


def fedgc(*words: object) -> Result:
    said = CliRunner().invoke(app, [str(each) for each in words])
    if isinstance(said.exception, FedgcError):
        raise said.exception
    assert said.exit_code == 0, said.output
    return said


@pytest.fixture
def site(tmp_path: Path) -> Path:
    path = tmp_path / "site.toml"
    path.write_text('[allow]\ntasks = ["digits"]\n[limits]\nbytes-per-day = 100\n')
    return path


def test_policy_is_checked_and_explained(site: Path):
    assert (
        "2 rules, none contradicts another; spent: 0 bytes and 0 exchanges today"
        in fedgc("policy", "check", site).stdout
    )
    assert fedgc("policy", "check", site).stdout.count("\n") == 1
    said = json.loads(fedgc("policy", "explain", site, "--json").stdout)
    assert (
        said["rules"][1] == "site.toml, line 4 (limits.bytes-per-day): at most 100 bytes are exchanged a day."
    )
    with pytest.raises(Unusable, match=r"^policy (\S+): cannot be read: No such file or directory$"):
        fedgc("policy", "check", site.with_name("other.toml"))
    site.write_text('[hours]\nopen = ["20:00-20:00"]\n')
    for act in (lambda: fedgc("policy", "check", site), lambda: parse_clients([f"north:policy={site}"])):
        with pytest.raises(Unusable, match=r"line 2 \(hours.open\): .* never opens"):
            act()


def test_check_names_task_that_is_not_shipped(site: Path):
    site.write_text(site.read_text().replace("digits", "digit"))
    said = fedgc("policy", "check", site).stdout.splitlines()[1]
    assert said.startswith(
        "site.toml, line 2 (allow.tasks): saw digit, which is no task that this fedgc ships;"
    )
    assert said.endswith("; did you mean digits?")


def test_digest_of_app_follows_its_code(tmp_path: Path):
    first = write_app(tmp_path / "a", {"rounds": 3})
    other = write_app(tmp_path / "b", {"rounds": 4})
    (other / "client" / "extra.py").write_text("x = 1\n")
    same = write_app(tmp_path / "c", {"rounds": 5})
    digests = [fedgc("policy", "digest", folder).stdout.split()[1] for folder in (first, other, same)]
    assert digests[0] == digests[2] != digests[1]
    (first / "ward.py").write_text("task = 1\n")
    said = fedgc("policy", "digest", first, "--task", "ward:task").stdout.splitlines()
    assert said[1].startswith("task sha256:")
    (tmp_path / "bare").mkdir()
    with pytest.raises(Unusable, match=r"bare: saw no app, needed a pyproject\.toml"):
        fedgc("policy", "digest", tmp_path / "bare")
    assert fedgc("policy", "digest", tmp_path / "bare", "--task", "digits").stdout.startswith("app sha256:")


def test_simulation_names_refusals_of_run(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    with Store.open() as store:
        store.write(Begun(NOON, "ward", RunConfig().table()))
        for key, name in (("aa", "north"), ("bb", "south")):
            store.write(Seen(NOON, key, name, link="session"))
        for number in (1, 2, 3):
            rows = (
                ClientRow("aa", finished=8, counted=8, up_bytes=60),
                ClientRow("bb", finished=8, counted=8, up_bytes=30),
            )
            made = row(number, "synced", rows, started=NOON + number)
            store.write(Appended(NOON, "ward", made.without_update("NaN") if number == 2 else made))
        store.write(Scored(NOON, "ward", 1, "bb", 9, {"accuracy": 0.5}))
    site.write_text(site.read_text() + "[metrics]\nsmallest-group = 10\n")
    found = json.loads(fedgc("policy", "simulate", "ward", "--policy", site, "--json").stdout)["refused"]
    assert [(each["client"], each["rule"], each["first_round"], each["times"]) for each in found] == [
        ("north", "limits.bytes-per-day", 2, 2), ("south", "metrics.smallest-group", 1, 1),
    ]  # fmt: skip
    site.write_text("[limits]\nexchanges-per-day = 2\n")
    found = json.loads(fedgc("policy", "simulate", "ward", "--policy", site, "--json").stdout)["refused"]
    assert [(each["client"], each["first_round"]) for each in found] == [("north", 3), ("south", 3)]
    site.write_text('[secrecy]\nleast = "masked"\n')
    said = fedgc("policy", "simulate", "ward", "--policy", site, "--client", "north").stdout
    assert said == "north, at joining: site.toml, line 2 (secrecy.least): saw secrecy = open, needed masked\n"
    site.write_text(f'[allow]\nsigners = ["{"a" * 64}"]\n')
    said = fedgc("policy", "simulate", "ward", "--policy", site).stdout
    assert said.endswith("not known: who has signed the app (allow.signers)\n")
    assert "(allow.scripts): not set, and apps are limited: no script is started but" in (
        fedgc("policy", "check", site).stdout
    )
    assert len(json.loads(fedgc("policy", "explain", site, "--json").stdout)["rules"]) == 4
    with Store.open() as store:
        settings = {"task": "ward.task:task"}, {"task": "digits", "script": "sh -c ls"}
        for run, asked in zip(("foreign", "script"), settings, strict=True):
            store.write(Begun(NOON, run, RunConfig.read(asked).table()))
            store.write(Appended(NOON, run, row(1, "synced", (ClientRow("aa", finished=8, counted=8),))))
    for run, named in (
        ("foreign", "whether the task is in the app"),
        ("script", "whether the script was signed"),
    ):
        assert f"not known: {named}" in fedgc("policy", "simulate", run, "--policy", site).stdout
    site.write_text(f'[allow]\napps = ["sha256:{"a" * 64}"]\n')
    said = fedgc("policy", "simulate", "script", "--policy", site).stdout
    assert "north, at joining: site.toml, line 1 (allow.scripts): saw the script 'sh -c ls'" in said
    site.write_text("")
    assert "nothing would have been refused" in fedgc("policy", "simulate", "--policy", site).stdout


def test_simulation_does_not_know_privacy_spent_on_records(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    with Store.open() as store:
        store.write(Begun(NOON, "ward", RunConfig(privacy_unit="record", privacy_epsilon=3.0).table()))
        store.write(Appended(NOON, "ward", row(1, "synced", (ClientRow("aa", finished=8, counted=8),))))
    site.write_text("[privacy]\nepsilon = 0.5\n")
    said = fedgc("policy", "simulate", "--policy", site).stdout
    assert "not known: what local steps with noise for records have spent (privacy.epsilon)" in said


def test_simulation_says_that_rows_were_folded(site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    with Store.open() as store:
        store.write(Begun(NOON, "ward", RunConfig().table()))
        for number in range(1, 41):
            rows = (ClientRow("aa", finished=8, counted=8, up_bytes=60),)
            store.write(Appended(NOON, "ward", row(number, "synced", rows, started=NOON + number)))
        store.write(Seen(NOON, "aa", "north", link="session"))
    assert "folded" not in fedgc("policy", "simulate", "--policy", site).stdout
    with Store.open() as store:
        store.fold(1)
    said = fedgc("policy", "simulate", "--policy", site).stdout
    assert "not known: what all clients spent in 8 rounds up to round 8, whose rows were folded" in said


def test_empty_log_is_called_empty(tmp_path: Path):
    (tmp_path / "site.audit.jsonl").touch()
    assert "it is empty" in fedgc("audit", "verify", tmp_path / "site.audit.jsonl").stdout


def test_log_is_exported_if_it_verifies(tmp_path: Path):
    log = AuditLog(tmp_path / "site.audit.jsonl", ZoneInfo("UTC"), time.time)
    for run in ("ward", "other", "ward"):
        log.append(Entry("joined", "north", run))
    assert "3 lines follow each other" in fedgc("audit", "verify", log.path).stdout
    lines = fedgc("audit", "export", log.path, "--run", "ward").stdout.splitlines()
    assert [json.loads(line)["run"] for line in lines] == ["ward", "ward"]
    log.path.write_text(log.path.read_text().replace("other", "ether"))
    for word in ("verify", "export"):
        with pytest.raises(EdgeFailed, match="line 3: saw"):
            fedgc("audit", word, log.path)


@pytest.mark.parametrize("end", ["\u2028", "\x85"])
def test_line_of_log_is_exported_whole(tmp_path: Path, end: str):
    log = AuditLog(tmp_path / "site.audit.jsonl", ZoneInfo("UTC"), time.time)
    log.append(Entry("refused", "north", f"ward{end}x", rule=f"saw{end}none"))
    log.append(Entry("joined", "north", "ward"))
    assert fedgc("audit", "export", log.path).stdout == log.path.read_text()
    exported = fedgc("audit", "export", log.path, "--run", f"ward{end}x").stdout
    assert json.loads(exported)["rule"] == f"saw{end}none"
