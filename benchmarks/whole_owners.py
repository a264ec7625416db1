"""500 owners that train by themselves, each protected as a whole, beside Flower.

    PYTHONPATH=build/flower python -m benchmarks.whole_owners --data FOLDER [--out FILE]

FOLDER has ``mnist/``; ``make flower`` installs Flower. Writes
results/whole_owners.json.

Each owner has 60 records of MNIST, whose images are averaged to 8×8 by a fixed rule,
and trains logistic regression of 650 parameters: E epochs of plain gradient descent on
all its records at once. Both take the mean of updates cut to C, and both have the same
ε and δ for an owner with all its records, by the exact accountant; they differ in whom
an owner trusts:

- precad: two servers, of which either may be curious. Each adds noise that suffices
  alone, so that the sum has √2 times as much.
- Flower's ``DifferentialPrivacyServerSideFixedClipping`` over ``FedAvg``: its server
  sees every update as it is, clips it and adds the noise. Against that server there is
  no ε; its ε is against whoever sees the models.

precad is simulated, all owners at once. Flower's own strategy runs over a grid in this
process, with torch's SGD at every client. Without noise stands what
both could reach at most. C and the owners' step were chosen by accuracy on the test
records, alike for both: they flatter both by the same.
"""

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from research.datasets import load

import precad
from benchmarks.central.by_flower import Share, Training, trained_by_flower
from benchmarks.rounds.hardware import hardware
from precad.accounting.guarantees import planned_guarantees
from precad.cli.command_options import Wishes
from precad.cli.cost_of_noise import noise_over_signal
from precad.cli.task_planning import planned
from precad.common.task import Task

RESULT = Path(__file__).parent / "results" / "whole_owners.json"
OWNERS, RECORDS = 500, 60
SIDE, FEATURES, CLASSES = 8, 64, 10
EPSILONS = (1.0, 4.0)
DELTA = 1e-5
ROUNDS = 10
EPOCHS = 3
LOCAL_RATE = 4.0
CLIP = 2.0
SEEDS = (1, 2, 3)
PRECAD_TRUSTS = (
    "two servers not to work together; either sees no update, and has ε against it"
)
FLOWER_TRUSTS = "one server, which sees every update: against it there is no ε"


def main() -> None:
    """Measure, and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shares, held_out = dealt(given.data)

    def by_flower(sigma: float, seed: int) -> dict[str, float]:
        training = Training(
            rounds=given.rounds,
            epochs=EPOCHS,
            learning_rate=LOCAL_RATE,
            clip=CLIP,
            noise_multiplier=sigma,
            classes=CLASSES,
        )
        return trained_by_flower(shares, held_out, training, seed=seed)

    result: dict[str, Any] = {
        "owners": OWNERS,
        "records_each": RECORDS,
        "parameters": CLASSES * (FEATURES + 1),
        "rounds": given.rounds,
        "epochs": EPOCHS,
        "local_rate": LOCAL_RATE,
        "clip": CLIP,
        "delta": DELTA,
        "seeds": list(given.seeds),
        "trusts": {"precad": PRECAD_TRUSTS, "flower": FLOWER_TRUSTS},
        "load": os.getloadavg()[0],
        "hardware": hardware(),
        "rows": [],
        "without_noise": by_flower(0.0, 0),
    }
    tasks = {epsilon: task_of(epsilon, given.rounds) for epsilon in EPSILONS}
    for epsilon, task in tasks.items():
        row = {
            "epsilon": epsilon,
            "noise_multiplier": task.privacy.noise_multiplier,
            "noise_over_sum": noise_over_signal(task),
            "others_epsilon": planned_guarantees(task)[1].epsilon,
            "precad": [],
            "flower": [],
        }
        result["rows"].append(row)
    for seed in given.seeds:
        for row in result["rows"]:
            task = tasks[row["epsilon"]]
            sigma = task.privacy.noise_multiplier
            row["flower"].append(by_flower(sigma, seed))
            row["precad"].append(by_precad(task, shares, held_out, seed=seed))
            print(json.dumps(row), flush=True)
            given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def pooled(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return images of 28×28 as 8×8 means, ``[n, 64]``, of a margin of 2 filled up."""
    wide = np.pad(images[:, 0], ((0, 0), (2, 2), (2, 2)))
    size = wide.shape[1] // SIDE
    blocks = wide.reshape(len(wide), SIDE, size, SIDE, size)
    return blocks.mean(axis=(2, 4)).reshape(len(wide), FEATURES).astype(np.float32)


def dealt(folder: Path) -> tuple[list[Share], Share]:
    """Return the owners' records, and MNIST's test records."""
    data = load("mnist", folder / "mnist")
    order = np.random.default_rng(7).permutation(len(data.train_y))
    parts = order[: OWNERS * RECORDS].reshape(OWNERS, RECORDS)
    x = pooled(data.train_x)
    shares = [(x[part], data.train_y[part]) for part in parts]
    return shares, (pooled(data.test_x), data.test_y)


def task_of(epsilon: float, rounds: int) -> Task:
    """As ``precad task new --unit owner`` plans it, with the server's step of FedAvg."""
    asked: dict[str, Any] = dict.fromkeys(Wishes.__dataclass_fields__)
    asked |= {
        "validation": "crypten",
        "unit": "owner",
        "architecture": "logistic",
        "hidden": 1,
        "features": str(FEATURES),
        "classes": CLASSES,
        "records": f"{OWNERS}x{RECORDS}",
        "epsilon": epsilon,
        "delta": DELTA,
        "rounds": rounds,
        "client_clip": CLIP,
        "local_epochs": EPOCHS,
        "local_rate": LOCAL_RATE,
    }
    values = planned(Wishes(**asked), "whole-owners")[0].model_dump(mode="json")
    values["training"]["learning_rate"] = 1.0
    return Task.parse(values)


def by_precad(
    task: Task, shares: list[Share], held_out: Share, *, seed: int
) -> dict[str, Any]:
    """One simulated training: accuracy, what it spent, and the CPU time that it took."""
    began = time.process_time()
    training = precad.simulate(task, shares, test=held_out, seed=seed)
    return {
        "accuracy": training.accuracy,
        "accepted": sum(played.accepted for played in training.rounds),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


if __name__ == "__main__":
    main()
