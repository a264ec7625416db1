"""Table 2 of DP-CERT: settings to rows; a row is one model, certified at one σ.

    python -m precad.experiments.robustness.table digits --work FOLDER --out FILE.json

Run again, it goes on where it ended: the folder keeps models and votes, the file finished rows.
"""

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click
import torch

from precad.client.train.smooth import Sampling, sample_votes
from precad.common.certify.intervals import ConfidenceBudget
from precad.common.certify.prediction import certified_accuracy
from precad.common.certify.smoothing import average_certified_radius, certify_smoothing
from precad.common.description import ObjectiveSection
from precad.experiments.data import DataSet, load
from precad.experiments.robustness.train import Training, train

CONFIDENCE = 0.999
RADII = tuple(round(0.05 * step, 2) for step in range(61))
SIGMAS = (0.25, 0.5, 1.0)
METHODS = (
    "regular",
    "dp-sgd",
    "psac",
    "dp-gaussian",
    "dp-smoothadv",
    "dp-stability",
    "dp-macer",
)


@dataclass(frozen=True, slots=True)
class Row:
    """What is trained and how it is certified.

    Attributes:
        method: as the table calls it.
        training: the model.
        sampling: of its votes.
        every: each how-many-th test record is certified.
    """

    method: str
    training: Training
    sampling: Sampling
    every: int

    @property
    def name(self) -> str:
        """Names the row in the results, with all that it depends on."""
        said = json.dumps([self.training.to_json(), self.every], sort_keys=True)
        digest = hashlib.sha256(said.encode()).hexdigest()[:12]
        how, seed = self.sampling, self.training.seed
        return (
            f"{self.training.data} {self.method} sigma={how.sigma:g} n={how.copies} seed={seed} "
            f"{digest}"
        )


def objective_of(method: str, sigma: float) -> ObjectiveSection:
    """What a method minimises, trained for smoothing at σ."""
    match method:
        case "regular" | "dp-sgd":
            return ObjectiveSection()
        case "psac":
            return ObjectiveSection(clipping="psac")
        case "dp-smoothadv":
            return ObjectiveSection(name="dp-smoothadv", noise=sigma, attack_radius=sigma)
    return ObjectiveSection.model_validate({"name": method, "noise": sigma})


def digits(
    seeds: tuple[int, ...] = (0, 1, 2),
    methods: tuple[str, ...] = METHODS,
    sigmas: tuple[float, ...] = SIGMAS,
    copies: int = 10_000,
) -> Iterator[Row]:
    """It must show 1: every method, σ and seed on scikit-learn's digits, ε = 3."""
    plain = Training(
        data="digits",
        model="mlp",
        objective=ObjectiveSection(),
        epsilon=3.0,
        rate=0.2,
        rounds=60,
        learning_rate=3.0,
        clip=1.0,
        seed=0,
    )
    yield from _rows(plain, {"learning_rate": 0.5, "rounds": 300}, seeds, methods, sigmas, copies)


def mnist(
    seeds: tuple[int, ...] = (0,),
    methods: tuple[str, ...] = ("dp-sgd", "dp-gaussian", "regular", "psac", "dp-macer"),
    sigmas: tuple[float, ...] = SIGMAS,
    copies: int = 10_000,
) -> Iterator[Row]:
    """The paper's MNIST columns: its four-layer CNN, C = 0.1, K = 2, 10 epochs, ε = 3."""
    plain = Training(
        data="mnist",
        model="cnn",
        objective=ObjectiveSection(),
        epsilon=3.0,
        rate=1 / 60,
        rounds=600,
        learning_rate=1.0,
        clip=0.1,
        seed=0,
        momentum=0.9,
    )
    free = {"learning_rate": 0.1, "rate": 1 / 240, "rounds": 1200}
    yield from _rows(plain, free, seeds, methods, sigmas, copies, every=100)


def _rows(
    plain: Training,
    free: dict[str, Any],
    seeds: tuple[int, ...],
    methods: tuple[str, ...],
    sigmas: tuple[float, ...],
    copies: int,
    every: int = 1,
) -> Iterator[Row]:
    """In an order in which each method's first numbers come early."""
    for seed in seeds:
        for method in methods:
            for sigma in sigmas:
                how = replace(plain, objective=objective_of(method, sigma), seed=seed)
                if method == "regular":
                    how = replace(how, epsilon=None, **free)
                yield Row(method, how, Sampling(sigma, 100, copies, seed), every)


def measured(
    row: Row, data: DataSet, work: Path, said: Callable[[str], object] = lambda _: None
) -> dict[str, Any]:
    """The row's numbers: clean accuracy, ACR, certified accuracy by radius.

    Args:
        row: what to train and certify.
        data: its records.
        work: keeps models and votes.
        said: told where the work is.
    """
    model = hashlib.sha256(json.dumps(row.training.to_json(), sort_keys=True).encode()).hexdigest()
    name = f"{row.training.data}-{row.method}-{model[:12]}"
    began = time.process_time()
    last = [0.0]

    def heard(text: str) -> None:
        if time.monotonic() - last[0] > 10:  # noqa: PLR2004 -- seconds
            last[0] = time.monotonic()
            said(f"{row.name}: {text}")

    module = train(
        row.training,
        data,
        work / f"{name}.npz",
        lambda number, _: heard(f"round {number} of {row.training.rounds}"),
    )
    trained_s = time.process_time() - began
    with torch.no_grad():
        clean = module.eval()(torch.from_numpy(data.test_x)).argmax(dim=1).numpy()
    x, y = data.test_x[:: row.every], data.test_y[:: row.every]
    votes = sample_votes(
        module,
        torch.from_numpy(x),
        row.sampling,
        keep=work / f"{name}-{row.every}-{row.sampling.sigma:g}-{row.sampling.copies}.jsonl",
        model=model,
        progress=lambda done: heard(f"{done} of {len(x)} certified"),
    )
    budget = ConfidenceBudget(CONFIDENCE, data.classes)
    found = certify_smoothing(votes.votes, row.sampling.sigma, budget, votes.selection)
    right = found.certified & (found.labels == y)
    return {
        "row": row.name,
        "method": row.method,
        "sigma": row.sampling.sigma,
        "seed": row.training.seed,
        "accuracy": float((clean == data.test_y).mean()),
        "acr": average_certified_radius(found.radius, right),
        "certified_accuracy": certified_accuracy(found.radius, right, RADII).tolist(),
        "at_quarter": float(certified_accuracy(found.radius, right, [0.25])[0]),
        "abstained": int((~found.certified).sum()),
        "points": len(y),
        "copies": row.sampling.copies,
        "training": row.training.to_json(),
        "cpu_seconds": {
            "training": round(trained_s, 1),
            "all": round(time.process_time() - began, 1),
        },
    }


def run(
    rows: Iterator[Row],
    data: DataSet,
    work: Path,
    out: Path,
    said: Callable[[str], object] = click.echo,
) -> dict[str, Any]:
    """All rows, each into the file as soon as it is there; what the file has isn't made again."""
    work.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"radii": list(RADII), "confidence": CONFIDENCE, "rows": []}
    if out.exists():
        found = json.loads(out.read_text(encoding="utf-8"))
    known = {row["row"] for row in found["rows"]}
    for row in rows:
        if row.name in known:
            continue
        one = measured(row, data, work, said)
        found["rows"].append(one)
        said(f"{row.name}: acc {one['accuracy']:.4f} ACR {one['acr']:.3f} {one['at_quarter']:.3f}")
        out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=("digits", "mnist"))
    parser.add_argument("--folder", type=Path, help="the data set's files, for mnist")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=METHODS, help="only these")
    parser.add_argument("--sigmas", nargs="+", type=float, help="only these")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.set_flush_denormal(True)
    methods = METHODS if given.methods is None else tuple(given.methods)
    sigmas = SIGMAS if given.sigmas is None else tuple(given.sigmas)
    plan = {"digits": digits, "mnist": mnist}[given.data]
    rows = plan(methods=methods, sigmas=sigmas)
    run(rows, load(given.data, given.folder), given.work, given.out)


if __name__ == "__main__":
    main()
