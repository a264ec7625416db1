"""What both checks of norms are made of: dealt triples and squares, owners' proofs.

docs/soundness.md has the checks themselves.
"""
