"""Correlated randomness for the two servers."""
