"""What two tasks have otherwise, in words: why an owner and a server can't work together."""

import json

from precad.common.description import Description
from precad.common.errors import Misconfiguration

_NAMED = ("name", "validation", "projections", "fractional_bits")


def differences(ours: Description, canonical: bytes) -> str:
    """Fields of ours and of the task with these canonical bytes, of whoever, that differ.

    Returns:
        Names and both values, for an error; empty where the bytes are no task's.
    """
    try:
        theirs = Description.parse(json.loads(canonical))
    except (ValueError, RecursionError, Misconfiguration):
        return ""
    pairs = ((name, getattr(ours, name), getattr(theirs, name)) for name in _NAMED)
    return ", ".join(f"{name} is {own!r}, not {its!r}" for name, own, its in pairs if own != its)
