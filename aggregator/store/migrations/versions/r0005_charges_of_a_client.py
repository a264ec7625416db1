"""The oldest schema that is brought up to date: no older one was ever released."""

revision = "0005"
down_revision = None


def upgrade() -> None:
    """Do nothing: a new database is made without migrations."""
