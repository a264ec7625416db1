"""The sum's way in types: each step takes what the step before it made, and nothing else.

Whoever skips a step is told by mypy, in `make lint`.
"""

from collections.abc import Callable
from dataclasses import is_dataclass
from itertools import permutations
from typing import Any, get_args, get_type_hints

import pytest

from precad.aggregator.release import add_noise, aggregate, countersign, prepare, reconstruct
from precad.aggregator.rounds.states import (
    Counted,
    Finished,
    Matched,
    Noised,
    Opened,
    Prepared,
    Sent,
    Summed,
)
from precad.aggregator.store import Store

STATES = (Opened, Matched, Counted, Summed, Noised, Prepared, Sent, Finished)
WAY: list[tuple[Callable[..., Any], type, type]] = [
    (aggregate, Matched, Summed),
    (add_noise, Summed, Noised),
    (prepare, Noised, Prepared),
    (countersign, Prepared, Sent),
    (reconstruct, Sent, Finished),
]


@pytest.mark.parametrize(("step", "takes", "makes"), WAY, ids=lambda each: each.__name__)
def test_a_step_takes_what_the_last_one_made(
    step: Callable[..., Any], takes: type, makes: type
) -> None:
    # The release names the store for its checker alone: the store is built on rounds.
    hints = get_type_hints(step, localns={"Store": Store})
    assert hints.pop("return") is makes
    given = [each for hint in hints.values() for each in (hint, *get_args(hint))]
    assert [each for each in given if each in STATES] == [takes]
    assert not {Any, object} & set(given)


def test_no_state_passes_for_another() -> None:
    """Neither by inheritance nor by its shape."""
    for one, other in permutations(STATES, 2):
        assert not issubclass(one, other)
    assert all(is_dataclass(each) and each.__mro__ == (each, object) for each in STATES)
