"""Test the refusal of models that do not fit: by memory, by disk, on the server and on a client."""

from pathlib import Path

import pytest

from fedgc.config import RunConfig, requirements
from fedgc.errors import Unusable
from fedgc.flower import must_fit
from fedgc.flower.must_fit import must_fit_client, must_fit_server

GIGABYTE = 250_000_000  # numbers
CONFIG = RunConfig(min_clients=3, evaluate_every=0)
NEEDS = requirements(CONFIG, GIGABYTE, 3)


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch):
    def given(memory: int | None, disk: int | None) -> None:
        monkeypatch.setattr(must_fit, "available_memory", lambda: memory)
        monkeypatch.setattr(must_fit, "free_disk", lambda _: disk)

    return given


def test_server_with_room_is_accepted(room, tmp_path: Path):
    room(NEEDS.server_memory, NEEDS.server_disk)
    must_fit_server(CONFIG, GIGABYTE, tmp_path, resumes=False)
    room(None, None)
    must_fit_server(CONFIG, GIGABYTE, tmp_path, resumes=False)


@pytest.mark.parametrize(("memory", "disk"), [(-1, 0), (0, -1)], ids=["memory", "disk"])
def test_server_without_room_is_refused_in_one_line(memory: int, disk: int, room, tmp_path: Path):
    room(NEEDS.server_memory + memory, NEEDS.server_disk + disk)
    with pytest.raises(Unusable) as refused:
        must_fit_server(CONFIG, GIGABYTE, tmp_path, resumes=False)
    assert str(refused.value) == (
        f"the server has no room for a model of 1 GB: saw 3.3 GB of memory and 11 GB of disk in {tmp_path}, "
        "needed 3.3 GB and 11 GB"
    )


def test_resumed_run_has_its_checkpoints_already(room, tmp_path: Path):
    room(NEEDS.server_memory, NEEDS.server_scratch)
    must_fit_server(CONFIG, GIGABYTE, tmp_path, resumes=True)


def test_client_without_room_is_refused(room, tmp_path: Path):
    room(NEEDS.client_memory, NEEDS.client_disk)
    must_fit_client(CONFIG, GIGABYTE, tmp_path)
    room(NEEDS.client_memory - 1, NEEDS.client_disk)
    with pytest.raises(Unusable, match="the client has no room for a model of 1 GB"):
        must_fit_client(CONFIG, GIGABYTE, tmp_path)


@pytest.mark.parametrize(
    ("config", "numbers"), [(CONFIG, 1000), (RunConfig(work="coded"), GIGABYTE)], ids=["small", "coded"]
)
def test_work_that_was_not_measured_is_accepted(config: RunConfig, numbers: int, room, tmp_path: Path):
    room(0, 0)
    must_fit_server(config, numbers, tmp_path, resumes=False)
    must_fit_client(config, numbers, tmp_path)
