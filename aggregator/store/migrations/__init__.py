"""Alembic's folder: one file in ``versions`` per change of the tables."""
