"""The first schema; a new database is made without migrations."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: there is no older schema."""
