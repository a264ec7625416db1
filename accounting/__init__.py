"""Privacy accounting: mechanisms as events, accountants, this system's guarantees.

Every function that takes a parameter raises Misconfiguration where that is out of its
range.
"""

from precad.common.homes import shown_by

__all__, __getattr__ = shown_by(__file__)
