"""Dealing records out to clients as the papers do it, beside what the demo has."""

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import Partition


def iid(records: int, clients: int, seed: int) -> Partition:
    """Equal parts (to within one) of a random order."""
    _check(records, clients)
    order = np.random.default_rng(seed).permutation(records)
    return [np.sort(part) for part in np.array_split(order, clients)]


def dirichlet(
    labels: NDArray[np.int64], clients: int, alpha: float, seed: int
) -> Partition:
    """Each label's records are split in proportions drawn from Dirichlet(alpha, …).

    The smaller alpha, the fewer labels a client holds (Hsu et al. 2019). A client may
    end up with no record.
    """
    _check(len(labels), clients)
    if not alpha > 0:
        raise Misconfiguration("alpha", alpha, "must be positive")
    generator = np.random.default_rng(seed)
    parts: list[Partition] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        mine = generator.permutation(np.flatnonzero(labels == label))
        shares = np.cumsum(generator.dirichlet(np.full(clients, alpha)))[:-1]
        cuts = np.round(shares * len(mine)).astype(np.int64)
        for part, piece in zip(parts, np.split(mine, cuts), strict=True):
            part.append(piece)
    return [np.sort(np.concatenate(part)) for part in parts]


def by_owner(owners: NDArray[np.int64], clients: int) -> Partition:
    """Each of the owners with the most records is a client; other owners' records are nobody's.

    Args:
        owners: ``[n]``, whose each record is.
        clients: so many of them.

    Raises:
        Misconfiguration: there are fewer owners.
    """
    found, counts = np.unique(owners, return_counts=True)
    if not 1 <= clients <= len(found):
        raise Misconfiguration(
            "clients", clients, f"records of {len(found)} owners are there"
        )
    most = np.sort(found[np.argsort(-counts, kind="stable")[:clients]])
    return [np.flatnonzero(owners == one) for one in most]


def _check(records: int, parts: int) -> None:
    """Refuse no part, and more than there are records."""
    if not 1 <= parts <= records:
        raise Misconfiguration(
            "clients",
            parts,
            f"there must be from 1 part to as many as records ({records})",
        )
