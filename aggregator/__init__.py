"""What servers A and B have in common; no other party may import it."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
