"""MNIST at ε = 3 a record beside a trusted curator, local DP and no privacy; results/utility.json.

    python benchmarks/utility.py --mnist FOLDER --opacus PYTHON [--only precad ...]
    [--seeds 3]

A linear model on wavelet scattering's coefficients, with the settings of
``research.features``. What is compared at the same exact ε (δ = 1e-5):

- precad: the demo, ten owners, two servers and a dealer as processes of this machine,
  on features that are computed once for all seeds;
- simulated: ``precad.simulate`` with 10, 100 and 1,000 owners;
- central: one trusted curator, DP-SGD by Opacus, with precad's settings, and with
  momentum .9 at ``CURATORS_RATE``;
- local: each of ten owners adds the noise that its records need by itself, simulated;
- none: the same model without clips and noise.

PYTHON is an interpreter with Opacus; it needs no precad. Each run is kept with its
settings as soon as it is there, and what is there isn't run again. The noise is drawn
afresh in each run.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from examples.demo.demo_task import SETTINGS, demo_task
from numpy.typing import NDArray
from research.datasets import DataSet, load
from research.features.fixed_features import FIXED_FEATURES, with_features

import precad
from benchmarks.rounds.hardware import hardware
from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from precad.aggregator.noise import DiscreteGaussian
from precad.client.gradients.torch_models import build
from precad.common.identifiers import Role
from precad.common.task import Task

HERE = Path(__file__).parent
RESULT = HERE / "results" / "utility.json"
MODEL = "scattering"
CHOSEN = SETTINGS["mnist", MODEL]
OWNERS = 10
CURATORS_RATE = 16.0
"""Best with momentum on validation records, of 2, 4, 6, 8, 12 and 16.

Without momentum 40 was, of 20, 40 and 60: precad's.
"""
ARMS: dict[str, list[dict[str, Any]]] = {
    "precad": [{"owners": OWNERS}],
    "simulated": [{"owners": 10}, {"owners": 100}, {"owners": 1000}],
    "central": [{"momentum": 0.0}, {"momentum": 0.9, "learning_rate": CURATORS_RATE}],
    "local": [{"owners": OWNERS}],
    "none": [{"momentum": 0.9, "learning_rate": 3.0, "epochs": 60}],
}
DELTA, EPSILON = 1e-5, 3.0
_PARTS = ("train_x", "train_y", "test_x", "test_y")


def main() -> None:
    """Run what is missing, cheap arms first, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mnist", type=Path, help="folder with MNIST's files")
    parser.add_argument(
        "--opacus", help="interpreter with Opacus, for central and none"
    )
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, help="keeps the features, to go on sooner")
    parser.add_argument("--out", type=Path, default=RESULT)
    given = parser.parse_args()
    if given.mnist is None:
        print("utility.py measures nothing without --mnist FOLDER", flush=True)
        return
    kept = Kept(given.out)
    with tempfile.TemporaryDirectory() as scratch:
        work = given.work or Path(scratch)
        for seed in range(1, given.seeds + 1):
            for arm in given.only:
                for how in ARMS[arm]:
                    named = {"arm": arm, **how, "seed": seed, "settings": settings()}
                    if not kept.has(named):
                        began, load_then = time.perf_counter(), os.getloadavg()[0]
                        said = run(arm, how, seed, given.mnist, given.opacus, work)
                        said |= {
                            "seconds": round(time.perf_counter() - began),
                            "load": load_then,
                        }
                        kept.add(named | said)
                        print(named | said, flush=True)


class Kept:
    """Runs on disk, each named by what it was given: other settings make it another one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        made = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        self._runs: list[dict[str, Any]] = made.get("runs", [])

    def has(self, named: dict[str, Any]) -> bool:
        """Whether this one was made."""
        return any(named.items() <= made.items() for made in self._runs)

    def add(self, made: dict[str, Any]) -> None:
        """Keep one."""
        self._runs.append(made | {"hardware": hardware()})
        whole = {"epsilon": EPSILON, "delta": DELTA, "runs": self._runs}
        text = json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
        self._path.write_text(text, encoding="utf-8")


def settings() -> dict[str, Any]:
    """What all private arms share."""
    return {
        "record_clip": CHOSEN.record_clip,
        "record_rate": CHOSEN.record_rate,
        "rounds": CHOSEN.rounds,
        "learning_rate": CHOSEN.learning_rate,
        "noise_multiplier": CHOSEN.noise_multiplier,
    }


def run(
    arm: str,
    how: dict[str, Any],
    seed: int,
    mnist: Path,
    opacus: str | None,
    work: Path,
) -> dict[str, Any]:
    """One training's accuracy on the held-out images, and its ε."""
    match arm:
        case "precad":
            features(mnist, work)
            return by_processes(how["owners"], seed, work)
        case "simulated":
            return simulated(features(mnist, work), how["owners"], seed, local=False)
        case "local":
            return simulated(features(mnist, work), how["owners"], seed, local=True)
    if opacus is None:
        raise SystemExit("--opacus names an interpreter that has Opacus")
    features(mnist, work)
    private = arm == "central"
    told = {
        **settings(),
        "epsilon": EPSILON if private else None,
        "delta": DELTA,
        **how,
    }
    command = [opacus, str(HERE / "central" / "by_opacus.py"), str(work), str(seed)]
    found = subprocess.run(
        [*command, json.dumps(told)], check=True, stdout=subprocess.PIPE
    )
    said: dict[str, Any] = json.loads(found.stdout)
    return said


def by_processes(owners: int, seed: int, work: Path) -> dict[str, Any]:
    """The demo, whose every part is a process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(HERE / "demo_on_features.py"), str(work), MODEL]
        command += ["--json", "--clients", str(owners)]
        command += ["--seed", str(seed), "--output", str(Path(folder) / "run")]
        found = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    said = json.loads(found.stdout)
    keys = ("accuracy", "accepted", "rejected", "version", "dim")
    return {key: said[key] for key in keys} | {"epsilon": said["epsilon_exact_server"]}


def simulated(data: DataSet, owners: int, seed: int, *, local: bool) -> dict[str, Any]:
    """By `precad.simulate`; with ``local`` each owner adds σR, so that the sum has √n·σR."""
    task = Task.parse(demo_task(data, MODEL, owners))
    whole = DiscreteGaussian(math.sqrt(owners) * task.mechanism.noise_units)

    def of_owners(server: Role, _version: int, dimension: int) -> NDArray[np.int64]:
        return (
            whole.draw(dimension)
            if server is Role.SERVER_A
            else np.zeros(dimension, np.int64)
        )

    torch.set_num_threads(1)
    found = precad.simulate(
        task,
        (data.train_x, data.train_y),
        build(task.model),
        seed=seed,
        test=(data.test_x, data.test_y),
        noise=of_owners if local else None,
    )
    return {"accuracy": found.accuracy, "epsilon": spent(task)}


def spent(task: Task) -> float:
    """A record's exact ε where one party's noise, σR, hides it: a server's, or an owner's own."""
    rounds = task.training.rounds
    run = Run.of(task, rounds=rounds, participations=rounds)
    one, exact = (Adversary.ONE_SERVER,), (AccountantName.EXACT,)
    (statement,) = guarantees(run, task.privacy.delta, one, exact)
    return statement.epsilon


def features(mnist: Path, work: Path) -> DataSet:
    """MNIST's features, from ``work`` if they are there."""
    plain = load("mnist", mnist)
    if not (work / "test_y.npy").is_file():
        made = with_features(plain, FIXED_FEATURES[MODEL])
        for part in _PARTS:
            np.save(work / f"{part}.npy", getattr(made, part))
    found = {part: np.load(work / f"{part}.npy") for part in _PARTS}
    return DataSet(name=plain.name, **found, classes=plain.classes)


if __name__ == "__main__":
    main()
