"""Attempts that others alone remember, and coins drawn again, are counted."""

from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    """Add two columns: older databases have neither heard nor drawn again."""
    op.execute("ALTER TABLE task ADD COLUMN heard INTEGER")
    op.execute("ALTER TABLE version ADD COLUMN redrawn INTEGER")
