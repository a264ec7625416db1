"""Groups by theorems for any mechanism: sound, and looser than the group's own pair."""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from precad.certify.group_guarantees import RenyiCurves
from precad.certify.guarantee import Curves, Derived, Direction, Guarantee, Moved
from precad.common.errors import Misconfiguration


@dataclass(frozen=True, slots=True)
class Iterated(Derived):
    """Groups by applying the curves of a single change k times.

    Sound for any mechanism, and what f-DP's group privacy says (Dong, Roth, Su 2022,
    Thm 2.14).
    """

    mark = ", iterated"

    def _curves(self, k: int, direction: Direction) -> Curves:
        once = self.base.curves(1, direction)
        return reduce(
            lambda so_far, _: Moved(first=so_far, up=once.upper, down=once.lower),
            range(1, k),
            once,
        )


@dataclass(frozen=True, slots=True)
class RenyiDP(Guarantee):
    """(α_j, ε_j)-RDP of one record or client, in both directions, from any accountant.

    Groups by Mironov 2017, Prop. 2: for 2^c changes and α ≥ 2^{c+1}, (α/2^c, 3^c ε).
    Xie's Thm 6 uses c = k, which holds for groups of 2^k and is far too loose; here c =
    ⌈log2 k⌉.
    """

    orders: tuple[float, ...]
    epsilons: tuple[float, ...]
    refined: bool = True

    name = "RDP (generic groups)"

    def __post_init__(self) -> None:
        if not self.orders or len(self.orders) != len(self.epsilons):
            raise Misconfiguration(
                "orders",
                len(self.orders),
                f"give as many as epsilons ({len(self.epsilons)}), not 0",
            )
        if not all(order > 1 for order in self.orders):
            raise Misconfiguration("orders", min(self.orders), "every order is above 1")
        if not all(epsilon >= 0 for epsilon in self.epsilons):
            raise Misconfiguration(
                "epsilons", min(self.epsilons), "every ε is at least 0"
            )

    def _curves(self, k: int, _direction: Direction) -> Curves:
        """Mironov's group curves; the same in both directions."""
        doublings = (k - 1).bit_length()
        orders, epsilons = np.asarray(self.orders), np.asarray(self.epsilons)
        if doublings:
            kept = orders >= 2.0 ** (doublings + 1)
            orders, epsilons = (
                orders[kept] / 2.0**doublings,
                epsilons[kept] * 3.0**doublings,
            )
        if not len(orders):
            orders, epsilons = np.array([2.0]), np.array([np.inf])
        return RenyiCurves(
            orders=orders,
            poisoned_over_clean=epsilons,
            clean_over_poisoned=epsilons,
            refined=self.refined,
        )
