"""Accuracy where persons are protected, beside records; writes results/units.json.

    python -m benchmarks.units [--only "1 to 30" …] [--times] [--out FILE]

Logistic regression by ``precad.simulate`` at one ε, against one curious server. The
same 6,000 records belong to persons of 3, 10 or 30 records, or of any number from 1 to
30. With a unit a person is sampled, and adds the clipped mean of up to 10 of its
records; without one each record is. Last stands what the record-level task costs a
person with so many records: by the exact accountant, all of them coming or going.

The data are made here: 20 inputs, two classes, and persons who differ from each other
as much as half of what their own records do. Accuracy is on 2,000 records of others.
"""

import argparse
import json
import os
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.nn.functional import cross_entropy

import precad
from benchmarks.rounds.hardware import hardware
from precad.accounting.events import poisson_gaussian
from precad.accounting.guarantees import least_noise_multiplier
from precad.certify.group_guarantees import ExactGroups
from precad.client import model_section
from precad.client.gradients.local_update import local_update, poisson_sample
from precad.client.gradients.torch_models import build, logistic
from precad.client.records.torch_records import Records
from precad.common.identifiers import Secret
from precad.common.model import initial_vector
from precad.common.ring import Keystream
from precad.common.roster import most_records
from precad.common.task import Task

RESULT = Path(__file__).parent / "results" / "units.json"
EPSILONS = (1.0, 3.0, 8.0)
DELTA = 1e-5
RECORDS, HELD_OUT = 6000, 2000
FEATURES, OWNERS = 20, 4
RATE, ROUNDS = 0.2, 20
MOST = 10
"""L: records of a person that count in a round, at most."""
LEARNING_RATE = 1.0
TURNS = 15
MOST_EPSILON = 700.0
SIZES: dict[str, tuple[int, int]] = {
    "3": (3, 3),
    "10": (10, 10),
    "30": (30, 30),
    "1 to 30": (1, 30),
}
"""Least and most records of a person, by the row's name."""
Made = tuple[NDArray[np.float32], NDArray[np.int64], NDArray[np.int64]]


def made(least: int, most: int, count: int, generator: np.random.Generator) -> Made:
    """Return inputs, labels and persons of about ``count`` records."""
    sizes = generator.integers(least, most + 1, count)
    persons = np.repeat(np.arange(count), sizes)[:count]
    own = generator.normal(0, 0.5, (count, FEATURES))[persons]
    x = own + generator.normal(0, 1, (count, FEATURES))
    weights = np.linspace(-1, 1, FEATURES)
    score = x @ weights + generator.logistic(0, 0.5, count)
    return x.astype(np.float32), (score > 0).astype(np.int64), persons


def task_of(sigma: float, units: int, most: int | None) -> Task:
    """The task of one training: for persons, of L = ``most`` records; or for records."""
    privacy: dict[str, Any] = {
        "record_clip": 1.0,
        "client_clip": 2.0 * RATE * RECORDS / OWNERS,
        "noise_multiplier": sigma,
        "record_rate": RATE,
        "client_rate": 1.0,
        "delta": DELTA,
    }
    if most is not None:
        privacy |= {"unit": "person", "most_records_per_unit": most}
    return Task.parse(
        {
            "name": "units",
            "model": model_section(logistic(FEATURES, 2), architecture="logistic"),
            "privacy": privacy,
            "training": {"learning_rate": LEARNING_RATE, "rounds": ROUNDS},
            "enrolment": {
                "clients": OWNERS,
                "max_expected_records": 2.0 * RATE * RECORDS,
                "planned_units": units,
            },
            "fractional_bits": 14,
        }
    )


def accuracy(
    sigma: float, data: Made, held_out: Made, most: int | None
) -> dict[str, float]:
    """How many units there are, and accuracy; arguments as in ``task_of``."""
    x, y, who = data
    persons = most is not None
    units = len(np.unique(who)) if persons else len(y)
    others = held_out[2] + RECORDS
    trained = precad.simulate(
        task_of(sigma, units, most),
        (x, y, who) if persons else (x, y),
        test=(*held_out[:2], others) if persons else held_out[:2],
        seed=1,
    )
    return {"units": units, "accuracy": trained.accuracy or 0.0}


def of_a_person(sigma: float, records: int) -> float | None:
    """The exact ε of a person with so many records, where each is sampled by itself.

    None where nothing is claimed: such a person is told from nobody.
    """
    groups = ExactGroups(
        poisson_gaussian(rate=RATE, noise_multiplier=sigma, count=ROUNDS)
    )
    curves = groups.sticks(records)
    low, high = 0.0, MOST_EPSILON
    if max(curve.delta(high) for curve in curves) > DELTA:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        if max(curve.delta(middle) for curve in curves) > DELTA:
            low = middle
        else:
            high = middle
    return high


def times() -> dict[str, float]:
    """CPU seconds of one update, by how many records each of 300 persons has."""
    task = task_of(2.0, 300, MOST)
    most = most_records(300, RATE)
    found = {}
    for each in (1, 3, 10, 30):
        x, y, who = made(each, each, 300 * each, np.random.default_rng(47))
        records = Records(x, y, list(map(str, who.tolist())))
        took = []
        for turn in range(TURNS):
            randomness = Keystream(Secret.random(), "benchmark", turn)
            began = time.process_time()
            sampled = poisson_sample(records.unit_count, RATE, randomness)
            indices, sizes = records.draw(sampled, MOST, randomness)
            local_update(
                build(task.model),
                cross_entropy,
                records,
                indices,
                initial_vector(task.model),
                task,
                sizes=sizes,
                most=most,
            )
            took.append(time.process_time() - began)
        found[str(each)] = median(took)
    return found


def main() -> None:
    """Train all, or measure times, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULT)
    parser.add_argument("--only", nargs="*", choices=[*SIZES], help="rows to train")
    parser.add_argument("--times", action="store_true", help="measure an update's work")
    given = parser.parse_args()
    out = given.out
    if given.times:
        kept = json.loads(out.read_text(encoding="utf-8"))
        kept["update_cpu_s_by_records_each"] = times()
        out.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
        return
    rows: list[dict[str, Any]] = []
    sigmas = {
        epsilon: least_noise_multiplier(
            lambda sigma: poisson_gaussian(
                rate=RATE, noise_multiplier=sigma, count=ROUNDS
            ),
            epsilon=epsilon,
            delta=DELTA,
        )
        for epsilon in EPSILONS
    }
    for name in given.only or SIZES:
        least, most = SIZES[name]
        generator = np.random.default_rng(47)
        data = made(least, most, RECORDS, generator)
        held_out = made(least, most, HELD_OUT, generator)
        for epsilon, sigma in sigmas.items():
            rows.append(
                {
                    "records_a_person": name,
                    "epsilon": epsilon,
                    "noise_multiplier": sigma,
                    "person": accuracy(sigma, data, held_out, min(MOST, most)),
                    "record": accuracy(sigma, data, held_out, None),
                    "persons_epsilon_at_record_level": of_a_person(sigma, most),
                }
            )
            print(rows[-1], flush=True)
    found: dict[str, Any] = {
        "delta": DELTA,
        "rate": RATE,
        "rounds": ROUNDS,
        "owners": OWNERS,
        "records": RECORDS,
        "most_records_per_unit": MOST,
        "load": os.getloadavg()[0],
        "hardware": hardware(),
    }
    # What isn't trained anew stays.
    kept = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    old = [
        row
        for row in kept.get("rows", ())
        if row["records_a_person"] not in {row["records_a_person"] for row in rows}
    ]
    order = [*SIZES]
    found["rows"] = sorted(
        [*old, *rows], key=lambda row: order.index(row["records_a_person"])
    )
    text = json.dumps(kept | found, indent=1, ensure_ascii=False)
    out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
