"""Settings in groups, as in release 0.2."""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

_GROUPED = {
    "schedule": "optimizer.schedule",
    "warmup-steps": "optimizer.warmup-steps",
    "shared-momentum": "optimizer.shared-momentum",
    "server-optimizer": "optimizer.server",
    "server-learning-rate": "optimizer.server-learning-rate",
    "server-momentum": "optimizer.server-momentum",
    "chunks": "data.chunks",
    "placement": "data.placement",
    "inject-clients": "data.inject-clients",
    "inject-share": "data.inject-share",
    "replicas": "code.replicas",
    "blocks": "code.blocks",
    "start-timeout-s": "timing.start-timeout-s",
    "deadline-s": "timing.deadline-s",
    "upload-deadline-s": "timing.upload-deadline-s",
    "late-s": "timing.late-s",
    "quorum": "timing.quorum",
    "patience": "timing.patience",
    "wire": "code.wire",
    "error-limit": "code.error-limit",
    "gate": "gate.name",
    "gate-options": "gate.options",
    "gate-period": "gate.period",
    "gate-budget": "gate.budget",
    "gate-budget-unit": "gate.budget-unit",
    "lockstep": "gate.lockstep",
    "max-gap": "gate.max-gap",
    "min-gap": "gate.min-gap",
    "device": "client.device",
    "precision": "client.precision",
    "threads": "client.threads",
    "memory-mb": "client.memory-mb",
    "client-app": "client.app",
    "link": "links.kind",
    "connect-s": "links.connect-s",
    "bind": "links.bind",
    "advertise": "links.advertise",
    "authority": "links.authority",
    "lease-s": "links.lease-s",
    "grace-s": "links.grace-s",
    "upload-slots": "links.upload-slots",
    "piece-kb": "links.piece-kb",
    "evaluate-every": "history.evaluate-every",
    "checkpoint-dir": "history.checkpoint-dir",
    "keep-checkpoints": "history.keep-checkpoints",
    "log-file": "history.log-file",
    "sinks": "history.sinks",
    "keep-rounds": "history.keep-rounds",
}
_CODECS = {4: "int4", 8: "int8", 32: "float32"}


def upgrade() -> None:
    """Rename the keys of the settings of every run."""
    runs = sa.table("runs", sa.column("id", sa.Integer), sa.column("settings", sa.String))
    connection = op.get_bind()
    for number, text in connection.execute(sa.select(runs.c.id, runs.c.settings)).all():
        if text:
            renamed = json.dumps(_renamed(json.loads(text)))
            connection.execute(sa.update(runs).where(runs.c.id == number).values(settings=renamed))


def _renamed(settings: dict[str, Any]) -> dict[str, Any]:
    steps = settings.pop("gate-every", None)
    if settings.get("work") == "local" and steps is not None:
        settings["local-steps"] = steps
    bits = settings.pop("delta-bits", None)
    renamed = {_GROUPED.get(name, name): value for name, value in settings.items()}
    if bits in _CODECS:
        renamed["links.codec"] = _CODECS[bits]
    return renamed
