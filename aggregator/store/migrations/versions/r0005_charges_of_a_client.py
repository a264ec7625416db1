"""The oldest schema that is brought up to date; none before it was in a released version."""

revision = "0005"
down_revision = None


def upgrade() -> None:
    """Nothing: a new database doesn't pass here."""
