"""Algorithm 2 of PRECAD: gradients of single records, clipped, encoded and summed."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
