"""The first schema: what ``schema`` says makes a new database; there is none older than this."""

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Nothing: a new database doesn't pass here."""
