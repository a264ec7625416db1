"""What both checks of norms are made of: dealt triples and squares, owners' proofs.

docs/soundness.md has the checks themselves.
"""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
