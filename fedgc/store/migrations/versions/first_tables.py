"""The first tables, and the triggers that protect the audit."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import SchemaItem

revision = "0001"
down_revision = None

_REFUSAL = "the audit is only ever added to"


def upgrade() -> None:
    """Create the tables of the first release."""
    _named()
    _rounds()
    _device_rounds()
    _known()
    _told()
    _keep_audit(op.get_bind().dialect.name)


def _text(name: str) -> sa.Column[str]:
    return sa.Column(name, sa.String(), nullable=False)


def _whole(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=False)


def _big(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=False)


def _real(name: str, nullable: bool = False) -> sa.Column[float]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _id() -> sa.Column[int]:
    return sa.Column("id", sa.Integer(), primary_key=True)


def _refers(name: str, to: str) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), sa.ForeignKey(f"{to}.id"), nullable=False)


def _keyed(name: str, *items: SchemaItem, key: tuple[str, ...]) -> None:
    op.create_table(name, *items, sa.PrimaryKeyConstraint(*key), sqlite_with_rowid=False)


def _named() -> None:
    op.create_table("tasks", _id(), _text("name"), sa.UniqueConstraint("name"))
    op.create_table(
        "devices",
        *(_id(), _text("key"), _text("name"), _text("site"), _text("link")),
        *(_real("first_seen"), _real("last_seen"), sa.UniqueConstraint("key")),
    )
    op.create_table(
        "runs",
        *(_id(), _text("key"), _refers("task_id", "tasks"), _text("settings"), _text("state")),
        *(_text("reason"), _real("started"), _real("ended", nullable=True), _text("present")),
        *(_real("present_at"), sa.UniqueConstraint("key")),
    )


def _rounds() -> None:
    op.create_table(
        "rounds",
        *(_id(), _refers("run_id", "runs"), _whole("round"), _whole("version"), _real("started")),
        *(_real("working_s"), _real("collecting_s"), _text("outcome"), _whole("chunks"), _whole("covered")),
        *(_text("short"), _whole("replicas"), _whole("blocks"), _whole("needed")),
        *(_real(name, nullable=True) for name in ("amplification", "error", "loss")),
        *(_big("samples"), _whole("skips"), _whole("takes"), _whole("pruned"), _whole("repairs")),
        *(_text("reason"), _text("metrics"), _whole("devices"), _big("finished"), _big("counted")),
        *(_big("up_bytes"), _big("down_bytes"), _big("control_bytes")),
        sa.UniqueConstraint("run_id", "round"),
    )


def _device_rounds() -> None:
    _keyed(
        "device_rounds",
        *(_refers("round_id", "rounds"), _refers("device_id", "devices")),
        *(_whole("finished"), _whole("counted"), _whole("steps"), _real("busy_s")),
        *(_real("step_s", nullable=True), _real("spread_s", nullable=True)),
        *(_real("upload_s"), _real("download_s"), _big("up_bytes"), _big("down_bytes")),
        *(_big("control_bytes"), _whole("refused"), _whole("implausible")),
        *(sa.Column("failure", sa.String()), sa.Column("link", sa.String())),
        key=("round_id", "device_id"),
    )


def _known() -> None:
    _keyed(
        "tracks",
        *(_refers("task_id", "tasks"), _refers("device_id", "devices"), _whole("rows")),
        *(_big("finished"), _big("counted"), _whole("failures"), _whole("implausible")),
        key=("task_id", "device_id"),
    )
    _keyed(
        "recents",
        *(_refers("task_id", "tasks"), _whole("slot"), _refers("device_id", "devices")),
        _refers("round_id", "rounds"),
        key=("task_id", "slot", "device_id"),
    )
    _keyed(
        "summaries",
        *(_refers("run_id", "runs"), _refers("device_id", "devices"), _whole("rows")),
        *(_big("finished"), _big("counted"), _big("steps"), _real("busy_s"), _whole("timed")),
        *(_real("step_sum_s"), _real("step_squares"), _real("upload_s"), _real("download_s")),
        *(_big("up_bytes"), _big("down_bytes"), _big("control_bytes")),
        *(_whole("refused"), _whole("implausible"), _whole("failures")),
        key=("run_id", "device_id"),
    )


def _told() -> None:
    op.create_table(
        "decisions",
        *(_id(), sa.Column("stamp", sa.String(64)), _refers("run_id", "runs"), _whole("round")),
        *(_real("at"), _text("what"), _text("basis"), _text("reason"), sa.UniqueConstraint("stamp")),
    )
    op.create_index("ix_decisions_run_id", "decisions", ["run_id"])
    op.create_table(
        "audit",
        *(_id(), sa.Column("stamp", sa.String(64)), _real("at"), _text("run"), _text("kind")),
        *(_text("who"), _text("what"), sa.UniqueConstraint("stamp")),
    )


def _keep_audit(dialect: str) -> None:
    if dialect == "sqlite":
        for change in ("UPDATE", "DELETE"):
            op.execute(
                f"CREATE TRIGGER audit_no_{change.lower()} BEFORE {change} ON audit "
                f"BEGIN SELECT RAISE(ABORT, '{_REFUSAL}'); END"
            )
    elif dialect == "postgresql":
        op.execute(
            "CREATE FUNCTION audit_stays() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{_REFUSAL}'; END $$"
        )
        op.execute(
            "CREATE TRIGGER audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON audit "
            "EXECUTE FUNCTION audit_stays()"
        )
