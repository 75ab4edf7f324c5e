"""Test how the settings of a run are merged: those of the app, of a resumed run and of the command line."""

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import tomli_w

from fedgc.cli.run import Wanted, resumed, settings_of
from fedgc.cli.settings import parse
from fedgc.config import RunConfig
from fedgc.deploy.app_folder import App, Setting, app_in
from fedgc.errors import BadSetting, Unusable
from fedgc.store.database import Store
from fedgc.store.records import Begun, Ended

MakeApp = Callable[[Mapping[str, Setting]], App]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("FEDGC_DB", str(tmp_path / "fedgc.db"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Store.open() as opened:
        yield opened


@pytest.fixture
def app_with(tmp_path: Path) -> MakeApp:
    def make(settings: Mapping[str, Setting]) -> App:
        components = {"serverapp": "ward.server:app", "clientapp": "ward.client:app"}
        app = {"publisher": "me", "components": components, "config": settings}
        manifest = {"project": {"name": "ward", "version": "1.0"}, "tool": {"flwr": {"app": app}}}
        (tmp_path / "pyproject.toml").write_text(tomli_w.dumps(manifest))
        found = app_in(tmp_path)
        assert found is not None
        return found

    return make


@pytest.mark.parametrize(
    ("of_app", "given"),
    [
        ({"validate.best": "accuracy"}, {"validate.patience": 5}),
        ({"aggregation.rule": "trimmed-mean"}, {"aggregation.options": "trim=0.2"}),
        ({"gate.name": "qsr"}, {"gate.options": "growth=0.2"}),
        ({"gate.min-gap": 2}, {"gate.max-gap": 3}),
        ({"gate.max-gap": 3}, {"gate.min-gap": 2}),
        ({"privacy.epsilon": 3.0, "data.placement": "private"}, {"privacy.unit": "record"}),
        ({"work": "coded", "data.placement": "cyclic"}, {"work": "local", "links.codec": "int8"}),
    ],
)
def test_settings_need_not_fit_before_they_are_merged(store, app_with, of_app, given):
    words = [f"{name}={value}" for name, value in given.items()]
    settings = settings_of(store, Wanted(4, parse(words)), app_with(of_app)).table()
    assert {name: settings[name] for name in of_app | given} == of_app | given


@pytest.mark.parametrize(("of_app", "given"), [({}, {"resume": "old"}), ({"resume": "old"}, {})])
def test_setting_resume_is_option_resume(store, app_with, of_app, given):
    store.write(Begun(time.time(), "old", RunConfig(seed=3, learning_rate=0.5).table()))
    app = app_with({**of_app, "learning-rate": 0.1})
    with pytest.raises(Unusable, match="run old: saw it running, needed it to be over"):
        settings_of(store, resumed(store, Wanted(4, given), app), app)
    store.write(Ended(time.time(), "old", "stopped"))
    wanted = resumed(store, Wanted(4, {**given, "rounds": 7}), app)
    assert (wanted.resume, wanted.settings) == ("old", {"rounds": 7})
    config = settings_of(store, wanted, app)
    assert (config.resume, config.seed, config.learning_rate, config.rounds) == ("old", 3, 0.5, 7)


def test_setting_resume_of_unknown_run_is_for_other_stores(store):
    elsewhere = Wanted(None, {"resume": "there"}, superlink="ward")
    assert resumed(store, elsewhere, None) == elsewhere
    here = resumed(store, Wanted(4, {"resume": "there"}), None)
    with pytest.raises(Unusable, match="store: saw no run yet, needed one"):
        settings_of(store, here, None)
    with pytest.raises(Unusable, match="--resume and --set resume: saw one and other, needed one run"):
        resumed(store, Wanted(4, {"resume": "other"}, resume="one"), None)


def test_task_takes_place_of_script_of_app_or_resumed_run(store, app_with):
    app = app_with({"script": "train.py", "task.rank": 8})
    trains = settings_of(store, Wanted(4, parse(["task=digits"])), app)
    assert (trains.workload, trains.table()["task.rank"]) == ("digits", 8)
    assert settings_of(store, Wanted(4, {"script": "train.py"}), app_with({"task": "digits"})).script
    assert settings_of(store, Wanted(4, parse(["task=digits", "script=a.py"])), app).script == "a.py"
    store.write(Begun(time.time(), "old", RunConfig(script="train.py").table()))
    store.write(Ended(time.time(), "old", "stopped"))
    resumed_with = Wanted(4, parse(["task=breast-cancer"]), resume="old")
    assert settings_of(store, resumed_with, None).workload == "breast-cancer"


@pytest.mark.parametrize("key", ["privacy.clip", "privacy.clip-quantile", "privacy.delta"])
def test_settings_of_privacy_need_noise(store, app_with, key):
    needed = f"setting {key}: saw it without noise, needed privacy.epsilon or privacy.noise with it"
    with pytest.raises(BadSetting, match=f"{needed}$"):
        settings_of(store, Wanted(4, {key: 0.01}), None)
    with pytest.raises(BadSetting, match=rf"{needed} \({key}: pyproject\.toml\)"):
        settings_of(store, Wanted(4, {}), app_with({key: 0.01}))
    noised = app_with({key: 0.01, "privacy.noise": 1.0, "data.placement": "private"})
    assert settings_of(store, Wanted(4, {}), noised).is_private
    assert not settings_of(store, Wanted(4, {"privacy.noise": "auto"}), noised).is_private
    with pytest.raises(BadSetting, match=needed):
        settings_of(store, Wanted(4, {"privacy.noise": "auto", key: 0.005}), noised)


def test_name_of_run_in_manifest_is_used_unless_given(store, app_with):
    app = app_with({"run": "demo"})
    assert settings_of(store, Wanted(4, {}), app).run == "demo"
    assert settings_of(store, Wanted(4, {"run": "other"}), app).run == "other"
    assert settings_of(store, Wanted(4, {"run": ""}), app).run.startswith("run-")
    for unnamed in (app_with({"run": ""}), app_with({}), None):
        assert settings_of(store, Wanted(4, {}), unnamed).run.startswith("run-")


@pytest.mark.parametrize(
    ("of_app", "given", "sentence"),
    [
        (
            {"gate.max-gap": 3},
            {"gate.min-gap": 5},
            r"setting gate\.max-gap: saw 3, .* \(gate\.max-gap: pyproject\.toml; gate\.min-gap: --set\)",
        ),
        ({"work": "coded"}, {"links.codec": "int8"}, r"saw int8, .* \(links\.codec: --set; work: pyproject"),
        ({"gate.name": "drfit"}, {}, r"setting gate\.name: saw 'drfit'.* \(gate\.name: pyproject\.toml\)"),
        ({}, {"gate.max-gap": 3, "gate.min-gap": 5}, r"needed at least gate\.min-gap \(5\)$"),
    ],
)
def test_merged_settings_that_do_not_fit_name_sources(store, app_with, of_app, given, sentence):
    with pytest.raises(BadSetting, match=sentence):
        settings_of(store, Wanted(2, given), app_with(of_app))


def test_setting_that_is_invalid_by_itself_is_refused_at_once():
    for word in ("rounds=many", "gate.max-gap=-1", "roundz=3", "task.rank=99999999999999999999"):
        with pytest.raises(BadSetting, match="setting"):
            parse([word])
