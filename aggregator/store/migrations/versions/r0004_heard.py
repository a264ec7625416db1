"""Attempts that others alone remember are kept, and versions count the coins that were redrawn."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add two columns; older databases have neither heard of anything nor drawn again."""
    op.add_column("task", sa.Column("heard", sa.Integer))
    op.add_column("version", sa.Column("redrawn", sa.Integer))
