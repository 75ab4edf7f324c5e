"""Test that whatever differs from the signed statement of a task is refused by its name."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedgc.config import RunConfig
from fedgc.errors import EdgeFailed, Unusable
from fedgc.policy import (
    Request,
    SentApp,
    Statement,
    Totals,
    check,
    explained,
    implied,
    pinned_settings,
    read_policy,
    read_statement,
)
from fedgc.policy.digests import STATEMENT, app_digest
from fedgc.secagg import Identity

APP, CODE, OTHER = (f"sha256:{digit * 64}" for digit in "abc")
ONE, TWO, THREE = (Identity(bytes([number]) * 32) for number in (1, 2, 3))
KEYS = tuple(each.public.hex() for each in (ONE, TWO, THREE))
AGREED = Statement("0.2.0", APP, CODE, pinned_settings(RunConfig(rounds=3)))
SIGNED = AGREED.sign(ONE).sign(TWO)


def settings(**changed: object) -> dict[str, Any]:
    return {**AGREED.settings, **changed}


SEEN: dict[str, tuple[dict[str, Any], str]] = {  # what the app in front has instead, and how it is named
    "version": ({"fedgc": "0.3.0"}, "version of fedgc: saw 0.3.0, needed 0.2.0"),
    "app": ({"app": OTHER}, f"app: saw {OTHER}, needed {APP}"),
    "task": ({"code": OTHER}, f"code of the task: saw {OTHER}, needed {CODE}"),
    "no task": ({"code": ""}, f"code of the task: saw none, needed {CODE}"),
    "setting": ({"settings": settings(rounds=4)}, "setting rounds: saw 4, needed 3"),
    "type of a setting": ({"settings": settings(rounds=3.0)}, "setting rounds: saw 3.0, needed 3"),
    "own setting": ({"settings": settings(**{"task.rank": 2})}, "setting task.rank: saw 2, needed none"),
    "missing setting": (
        {"settings": {key: each for key, each in AGREED.settings.items() if key != "work"}},
        "setting work: saw none, needed 'local'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mutation", SEEN)
def test_difference_from_statement_is_named(mutation: str):
    change, named = SEEN[mutation]
    assert SIGNED.differences(AGREED) == ()
    assert SIGNED.differences(replace(AGREED, **change)) == (named,)


FILES: dict[str, tuple[dict[str, Any], str]] = {  # what a signed file has instead, and what the error says
    **{
        f"other {name}": (change, "that is not over it")
        for name, (change, _) in SEEN.items()
    },
    "version no text": ({"fedgc": 2}, "saw fedgc = '2', needed a version"),
    "short digest": ({"app": APP[:-1]}, "saw app = "),
    "no digest of code": ({"code": 0}, "saw code = '0', needed a digest, or none"),
    "version with a control": ({"fedgc": "\x1b[2J"}, "saw fedgc = '\\x1b[2J', needed a version"),
    "setting with a control": ({"settings": {"\x1b[2J": 1}}, "needed settings by name"),
    "setting beyond ASCII": ({"settings": {"\u202e": 1}}, "needed settings by name"),
    "field with a control": ({"\x1b[2J": 1}, "saw '\\x1b[2J, app, "),
    "settings no table": ({"settings": []}, "saw settings = '[]', needed settings by name"),
    "nested setting": ({"settings": {"rounds": {}}}, "needed settings by name"),
    "signatures no table": ({"signatures": [1]}, "needed signatures by public key"),
    "short key": ({"signatures": {"ab": "cd"}}, "needed signatures by public key"),
    "other key": ({"signatures": {KEYS[2]: SIGNED.signatures[KEYS[0]]}}, f"signature of {KEYS[2]}"),
    "signature no digits": ({"signatures": {KEYS[0]: "xyz"}}, f"saw a signature of {KEYS[0]}"),
    "unknown field": ({"more": 1}, "needed app, code, fedgc, settings, signatures"),
}  # fmt: skip


@pytest.mark.parametrize("mutation", FILES)
def test_changed_file_is_refused_by_its_field(tmp_path: Path, mutation: str):
    file = tmp_path / STATEMENT
    SIGNED.write(file)
    assert read_statement(file) == SIGNED
    change, named = FILES[mutation]
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(Unusable) as refused:
        read_statement(file)
    assert named in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"{}", b"[" * 100_000])
def test_file_that_is_no_statement_is_refused(content: bytes):
    with pytest.raises(Unusable, match=STATEMENT):
        Statement.read(content)


def test_unwritable_statement_is_named(tmp_path: Path):
    with pytest.raises(EdgeFailed, match="needed a place to write"):
        SIGNED.write(tmp_path / "none" / STATEMENT)


def test_settings_of_machines_and_of_one_run_are_not_pinned():
    others = RunConfig(
        rounds=3, seed=9, run="ward", min_clients=5, deadline_s=9.0, bind="0.0.0.0:1", threads=3, log_file="x"
    )
    assert pinned_settings(others) == AGREED.settings
    for changed in (RunConfig(rounds=3, codec="int8"), RunConfig(rounds=3, aggregator="median")):
        assert len(AGREED.differences(replace(AGREED, settings=pinned_settings(changed)))) == 1


# ---- apps that a policy allows by signature

TEXT = f"""[allow]
signers = ["{KEYS[0]}", "{KEYS[1]}"]
signatures = 2
"""
REQUEST = Request("ward", "digits", app_digest=APP, app_signers=KEYS[:2])


def refused(site: Path, text: str, **change: object) -> list[str]:
    site.write_text(text)
    return [each.text for each in check(read_policy(site), replace(REQUEST, **change), Totals(), 0.0)]


def test_app_is_allowed_by_enough_signatures(tmp_path: Path):
    site = tmp_path / "site.toml"
    assert refused(site, TEXT) == []
    (said,) = refused(site, TEXT, app_signers=(KEYS[0], KEYS[2], KEYS[0]))
    assert (
        said == f"site.toml, line 2 (allow.signers): saw the app {APP}, signed by 1 of these keys, needed 2"
    )
    assert refused(site, TEXT.replace("signatures = 2", ""), app_signers=KEYS[1:]), "all, if not said"
    assert refused(site, TEXT.replace("signatures = 2", "signatures = 1"), app_signers=KEYS[1:]) == []
    (said,) = refused(site, TEXT, app_digest="")
    assert "(allow.signers): saw an app that was not checked" in said
    assert refused(site, f"{TEXT}apps = []\n") == []
    listed = f'{TEXT}apps = ["{APP}"]\n'
    assert refused(site, listed, app_signers=()) == []
    (said,) = refused(site, listed, app_signers=(), app_digest=OTHER)
    assert said.endswith("signed by 0 of these keys, needed 2, or one in allow.apps")
    said = explained(read_policy(site))
    assert (
        "site.toml, line 3 (allow.signatures): an app needs at least 2 signatures of allow.signers." in said
    )


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("signatures = 2", "signatures = 3", r"line 3 \(allow.signatures\): saw 3 with 2 keys"),
        ("signatures = 2", "signatures = 0", r"line 3 \(allow.signatures\)"),
        ("signers =", "apps = []\nsigner =", r"line 3 \(allow.signer\): unknown rule; did you mean"),
        (TEXT, "[allow]\nsignatures = 1\n", r"line 2 \(allow.signatures\): saw 1 with 0 keys"),
        (KEYS[1], KEYS[0], r"line 2 \(allow.signers\)"),
        (KEYS[1], KEYS[1][:-1], r"line 2 \(allow.signers\)"),
        (TEXT, "[allow]\nsigners = []\n", r"line 2 \(allow.signers\)"),
    ],
)
def test_changed_rule_of_signers_is_refused_by_name(tmp_path: Path, before: str, after: str, named: str):
    (tmp_path / "site.toml").write_text(TEXT.replace(before, after))
    with pytest.raises(Unusable, match=named):
        read_policy(tmp_path / "site.toml")


def test_signatures_count_for_named_app_only():
    files = {"client/app.py": b"app = 1", "pyproject.toml": b""}
    signed = replace(AGREED, app=app_digest(files)).sign(ONE)
    content = json.dumps({name: getattr(signed, name) for name in signed.__dataclass_fields__}).encode()
    assert SentApp.of({**files, STATEMENT: content}).signers == KEYS[:1]
    assert SentApp.of({**files, STATEMENT: content, "client/b.py": b""}).signers == ()
    assert SentApp.of(files).signers == ()


SCRIPT = {"task": "", "script": "train.py", "script_digest": CODE, "signed_code": CODE}
RULES: dict[str, tuple[dict[str, Any], str]] = {  # what a run names beside the signed app, and the refusal
    "signed script": (SCRIPT, ""),
    "other script": ({**SCRIPT, "script_digest": OTHER}, "allow.scripts"),
    "command without a file": (
        {**SCRIPT, "script": "sh -c ls", "script_digest": "", "signed_code": ""}, "allow.scripts"
    ),
    "script that too few have signed": ({**SCRIPT, "app_signers": KEYS[1:]}, "allow.signers"),
    "command of the owner": ({**SCRIPT, "script_digest": "", "is_owners": True}, ""),
    "task of the app": ({"task": "ward:task", "is_in_app": True}, ""),
    "task of another module": ({"task": "os:system", "task_digest": OTHER}, "allow.tasks"),
}  # fmt: skip


@pytest.mark.parametrize("name", RULES)
def test_signed_app_runs_only_its_own_code(tmp_path: Path, name: str):
    change, rule = RULES[name]
    said = refused(tmp_path / "site.toml", TEXT, **change)
    assert [text.partition("(")[2].partition(")")[0] for text in said] == ([rule] if rule else [])


def test_listed_script_and_task_run_beside_signed_app(tmp_path: Path):
    listed = f'{TEXT}scripts = ["{OTHER}"]\ntasks = ["{OTHER}"]\n'
    for name in ("other script", "task of another module"):
        assert refused(tmp_path / "site.toml", listed, **RULES[name][0]) == []
    assert implied(read_policy(tmp_path / "site.toml")) == ()


def test_script_beside_listed_app_is_refused_also_if_signed(tmp_path: Path):
    text = TEXT + f'apps = ["{APP}"]\n'
    assert refused(tmp_path / "site.toml", text, **SCRIPT) == []
    (said,) = refused(tmp_path / "site.toml", text, **SCRIPT, app_signers=KEYS[1:])
    assert said.endswith("needed one that is signed with its app, or listed here")
    (said,) = refused(tmp_path / "site.toml", f'[allow]\napps = ["{APP}"]\n', **SCRIPT)
    assert said == (
        f"site.toml, line 1 (allow.scripts): saw the script 'train.py', digest {CODE}, "
        "needed one that is listed here"
    )
    assert len(implied(read_policy(tmp_path / "site.toml"))) == 2
    assert refused(tmp_path / "site.toml", "", **SCRIPT, app_digest=OTHER) == []
