"""Laws of the noise over all deviations: the table's, the bound's, and the range's."""

import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.rig.noise_fit import Bins, Tally

from precad.aggregator import noise
from precad.aggregator.noise import COLUMN_BITS, COLUMNS, Blocks, DiscreteGaussian
from precad.common.identifiers import Secret
from precad.common.ring import Keystream

deviations = st.floats(noise.LEAST, noise.LIMIT, exclude_max=True) | st.floats(
    math.log(noise.LEAST), math.log(noise.LIMIT) - 1e-9
).map(math.exp)


@given(deviations)
@example(0.5)
@example(1.9 * 2.0**57)
@settings(max_examples=25)
def test_every_tables_probabilities_are_its_masses(deviation: float) -> None:
    blocks = Blocks.of(deviation)
    picked = [0] * COLUMNS
    for column, other in enumerate(blocks.others.tolist()):
        threshold = int(blocks.thresholds[column])
        assert 0 <= threshold <= 1 << COLUMN_BITS
        picked[column] += threshold
        picked[other] += (1 << COLUMN_BITS) - threshold
    assert tuple(picked) == blocks.masses
    assert sum(picked) == COLUMNS << COLUMN_BITS
    assert (blocks.tightness <= 1).all()
    # Blocks are as wide as they may be, reach far enough, and their integers fit a word.
    assert 1 << blocks.width_bits <= max(1, deviation / 8)
    assert 2 * noise.REACH * max(8, deviation) >= COLUMNS << blocks.width_bits
    assert COLUMNS << blocks.width_bits >= noise.REACH * deviation
    assert 2 * (COLUMNS << blocks.width_bits) <= 2**63


@given(deviations.filter(lambda s: s > 3), st.binary(min_size=32, max_size=32))
@settings(max_examples=25)
def test_noise_of_any_deviation_has_it(deviation: float, key: bytes) -> None:
    sampler = DiscreteGaussian(deviation, lambda: Keystream(Secret(key), "test"))
    drawn = sampler.draw(20_000)
    assert np.abs(drawn).max() < 7 * deviation
    bins, tally = Bins.of(deviation), Tally(deviation)
    tally.add(drawn, bins)
    # Keys are hypothesis's, of which it tries many.
    assert min(tally.p_values(bins).values()) > 1e-9


@pytest.mark.parametrize("deviation", [0.5, 1.0, 3.0])
def test_few_units_are_no_continuous_gaussian(deviation: float) -> None:
    """The deviation of what is drawn is below s where the integers show."""
    drawn = DiscreteGaussian(deviation, lambda: Keystream(Secret(bytes(32)), "test")).draw(10**6)
    values = np.arange(-40, 41)
    mass = np.exp(-0.5 * (values / deviation) ** 2)
    assert np.var(drawn) == pytest.approx(float(values**2 @ mass / mass.sum()), rel=0.01)
