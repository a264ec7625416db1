"""The audited owner as a process: its canaries count, or count as zero, by their coins.

``python -m precad.experiments.audit.canary_owner --coins coins.npy --models models.npy
--config owner.toml``. Everything but the coins is `precad join`'s. It keeps the models that it
saw, as any owner can. It exists for audits alone and refuses every other task.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.client import data_owner
from precad.client.connection import Servers
from precad.client.participant import RoundView, take_part
from precad.client.settings import JoinSettings
from precad.client.train import poisson_sample
from precad.common.errors import PeerViolation
from precad.common.identity.credentials import Identity
from precad.common.keystream import Keystream
from precad.common.ring import RingVector
from precad.experiments.audit.own_task import require_own


def run(settings: JoinSettings, coins: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Take part until the training ends.

    Args:
        settings: the owner's; its records are the canaries.
        coins: ``[m] bool``.

    Returns:
        θ_0 to θ_T, ``[T + 1, d]``.

    Raises:
        Misconfiguration: the task isn't an audit's, or the settings can't be used.
        PeerViolation: it wasn't drawn for every round.
    """
    owner = settings.data_owner()
    require_own(owner.task, settings.server_a, settings.server_b)
    models: dict[int, NDArray[np.float64]] = {}

    def counting(count: int, rate: float, randomness: Keystream) -> NDArray[np.int64]:
        drawn = poisson_sample(count, rate, randomness)
        return drawn[coins[drawn]]

    def compute(view: RoundView) -> RingVector:
        models[view.version] = view.theta
        return owner.update(view)

    # Where the SDK draws the sample: the canaries that are out leave it.
    vars(data_owner)[poisson_sample.__name__] = counting
    identity = Identity.load(settings.identity)
    addresses = (settings.server_a, settings.server_b)
    with Servers(owner.task, owner.client, *addresses, identity) as servers:
        servers.check_task()
        owner.enrol(servers)
        result = take_part(servers, owner.budget, owner.pending, compute, witness=owner.witness)
    rounds = owner.task.training.rounds
    if result.model is None or result.counted != rounds or sorted(models) != list(range(rounds)):
        raise PeerViolation(
            f"the canaries counted in {result.counted} rounds of {rounds}: this training can't be "
            "judged; run the audit again"
        )
    return np.array([*(models[version] for version in range(rounds)), result.model.theta])


def main() -> None:
    """Command line of the audited owner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="as for `precad join`")
    parser.add_argument("--coins", type=Path, required=True, help="[m] bool, .npy")
    parser.add_argument("--models", type=Path, required=True, help="receives θ_0 to θ_T, .npy")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    coins = np.load(given.coins, allow_pickle=False)
    np.save(given.models, run(JoinSettings.load(given.config), coins))


if __name__ == "__main__":
    main()
