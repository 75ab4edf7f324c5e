"""Test `fedgc plan --model-gb`: figures with a given line, from the store, and without any."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedgc.cli.commands import app
from fedgc.config import RunConfig
from fedgc.errors import Unusable
from fedgc.history import ClientRow, RoundRow
from fedgc.store.database import Store
from fedgc.store.records import Appended, Begun, Decided

MEGABYTE = 1_000_000


@pytest.fixture(autouse=True)
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    return tmp_path / "fedgc.db"


def asked(*words: str) -> dict:
    result = CliRunner().invoke(app, ["plan", "--model-gb", "4", *words, "--json"])
    if result.exception is not None:
        raise result.exception
    return json.loads(result.stdout)


def measured_round() -> RoundRow:
    clients = tuple(
        ClientRow(
            name,
            finished=4,
            counted=4,
            steps=16,
            busy_s=1.0,
            step_s=0.1,
            spread_s=0.0,
            up_bytes=int(seconds * rate * MEGABYTE),
            down_bytes=int(200 * MEGABYTE),
            upload_s=seconds,
            download_s=2.0,
        )
        for name, seconds, rate in (("aa" * 8, 1.0, 20), ("bb" * 8, 2.0, 40), ("cc" * 8, 1.0, 80))
    )
    return RoundRow(
        *(1, 0, 1001.0, 60.0, 0.5, "synced", 12, 12, (), 3, 1, 3, 1.0, None, 0.5),
        *(120, 0, 0, 0, 0, "every round"),
        clients=clients,
    )


def test_plan_with_given_line_has_seconds_and_bytes():
    found = asked("--clients", "8", "--uplink-mb-s", "100")
    assert found["round"]["exchange_s"] == pytest.approx(40 + 4 * 40)  # two upload slots
    assert (found["round"]["up_bytes"], found["round"]["down_bytes"]) == (32 * 10**9, 32 * 10**9)
    assert found["server"]["memory_bytes"] > 3 * found["model_bytes"]


def test_plan_takes_links_that_store_has_measured():
    with Store.open() as store:
        store.write(Begun(1000.0, "one", RunConfig().table()))
        store.write(Appended(1100.0, "one", measured_round()))
    found = asked("--clients", "2")
    assert found["round"]["up_bytes_s"] == pytest.approx(40 * MEGABYTE)
    assert found["round"]["exchange_s"] == pytest.approx(4000 / 100 + 4000 / 40)
    assert "the median of 3 clients" in found["round"]["links"]


def test_plan_says_that_measured_model_is_far_smaller():
    with Store.open() as store:
        store.write(Begun(1000.0, "one", RunConfig().table()))
        store.write(Appended(1100.0, "one", measured_round()))
        store.write(Decided(1100.0, "one", 1, "plan", {"numbers": 20_000}, "local"))
    told = "with a model of 80.00 kB, far smaller than this one: its transfers measure the latency; --uplink"
    assert told in asked()["round"]["links"]
    assert "far smaller" not in asked("--uplink-mb-s", "5")["round"]["links"]


def test_plan_without_measured_link_has_no_seconds():
    found = asked()
    assert found["round"]["exchange_s"] is None
    assert "--uplink-mb-s" in found["round"]["links"]


def test_plan_follows_settings():
    plain, short = asked(), asked("--set", "links.codec=int8")
    assert short["round"]["up_bytes"] < 0.3 * plain["round"]["up_bytes"]


def test_plan_as_text_names_memory_and_disk():
    said = CliRunner().invoke(app, ["plan", "--model-gb", "4", "--clients", "8"]).stdout
    assert "the server's memory" in said
    assert "32 GB to 8 clients" in said
    slow = (
        CliRunner().invoke(app, ["plan", "--model-gb", "4", "--clients", "2", "--uplink-mb-s", "2.2"]).stdout
    )
    assert "1 h 1 min beside the training" in slow


def test_clients_without_size_of_model_are_refused():
    result = CliRunner().invoke(app, ["plan", "--clients", "8"])
    assert isinstance(result.exception, Unusable)
    assert str(result.exception) == "--clients: saw 8 without --model-gb, needed both"


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["spring"], "RUN"),
        (["--trace", "machines.csv"], "--trace"),
        (["--add", "0.1"], "--add"),
        (["--model-mb", "5"], "--model-mb"),
        (["--client-gain", "0.1"], "--client-gain"),
    ],
)
def test_options_without_meaning_beside_model_are_refused(words: list[str], seen: str):
    with pytest.raises(
        Unusable, match=f"--model-gb: saw {seen} beside it, needed no option but --clients, --uplink-mb-s"
    ):
        asked(*words)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--model-gb", "-4"], "model-gb: saw -4.0, needed 0.001 to 10000"),
        (["--clients", "0"], "clients: saw 0, needed at least 1"),
        (["--uplink-mb-s", "nan"], "uplink-mb-s: saw nan, needed 0 or more"),
        (["--uplink-mb-s", "inf"], "uplink-mb-s: saw inf, needed 0 or more"),
        (["--set", "work=coded"], "needed open local work"),
    ],
    ids=["size", "clients", "no speed", "endless speed", "coded"],
)
def test_bad_question_is_refused(words: list[str], reason: str):
    with pytest.raises(Unusable, match=reason):
        asked(*words)
