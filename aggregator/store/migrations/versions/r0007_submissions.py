"""Keep the id of every submission that counts or is rejected, as the logs have it."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    """Add a column to charges and to rejections; of what is there no id is known."""
    for table in ("charge", "rejection"):
        op.add_column(table, sa.Column("submission", sa.String(12)))
