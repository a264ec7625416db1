"""``precad join`` of an owner whose updates are longer than the task allows.

All else about it is as it should be: it is rejected for its norm, and for nothing else.
"""

import sys

from precad.cli import start
from precad.client.data_owner import DataOwner
from precad.client.participation import RoundView
from precad.common.ring import RingVector
from precad.simulation.rounds import Forgery, forged_update

HONEST = DataOwner.update


def longer(self: DataOwner, view: RoundView) -> RingVector:
    return forged_update(Forgery.OVERSIZE, self.task, HONEST(self, view))


if __name__ == "__main__":
    DataOwner.update = longer  # type: ignore[method-assign]
    sys.argv[1:] = ["join", *sys.argv[1:]]
    start.main()
