"""A whole training on one server: its state, its rounds, its recovery, its end."""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
