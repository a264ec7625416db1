"""An owner's records, from its files and frames to tensors."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
