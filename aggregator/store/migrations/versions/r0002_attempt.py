"""A round's tries are attempts; only a reader's copy takes this step."""

from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    """Rename; what refers to the table and its columns follows."""
    op.execute("ALTER TABLE training_round RENAME TO attempt")
    for table in ("attempt", "ledger", "charge", "rejection", "spent_triple"):
        op.execute(f"ALTER TABLE {table} RENAME COLUMN number TO attempt")
