"""What a compact release costs: rounding to an eighth of one server's noise.

    python benchmarks/compact_releases.py --data FOLDER [--seeds 20] [--out FILE]

FOLDER holds ``mnist/`` (the four files, gzipped). Two things are measured:

- *accuracy*: whole trainings by ``precad.simulate``, the protocol's own arithmetic, with
  ``training.compact_release`` and without, from the same seeds, so on the same samples
  and under the same noise: scikit-learn's digits, and MNIST with 20,000 records;
- *noise*: running servers, under each check of norms, with owners that send zeros; the
  variance of what their releases move the model by, over 2σ², beside what rounding adds.

What is there isn't run again.
"""

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from examples.demo.demo_task import demo_task
from examples.demo.local_processes import LocalDeployment
from numpy.typing import NDArray
from tests.rig.light_client import joined

from benchmarks.rounds.hardware import hardware
from precad.common.identifiers import ClientId, Role
from precad.common.task import Task
from precad.simulation import simulate
from precad.simulation.datasets import DataSet, load

RESULT = Path(__file__).parent / "results" / "compact_releases.json"
OWNERS = 10
MNIST_RECORDS = 20_000
ROUNDS = {"digits": 60, "mnist": 40}
COORDINATES = 200_000
NOISY_ROUNDS = 20


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder with mnist/")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.data is None:
        print("compact_releases.py measures nothing without --data FOLDER", flush=True)
        return
    kept: dict[str, Any] = {"accuracy": [], "noise": []}
    if given.out.is_file():
        kept = json.loads(given.out.read_text(encoding="utf-8"))

    def keep(
        part: str, named: dict[str, Any], measure: Callable[[], dict[str, float]]
    ) -> None:
        if any(named.items() <= run.items() for run in kept[part]):
            return
        run = named | measure()
        kept[part].append(run)
        kept["summary"] = summary(kept)
        kept["hardware"] = hardware()
        text = json.dumps(kept, indent=1, ensure_ascii=False) + "\n"
        given.out.write_text(text, encoding="utf-8")
        print(run, flush=True)

    for check in ("crypten", "proof"):
        keep("noise", {"check": check}, lambda check=check: noise(check))
    for data in (load("digits"), mnist(given.data / "mnist")):
        for seed in range(1, given.seeds + 1):
            keep(
                "accuracy",
                {"data": data.name, "seed": seed},
                lambda data=data, seed=seed: accuracy(data, seed),
            )


def mnist(folder: Path) -> DataSet:
    """The first records of MNIST's training part, and all of its test part."""

    def read(name: str, header: int) -> NDArray[np.uint8]:
        return np.frombuffer(
            gzip.decompress((folder / name).read_bytes())[header:], "u1"
        )

    def part(name: str, records: int) -> tuple[NDArray[Any], NDArray[Any]]:
        x = read(f"{name}-images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28)[:records]
        y = read(f"{name}-labels-idx1-ubyte.gz", 8)[:records]
        return x.astype(np.float32) / 255, y.astype(np.int64)

    train_x, train_y = part("train", MNIST_RECORDS)
    test_x, test_y = part("t10k", 10_000)
    return DataSet(
        name="mnist",
        train_x=train_x,
        train_y=train_y,
        test_x=test_x,
        test_y=test_y,
        classes=10,
    )


def accuracy(data: DataSet, seed: int) -> dict[str, float]:
    """Held-out accuracy with compact releases and without, in percent."""
    found = {}
    for name, compact in (("compact", True), ("whole", None)):
        values = demo_task(data, "logistic", OWNERS, rounds=ROUNDS[data.name])
        values["training"]["compact_release"] = compact
        trained = simulate(
            Task.parse(values),
            data,
            clients=OWNERS,
            seed=seed,
            test=(data.test_x, data.test_y),
        )
        found[name] = round(100 * (trained.accuracy or 0.0), 3)
    return found


def noise(check: str) -> dict[str, float]:
    """Variance of running servers' releases of zeros, over 2σ²."""
    values = {
        "name": "noise",
        "model": {"parameters": [{"name": "w", "shape": [COORDINATES]}]},
        "privacy": {
            "record_clip": 1.0,
            "client_clip": 20.0,
            "noise_multiplier": 2.0,
            "record_rate": 1.0,
            "client_rate": 1.0,
        },
        "training": {
            "learning_rate": 2.0,
            "rounds": NOISY_ROUNDS + 1,
            "compact_release": True,
        },
        "enrolment": {
            "clients": 2,
            "max_expected_records": 1.0,
            "planned_units": 2,
        },
        "validation": check,
        "deadlines": {"work": 0.0, "collect": 300.0},
    }
    task = Task.parse(values)
    nothing = np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)
    owners = {ClientId(name): nothing for name in ("ward-1", "ward-2")}
    zeros = np.zeros(COORDINATES, dtype=np.int64)
    models = []
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalDeployment(Path(folder), task, owners) as deployment,
    ):
        deployment.start_servers()
        with joined(deployment) as clients:
            last = -1
            for _ in range(NOISY_ROUNDS + 1):
                event = clients[0].opened(after=last)
                operator = deployment.operator(Role.SERVER_A)
                models.append(operator.model(task, event.version).astype(np.float64))
                for client in clients:
                    client.submit(client.opened(after=last), zeros)
                last = event.attempt
    moved = np.ldexp(np.diff(models, axis=0), task.fractional_bits)
    deviation = task.mechanism.noise_units
    grid = 2.0**task.mechanism.step_shift
    return {
        "samples": moved.size,
        "variance_over_2_sigma2": float(np.mean(moved**2)) / (2 * deviation**2),
        "standard_error": (2 / moved.size) ** 0.5,
        "rounding_adds": grid**2 / 12 / (2 * deviation**2),
    }


def summary(kept: dict[str, Any]) -> dict[str, Any]:
    """Means over the seeds, and the mean difference with its standard error."""
    found = {}
    for name in ROUNDS:
        pairs = np.array(
            [
                [run["compact"], run["whole"]]
                for run in kept["accuracy"]
                if run["data"] == name
            ]
        )
        if len(pairs) > 1:
            difference = pairs[:, 0] - pairs[:, 1]
            found[name] = {
                "seeds": len(pairs),
                "compact": round(float(pairs[:, 0].mean()), 3),
                "whole": round(float(pairs[:, 1].mean()), 3),
                "difference": round(float(difference.mean()), 4),
                "standard_error": round(
                    float(difference.std(ddof=1)) / len(pairs) ** 0.5, 4
                ),
            }
    return found


if __name__ == "__main__":
    main()
