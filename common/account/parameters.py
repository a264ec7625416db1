"""Checks of what people type: every error names the field, the value and the remedy."""

import math

from precad.common.errors import Misconfiguration


def require_rate(field: str, value: float) -> None:
    """A sampling rate lies in [0, 1].

    Raises:
        Misconfiguration: it doesn't.
    """
    if not 0 <= value <= 1:
        raise Misconfiguration(field, value, "a sampling rate is a probability: give 0 to 1")


def require_positive(field: str, value: float, what: str) -> None:
    """``value`` is finite and above 0; ``what`` says in words what the field is.

    Raises:
        Misconfiguration: it isn't.
    """
    if not (math.isfinite(value) and value > 0):
        raise Misconfiguration(field, value, f"{what}: give a finite number above 0")


def require_noise_multiplier(value: float, field: str = "noise_multiplier") -> None:
    """A noise multiplier (standard deviation over sensitivity) is finite and above 0.

    Raises:
        Misconfiguration: it isn't.
    """
    require_positive(field, value, "without noise there is no guarantee")


def require_delta(value: float) -> None:
    """δ lies strictly between 0 and 1.

    Raises:
        Misconfiguration: it doesn't.
    """
    if not 0 < value < 1:
        raise Misconfiguration(
            "delta",
            value,
            "delta is a failure probability: give a number above 0 and below 1, like 1e-5",
        )


def require_epsilon(value: float, field: str = "epsilon") -> None:
    """ε is finite and not negative.

    Raises:
        Misconfiguration: it isn't.
    """
    if not (math.isfinite(value) and value >= 0):
        raise Misconfiguration(field, value, "epsilon is a finite number, 0 or above")


def require_count(field: str, value: int, least: int = 0) -> None:
    """A count is an integer, ``least`` or more.

    Raises:
        Misconfiguration: it isn't.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise Misconfiguration(field, value, f"give a whole number, {least} or more")
