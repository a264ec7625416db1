"""Alembic's entry: run the migrations in the open transaction of the caller."""

from alembic import context

from precad.aggregator.store import metadata

context.configure(
    connection=context.config.attributes["connection"], target_metadata=metadata
)
context.run_migrations()
