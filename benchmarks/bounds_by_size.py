"""Owners of 60 to 50,000 records whose bounds follow their size; results/bounds_by_size.json.

    python benchmarks/bounds_by_size.py --data FOLDER [--seeds 3] [--out FILE]

FOLDER holds ``mnist/`` (the four files, gzipped) and ``cifar10-jpeg.zip``. Two things are
measured with ``precad.simulate``, the protocol's own arithmetic:

- *moves*: each owner in turn sends the longest update that counts, in one round without
  noise. How far does the weighted mean move, over R and over the owner's share of the
  data? With one C for all an owner with .6 % of the data moves it 5.5 times as far; with
  ``per_record = 2`` twice as far;
- *accuracy*: whole trainings at ε = 3 a record (δ = 1e-5), with one C and with C by size.

MNIST is pooled to 7 × 7. CIFAR-10 (recompressed as JPEG) is pooled to 4 × 4 × 3, and
the label is "animal or vehicle"; its owners of 4,000 and of 1,000 records are left out.
What no owner has is held out. What is there isn't run again.
"""

import argparse
import gzip
import io
import itertools
import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.rounds.hardware import hardware
from precad.cli.command_options import Wishes
from precad.cli.task_planning import fractional_bits, planned
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.rounds import View
from precad.simulation.virtual_owners import Matrix

RESULT = Path(__file__).parent / "results" / "bounds_by_size.json"
SIZES = (50_000, 4_000, 2_500, 1_500, 1_000, 500, 360, 80, 60)
FEWER = (50_000, 2_500, 1_500, 500, 360, 80, 60)
SITE = SIZES.index(360)
"""It holds .6 % of the 60,000 records."""
RATES = (0.05, 0.2)
ROUNDS = 30
PER_RECORD = 2.0
HEAVY = 5.5
"""How far that site moves a weighted mean with one C, over its share."""
VEHICLES = ("airplane", "automobile", "ship", "truck")
Data = tuple[NDArray[np.float32], NDArray[np.int64]]


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with both data sets")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.data is None:
        print("bounds_by_size.py measures nothing without --data FOLDER", flush=True)
        return
    kept: dict[str, Any] = {"sizes": SIZES, "moves": [], "accuracy": []}
    if given.out.is_file():
        kept = json.loads(given.out.read_text(encoding="utf-8"))

    def keep(part: str, named: dict[str, Any], measure: Callable[[], Any]) -> None:
        if any(named.items() <= run.items() for run in kept[part]):
            return
        run = named | measure()
        kept[part].append(run)
        kept["hardware"] = hardware()
        text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
        given.out.write_text(text, encoding="utf-8")
        print(run, flush=True)

    for rate in RATES:
        keep("moves", {"record_rate": rate}, partial(moves, rate))
    loaded = {"mnist": mnist(given.data), "cifar10": cifar10(given.data)}
    for seed, rate, name, by_size in itertools.product(
        range(1, given.seeds + 1), RATES, loaded, (False, True)
    ):
        named = {
            "data": name,
            "record_rate": rate,
            "by_size": by_size,
            "seed": seed,
        }
        sizes = SIZES if name == "mnist" else FEWER
        trained = partial(
            accuracy, loaded[name], sizes, rate, by_size=by_size, seed=seed
        )
        keep("accuracy", named, trained)


def task_of(
    features: int, classes: int, rate: float, sizes: tuple[int, ...] = SIZES
) -> Task:
    """As `precad task new` has it for these owners, with p = ``rate`` and q = 1."""
    asked: dict[str, Any] = dict.fromkeys(Wishes.__dataclass_fields__)
    asked |= {"records": ",".join(map(str, sizes)), "epsilon": 3.0, "client_rate": 1.0}
    asked |= {"rounds": ROUNDS, "record_rate": rate, "architecture": "logistic"}
    asked |= {"features": str(features), "classes": classes, "hidden": 32}
    return planned(Wishes(**asked | {"validation": "crypten"}), "by-size")[0]


def with_clip(task: Task, most: float, *, by_size: bool) -> Task:
    """The same task with this C, for all or by size."""
    values = task.model_dump(mode="json")
    table = {"per_record": PER_RECORD, "most": most}
    values["privacy"]["client_clip"] = table if by_size else most
    return Task.parse(values | {"fractional_bits": fractional_bits(most)})


def moves(rate: float) -> dict[str, Any]:
    """How far each owner moves the weighted mean, over R and over its share."""
    made = task_of(4, 2, rate)
    most = HEAVY * rate * SIZES[SITE]
    rng = np.random.default_rng(1)
    owners = [
        (rng.normal(size=(n, 4)).astype(np.float32), rng.integers(0, 2, n))
        for n in SIZES
    ]
    rows = []
    for bad, size in enumerate(SIZES):
        row: dict[str, Any] = {"records": size, "share": size / sum(SIZES)}
        for by_size in (False, True):
            task = with_clip(made, most, by_size=by_size)
            moved = moved_by(task, owners, bad)
            name = "over_share_by_size" if by_size else "over_share_with_one_clip"
            # Weights are float32: their last digits say nothing.
            row[name] = round(moved / row["share"], 5)
        rows.append(row)
    return {"client_clip": most, "per_record": PER_RECORD, "owners": rows}


def moved_by(task: Task, owners: list[Data], bad: int) -> float:
    """‖θ with the owner's longest update − θ without it‖·(1/η), over R."""
    thetas = []
    names = [f"owner-{number}" for number in range(len(owners))]
    for absent in ((), (names[bad],)):
        trained = simulate(
            task,
            dict(zip(names, owners, strict=True)),
            rounds=1,
            seed=1,
            attack=longest,
            attackers=[names[bad]],
            absent=lambda _version, _drawn, absent=absent: absent,
            noise=no_noise,
        )
        thetas.append(trained.theta.astype(np.float64))
    length = float(np.linalg.norm(thetas[0] - thetas[1]))
    mechanism = task.mechanism
    return length / mechanism.step.learning_rate / mechanism.unit_clip


def longest(updates: Matrix, view: View) -> Matrix:
    """The longest update that counts, along one axis."""
    rows = np.zeros_like(updates)
    rows[:, 0] = view.bounds
    return rows


def no_noise(_server: Role, _version: int, dimension: int) -> RingVector:
    """Zero."""
    return np.zeros(dimension, np.int64)


def accuracy(
    data: Data, sizes: tuple[int, ...], rate: float, *, by_size: bool, seed: int
) -> dict[str, Any]:
    """Accuracy on held-out records after a training with this clip."""
    x, y = data
    order = np.random.default_rng(seed).permutation(len(y))
    starts = np.cumsum((0, *sizes))
    owners = [(x[order[a:b]], y[order[a:b]]) for a, b in itertools.pairwise(starts)]
    held_out = order[starts[-1] :]
    made = task_of(x.shape[1], int(y.max()) + 1, rate, sizes)
    most = made.privacy.most_client_clip
    task = with_clip(made, most, by_size=by_size)
    trained = simulate(task, owners, seed=seed, test=(x[held_out], y[held_out]))
    return {
        "accuracy": trained.accuracy,
        "client_clip": most,
        "noise_multiplier": task.privacy.noise_multiplier,
        "learning_rate": task.training.learning_rate,
        "rounds": ROUNDS,
        "held_out": len(held_out),
    }


def mnist(folder: Path) -> Data:
    """All 70,000 images, pooled to 7 × 7."""
    images = []
    labels = []
    for part in ("train", "t10k"):
        packed = gzip.decompress(
            (folder / f"mnist/{part}-images-idx3-ubyte.gz").read_bytes()
        )
        images.append(np.frombuffer(packed, np.uint8, offset=16).reshape(-1, 28, 28))
        packed = gzip.decompress(
            (folder / f"mnist/{part}-labels-idx1-ubyte.gz").read_bytes()
        )
        labels.append(np.frombuffer(packed, np.uint8, offset=8))
    pooled = np.concatenate(images).reshape(-1, 7, 4, 7, 4).mean(axis=(2, 4)) / 255
    x = pooled.reshape(len(pooled), -1).astype(np.float32)
    return x, np.concatenate(labels).astype(np.int64)


def cifar10(folder: Path) -> Data:
    """All 60,000 images, pooled to 4 × 4 × 3; the label says whether it is a vehicle."""
    x = []
    y = []
    with zipfile.ZipFile(folder / "cifar10-jpeg.zip") as packed:
        for name in sorted(packed.namelist()):
            if name.endswith(".jpg"):
                image = np.asarray(
                    Image.open(io.BytesIO(packed.read(name))), np.float32
                )
                x.append(image.reshape(4, 8, 4, 8, 3).mean(axis=(1, 3)).ravel() / 255)
                y.append(name.split("/")[1] in VEHICLES)
    return np.array(x, np.float32), np.array(y, np.int64)


if __name__ == "__main__":
    main()
