"""Test `fedgc task`: two sites sign what an app runs, and every change of it is found by its name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fedgc.cli.new_app import write_new
from fedgc.cli.policy import asked_in
from fedgc.cli.run import app_with
from fedgc.deploy.app_folder import app_in
from fedgc.flower.app_bundle import bundle_of
from fedgc.policy import SentApp
from fedgc.policy.digests import STATEMENT, files_in_bundle
from tests.cli.test_federation import Said, SessionTable


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> SessionTable:
    """Make two vaults, the app `ward` whose task both have signed, and the descriptor that pins it."""
    table = SessionTable(tmp_path_factory.mktemp("task"))
    members = [f"--member={name}={table.key(name)}" for name in "abc"]
    write_new(table.folder / "ward")
    for name in "ab":
        assert table.fedgc("task", "sign", "ward", "--vault", f"{name}.db").returncode == 0
    words = ("--task", f"ward/{STATEMENT}", "--signatures", "2")
    assert table.federation(*members, *words).returncode == 0
    return table


@pytest.fixture
def table(signed: SessionTable, tmp_path: Path) -> SessionTable:
    shutil.copytree(signed.folder, tmp_path, dirs_exist_ok=True)
    return SessionTable(tmp_path)


def verify(table: SessionTable, *words: str) -> Said:
    return table.fedgc("task", "verify", "ward", "--federation", "all.fed", *words)


def edit(name: str, before: str, after: str) -> Callable[[Path], None]:
    def change(app: Path) -> None:
        text = (app / name).read_text()
        assert before in text
        (app / name).write_text(text.replace(before, after))

    return change


CHANGES: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "task": (edit("ward/task.py", "0.8, 0.2", "0.9, 0.1"), ("app: saw", "code of the task: saw")),
    "client": (edit("ward/client_app.py", "import", "import json, os\nimport"), ("app: saw",)),
    "more code": (lambda app: (app / "ward" / "more.py").write_text(""), ("app: saw",)),
    "less code": (lambda app: (app / "ward" / "server_app.py").unlink(), ("app: saw",)),
    "dependency": (edit("pyproject.toml", '"torch"', '"torch", "requests"'), ("app: saw",)),
    "wiring": (edit("pyproject.toml", "client_app:app", "task:task"), ("app: saw",)),
    "setting": (edit("pyproject.toml", "rounds = 20", "rounds = 21"), ("setting rounds: saw 21, needed 20",)),
    "other task": (
        edit("pyproject.toml", "ward.task:task", "ward.task:other"),
        ("code of the task: saw", "setting task: saw 'ward.task:other', needed 'ward.task:task'"),
    ),
    "shipped task": (edit("pyproject.toml", "ward.task:task", "digits"), ("code of the task: saw none",)),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_changed_app_is_named_and_not_signed(table: SessionTable, change: str):
    act, named = CHANGES[change]
    act(table.folder / "ward")
    said, refused = verify(table), table.fedgc("task", "sign", "ward", "--vault", "c.db")
    assert (said.returncode, refused.returncode) == (1, 1)
    for each in (said.stderr, refused.stderr):
        assert all(text in each for text in named)
        assert each.count("\n") == 1
    assert "delete the file to begin a new one" in refused.stderr


def test_signatures_are_verified_against_descriptor(table: SessionTable):
    said = json.loads(verify(table, "--json").stdout)
    assert (said["signed"], said["differs"]) == (["a", "b"], [])
    assert "signed by a, b\n" in verify(table).stdout
    assert verify(table, "--set", "rounds=3").returncode == 1
    assert "task of the statement" in table.fedgc("keys", "check", "all.fed").stdout
    table.fedgc("task", "sign", "ward", "--vault", "c.db")
    assert "signed by a, b, c\n" in verify(table).stdout
    statement = table.folder / "ward" / STATEMENT
    statement.write_text(statement.read_text().replace('"rounds": 20', '"rounds": 21'))
    said = verify(table)
    assert (said.returncode, "that is not over it" in said.stderr) == (2, True)
    statement.unlink()
    assert verify(table).returncode == 2
    sign = ("task", "sign", "ward", "--vault", "c.db")
    said = table.fedgc(*sign, "--set", "seed=4", "--set", "rounds=21")
    assert said.stdout.endswith(", 1 signature\n")
    said = verify(table, "--set", "rounds=21")
    assert (said.returncode, "pins its task: saw the statement sha256:" in said.stderr) == (1, True)


def test_statement_travels_with_app_and_names_it(table: SessionTable, tmp_path: Path):
    """Also with fedgc's own app, which is sent where there is none in the folder."""
    ward = table.folder / "ward"
    (table.folder / "none").mkdir()
    assert table.fedgc("task", "sign", "none", "--task", "digits", "--vault", "a.db").returncode == 0
    for folder, task in ((ward, "ward.task:task"), (table.folder / "none", "digits")):
        app = app_in(folder)
        config, _ = asked_in(folder, {"task": task})
        written = app_with(app, tmp_path / "sent" / folder.name, config, folder)
        sent = SentApp.of(files_in_bundle(bundle_of(written)))
        assert table.key("a") in sent.signers


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("task", "sign", "ward", "--task", "no.such:task", "--vault", "a.db"), "saw no file of it"),
        (("task", "sign", "ward", "--vault", "none.db"), "vault none.db: saw none"),
        (("task", "verify", "ward", "--federation", "none.fed"), "descriptor none.fed"),
        (("task", "verify", "ward", "--statement", "none.json"), "none.json: No such file"),
    ],
)
def test_invalid_words_are_refused_in_one_line(table: SessionTable, words: tuple[str, ...], named: str):
    said = table.fedgc(*words)
    members = [f"--member={name}={table.key(name)}" for name in "abc"]
    assert "--signatures: saw it alone" in table.federation(*members, "--signatures", "2").stderr
    assert said.returncode == 2
    assert named in said.stderr
    assert said.stderr.count("\n") == 1
