"""Test extensions by entry points: found, listed, or refused with a reason."""

import pytest

from fedgc.errors import BadSetting
from fedgc.plugins import available, load
from tests.outside_package import install

GROUP = "fedgc.gates"
CODE = "value = 7"


def test_outside_name_is_loaded_and_listed(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "ward_one", CODE, {f"{GROUP}:seven": "value"})
    assert load(GROUP, "seven", "setting gate.name") == 7
    assert {"seven", "every", "drift"} <= set(available(GROUP))


def test_other_groups_are_not_searched(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "ward_one", CODE, {"ward.things:seven": "value"})
    assert available("ward.things") == ("seven",)
    with pytest.raises(
        BadSetting, match=r"setting gate.name: saw 'seven', needed one of drift.*\(entry points"
    ):
        load(GROUP, "seven", "setting gate.name")


def test_name_of_fedgc_cannot_be_replaced(tmp_path, monkeypatch):
    install(tmp_path, monkeypatch, "ward_one", CODE, {f"{GROUP}:every": "value"})
    with pytest.raises(BadSetting, match="saw 'every' in fedgc and ward_one, needed one package"):
        load(GROUP, "every", "setting gate.name")


def test_name_offered_by_two_packages_is_refused(tmp_path, monkeypatch):
    for module in ("ward_one", "ward_two"):
        install(tmp_path / module, monkeypatch, module, CODE, {f"{GROUP}:seven": "value"})
    with pytest.raises(BadSetting, match="saw 'seven' in ward_one and ward_two, needed one package"):
        load(GROUP, "seven", "setting gate.name")


@pytest.mark.parametrize(
    ("code", "attribute", "says"),
    [
        ("raise RuntimeError('no scanner')", "value", "raised RuntimeError: no scanner"),
        (CODE, "missing", "raised AttributeError: .*missing"),
        ("import ward_nowhere", "value", "raised ModuleNotFoundError"),
    ],
)
def test_unloadable_package_is_named(tmp_path, monkeypatch, code, attribute, says):
    install(tmp_path, monkeypatch, "ward_broken", code, {f"{GROUP}:broken": attribute})
    with pytest.raises(
        BadSetting, match=rf"setting gate.name: loading 'broken' \(ward_broken:{attribute}\) {says}"
    ):
        load(GROUP, "broken", "setting gate.name")
