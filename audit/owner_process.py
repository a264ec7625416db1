"""What an audit's owners have in common: they take part as `precad join` does, and keep the models.

Any owner can keep them. These exist for audits alone and refuse every other task.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from precad.audit.own_task import require_own
from precad.client.connection import Servers
from precad.client.data_owner import DataOwner
from precad.client.participant import RoundView, take_part
from precad.client.settings import JoinSettings
from precad.common.errors import PeerViolation
from precad.common.identity.credentials import Identity
from precad.common.ring import RingVector


def play(
    settings: JoinSettings, compute: Callable[[DataOwner, RoundView], RingVector]
) -> NDArray[np.float64]:
    """Take part until the training ends.

    Args:
        settings: the owner's.
        compute: what it submits in a round, ``[d] int64``.

    Returns:
        θ_0 to θ_T, ``[T + 1, d]``.

    Raises:
        Misconfiguration: the task isn't an audit's, or the settings can't be used.
        PeerViolation: it didn't count in every round.
    """
    owner = settings.data_owner()
    require_own(owner.task, settings.server_a, settings.server_b)
    models: dict[int, NDArray[np.float64]] = {}

    def computed(view: RoundView) -> RingVector:
        models[view.version] = view.theta
        return compute(owner, view)

    identity = Identity.load(settings.identity)
    addresses = (settings.server_a, settings.server_b)
    with Servers(owner.task, owner.client, *addresses, identity) as servers:
        servers.check_task()
        owner.enrol(servers)
        result = take_part(servers, owner.budget, owner.pending, computed, witness=owner.witness)
    rounds = owner.task.training.rounds
    if result.model is None or result.counted != rounds or sorted(models) != list(range(rounds)):
        raise PeerViolation(
            f"{owner.client} counted in {result.counted} rounds of {rounds}: this training can't "
            "be judged; run the audit again"
        )
    return np.array([*(models[version] for version in range(rounds)), result.model.theta])
