"""What the sampler draws, with the system's randomness, is what OpenDP's exact one draws."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.rig.noise_fit import OpenDPGaussian

from precad.aggregator.noise import DiscreteGaussian

SAMPLES = 40_000
# A right sampler fails once in a billion; one that is 10 % off always (below).
LEAST_P = 1e-9


def same_distribution(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """p of a chi-square test of two samples, in bins in which many of both lie."""
    both, parts = np.concatenate([one, other]), np.linspace(0, 1, 41)[1:-1]
    # Values that were drawn: between a value and one beside it that wasn't there may be nothing.
    edges = np.unique(np.quantile(both, parts, method="inverted_cdf"))
    counts = [
        np.bincount(np.searchsorted(edges, x, side="left"), minlength=edges.size + 1)
        for x in (one, other)
    ]
    return float(stats.chi2_contingency(counts).pvalue)


@pytest.mark.parametrize("deviation", [0.7, 3.3, 20.5, 1024.0, 2.0**20, 2.0**40])
def test_the_sampler_draws_what_opendps_draws(deviation: float) -> None:
    ours, theirs = DiscreteGaussian(deviation).draw(SAMPLES), OpenDPGaussian(deviation)
    reference = theirs.draw(SAMPLES)
    assert same_distribution(ours, reference) > LEAST_P
    # Where nothing is lost to whole units, the comparison sees a deviation that is 10 % off.
    if deviation > 10:
        wrong = np.rint(1.1 * ours).astype(np.int64)
        assert same_distribution(wrong, reference) < LEAST_P
    signs = [[(x > 0).sum(), (x < 0).sum()] for x in (ours, reference)]
    assert stats.chi2_contingency(signs).pvalue > LEAST_P
