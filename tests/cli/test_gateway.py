"""Test the settings of a site's run, and what a gateway refuses."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict

from fedgc.cli.gateway import _must_be_another, serve_site, site_settings
from fedgc.config import RunConfig
from fedgc.errors import BadSetting, Unusable
from fedgc.flower.client import _client
from fedgc.training.loop.environment import ScriptEnvironment
from tests.config_of import table_of

PLACE = Path("/state/gateway.json")


def environment(client: dict[str, str | int | float], **settings: object) -> ScriptEnvironment:
    table = RunConfig.read(table_of({"run": "spring", "task": "ward:task", **settings})).table()
    return ScriptEnvironment(
        "socket", "secret", table, {"name": "north", "site-fleet": "ward", **client}, "/state"
    )


def test_site_inherits_settings_of_training_only() -> None:
    given = environment(
        {"site-settings": "min-clients=3 local-steps=4"}, rounds=10, learning_rate=0.3, seed=7,
        secrecy="masked", federation="all.fed", server_optimizer="adam", grace_s=99.0, local_steps=10,
        **{"task.rank": 8},
    )  # fmt: skip
    config, usual = RunConfig.read(site_settings(given, PLACE, 7)), RunConfig()
    assert (config.run, config.task, config.learning_rate, config.seed) == (
        "spring-north",
        "ward:task",
        0.3,
        7,
    )
    assert config.task_settings["rank"] == 8
    assert (config.min_clients, config.local_steps, config.rounds) == (3, 4, 30)
    assert (config.secrecy, config.server_optimizer, config.grace_s) == (
        "open", usual.server_optimizer, usual.grace_s,
    )  # fmt: skip
    assert (config.chosen_gate, config.site_gateway) == ("every", str(PLACE))


def test_each_consortium_run_has_site_run_of_its_own() -> None:
    named = [
        site_settings(environment({}, **settings), PLACE, number)["run"]
        for settings, number in (({}, 7), ({"run": ""}, 7), ({"run": ""}, 8), ({"resume": "summer"}, 9))
    ]
    assert named == ["spring-north", "run-7-north", "run-8-north", "summer-north"]


def test_name_of_gateway_may_have_any_characters() -> None:
    names = ("Klinik Nord", "Klinik-Nord", "München", "n" * 60, "n" * 61)
    named = [str(site_settings(environment({"name": name}), PLACE, 7)["run"]) for name in names]
    assert len(set(named)) == len(names)
    assert [each.rpartition("-")[0] for each in named[:3]] == [
        "spring-Klinik-Nord",
        "spring-Klinik",
        "spring-M-nchen",
    ]
    assert [len(each) for each in named[3:]] == [64, 64]
    assert named[0] == site_settings(environment({"name": "Klinik Nord"}), PLACE, 7)["run"], (
        "as resume needs it"
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("run=mine", "saw run, which the gateway sets"),
        ("gate.name=drift", "setting gate.name: saw drift, needed every"),
        ("min-clients", "needed name=value"),
        ("task.name='x", "node config site-settings: saw .*: No closing quotation"),
    ],
)
def test_bad_settings_of_site_are_refused(words: str, says: str) -> None:
    with pytest.raises(BadSetting, match=says):
        site_settings(environment({"site-settings": words}), PLACE, 7)


def test_command_without_gateway_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FEDGC_CLIENT", raising=False)
    with pytest.raises(Unusable, match="saw no gateway"):
        serve_site(None, 0)


def test_gateway_needs_no_task_of_its_own(tmp_path: Path) -> None:
    node = {"name": "north", "site-fleet": "ward", "cache": str(tmp_path), "identity": str(tmp_path / "key")}
    context = Context(1, 2, node, RecordDict(), {"task": "no_such_module:task"})
    with _client(context, None, "spring@1") as client:
        assert client.task is None


def test_superlink_of_consortium_is_refused_as_site() -> None:
    """A question for one run would be an ERROR in the log of each other SuperLink."""
    asked: list[str] = []

    def ask(*words: str) -> dict[str, object]:
        asked.extend(words)
        return {"runs": [{"run-id": "7", "status": "running"}]}

    superlink = SimpleNamespace(name="ward", ask=ask)
    _must_be_another(superlink, 8)
    with pytest.raises(Unusable, match="saw ward, the SuperLink of the consortium itself"):
        _must_be_another(superlink, 7)
    assert "--run-id" not in asked
