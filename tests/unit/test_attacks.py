"""What bad clients submit really is bad."""

import numpy as np
import pytest

from precad.common import ring
from precad.common.encode.clip import squared_norm
from precad.common.task import Task
from precad.experiments.attacks import Forgery, forged_update
from precad.experiments.data import load
from precad.experiments.defaults import demo_task

TASK = Task.parse(demo_task(load("breast-cancer"), "logistic", 10))
HONEST = np.random.default_rng(2).integers(-(2**15), 2**15, TASK.dimension)


@pytest.mark.parametrize("kind", Forgery)
@pytest.mark.parametrize("honest", [HONEST, np.zeros_like(HONEST)])
def test_every_forgery_is_longer_than_beta(kind: Forgery, honest: ring.RingVector) -> None:
    forged = forged_update(kind, TASK, honest)
    assert forged.shape == honest.shape
    assert forged.dtype == np.int64
    assert squared_norm(forged) > TASK.bound**2


def test_the_wraparound_passes_a_check_that_is_done_in_the_ring() -> None:
    forged = forged_update(Forgery.WRAPAROUND, TASK, HONEST)
    assert ring.dot(forged, forged) <= TASK.bound**2
    assert (forged != 0).all()


def test_the_oversize_keeps_its_direction_and_fits_the_range_test() -> None:
    forged = forged_update(Forgery.OVERSIZE, TASK, HONEST)
    norm = np.sqrt(squared_norm(forged))
    assert norm == pytest.approx(2 * TASK.bound, rel=1e-3)
    cosine = float(forged @ HONEST.astype(float)) / norm / np.sqrt(squared_norm(HONEST))
    assert cosine == pytest.approx(1, abs=1e-6)


def test_garbage_differs_each_time() -> None:
    first, second = (forged_update(Forgery.GARBAGE, TASK, HONEST) for _ in range(2))
    assert (first != second).any()
