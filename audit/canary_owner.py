"""The audited owner as a process: its canaries count, or count as zero, by their coins.

``python -m precad.audit.canary_owner --coins coins.npy --models models.npy
--config owner.toml``. Everything but the coins is `precad join`'s. With ``--build unclipped`` its
records' clip isn't kept: a broken build, which the audit must find.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.audit.builds import LOOSE, Build
from precad.audit.canaries import coins_at
from precad.audit.owner_process import play
from precad.client import data_owner
from precad.client.data_owner import DataOwner
from precad.client.participant import RoundView
from precad.client.settings import JoinSettings
from precad.client.train import poisson_sample
from precad.client.train import update as updating
from precad.common.encode import clip_record_norm
from precad.common.keystream import Keystream
from precad.common.ring import RingVector
from precad.common.task import Task


def run(settings: JoinSettings, coins: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Take part until the training ends.

    Args:
        settings: the owner's; its records are the canaries.
        coins: ``[periods, m] bool``.

    Returns:
        θ_0 to θ_T, ``[T + 1, d]``.

    Raises:
        Misconfiguration, PeerViolation: as ``play``.
    """
    count = np.ones(coins.shape[1], np.bool_)

    def counting(number: int, rate: float, randomness: Keystream) -> NDArray[np.int64]:
        drawn = poisson_sample(number, rate, randomness)
        return drawn[count[drawn]]

    # Where the SDK draws the sample: the canaries that are out leave it.
    vars(data_owner)[poisson_sample.__name__] = counting

    def compute(owner: DataOwner, view: RoundView) -> RingVector:
        count[:] = coins_at(coins, view.version, owner.task.training.rounds)
        return owner.update(view)

    return play(settings, compute)


def loosen() -> None:
    """From now on this process clips records to eight times what the task states."""

    def loose(gradients: NDArray[np.float64], task: Task) -> NDArray[np.float64]:
        return clip_record_norm(gradients, LOOSE * task.privacy.record_clip)

    vars(updating)[updating.clip_record.__name__] = loose


def main() -> None:
    """Command line of the audited owner."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="as for `precad join`")
    parser.add_argument("--coins", type=Path, required=True, help="[periods, m] bool, .npy")
    parser.add_argument("--models", type=Path, required=True, help="receives θ_0 to θ_T, .npy")
    parser.add_argument("--build", type=Build, default=Build.SOUND, help="what runs")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    coins = np.load(given.coins, allow_pickle=False)
    if given.build is Build.UNCLIPPED:
        loosen()
    np.save(given.models, run(JoinSettings.load(given.config), coins))


if __name__ == "__main__":
    main()
