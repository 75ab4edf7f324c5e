"""Figures of each client for the models of a run, and metrics of the initial model."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Make the table; earlier runs have no figures of single clients."""
    op.add_column("runs", sa.Column("initial_metrics", sa.String(), nullable=False, server_default="{}"))
    op.create_table(
        "scores",
        sa.Column("run_id", sa.Integer(), sa.ForeignKey("runs.id"), primary_key=True, autoincrement=False),
        sa.Column("round", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column(
            "client_id", sa.Integer(), sa.ForeignKey("clients.id"), primary_key=True, autoincrement=False
        ),
        sa.Column("samples", sa.BigInteger(), nullable=False),
        sa.Column("metrics", sa.String(), nullable=False),
        sqlite_with_rowid=False,
    )
