"""Write every client's part of a public data set: what containers train on in the example.

``python -m precad.simulation.client_records digits --clients 3 --output records`` writes
``records/client-1/client-1.npz`` and so on, one folder a client, and records that nobody trains on
in ``records/held-out/held-out.npz``.
"""

from pathlib import Path

import click
import numpy as np
from numpy.typing import NDArray

from precad.client.records.read_records import write_client_data
from precad.common.errors import PrecadError
from precad.common.identifiers import ClientId
from precad.simulation.data import load
from precad.simulation.partition import shards

SHARDS_PER_CLIENT = 4
SEED = 1


def write_records(dataset: str, clients: int, output: Path) -> list[Path]:
    """Deal the training records out to ``client-1``, ``client-2``, … and return the files.

    Raises:
        Misconfiguration: no such data set, or too few records for so many clients.
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
