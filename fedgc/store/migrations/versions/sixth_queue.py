"""The queue of runs."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    """Make the table, without entries."""
    op.create_table(
        "queue",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("run", sa.String(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.Column("settings", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("added", sa.Double(), nullable=False),
        sa.Column("began", sa.Double(), nullable=True),
        sa.Column("ended", sa.Double(), nullable=True),
        sa.Column("process", sa.String(), nullable=False),
        sqlite_autoincrement=True,
    )
