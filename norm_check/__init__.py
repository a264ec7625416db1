"""What both checks of norms compute: rows of the range test, dealt triples, owners' proofs.

docs/soundness.md has the checks themselves.
"""
