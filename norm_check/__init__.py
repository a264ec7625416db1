"""The norm check by function secret sharing: what the dealer deals, and what each server computes.

docs/soundness.md has the check itself; this one decides it from public points, so that a server
has no share that it could shift.
"""
