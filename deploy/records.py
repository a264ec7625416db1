"""Deal a public data set out to docker-compose.yml's clients as their records.

    python records.py digits --clients 3 --output records

writes records/client-1/client-1.npz and so on, and records/held-out/held-out.npz. Who
holds which is no secret.
"""

from pathlib import Path

import click
import numpy as np

from precad.common.errors import PrecadError
from precad.simulation.datasets import load, shards

SHARDS_PER_CLIENT = 4
SEED = 1


def write_records(dataset: str, clients: int, output: Path) -> list[Path]:
    """Deal training records out to ``client-1``, ``client-2``, …; return the files.

    Raises Misconfiguration: no such data set, or too few records for so many clients.
    """
    data = load(dataset)
    parts = shards(
        data.train_y, clients=clients, shards_per_client=SHARDS_PER_CLIENT, seed=SEED
    )
    owners = {
        f"client-{n}": (data.train_x[of], data.train_y[of])
        for n, of in enumerate(parts, 1)
    }
    owners["held-out"] = data.test_x, data.test_y
    paths: list[Path] = []
    for name, (x, y) in owners.items():
        folder = output / name
        folder.mkdir(parents=True, exist_ok=True)
        paths.append(folder / f"{name}.npz")
        np.savez(paths[-1], x=x, y=y)
    return paths


@click.command()
@click.argument("dataset", help="digits or breast-cancer.")
@click.option(
    "--clients", type=click.IntRange(min=1), required=True, help="How many clients."
)
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
