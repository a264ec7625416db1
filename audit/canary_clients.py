"""Canary clients as processes: each submits its row, or zero, by a coin a round.

``python -m precad.audit.canary_clients --rows rows.npy --coins coins.npy
--models models.npy --config owner-0.toml --config owner-1.toml``. They are split off from one
process, as `precad join` does it. The first keeps the models.
"""

import argparse
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.audit.owner_process import play
from precad.client.data_owner import DataOwner
from precad.client.participant import RoundView
from precad.client.settings import JoinSettings
from precad.client.together import load_owner, split
from precad.common.ring import RingVector


def run(settings: JoinSettings, row: RingVector, coins: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Take part until the training ends.

    Args:
        settings: the owner's.
        row: what it submits where its coin says so, ``[d] int64``.
        coins: ``[T] bool``.

    Returns:
        θ_0 to θ_T, ``[T + 1, d]``.

    Raises:
        Misconfiguration, PeerViolation: as ``play``.
    """

    def compute(_owner: DataOwner, view: RoundView) -> RingVector:
        found: RingVector = row * coins[view.version]
        return found

    return play(settings, compute)


def main() -> None:
    """Command line of all canary clients."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", type=Path, help="folder for the log of each")
    parser.add_argument(
        "--config", type=Path, action="append", required=True, help="as for `precad join`"
    )
    parser.add_argument("--rows", type=Path, required=True, help="[m, d] int64, .npy")
    parser.add_argument("--coins", type=Path, required=True, help="[T, m] bool, .npy")
    parser.add_argument("--models", type=Path, required=True, help="receives θ_0 to θ_T, .npy")
    given = parser.parse_args()
    mine = split(given.config, load_owner, given.logs)
    if mine is None:
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    place = given.config.index(mine)
    row = np.load(given.rows, mmap_mode="r", allow_pickle=False)[place]
    coins = np.load(given.coins, allow_pickle=False)[:, place]
    models = run(JoinSettings.load(mine), np.array(row), coins)
    if place == 0:
        np.save(given.models, models)


if __name__ == "__main__":
    main()
