"""Poisson sampling of records."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from precad.client.gradients.local_update import poisson_sample
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Secret
from precad.common.ring import Keystream
from precad.common.roster import most_records


def stream(context: int = 0) -> Keystream:
    return Keystream(Secret(bytes(32)), "test-sample", context)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.97])
def test_every_record_is_drawn_at_the_rate_and_independently(rate: float) -> None:
    count, draws = 400, 500
    hits = np.zeros((draws, count))
    for draw in range(draws):
        hits[draw, poisson_sample(count, rate, stream(draw))] = 1
    # Sample sizes are binomial: mean and variance within 5 standard errors.
    sizes = hits.sum(axis=1)
    variance = count * rate * (1 - rate)
    assert abs(sizes.mean() - count * rate) < 5 * math.sqrt(variance / draws)
    assert abs(sizes.var() / variance - 1) < 5 * math.sqrt(2.2 / draws)
    # No record is favoured: chi-square with `count` degrees of freedom, 5 standard deviations.
    chi = (((hits.sum(axis=0) - draws * rate) ** 2) / (draws * rate * (1 - rate))).sum()
    assert abs(chi - count) < 5 * math.sqrt(2 * count + count / (draws * rate * (1 - rate)))


def test_a_record_is_drawn_exactly_below_the_threshold() -> None:
    assert poisson_sample(1000, 1.0, stream()).tolist() == list(range(1000))
    assert poisson_sample(1000, 5e-324, stream()).size == 0
    words = stream().words(1000).view(np.uint64)
    for position in (0, 123, 999):
        # Rates are float64: the nearest ones around this record's word.
        word = int(words[position])
        rate = math.nextafter(word / 2**64, 1.0)
        assert position in poisson_sample(1000, rate, stream())
        below = math.nextafter(word / 2**64, 0.0)
        assert position not in poisson_sample(1000, below, stream())


def test_indices_go_on_over_blocks_of_words() -> None:
    count = (1 << 16) + 1000
    words = stream().words(count).view(np.uint64)
    expected = np.flatnonzero(words < np.uint64(2**62))
    drawn = poisson_sample(count, 0.25, stream())
    assert drawn.dtype == np.int64
    assert drawn.tolist() == expected.tolist()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan])
def test_a_rate_outside_the_unit_interval_is_refused(rate: float) -> None:
    with pytest.raises(Misconfiguration, match="record_rate"):
        poisson_sample(10, rate, stream())
    with pytest.raises(Misconfiguration, match="record_rate"):
        most_records(10, rate)


@pytest.mark.parametrize(
    ("count", "rate"), [(1, 0.5), (40, 0.5), (41, 0.5), (100, 0.01), (143, 0.2), (500, 0.97)]
)
def test_the_padded_size_is_the_least_that_samples_pass_below_2_to_the_minus_40(
    count: int, rate: float
) -> None:
    p = Fraction(rate)
    masses = [math.comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(count + 1)]
    most = most_records(count, rate)
    limit = Fraction(1, 2**40)
    assert sum(masses[most + 1 :]) < limit
    assert most == 0 or sum(masses[most:]) >= limit


@pytest.mark.parametrize(("count", "rate"), [(6000, 0.05), (10**6, 0.001), (10**5, 1e-7)])
def test_the_padded_size_of_many_records_against_40_digits(count: int, rate: float) -> None:
    most = most_records(count, rate)
    with mpmath.workdps(40):
        p = mpmath.mpf(rate)

        def mass(k: int) -> mpmath.mpf:
            return mpmath.binomial(count, k) * p**k * (1 - p) ** (count - k)

        tail = mpmath.fsum(mass(k) for k in range(most + 1, most + 400))
        assert tail < mpmath.mpf(2) ** -40
        assert tail + mass(most) >= mpmath.mpf(2) ** -40
