"""A cell of the papers' experiments that is broken off goes on to the same values.

Killed in a process of its own: tests/soak/test_experiment_killed.py.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from research.checkpoint import Checkpoint
from research.papers import liu_fig1, liu_votes, precad_check
from research.papers.precad_backdoor import BACKDOOR
from research.papers.precad_common import train
from research.study import Scale, Surroundings

TRAINING = {
    **BACKDOOR[Scale.SMALL],
    "rounds": 20,
    "noise_multiplier": 1.0,
    "client_clip": 5.0,
    "attackers": 3,
    "seed": 2,
}
CHECK = {**TRAINING, "algorithm": "precad", "check": "published"}
VOTES = {**liu_fig1.SETTINGS[Scale.SMALL], "models": 12, "steps": 40, "seed": 1, "tested": 50}
CELLS: dict[str, tuple[Callable[..., Mapping[str, Any]], dict[str, Any], int]] = {
    "precad": (train, {**TRAINING, "algorithm": "precad"}, 15),
    "local-dp": (train, {**TRAINING, "algorithm": "local-dp"}, 15),
    "non-private": (train, {**TRAINING, "algorithm": "non-private"}, 15),
    "check": (precad_check.measure, CHECK, 15),
    "dp": (liu_votes.measure, {**VOTES, "arm": "dp", "noise_multiplier": 1.0}, 27),
    "bagging": (
        liu_votes.measure,
        {**VOTES, "arm": "bagging", "bag": 2000, "plain_steps": 20},
        220,
    ),
}
"""What measures, the settings, and after which of its steps it is broken off."""


@pytest.mark.parametrize("name", CELLS)
def test_a_cell_that_is_broken_off_goes_on_to_the_same_values(tmp_path: Path, name: str) -> None:
    measure, settings, stops = CELLS[name]
    told: list[int] = []

    def stop(done: int, _all: int) -> None:
        if done == stops:
            raise KeyboardInterrupt

    def progress(done: int, _all: int) -> None:
        told.append(done)

    def around(told: Callable[[int, int], object]) -> Surroundings:
        return Surroundings(progress=told, checkpoint=Checkpoint(tmp_path / "cell.npz"))

    whole = measure(settings, Surroundings())
    with pytest.raises(KeyboardInterrupt):
        measure(settings, around(stop))
    assert measure(settings, around(progress)) == whole
    assert 1 < told[0] <= stops
