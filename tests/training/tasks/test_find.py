import subprocess
import sys

import pytest

from fedgc.config import RunConfig
from fedgc.errors import BadSetting, BadTask
from fedgc.training.tasks import SHIPPED, Task, named

USERS_MODULE = """
from fedgc import Task
fixed = Task(model=list, chunks={"a": 3}, load=str, loss=max)
def cut(config):
    return Task(model=list, chunks={f"c{i}": 1 for i in range(config.chunks)}, load=str, loss=max)
def wrong(config):
    return {"model": list}
number = 7
def own(config, client):
    return Task(model=list, chunks={str(client.get("ward", "none")): 1}, load=str, loss=max)
def absent(config):
    raise FileNotFoundError("data/x.pt")
"""


@pytest.fixture
def users_module(tmp_path, monkeypatch):
    (tmp_path / "ward_seven.py").write_text(USERS_MODULE)
    (tmp_path / "broken_ward.py").write_text("raise RuntimeError('no scanner')")
    (tmp_path / "parsing_ward.py").write_text("raise SystemExit(2)")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for module in ("ward_seven", "broken_ward", "parsing_ward"):
        sys.modules.pop(module, None)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_task_is_partitioned_by_settings(name):
    task = named(name, RunConfig(chunks=5, work="coded"))
    assert isinstance(task, Task)
    assert list(task.sizes()) == [f"{name}-{i:04}-of-0005" for i in range(5)]


def test_user_task_is_value_or_function_of_settings(users_module):
    assert dict(named("ward_seven:fixed", RunConfig(work="coded")).sizes()) == {"a": 3}
    assert len(named("ward_seven:cut", RunConfig(chunks=7, work="coded")).sizes()) == 7


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("ward_seven:cur", "ward_seven has no 'cur'; did you mean cut"),
        ("ward_seven:wrong", "saw a dict, needed a Task"),
        ("ward_seven:number", "saw a int, needed a Task"),
        ("ward_eight:cut", "importing ward_eight raised ModuleNotFoundError"),
        ("broken_ward:task", "importing broken_ward raised RuntimeError: no scanner"),
        ("parsing_ward:task", "importing parsing_ward raised SystemExit: 2, since it parses a command line"),
        ("ward_seven:absent", r"the function raised FileNotFoundError: data/x\.pt"),
    ],
)
def test_invalid_user_task_is_refused_in_one_line(users_module, name, seen):
    with pytest.raises(BadTask, match=seen) as refused:
        named(name, RunConfig(work="coded"))
    assert "\n" not in str(refused.value)


def test_task_with_parameter_client_gets_clients_settings(users_module):
    config = RunConfig(work="coded")
    assert dict(named("ward_seven:own", config, {"ward": 7}).sizes()) == {"7": 1}
    assert dict(named("ward_seven:own", config).sizes()) == {"none": 1}


@pytest.mark.parametrize("name", ["", "digit", "digits:", ":task", "breast cancer"])
def test_unknown_task_name_is_refused_with_alternatives(name):
    with pytest.raises(BadSetting, match="needed digits, breast-cancer or module:attribute"):
        named(name, RunConfig(work="coded"))


def test_listing_tasks_imports_no_torch():
    code = "import sys, fedgc.training.tasks; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
