"""Laws and verdicts of the first tier for more inputs, and noise against OpenDP's sampler.

What is drawn at random is from a seed that a failure prints.
"""

import secrets

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.integration.validation.conftest import (
    Validate,
    validate_both,
    validate_with_proofs,
)
from tests.integration.validation.test_corpus import require_right_verdicts
from tests.model import release_model
from tests.rig import commands, noise_fit, pages

from precad.aggregator.noise import DiscreteGaussian


@pytest.mark.parametrize("validate", [validate_both, validate_with_proofs])
def test_ten_thousand_updates_get_the_integers_verdicts(validate: Validate) -> None:
    seed = secrets.randbits(32)
    print(f"seed {seed}")  # noqa: T201 -- shown where it fails
    require_right_verdicts(validate, np.random.default_rng(seed), 34)


def test_laws_hold_for_examples_drawn_at_random() -> None:
    """Those of tests/property on other examples than the first tier's, which are the same."""
    seed = secrets.randbits(32)
    options = ["--hypothesis-profile=soak", f"--hypothesis-seed={seed}"]
    done = commands.python(
        "-m", "pytest", "tests/property", "-q", *options, cwd=pages.ROOT
    )
    assert done.returncode == 0, f"seed {seed}\n{done.stdout}"


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "arguments",
    [
        ("--replace", "one"),
        ("--replace", "both", "--attempts", "2", "--sets", "1"),
        ("--mutants",),
    ],
    ids=" ".join,
)
def test_nothing_is_broken_and_every_mutant_is_caught(
    arguments: tuple[str, ...],
) -> None:
    """The release protocol's model with wider bounds, and every mutant of it: `make model`."""
    commands.printed(release_model.__file__, *arguments)


SAMPLES = 40_000
# A right sampler fails once in a billion; one that is 10 % off always (below).
LEAST_P = 1e-9


def same_distribution(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """p of a chi-square test of two samples, in bins in which many of both lie."""
    both, parts = np.concatenate([one, other]), np.linspace(0, 1, 41)[1:-1]
    # Values that were drawn: between a value and one beside it that wasn't there may be
    # nothing.
    edges = np.unique(np.quantile(both, parts, method="inverted_cdf"))
    counts = [
        np.bincount(np.searchsorted(edges, x, side="left"), minlength=edges.size + 1)
        for x in (one, other)
    ]
    return float(stats.chi2_contingency(counts).pvalue)


@pytest.mark.parametrize("deviation", [0.7, 3.3, 20.5, 1024.0, 2.0**20, 2.0**40])
def test_the_sampler_draws_what_opendps_draws(deviation: float) -> None:
    ours, theirs = (
        DiscreteGaussian(deviation).draw(SAMPLES),
        noise_fit.OpenDPGaussian(deviation),
    )
    reference = theirs.draw(SAMPLES)
    assert same_distribution(ours, reference) > LEAST_P
    # Where nothing is lost to whole units, the comparison sees a deviation that is 10 %
    # off.
    if deviation > 10:
        wrong = np.rint(1.1 * ours).astype(np.int64)
        assert same_distribution(wrong, reference) < LEAST_P
    signs = [[(x > 0).sum(), (x < 0).sum()] for x in (ours, reference)]
    assert stats.chi2_contingency(signs).pvalue > LEAST_P
