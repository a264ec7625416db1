"""What PRECAD's Fig.

4 and 5 share: the attack's settings, tables and curves of two accuracies.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from research.papers.precad_common import SETTINGS, lines_with_spread, percent
from research.study import Result, Scale, Settings

BACKDOOR: Mapping[Scale, Settings] = {
    Scale.SMALL: {
        **SETTINGS[Scale.SMALL],
        "attack": "pixel-backdoor",
        # In the ratio to η that the paper's 0.02 has to its 0.1.
        "attack_options": {"learning_rate": 0.4, "steps": 5},
    },
    Scale.PAPER: {
        **SETTINGS[Scale.PAPER],
        "attack": "pixel-backdoor",
        "attack_options": {"learning_rate": 0.02, "steps": 5},
    },
}

Arm = Callable[[Result], tuple[str, str, float]]
"""A result's label, algorithm and σ: what makes a line."""


def by_arm(
    results: Sequence[Result], arm: Arm, place: str
) -> dict[tuple[str, str, float], dict[Any, list[Result]]]:
    """Results of all seeds by line and by the place on the x axis, by σ and in order."""
    found: dict[tuple[str, str, float], dict[Any, list[Result]]] = {}
    for result in results:
        group = found.setdefault(arm(result), {})
        group.setdefault(result.settings[place], []).append(result)
    algorithms = list(dict.fromkeys(algorithm for _, algorithm, _ in found))
    lines = sorted(found, key=lambda line: (algorithms.index(line[1]), line[2]))
    return {line: dict(sorted(found[line].items())) for line in lines}


def cells_of(
    group: Mapping[Any, list[Result]], places: Sequence[Any], what: str
) -> list[str]:
    """A row's measured cells."""
    return [percent([r.values[what] for r in group.get(place, [])]) for place in places]


def plot_both(
    results: Sequence[Result], figure: Any, arm: Arm, place: str, label: str
) -> None:
    """Main task on the left, backdoor on the right; by round where one place alone was attacked."""
    left, right = figure.subplots(1, 2, sharey=True)
    places = {
        result.settings[place] for result in results if result.settings["attackers"]
    }
    only = places.pop() if len(places) == 1 else None
    if only is not None:
        label = f"round; {label.partition(',')[0]} = {only}"
    for axes, what, title in (
        (left, "accuracy", "main task"),
        (right, "backdoor", "backdoor: lower is more robust"),
    ):
        for (name, algorithm, sigma), group in by_arm(results, arm, place).items():
            if only is not None:
                points = _by_round(group.get(only, []), 1 if what == "accuracy" else 2)
            else:
                points = {
                    at: [r.values[what] for r in some] for at, some in group.items()
                }
            lines_with_spread(axes, points, name, algorithm, sigma)
        axes.set_title(title)
        axes.set_xlabel(label)
        axes.set_ylim(-0.02, 1.02)
        axes.grid(alpha=0.3)
    left.set_ylabel("accuracy")
    right.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize="small")


def _by_round(results: Sequence[Result], column: int) -> dict[Any, list[float]]:
    """All seeds' accuracies by the round; a curve has (round, main task, backdoor)."""
    points: dict[Any, list[float]] = {}
    for result in results:
        for measured in result.values["curve"]:
            points.setdefault(measured[0], []).append(measured[column])
    return points
