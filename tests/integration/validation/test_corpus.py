"""What must be rejected, and what accepted (docs/soundness.md): by comparisons and by proofs."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.random import Generator as Rng
from tests.integration.validation.conftest import Validate, task_of
from tests.rig.corpus import honest, multiple, too_long, unit, wrapping

from precad.common.errors import Rejection
from precad.common.fixed_point import clip_update, squared_norm
from precad.common.ring import RingVector

pytestmark = pytest.mark.usefixtures("either_kernel")

DIMENSION, TOO_LONG = 64, Rejection.NORM_EXCEEDED
TASK = task_of(DIMENSION)


def of_norm(bound: int, rng: Rng) -> RingVector:
    """Integers whose squares sum to exactly bound²: a random vector, made up greedily."""
    x = np.zeros(DIMENSION, dtype=np.int64)
    direction = rng.standard_normal(DIMENSION - 16)
    x[16:] = np.trunc(direction * (0.99 * bound / np.linalg.norm(direction))).astype(
        np.int64
    )
    for place in range(16):
        x[place] = math.isqrt(bound * bound - squared_norm(x))
    assert squared_norm(x) == bound * bound
    return x


def multiples(rng: Rng) -> list[RingVector]:
    dense = [multiple(DIMENSION, i, rng) for i in range(64)]
    return [
        *dense,
        *(unit(DIMENSION, int(x[0]), at=int(rng.integers(DIMENSION))) for x in dense),
    ]


def small_multiples(rng: Rng) -> list[RingVector]:
    # β = 2^21 − 2^17, so that every power from β's size on is too long.
    signed = [int(rng.choice([-1, 1])) << i for i in range(21, 63)]
    return [unit(DIMENSION, each, at=int(rng.integers(DIMENSION))) for each in signed]


def one_unit_above(rng: Rng) -> list[RingVector]:
    above = of_norm(TASK.mechanism.bound, rng)
    above[np.argmax(np.abs(above))] += np.sign(above[np.argmax(np.abs(above))])
    return [above, *too_long(DIMENSION, TASK.mechanism.bound)]


CORPORA: dict[str, Callable[[Rng], list[RingVector]]] = {
    "wrapping": lambda _: wrapping(DIMENSION),
    "multiples of every power of two": multiples,
    "small multiples of powers of two": small_multiples,
    "one unit above the bound": one_unit_above,
}


@pytest.mark.parametrize("corpus", CORPORA)
def test_what_is_too_long_is_rejected(
    corpus: str, validate: Validate, rng: Rng
) -> None:
    vectors = CORPORA[corpus](rng)
    assert all(squared_norm(x) > TASK.mechanism.bound**2 for x in vectors)
    assert validate(TASK, vectors) == (TOO_LONG,) * len(vectors)


@pytest.mark.parametrize(
    ("clip", "bits"), [(30.0, 16), (30.1, 16), (32.0, 20), (1.0, 10)]
)
def test_norms_up_to_exactly_the_bound_are_accepted(
    clip: float, bits: int, validate: Validate, rng: Rng
) -> None:
    task = task_of(DIMENSION, clip, bits)
    corpus = [unit(DIMENSION, value) for value in (task.mechanism.bound, 0, 1, -1)]
    corpus.append(unit(DIMENSION, -task.mechanism.bound, at=9))
    if task.mechanism.bound > 1000:
        corpus += [
            of_norm(task.mechanism.bound, rng),
            -of_norm(task.mechanism.bound, rng),
        ]
    if clip == 30.1:
        # And whatever honest clients send.
        corpus += [honest(task, rng) for _ in range(300)]
    assert validate(task, corpus) == (None,) * len(corpus)


@pytest.mark.parametrize(
    "dimension", [1, 2, 3, 63, 64, 65, 2047, 2048, 2049, 32_767, 32_769]
)
def test_every_dimension_is_validated_to_its_last_coordinate(
    dimension: int, validate: Validate
) -> None:
    """And a bad update touches no other in its batch."""
    task = task_of(dimension)
    last = {
        x: unit(dimension, x, at=-1)
        for x in (task.mechanism.bound, 2**32, task.mechanism.bound + 1)
    }
    good, bad, long = last.values()
    verdicts = validate(task, [good, bad, good, long, good])
    assert verdicts == (None, TOO_LONG, None, TOO_LONG, None)


def require_right_verdicts(validate: Validate, rng: Rng, times: int) -> None:
    """On random ones, honest ones, powers of two, and norms to the unit around the bound."""
    task = task_of(DIMENSION, 30.1)
    vectors = list(
        rng.integers(-(2**63), 2**63, (40 * times, DIMENSION), dtype=np.int64)
    )
    for _ in range(80 * times):
        total = np.trunc(1e7 * rng.standard_normal(DIMENSION)).astype(np.int64)
        vectors.append(clip_update(total, task.mechanism.bound, task.fractional_bits))
    for _ in range(80 * times):
        x = np.zeros(DIMENSION, dtype=np.int64)
        places = rng.integers(0, DIMENSION, int(rng.integers(1, 5)))
        powers = np.int64(1) << rng.integers(0, 63, len(places))
        x[places] = rng.choice([-1, 1], len(places)) * powers
        vectors.append(x)
    for _ in range(100 * times):
        direction = rng.standard_normal(DIMENSION)
        length = np.linalg.norm(direction)
        direction *= rng.choice([0.9999999, 1.0, 1.0000001]) * task.mechanism.bound
        vectors.append(np.rint(direction / length).astype(np.int64))
    expected = [
        None if squared_norm(x) <= task.mechanism.bound**2 else TOO_LONG
        for x in vectors
    ]
    found: list[Rejection | None] = []
    for start in range(0, len(vectors), 100):
        found += validate(task, vectors[start : start + 100], attempt=start)
    assert found == expected
    assert 80 * times < found.count(None) < 200 * times


def test_updates_of_every_kind_get_the_integers_verdicts(
    validate: Validate, rng: Rng
) -> None:
    """Ten thousand of them under tests/soak."""
    require_right_verdicts(validate, rng, 1)
