"""Keep sums of each client's charges, of opened attempts and of statements' charges."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

# How many releases that count each client was charged for, by version.
_RELEASES = (
    "SELECT charge.client AS client, attempt.version AS version, COUNT(*) AS releases "
    "FROM charge JOIN attempt ON attempt.attempt = charge.attempt "
    "WHERE attempt.state IN "
    "('prepared', 'countersigned', 'sent', 'done', 'written-off', 'learned') "
    "GROUP BY charge.client, attempt.version"
)


def upgrade() -> None:
    """Add a table, two columns and an index; compute the sums of what is there."""
    op.create_index("attempts_of_a_version", "attempt", ["version"])
    op.add_column(
        "task", sa.Column("opened", sa.Integer, nullable=False, server_default="0")
    )
    op.add_column(
        "shown", sa.Column("known", sa.Integer, nullable=False, server_default="0")
    )
    op.create_table(
        "participation",
        sa.Column("client", sa.String(63), primary_key=True),
        sa.Column("re_releases", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("versions", sa.Integer, nullable=False),
    )
    op.execute(
        "INSERT INTO participation (client, re_releases, versions) "  # noqa: S608
        f"SELECT client, releases - 1, COUNT(*) FROM ({_RELEASES}) AS found "
        "GROUP BY client, releases - 1"
    )
    op.execute(
        "UPDATE task SET opened = COALESCE((SELECT SUM(opened) FROM version), 0)"
    )
    op.execute(
        f"UPDATE shown SET known = (SELECT COUNT(*) FROM ({_RELEASES}) "  # noqa: S608
        "AS found WHERE found.client = shown.client AND found.version < shown.version)"
    )
    # An attempt that a statement names has been heard of; from now on `heard` alone
    # says so.
    op.execute(
        "UPDATE task SET heard = (SELECT MAX(attempt) FROM shown) "
        "WHERE COALESCE(heard, -1) < (SELECT MAX(attempt) FROM shown)"
    )
