"""Real trainings behind `precad plan`'s forecast: many settings on MNIST, accuracy of each.

    python -m research.trainings --data FOLDER --out benchmarks/results/trainings.json

The folder holds the published MNIST files unpacked (``MNIST/raw/``). Each setting is trained three
times with seeds of its own; σ is the least for which a record has (ε, 1e-5) against one curious
server. Run again, it goes on where it stopped: a setting that the file has isn't trained again.
"""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from precad.accounting.calibrate import least_noise_multiplier
from precad.accounting.gdp import largest_clip_ratio
from precad.accounting.guarantees import Adversary, Run
from precad.accounting.sizes import written
from precad.client.train import logistic, mlp, model_section
from precad.common.headroom import MAX_BOUND, MAX_CLIP_RATIO
from precad.common.task import Task
from precad.simulation.data import DataSet, load
from research.one_process import Owner, accuracy, train

DELTA = 1e-5
SEEDS = (0, 1, 2)
HIDDEN = 32
_MOST_FRACTIONAL_BITS = 20
EVEN = (6000,) * 10
FEW = (600,) * 10
UNEVEN = (20_000, 12_000, 9000, 6000, 5000, 4000, 2000, 1000, 600, 400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting; symbols as in PRECAD Table 2.

    Attributes:
        record_rate: p.
        client_rate: q.
        rounds: T.
        learning_rate: η.
        record_clip: R.
        client_clip: C; by default p·m·R of the largest owner, so that it never acts, or the
            most that a task takes.
        records: of each owner.
        epsilon: of a record against one curious server.
        model: ``logistic`` or ``mlp``.
        held_out: whether it was drawn and trained after the forecast was fixed.
    """

    record_rate: float
    client_rate: float
    rounds: int
    learning_rate: float
    record_clip: float = 1.0
    client_clip: float | None = None
    records: tuple[int, ...] = EVEN
    epsilon: float = 3.0
    model: str = "logistic"
    held_out: bool = False

    def clip(self) -> float:
        """C."""
        if self.client_clip is not None:
            return self.client_clip
        largest = self.record_rate * max(self.records)
        return self.record_clip * min(MAX_CLIP_RATIO, max(1.0, largest))

    def noise_multiplier(self) -> float:
        """σ: the least that ε allows."""

        def event(sigma: float) -> Any:
            run = Run(
                record_rate=self.record_rate,
                client_rate=self.client_rate,
                noise_multiplier=sigma,
                rounds=self.rounds,
            )
            return run.event(Adversary.ONE_SERVER)

        return least_noise_multiplier(event, epsilon=self.epsilon, delta=DELTA)

    def task(self, features: int, classes: int, noise_multiplier: float, seed: int) -> Task:
        """The task that trains it; ``seed`` is that of an mlp's initial weights."""
        clip = self.clip()
        section = (
            model_section(logistic(features, classes), "logistic")
            if self.model == "logistic"
            else model_section(mlp(features, HIDDEN, classes), "mlp", "uniform", seed)
        )
        return Task.parse(
            {
                "name": "trial",
                "model": section,
                "privacy": {
                    "record_clip": self.record_clip,
                    "client_clip": clip,
                    "noise_multiplier": noise_multiplier,
                    "record_rate": self.record_rate,
                    "client_rate": self.client_rate,
                    "delta": DELTA,
                },
                "training": {"learning_rate": self.learning_rate, "rounds": self.rounds},
                "enrolment": {
                    "clients": len(self.records),
                    "max_expected_records": self.record_rate * max(self.records),
                },
                "fractional_bits": min(
                    _MOST_FRACTIONAL_BITS, math.floor(math.log2(MAX_BOUND / clip))
                ),
            }
        )


def trials() -> Iterator[Trial]:
    """All settings of the table."""
    for model in ("logistic", "mlp"):
        # The two settings of the review: the planner's choice and a better one.
        schedules = [(0.2, 0.1, 50), (0.05, 1.0, 200), (0.05, 1.0, 50), (0.2, 1.0, 200)]
        if model == "logistic":
            schedules += [(0.01, 1.0, 200), (0.05, 0.1, 500), (0.5, 1.0, 20), (0.05, 0.5, 100)]
        for p, q, rounds in schedules:
            for rate in (1.0, 3.0, 10.0, 30.0):
                yield Trial(
                    record_rate=p, client_rate=q, rounds=rounds, learning_rate=rate, model=model
                )
        for rate in (3.0, 10.0):
            yield Trial(
                record_rate=0.02, client_rate=1, rounds=1000, learning_rate=rate, model=model
            )
    base = Trial(record_rate=0.05, client_rate=1.0, rounds=200, learning_rate=1.0)
    for rate in (0.1, 0.3, 100.0):
        yield replace(base, learning_rate=rate)
    for clip in (30.0, 10.0, 3.0, 1.0):
        for rate in (10.0, 30.0):
            yield replace(base, learning_rate=rate, client_clip=clip)
    for clip in (0.1, 3.0, 10.0):
        for path in (3.0, 10.0, 30.0):
            yield replace(base, learning_rate=path / clip, record_clip=clip)
    for path in (10.0, 30.0):
        yield replace(base, rounds=50, learning_rate=path / 3.0, record_clip=3.0)
    for epsilon in (0.3, 1.0):
        for rate in (1.0, 3.0, 10.0):
            yield replace(base, learning_rate=rate, epsilon=epsilon)
    for clip in (1.0, 10.0):
        for rate in (3.0, 30.0):
            yield replace(base, learning_rate=rate, client_clip=clip, epsilon=0.3)
    for rate in (1.0, 10.0):
        yield replace(base, learning_rate=rate, epsilon=0.3, records=FEW)
        yield replace(base, learning_rate=rate, epsilon=0.05, client_clip=10.0)
        yield replace(base, learning_rate=rate, epsilon=0.05, client_clip=1.0)
    for records in (FEW, UNEVEN):
        for p, q, rounds in ((0.05, 1.0, 200), (0.2, 1.0, 50), (0.2, 0.2, 100)):
            for rate in (1.0, 3.0, 10.0):
                yield Trial(
                    record_rate=p,
                    client_rate=q,
                    rounds=rounds,
                    learning_rate=rate,
                    records=records,
                )


def drawn(count: int = 24) -> Iterator[Trial]:
    """Random settings, most with a client clip that acts or noise that drowns the signal."""
    usual = np.random.default_rng(9)
    later = np.random.default_rng(10)
    for place in range(count):
        yield _usual(usual, "mlp" if place % 4 == 0 else "logistic")
    for _ in range(count // 2):
        yield Trial(
            record_rate=float(later.choice([0.05, 0.2])),
            client_rate=float(later.choice([0.5, 1.0])),
            rounds=int(later.choice([50, 100, 200])),
            learning_rate=float(np.exp(later.uniform(np.log(1), np.log(30))).round(2)),
            client_clip=float(later.choice([2.0, 5.0, 20.0])),
            records=FEW if int(2 * later.random()) else EVEN,
            epsilon=float(later.choice([0.1, 0.5, 1.0])),
        )


def _usual(generator: np.random.Generator, model: str) -> Trial:
    """Ten owners of 6,000 at ε = 3."""
    rounds = int(np.rint(np.exp(generator.uniform(np.log(20), np.log(600)))))
    clip = float(np.exp(generator.uniform(np.log(0.3), np.log(4))).round(2))
    return Trial(
        record_rate=float(np.exp(generator.uniform(np.log(0.01), np.log(0.3))).round(3)),
        client_rate=float(generator.choice([0.2, 0.5, 1.0])),
        rounds=rounds,
        learning_rate=float((np.exp(generator.uniform(np.log(0.5), np.log(20))) / clip).round(2)),
        record_clip=clip,
        client_clip=float(generator.choice([10, 30]) * clip)
        if int(2 * generator.random())
        else None,
        model=model,
    )


def robust(count: int, seed: int) -> Iterator[Trial]:
    """Random settings that bound what one to a few bad owners can do: C is tight against R·σ."""
    generator = np.random.default_rng(seed)
    for place in range(count):
        owners, records = ((100, 600), (300, 200), (40, 1500))[int(generator.integers(3))]
        rate = float(generator.choice([0.1, 0.2, 0.5]))
        rounds = int(np.rint(np.exp(generator.uniform(np.log(30), np.log(80 / rate)))))
        mu = float(np.exp(generator.uniform(np.log(0.1), np.log(2))))
        one = Trial(
            record_rate=float(generator.choice([0.2, 0.5])),
            client_rate=rate,
            rounds=rounds,
            learning_rate=float(np.exp(generator.uniform(np.log(1), np.log(40))).round(2)),
            records=(records,) * owners,
            epsilon=float(generator.choice([0.3, 1.0, 3.0])),
            model="mlp" if place % 6 == 5 else "logistic",  # noqa: PLR2004
        )
        ratio = largest_clip_ratio(mu, one.client_rate, rounds)
        clip = max(1.0, round(ratio * one.noise_multiplier(), 2))
        yield replace(one, client_clip=clip)


def recommended() -> Iterator[Trial]:
    """What an earlier planner chose: here, with a hidden layer, and robust against one owner."""
    yield Trial(
        record_rate=0.05,
        client_rate=1,
        rounds=200,
        learning_rate=4.5,
        client_clip=78.1,
        record_clip=3.0,
    )
    yield Trial(
        record_rate=0.05,
        client_rate=0.5,
        rounds=500,
        learning_rate=1.9,
        client_clip=77.4,
        model="mlp",
        record_clip=3.0,
    )
    yield Trial(
        record_rate=0.5,
        client_rate=0.1,
        rounds=1000,
        learning_rate=2.3,
        client_clip=4.5,
        records=(600,) * 100,
        record_clip=3.0,
    )


def after() -> Iterator[Trial]:
    """Settings that were drawn, and trained, when the forecast had been fixed: nothing is fitted.

    Random ones as in the table, and what the planner chose then: on this data, robust against one
    owner of many, and with a hidden layer.
    """
    usual = np.random.default_rng(21)
    settings = [_usual(usual, "logistic") for _ in range(10)]
    settings += robust(14, seed=22)
    base = Trial(record_rate=0.05, client_rate=1, rounds=200, learning_rate=4.5, record_clip=3.0)
    settings.append(replace(base, client_clip=99.5))
    tight = replace(base, record_rate=0.5, client_rate=0.1, rounds=500, client_clip=4.76)
    settings.append(replace(tight, learning_rate=1.6, records=(600,) * 100))
    settings.append(replace(tight, learning_rate=1.9, records=(200,) * 300))
    settings += [_usual(usual, "mlp") for _ in range(6)]
    deep = replace(base, record_rate=0.1, client_rate=0.2, rounds=1000, learning_rate=0.99)
    settings.append(replace(deep, client_clip=183.0, model="mlp"))
    for trial in settings:
        yield replace(trial, held_out=True)


def deal(data: DataSet, records: tuple[int, ...], seed: int) -> list[Owner]:
    """So many random records to each owner, none to two."""
    order = np.random.default_rng(seed).permutation(len(data.train_y))
    x = data.train_x.reshape(len(data.train_x), -1)
    ends = np.cumsum(records)
    return [
        Owner(x[order[end - size : end]], data.train_y[order[end - size : end]])
        for size, end in zip(records, ends, strict=True)
    ]


def measure(trial: Trial, data: DataSet) -> dict[str, Any]:
    """Train ``trial`` with each seed; one row of the table."""
    sigma = trial.noise_multiplier()
    start = time.perf_counter()
    found, agreements, clipped = [], [], []
    for seed in SEEDS:
        task = trial.task(data.features, data.classes, sigma, seed)
        trained = train(task, deal(data, trial.records, seed), seed)
        agreements.append(trained.agreement)
        clipped.append(trained.clipped)
        found.append(accuracy(trained.theta, data.test_x, data.test_y, task))
    return asdict(trial) | {
        "records": written(trial.records),
        "client_clip": trial.clip(),
        "noise_multiplier": sigma,
        "dimension": task.dimension,
        "effective_record_clip": task.effective_record_clip,
        "fractional_bits": task.fractional_bits,
        "agreement": round(float(np.mean(agreements)), 4),
        "clipped": round(float(np.mean(clipped)), 4),
        "accuracies": [round(each, 4) for each in found],
        "accuracy": round(float(np.mean(found)), 4),
        "seconds": round(time.perf_counter() - start, 1),
        "processor": processor(),
    }


def key_of(row: dict[str, Any]) -> str:
    """What tells two rows apart."""
    names = [name for name in Trial.__dataclass_fields__ if name != "client_clip"]
    return json.dumps([row["client_clip"], *(row[name] for name in names)])


def processor() -> str:
    """The processor's name, as Linux gives it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def header() -> dict[str, Any]:
    """What was measured, and with what."""
    return {
        "what": "accuracy on MNIST's 10,000 test images, mean of three seeds",
        "hardware": {
            "cores": os.cpu_count(),
            "threads": os.environ.get("OMP_NUM_THREADS", "default"),
        },
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("numpy", "scipy", "dp-accounting")},
        },
        "delta": DELTA,
        "seeds": list(SEEDS),
    }


def fill(table: Path, settings: Iterable[Trial], data: DataSet) -> None:
    """Train what the table lacks; it is written after each setting."""
    done = json.loads(table.read_text()) if table.exists() else header() | {"settings": []}
    rows = {key_of(row): row for row in done["settings"]}
    for trial in settings:
        known = asdict(trial) | {"records": written(trial.records), "client_clip": trial.clip()}
        if key_of(known) in rows:
            continue
        row = measure(trial, data)
        rows[key_of(row)] = row
        table.write_text(json.dumps(done | {"settings": list(rows.values())}, indent=2) + "\n")
        print(json.dumps(row), flush=True)  # noqa: T201


def main() -> None:
    """Train what the file lacks."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds MNIST/raw")
    parser.add_argument("--out", type=Path, required=True, help="JSON file; goes on with it")
    given = parser.parse_args()
    fill(
        given.out,
        (*trials(), *drawn(), *recommended(), *robust(36, seed=11), *after()),
        load("mnist", given.data),
    )


if __name__ == "__main__":
    main()
