"""Who moves the model towards a backdoor, and how far: bad clients' updates beside honest ones'.

    PYTHONPATH=. python benchmarks/backdoor_pushes.py [--data DIR] [--only NAME]

Trainings by PRECAD as in Fig. 4, with K bad clients; the models are the same as without
being watched. In some of the rounds for which one was drawn, a sum's *push* is its
component along the step that lowers the loss at what the backdoor aims at, in units of
R. That step is mostly "name everything zero"; what is left of it, at right angles to
that, tells the stamp alone. Without --data the digits are played, with the folder of
MNIST's files that too, by the paper's adversary, by one that learns longer and by one
without a stamp; the rest of results/backdoor_pushes.json stays.
"""

import argparse
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

# Before torch starts its threads.
os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from research.algorithms.learner import Learner, Reals
from research.algorithms.sums import clipped
from research.datasets import DataSet, load
from research.models import MODELS
from research.papers.precad_backdoor import BACKDOOR
from research.papers.precad_common import train
from research.poisoning import ATTACKS, Scene
from research.poisoning.attack import Images, Labels
from research.poisoning.backdoors import TARGET, Backdoor
from research.study import Scale, Settings, Surroundings

from benchmarks.rounds.hardware import hardware

RESULT = Path(__file__).parent / "results" / "backdoor_pushes.json"
HELD_OUT = 3000
"""So many held-out images are measured at most."""
RUNS: Mapping[str, tuple[Scale, Settings, int, int]] = {
    "digits": (Scale.SMALL, {"attackers": 3, "client_clip": 5.0}, 150, 5),
    "MNIST": (Scale.PAPER, {"attackers": 10, "client_clip": 30.0}, 500, 25),
    "MNIST, learning longer": (
        Scale.PAPER,
        {
            "attackers": 10,
            "client_clip": 30.0,
            "attack_options": {"learning_rate": 0.05, "steps": 25, "records": 100},
        },
        800,
        25,
    ),
    # What is left of an attack without a stamp: its clients train longer than others.
    "MNIST, no stamp": (
        Scale.PAPER,
        {
            "attackers": 4,
            "client_clip": 30.0,
            "attack_options": {"learning_rate": 0.02, "steps": 5, "records": 0},
        },
        1500,
        25,
    ),
}
"""Settings beside Fig. 4's, rounds, and how many of the attacked ones lie between two
measured."""


class Sight:
    """What is looked at: held-out images with the stamp, and the same without it."""

    def __init__(self, data: DataSet, model: str) -> None:
        self._learner = Learner(MODELS[model](data))
        kept = slice(None, HELD_OUT)
        others = data.test_y[kept] != TARGET
        self._plain = data.test_x[kept], data.test_y[kept]
        self._goal = Backdoor().goal(*self._plain, data.classes)
        self._zeros = self._plain[0][others], self._goal[1]

    def measure(self, theta: Reals, bad: Reals, honest: Reals) -> dict[str, float]:
        """Accuracies, and what two sums, each ``[d]``, add towards the backdoor."""
        wanted, all_zero = (
            self._step(theta, *self._goal),
            self._step(theta, *self._zeros),
        )
        shared = all_zero / np.linalg.norm(all_zero)
        alone = wanted - (wanted @ shared) * shared
        found = {
            "main": self._learner.accuracy(theta, *self._plain),
            "backdoor": self._learner.accuracy(theta, *self._goal),
            "alike": wanted @ shared / np.linalg.norm(wanted),
        }
        for name, direction in (("push", wanted), ("stamp_alone", alone)):
            unit = direction / np.linalg.norm(direction)
            found |= {f"{name}_bad": bad @ unit, f"{name}_honest": honest @ unit}
        return {name: round(float(value), 4) for name, value in found.items()}

    def _step(self, theta: Reals, x: Images, y: Labels) -> Reals:
        """What lowers the mean loss of naming the images so the fastest."""
        at = torch.tensor(theta, dtype=torch.float32)
        each = torch.full((len(y),), 1 / len(y))
        found = self._learner.gradient(
            at, torch.from_numpy(x), torch.from_numpy(y), each
        )
        return np.asarray(-found.double().numpy())


class Watched(Backdoor):
    """The same backdoor, which tells what it submits.

    Args:
        tell: is handed a round's scene and submitted updates.
        records: a bad client learns from so many of its own and with the stamp once
            more; from all unless given, from all without a stamp if 0.
    """

    def __init__(
        self,
        tell: Callable[[Scene, Reals], None],
        records: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._tell, self._records = tell, records

    def poison(
        self, x: Images, y: Labels, number: int, classes: int
    ) -> tuple[Images, Labels]:
        """As a backdoor does, so many of the records."""
        if self._records == 0:
            return x, y
        some = np.random.default_rng(number).permutation(len(y))[: self._records]
        return super().poison(x[some], y[some], number, classes)

    def submit(self, honest: Reals, scene: Scene) -> Reals:
        """As a backdoor does."""
        submitted = super().submit(honest, scene)
        self._tell(scene, submitted)
        return submitted


def watch(
    scale: Scale, settings: Settings, rounds: int, every: int, folder: Path | None
) -> dict[str, Any]:
    """One training: its settings, what every so many attacked rounds showed, and the medians."""
    whole = {
        **BACKDOOR[scale],
        "algorithm": "precad",
        "noise_multiplier": 1.5,
        "seed": 0,
    }
    whole |= {**settings, "rounds": rounds}
    sight = Sight(load(whole["data"], folder), whole["model"])
    seen: list[dict[str, float]] = []
    attacked = done = 0

    def progress(played: int, _: int) -> None:
        nonlocal done
        done = played

    def tell(scene: Scene, submitted: Reals) -> None:
        nonlocal attacked
        attacked += 1
        if attacked % every == 0:
            bad = clipped(submitted, scene.bound).sum(axis=0) / whole["record_clip"]
            honest = scene.others.sum(axis=0) / whole["record_clip"]
            row = {"round": done + 1, "bad_clients": len(submitted)}
            # Torch warns of an array that can't be written.
            seen.append(row | sight.measure(scene.theta.copy(), bad, honest))
            print(json.dumps(seen[-1]), flush=True)

    options = {**whole["attack_options"], "tell": tell}
    around = Surroundings(data=folder, progress=progress)
    trained = train(
        {**whole, "attack": "watched-backdoor", "attack_options": options}, around
    )
    middle = {name: round(median(row[name] for row in seen), 3) for name in seen[0]}
    return {
        "settings": whole,
        "curve": trained["curve"],
        "median": middle,
        "rounds": seen,
    }


def main() -> None:
    """Play the trainings whose data are there, and keep each as soon as it is played."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument(
        "--data", type=Path, help="folder of MNIST's files; digits alone without"
    )
    parser.add_argument("--out", type=Path, default=RESULT, help="JSON file")
    parser.add_argument("--only", choices=RUNS, help="one of the trainings")
    given = parser.parse_args()
    # Not as the file is loaded: whoever goes through all attacks would meet one that
    # needs `tell`.
    ATTACKS.register("watched-backdoor")(Watched)
    document: dict[str, Any] = {"what": __doc__.split("\n", 1)[0], "trainings": {}}
    if given.out.is_file():
        document = json.loads(given.out.read_text("utf-8"))
    for name, (scale, settings, rounds, every) in RUNS.items():
        if given.only not in (None, name) or (
            scale is Scale.PAPER and given.data is None
        ):
            continue
        print(f"{name}: {rounds} rounds", flush=True)
        found = watch(scale, settings, rounds, every, given.data)
        document["trainings"][name] = {"hardware": hardware(), **found}
        given.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
        print(json.dumps(found["median"]), flush=True)


if __name__ == "__main__":
    main()
