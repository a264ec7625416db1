"""Dealing one data set out to clients.

The generators here are NumPy's with a seed: who holds which public record is part of an
experiment's description, not a secret.
"""

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration

Partition = list[NDArray[np.int64]]
"""For each client the ascending indices of its records; every record is in exactly one."""


def iid(records: int, clients: int, seed: int) -> Partition:
    """Equal parts (to within one) of a random order."""
    _check(records, clients)
    order = np.random.default_rng(seed).permutation(records)
    return [np.sort(part) for part in np.array_split(order, clients)]


def shards(labels: NDArray[np.int64], clients: int, shards_per_client: int, seed: int) -> Partition:
    """Records sorted by label, cut into equal shards, some random ones to each client.

    PRECAD Sec. 6: with 100 clients and four shards each, most clients hold three or four of ten
    labels. Shards differ by at most one record.

    Raises:
        Misconfiguration: more shards than records.
    """
    if shards_per_client < 1:
        raise Misconfiguration("shards_per_client", shards_per_client, "must be at least 1")
    if not 1 <= clients * shards_per_client <= len(labels):
        raise Misconfiguration(
            "clients",
            clients,
            f"must be from 1 to {len(labels) // shards_per_client}: {len(labels)} records are "
            f"cut into {shards_per_client} shards a client",
        )
    pieces = np.array_split(np.argsort(labels, kind="stable"), clients * shards_per_client)
    drawn = np.random.default_rng(seed).permutation(len(pieces)).reshape(clients, -1)
    return [np.sort(np.concatenate([pieces[i] for i in mine])) for mine in drawn]


def dirichlet(labels: NDArray[np.int64], clients: int, alpha: float, seed: int) -> Partition:
    """Each label's records are split in proportions drawn from Dirichlet(alpha, …).

    The smaller alpha, the fewer labels a client holds (Hsu et al. 2019). A client may end up
    with no record.
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
        raise Misconfiguration("clients", clients, f"records of {len(found)} owners are there")
    most = np.sort(found[np.argsort(-counts, kind="stable")[:clients]])
    return [np.flatnonzero(owners == one) for one in most]


def _check(records: int, parts: int) -> None:
    if not 1 <= parts <= records:
        raise Misconfiguration(
            "clients", parts, f"there must be from 1 part to as many as records ({records})"
        )
