"""The names of release 0.2: clients, aborted rounds, and the new names of settings."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

_SETTINGS = {
    "clients": "client-app",
    "inject-devices": "inject-clients",
    "min-devices": "min-clients",
    "server-optimiser": "server-optimizer",
}
_PRESENT = {"devices": "clients", "device": "client", "copies": "replicas"}


def upgrade() -> None:
    """Rename tables, columns, outcomes, and keys in JSON columns."""
    op.rename_table("devices", "clients")
    op.rename_table("device_rounds", "client_rounds")
    for table in ("client_rounds", "tracks", "recents", "summaries"):
        op.alter_column(table, "device_id", new_column_name="client_id")
    op.alter_column("rounds", "devices", new_column_name="clients")
    op.execute("UPDATE rounds SET outcome = 'aborted' WHERE outcome = 'burnt'")
    _rename_keys("settings", _SETTINGS)
    _rename_keys("present", _PRESENT)


def _rename_keys(column: str, names: dict[str, str]) -> None:
    runs = sa.table("runs", sa.column("id", sa.Integer), sa.column(column, sa.String))
    connection = op.get_bind()
    for number, text in connection.execute(sa.select(runs.c.id, runs.c[column])).all():
        renamed = json.dumps(_renamed(json.loads(text), names)) if text else text
        connection.execute(sa.update(runs).where(runs.c.id == number).values({column: renamed}))


def _renamed(value: Any, names: dict[str, str]) -> Any:  # noqa: ANN401  what JSON holds
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return value
