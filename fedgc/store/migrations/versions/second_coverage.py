"""The share of the known samples that a round counted, and the clients whose data was refused."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Add the columns; they stay unknown for existing rounds."""
    for name in ("known_samples", "counted_samples"):
        op.add_column("rounds", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("rounds", sa.Column("left_out", sa.String(), nullable=False, server_default=""))
