"""A wrong value of a person: the error that ends a call."""

from collections.abc import Callable

import pytest

from precad.common.errors import Misconfiguration


def refused(
    said: str, call: Callable[..., object], *given: object, **more: object
) -> Misconfiguration:
    """What ``call`` is refused with, in these words."""
    with pytest.raises(Misconfiguration, match=said) as caught:
        call(*given, **more)
    return caught.value
