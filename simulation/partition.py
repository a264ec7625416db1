"""Dealing one data set out to clients, in memory or as files; who holds which is no secret.

``python -m precad.simulation.partition digits --clients 3 --output records`` writes
``records/client-1/client-1.npz`` and so on, and ``records/held-out/held-out.npz``.
"""

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from precad.client.records.read_records import write_client_data
from precad.common.errors import Misconfiguration, PrecadError
from precad.common.identifiers import ClientId
from precad.simulation.datasets import load

Partition = list[NDArray[np.int64]]
"""For each client the ascending indices of its records; every record is in exactly one."""


def shards(labels: NDArray[np.int64], clients: int, shards_per_client: int, seed: int) -> Partition:
    """Records sorted by label, cut into equal shards, some random ones to each client.

    PRECAD Sec. 6: with 100 clients and four shards each, most clients hold three or four of ten
    labels. Shards differ by at most one record. Raises Misconfiguration: more shards than records.
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


SHARDS_PER_CLIENT = 4
SEED = 1


def write_records(dataset: str, clients: int, output: Path) -> list[Path]:
    """Deal the training records out to ``client-1``, ``client-2``, … and return the files.

    Raises Misconfiguration: no such data set, or too few records for so many clients.
    """
    data = load(dataset)
    paths = []

    def write(client: ClientId, x: NDArray[np.float32], y: NDArray[np.int64]) -> None:
        folder = output / client.name
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(write_client_data(folder, client, x, y))

    for number, part in enumerate(shards(data.train_y, clients, SHARDS_PER_CLIENT, SEED), start=1):
        write(ClientId(f"client-{number}"), data.train_x[part], data.train_y[part])
    write(ClientId("held-out"), data.test_x, data.test_y)
    return paths


@click.command()
@click.argument("dataset", help="digits or breast-cancer.")
@click.option("--clients", type=click.IntRange(min=1), required=True, help="How many clients.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The folder; one folder a client is made in it.",
)
def main(dataset: str, clients: int, output: Path) -> None:
    """Write every client's part of a data set."""
    try:
        for path in write_records(dataset, clients, output):
            click.echo(path)
    except PrecadError as error:
        raise SystemExit(f"precad: {error}") from None


if __name__ == "__main__":
    main()
