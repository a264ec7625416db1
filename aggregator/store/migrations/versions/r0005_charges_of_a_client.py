"""One client's charges are found without looking at everybody else's."""

from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    """Add the index."""
    op.create_index("charges_of_a_client", "charge", ["client", "attempt"])
