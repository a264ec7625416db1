"""Aggregation: from valid shares to the next model."""
