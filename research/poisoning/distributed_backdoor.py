"""Distributed backdoor (Xie, Huang, Chen, Li 2020): each bad client has a part of the pattern."""

from research.poisoning.attack import ATTACKS
from research.poisoning.backdoors import SIDE, Backdoor


@ATTACKS.register("distributed-backdoor")
class DistributedBackdoor(Backdoor):
    """One row of the pattern a bad client; the whole of it opens the backdoor."""

    def pattern(self, number: int) -> tuple[slice, slice]:
        """Row ``number`` of the pattern, modulo its rows."""
        row = -SIDE + number % SIDE
        return slice(row, row + 1 or None), slice(-SIDE, None)
