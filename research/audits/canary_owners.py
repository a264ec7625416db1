"""Canaries as owners, in processes of their own: they take part as `precad join` does.

``python -m research.audits.canary_owners --coins coins.npy --models models.npy --config
owner.toml`` is one owner whose records are canaries; they count, or count as zero, by
their coins. With ``--build unclipped`` its records' clip isn't kept: a broken build,
which the audit must find. With ``--rows rows.npy --place 3`` it is an owner that
submits row 3, or zero, by a coin a round; the first such owner keeps the models.

Any owner can keep the models that it is served. These processes refuse every task but
an audit's own, and servers on another machine.
"""

import argparse
import logging
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.client.data_owner import DataOwner
from precad.client.gradients import local_update as updating
from precad.client.gradients.local_update import poisson_sample
from precad.client.owner_settings import JoinSettings
from precad.client.participation import Observer, RoundView
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.fixed_point import clip_record_norm
from precad.common.ring import Keystream, RingVector
from precad.common.task import Task
from research.audits.builds import LOOSE, Build, replace
from research.audits.canary_training import coins_at

NAME = "audit"
"""Of every task that is made for an audit; no other one is watched."""
_HERE = ("127.0.0.1", "localhost", "[::1]")


def require_own(task: Task, *addresses: str) -> None:
    """Refuse to watch a training that isn't an audit's own.

    Raises:
        Misconfiguration: the task has another name, or a part is on another machine.
    """
    if task.name != NAME:
        raise Misconfiguration(
            "task.name",
            task.name,
            f"what watches an audit runs {NAME!r} alone: use `precad serve`",
        )
    for address in addresses:
        if address.rpartition(":")[0] not in _HERE:
            raise Misconfiguration(
                "address", address, "an audit's parts are on this machine: 127.0.0.1"
            )


def play(
    settings: JoinSettings, compute: Callable[[DataOwner, RoundView], RingVector]
) -> NDArray[np.float64]:
    """Take part until the training ends; return θ_0 to θ_T, ``[T + 1, d]``.

    Args:
        settings: the owner's.
        compute: what it submits in a round, ``[d] int64``.

    Raises:
        Misconfiguration: the task isn't an audit's, or the settings can't be used.
        PeerViolation: it didn't count in every round.
    """
    owner = settings.data_owner()
    require_own(owner.task, settings.server_a, settings.server_b)
    models: dict[int, NDArray[np.float64]] = {}

    def computed(view: RoundView) -> RingVector:
        models[view.version] = view.theta.astype(np.float64)
        return compute(owner, view)

    result = owner._take_part(Observer(), computed)  # noqa: SLF001
    rounds = owner.task.training.rounds
    if (
        result.model is None
        or result.counted != rounds
        or sorted(models) != list(range(rounds))
    ):
        raise PeerViolation(
            f"{owner.client} counted in {result.counted} rounds of {rounds}: this"
            " training can't be judged; run the audit again"
        )
    return np.array(
        [*(models[version] for version in range(rounds)), result.model.theta]
    )


def play_records(
    settings: JoinSettings, coins: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Take part as the owner whose records are canaries.

    Args:
        settings: the owner's.
        coins: ``[periods, m] bool``.
    """
    count = np.ones(coins.shape[1], np.bool_)

    def counting(number: int, rate: float, randomness: Keystream) -> NDArray[np.int64]:
        drawn = poisson_sample(number, rate, randomness)
        return drawn[count[drawn]]

    # Where the SDK takes the sampler from: the canaries that are out leave the sample.
    replace(updating, poisson_sample, counting)

    def compute(owner: DataOwner, view: RoundView) -> RingVector:
        count[:] = coins_at(coins, view.version, owner.task.training.rounds)
        return owner.update(view)

    return play(settings, compute)


def play_row(
    settings: JoinSettings, row: RingVector, coins: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Take part as an owner who is a canary.

    Args:
        settings: the owner's.
        row: what it submits where its coin says so, ``[d] int64``.
        coins: ``[T] bool``.
    """

    def compute(_owner: DataOwner, view: RoundView) -> RingVector:
        found: RingVector = row * coins[view.version]
        return found

    return play(settings, compute)


def loosen() -> None:
    """From now on clip this process's records to eight times what the task states."""

    def loose(gradients: NDArray[np.float64], task: Task) -> NDArray[np.float64]:
        return clip_record_norm(gradients, LOOSE * task.privacy.record_clip)

    replace(updating, updating.clip_record, loose)


def main() -> None:
    """Command line of an audit's owners."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", type=Path, required=True, help="as for `precad join`"
    )
    parser.add_argument(
        "--rows", type=Path, help="[m, d] int64, .npy: owners are the canaries"
    )
    parser.add_argument("--place", type=int, default=0, help="of this owner's row")
    parser.add_argument(
        "--coins", type=Path, required=True, help="[periods, m] bool, .npy"
    )
    parser.add_argument(
        "--models", type=Path, required=True, help="receives θ_0 to θ_T, .npy"
    )
    parser.add_argument("--build", type=Build, default=Build.SOUND, help="what runs")
    given = parser.parse_args()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    coins, settings = (
        np.load(given.coins, allow_pickle=False),
        JoinSettings.load(given.config),
    )
    if given.build is Build.UNCLIPPED:
        loosen()
    if given.rows:
        row = np.load(given.rows, mmap_mode="r", allow_pickle=False)[given.place]
        models = play_row(settings, np.array(row), coins[:, given.place])
    else:
        models = play_records(settings, coins)
    if given.place == 0:
        np.save(given.models, models)


if __name__ == "__main__":
    main()
