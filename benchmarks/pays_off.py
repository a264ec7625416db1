"""Who adds the noise, and what it costs in accuracy at one ε; writes results/pays_off.json.

    python benchmarks/pays_off.py [--mnist FOLDER]

Logistic regression by ``precad.simulate``: the same records, samples, clips and steps,
and the same ε for each record against the most curious single party that there is. What
differs is the noise in the sum: one trusted server adds σ·R once; here each of two
servers adds it; with local DP each of n owners does, because whoever adds up sees its
update. The learning rate is the best of those tried for each, on held-out public
images. Digits; and MNIST averaged to 14 × 14, where its folder is given. The noise that
isn't the protocol's own is drawn afresh in each run.
"""

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from research.datasets import DataSet, load

import precad
from benchmarks.rounds.hardware import hardware
from precad.accounting.events import poisson_gaussian
from precad.accounting.guarantees import least_noise_multiplier
from precad.aggregator.noise import DiscreteGaussian
from precad.client import model_section
from precad.client.gradients.torch_models import logistic
from precad.common.identifiers import Role
from precad.common.mechanism import MAX_BOUND
from precad.common.task import Task

RESULT = Path(__file__).parent / "results" / "pays_off.json"
EPSILON, DELTA = 3.0, 1e-5
CASES: dict[str, dict[str, Any]] = {
    "digits": {"rate": 0.2, "rounds": 60, "owners": (10, 100), "seeds": 3},
    "mnist": {"rate": 0.05, "rounds": 40, "owners": (10, 100, 1000), "seeds": 1},
}
RATES = {
    "one": (4.0, 8.0, 16.0, 32.0),
    "two": (4.0, 8.0, 16.0, 32.0),
    "local": (0.7, 2.0, 6.0, 16.0),
}
"""Learning rates tried, η; the more noise, the smaller the useful ones."""


def main() -> None:
    """Train all and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's files")
    parser.add_argument("--rounds", type=int, help="fewer, to try the script")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    # What isn't trained anew stays.
    made = (
        json.loads(given.out.read_text(encoding="utf-8")) if given.out.is_file() else {}
    )
    for name in ("digits", "mnist"):
        if name == "digits" or given.mnist is not None:
            case = CASES[name] | ({"rounds": given.rounds} if given.rounds else {})
            made[name] = {**compared(smaller(load(name, given.mnist)), case)}
            made[name]["hardware"] = hardware()
            given.out.write_text(
                json.dumps(made, indent=1, ensure_ascii=False) + "\n", "utf-8"
            )


def smaller(data: DataSet) -> DataSet:
    """Images of 28 × 28 as means of 2 × 2 pixels, which each owner can compute; others as is."""
    if data.train_x.shape[1:] != (1, 28, 28):
        return data

    def pooled(x: NDArray[np.float32]) -> NDArray[np.float32]:
        return x.reshape(len(x), 1, 14, 2, 14, 2).mean((3, 5), dtype=np.float32)

    return DataSet(
        name=data.name,
        train_x=pooled(data.train_x),
        train_y=data.train_y,
        test_x=pooled(data.test_x),
        test_y=data.test_y,
        classes=10,
    )


def compared(data: DataSet, case: dict[str, Any]) -> dict[str, Any]:
    """Every way of adding noise on one data set."""
    sigma = least_noise_multiplier(
        lambda s: poisson_gaussian(
            rate=case["rate"], noise_multiplier=s, count=case["rounds"]
        ),
        epsilon=EPSILON,
        delta=DELTA,
    )
    owners = case["owners"]
    ways = [("one", owners[-1]), ("two", owners[-1]), *(("local", n) for n in owners)]
    found = []
    for way, n in ways:
        # The standard deviation of all noise in the sum, over σ·R.
        times = {"one": 1.0, "two": math.sqrt(2), "local": math.sqrt(n)}[way]
        tried = {
            rate: accuracy(data, case, n, sigma, times, rate) for rate in RATES[way]
        }
        best = max(tried, key=lambda rate: float(np.mean(tried[rate])))
        found.append(
            {
                "noise_by": way,
                "owners": n,
                "records_each": len(data.train_y) // n,
                "noise_in_the_sum": sigma * times,
                "learning_rate": best,
                "accuracy": float(np.mean(tried[best])),
                "tried": {str(rate): seen for rate, seen in tried.items()},
            }
        )
        print(found[-1], flush=True)
    return {
        "epsilon": EPSILON,
        "delta": DELTA,
        "noise_multiplier": sigma,
        "features": data.features,
        "record_rate": case["rate"],
        "rounds": case["rounds"],
        "load": os.getloadavg()[0],
        "ways": found,
    }


def accuracy(
    data: DataSet,
    case: dict[str, Any],
    owners: int,
    sigma: float,
    times: float,
    rate: float,
) -> list[float]:
    """On held-out images, once a seed, with noise of ``times``·σ·R in the sum."""
    expected = case["rate"] * len(data.train_y) / owners
    # Records are clipped to R; an owner's sum never needs to be.
    clip = max(10.0, 1.5 * expected)
    task = Task.parse(
        {
            "name": f"{data.name}-pays-off",
            "model": model_section(
                logistic(data.features, 10), architecture="logistic"
            ),
            "privacy": {
                "record_clip": 1.0,
                "client_clip": clip,
                "noise_multiplier": sigma,
                "record_rate": case["rate"],
                "client_rate": 1.0,
                "delta": DELTA,
            },
            "training": {"learning_rate": rate, "rounds": case["rounds"]},
            "enrolment": {"clients": owners, "max_expected_records": 2 * expected + 1},
            "fractional_bits": min(20, math.floor(math.log2(MAX_BOUND / clip))),
        }
    )
    whole = DiscreteGaussian(times * sigma * 2.0**task.fractional_bits)

    def noise(server: Role, _version: int, dimension: int) -> NDArray[np.int64]:
        return (
            whole.draw(dimension)
            if server is Role.SERVER_A
            else np.zeros(dimension, np.int64)
        )

    return [
        precad.simulate(
            task,
            (data.train_x, data.train_y),
            test=(data.test_x, data.test_y),
            seed=seed,
            # What the protocol itself adds needs no replacing.
            noise=None if times == math.sqrt(2) else noise,
        ).accuracy
        or 0.0
        for seed in range(case["seeds"])
    ]


if __name__ == "__main__":
    main()
