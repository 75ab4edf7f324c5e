"""Test the converted script of the how-to page in a federation: clients find their data before the model."""

import re
from pathlib import Path

import pytest

from tests.contract.test_script_and_client_settings import fedgc
from tests.docs.test_convert import script, write_readings

pytestmark = [pytest.mark.contract, pytest.mark.slow, pytest.mark.timeout(600)]
ROWS = {"north": 120, "south": 80}


def test_converted_script_trains_in_federation(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(script("-"))
    for name, rows in ROWS.items():
        write_readings(tmp_path / f"{name}.csv", rows)
    clients = [word for name in ROWS for word in ("--client", f"{name}:data={name}.csv")]
    settings = [word for each in ("rounds=4", "local-steps=20") for word in ("--set", each)]
    done = fedgc(tmp_path, "run", "--script", "train.py", *clients, *settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "completed: 4 rounds" in done.stdout
    assert re.search(r"^round 4: synced .* accuracy", done.stdout, re.MULTILINE)
    assert not (tmp_path / "model.pt").exists()
