"""The command line."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
