"""Where a server's noise comes from."""

from typing import Protocol

from precad.common.ring import RingVector


class NoiseSource(Protocol):
    """Where a server's noise comes from; replaceable so that tests can switch it off."""

    def draw(self, dimension: int) -> RingVector:
        """Fresh noise, ``[d] int64`` in units of the last place.

        Depends on nothing but ``dimension`` and may be called from any thread, also from several
        at once: it can be drawn while uploads are collected. Each result is for one use, and its
        caller's to change.
        """
