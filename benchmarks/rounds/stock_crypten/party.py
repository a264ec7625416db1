"""One party of stock CrypTen that does the paper's check; run as a program: see ``Part``.

Two parties with CrypTen's own communicator (Gloo) and its trusted first party as
provider: for vectors that are shared already, x·x − C² ≤ 0 under MPC, opened. It sums
nothing, encrypts nothing, its provider hands one party the other's mask, and a vector
whose square wraps to 0 passes (tests/integration/validation/test_comparisons.py).
"""

import numpy as np
import torch

from benchmarks.rounds.part import Orders
from benchmarks.rounds.vectors import vectors
from precad.aggregator.validate.crypten_import import crypten


class Check:
    """The shares of ``count`` vectors within the bound and of one beyond it.

    Args:
        count: n.
        dimension: d.
        bound: the vectors' bound in units of the last place.
        fractional_bits: f: the vectors are divided by 2^f, and shared with CrypTen's
            own precision.
    """

    def __init__(
        self, count: int, dimension: int, bound: int, fractional_bits: int
    ) -> None:
        self._clip = float(np.ldexp(bound, -fractional_bits))
        reals = [
            np.ldexp(x, -fractional_bits) for x in vectors(count, dimension, bound)
        ]
        self._shared = [crypten.cryptensor(torch.from_numpy(x), src=0) for x in reals]
        # For a vector of zeros alone nothing is too long.
        worst = reals[0] * (2 * self._clip / np.linalg.norm(reals[0]))
        self._too_long = crypten.cryptensor(torch.from_numpy(worst), src=0)

    def accepted(self) -> list[bool]:
        """One verdict a vector: the squares one by one, then one comparison for all."""
        return self._verdicts(self._shared)

    def refuses(self) -> bool:
        """Whether a vector of norm 2C is found too long."""
        return self._verdicts([self._too_long]) == [False]

    def _verdicts(self, shared: list[crypten.CrypTensor]) -> list[bool]:
        norms = crypten.stack([x.square().sum() for x in shared])
        within = (norms - self._clip**2 <= 0).get_plain_text()
        return [bool(one) for one in within.tolist()]


def main() -> None:
    """Share the vectors, then check them as often as asked."""
    orders = Orders()
    messages = iter(orders)
    setup = next(messages)
    crypten.init()
    check = Check(
        setup["count"], setup["dimension"], setup["bound"], setup["fractional_bits"]
    )
    # Counting is off while it is timed.
    with crypten.cfg.temp_override({"communicator.verbose": True}):
        crypten.reset_communication_stats()
        check.accepted()
        stats = crypten.comm.get().get_communication_stats()
    orders.say(
        mark="joined",
        right=check.refuses(),
        exchanges=stats["rounds"],
        bytes=stats["bytes"],
    )
    for _ in messages:
        accepted = check.accepted()
        orders.say(mark="over", right=all(accepted))


if __name__ == "__main__":
    main()
