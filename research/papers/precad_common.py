"""What PRECAD's experiments share: data, partition, model, one training, what is measured."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from precad.simulation.datasets import shards
from research.algorithms import ALGORITHMS, Problem, Trained
from research.algorithms.learner import Learner, Reals
from research.algorithms.start import model_and_section
from research.datasets import load
from research.defences import DEFENCES
from research.poisoning import ATTACKS
from research.study import Scale, Settings, Surroundings

SHARDS_PER_CLIENT = 4
POINTS = 20
"""Of an accuracy curve."""
PUBLISHED_EPSILON = {1.0: 6.8, 1.5: 3.5, 2.0: 2.4}
"""PRECAD Sec. 6.2: ε by σ after 25 epochs, by the central limit theorem."""

SETTINGS: Mapping[Scale, Settings] = {
    Scale.SMALL: {
        "data": "digits",
        "model": "mlp",
        "clients": 30,
        "rounds": 150,
        "learning_rate": 2.0,
        "record_clip": 1.0,
        "client_clip": None,
        "record_rate": 0.2,
        "client_rate": 0.5,
        "delta": 1e-5,
        "attack": "none",
        "attackers": 0,
    },
    Scale.PAPER: {
        "data": "mnist",
        "model": "opacus-cnn",
        "clients": 100,
        "rounds": 5000,
        "learning_rate": 0.1,
        "record_clip": 2.0,
        "client_clip": None,
        "record_rate": 0.05,
        "client_rate": 0.1,
        "delta": 1e-5,
        "attack": "none",
        "attackers": 0,
    },
}
"""The paper's (Sec. 6.1, Appendix E), and smaller ones for scikit-learn's digits."""


def train(settings: Settings, around: Surroundings) -> dict[str, Any]:
    """One training by ``settings["algorithm"]``; accuracies of main and backdoor task, and ε."""
    data = load(settings["data"], around.data)
    parts = shards(
        data.train_y,
        clients=settings["clients"],
        shards_per_client=SHARDS_PER_CLIENT,
        seed=settings["seed"],
    )
    attack = ATTACKS[settings["attack"]](**settings.get("attack_options", {}))
    notes: dict[str, Any] = {} if around.checkpoint is None else around.checkpoint.notes
    points = {round(at) for at in np.linspace(0, settings["rounds"], POINTS + 1)[1:]}
    goal = attack.goal(data.test_x, data.test_y, data.classes)

    def watch(done: int, theta: Reals) -> None:
        around.progress(done, settings["rounds"])
        if done in points:
            wanted = None if goal is None else learner.accuracy(theta, *goal)
            main = learner.accuracy(theta, data.test_x, data.test_y)
            point = [done, round(main, 4), None if wanted is None else round(wanted, 4)]
            notes.setdefault("curve", []).append(point)

    problem = Problem(
        data=data,
        shares=parts,
        model=settings["model"],
        seed=settings["seed"],
        attack=attack,
        attackers=settings["attackers"],
        defence=DEFENCES[settings["defence"]] if settings.get("defence") else None,
        watch=watch,
        checkpoint=around.checkpoint,
    )
    learner = Learner(model_and_section(problem)[0])
    trained: Trained = ALGORITHMS[settings["algorithm"]](problem, settings)
    curve = notes["curve"]
    return {
        "accuracy": curve[-1][1],
        "backdoor": curve[-1][2],
        "epsilon": {name: round(value, 4) for name, value in trained.epsilon.items()},
        "curve": curve,
    }


def mean(values: list[float]) -> float:
    """Of what several seeds gave."""
    return float(np.mean(values))


def percent(values: list[float]) -> str:
    """Their mean and, for several, their spread."""
    if not values:
        return "–"
    spread = f" ± {100 * float(np.std(values)):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread} %"


_COLOURS = {
    "non-private": "black",
    "precad": "tab:blue",
    "central-dp": "tab:green",
    "distributed-dp": "tab:purple",
    "local-dp": "tab:red",
    "few": "tab:blue",
    "many": "tab:orange",
}
_STYLES = {1.0: "-", 1.5: "--", 2.0: ":"}
_MARKS = {1.0: "^", 1.5: "o", 2.0: "s"}
"""A line of a single point shows no dashes."""


def lines_with_spread(
    axes: Any,
    points: Mapping[Any, list[float]],
    label: str,
    algorithm: str,
    sigma: float,
) -> None:
    """Means, joined, and the least and largest value at each; one colour an algorithm."""
    places = list(points)
    centre = [mean(points[place]) for place in places]
    below = [c - min(points[place]) for c, place in zip(centre, places, strict=True)]
    above = [max(points[place]) - c for c, place in zip(centre, places, strict=True)]
    axes.errorbar(
        places,
        centre,
        yerr=(below, above),
        label=label,
        color=_COLOURS.get(algorithm, "tab:orange"),
        linestyle=_STYLES.get(sigma, "-"),
        marker=_MARKS.get(sigma, "o"),
        markersize=4,
        capsize=3,
    )
