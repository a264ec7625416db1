"""The noise that a round releases has the distribution that privacy is claimed for."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats
from tests.rig.keys import seals, signer, verifier
from tests.rig.opendp_noise import OpenDPGaussian

from precad.common.aggregator.round.run_round import run_round
from precad.common.aggregator.store import open_store
from precad.common.enrolment import Enrolment, Roster
from precad.common.identifiers import ClientId, Role
from precad.common.noise import DiscreteGaussian
from precad.common.task import Task

SAMPLES = 40_000
BINS = 20
# A right sampler fails once in a million; σ wrong by 5 % always (below).
LEAST_P = 1e-6
A, B = Role.SERVER_A, Role.SERVER_B


class Off:
    def draw(self, dimension: int) -> NDArray[np.int64]:
        return np.zeros(dimension, dtype=np.int64)


def fit(residual: NDArray[np.int64], deviation: float) -> float:
    """p of a chi-square test against a Gaussian, in bins of equal probability."""
    edges = deviation * stats.norm.ppf(np.linspace(0, 1, BINS + 1))
    observed, _ = np.histogram(residual, edges)
    assert observed.sum() == residual.size
    return float(stats.chisquare(observed).pvalue)


def fits_only(residual: NDArray[np.int64], deviation: float) -> None:
    assert fit(residual, deviation) > LEAST_P
    # The test can fail: on a deviation that is 5 % off, and on a mean that is.
    for wrong in (0.95, 1.05):
        assert fit(residual, wrong * deviation) < LEAST_P
    assert fit(residual + round(0.1 * deviation), deviation) < LEAST_P
    # The tails are there too: a sampler that cuts them would pass the bins.
    largest = np.abs(residual).max() / deviation
    assert 3.3 < largest < 7
    # And coordinates are independent of their neighbours.
    correlation = np.corrcoef(residual[:-1], residual[1:])[0, 1]
    assert abs(correlation) < 5 / math.sqrt(residual.size)


@pytest.fixture(scope="module")
def task(make_task: Callable[..., Task]) -> Task:
    return make_task(SAMPLES)


@pytest.mark.parametrize("noisy", [{A}, {B}, {A, B}], ids=["a", "b", "both"])
def test_the_residual_of_a_round_is_gaussian_at_the_stated_deviation(
    task: Task, noisy: set[Role]
) -> None:
    """Each server's part has σ·R'·2^f, R' with the rounding in it; both together √2 of that."""
    random = np.random.default_rng(8)
    names = [ClientId("a"), ClientId("b")]
    updates = {
        name: random.integers(-(2**15), 2**15, task.dimension, dtype=np.int64) for name in names
    }
    roster = Roster({name: Enrolment(name, 100, 0.1) for name in names})

    def noise(role: Role) -> Any:
        return DiscreteGaussian(task.noise_units) if role in noisy else Off()

    finished, _ = run_round(
        task,
        roster,
        np.zeros(task.dimension),
        updates,
        journal=partial(open_store, "sqlite://", task),
        signers={name: signer(name) for name in names},
        verifier=verifier(),
        seals=partial(seals, task.digest),
        noise=noise,
    )
    assert finished.valid == tuple(names)
    residual = finished.noisy_sum - sum(updates.values())
    clip = task.privacy.client_clip
    stated = 2.0 * (1.0 + math.sqrt(task.dimension) * 2.0**-20 + clip * 2.0**-18) * 2**20
    assert task.noise_units == pytest.approx(stated, rel=1e-12)
    fits_only(residual, stated * math.sqrt(len(noisy)))


def test_a_round_draws_the_tasks_noise_unless_told_otherwise(task: Task) -> None:
    roster = Roster({ClientId("a"): Enrolment(ClientId("a"), 100, 0.1)})
    journal = partial(open_store, "sqlite://", task)
    theta = np.zeros(task.dimension)
    given: Any = {"signers": {}, "verifier": verifier(), "seals": partial(seals, task.digest)}
    finished, _ = run_round(task, roster, theta, {}, journal=journal, **given)
    assert fit(finished.noisy_sum, math.sqrt(2) * task.noise_units) > LEAST_P


@pytest.mark.parametrize("deviation", [0.7, 3.3, 20.5])
def test_the_sampler_is_the_discrete_gaussian(deviation: float) -> None:
    """At a scale where the integers show: P[z] ∝ exp(−z²/2s²), not a rounded Gaussian."""
    drawn = DiscreteGaussian(deviation).draw(SAMPLES)
    support = np.arange(-math.ceil(12 * deviation), math.ceil(12 * deviation) + 1)
    mass = np.exp(-(support.astype(float) ** 2) / (2 * deviation**2))
    expected = SAMPLES * mass / mass.sum()
    observed = np.bincount(drawn - support[0], minlength=support.size)
    assert observed.sum() == SAMPLES
    common = expected > 10
    kept = np.append(observed[common], observed[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    if wanted[-1] < 10:
        kept, wanted = kept[:-1], wanted[:-1] * kept[:-1].sum() / wanted[:-1].sum()
    assert stats.chisquare(kept, wanted).pvalue > LEAST_P


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


def test_a_rounded_gaussian_is_told_apart() -> None:
    """The control of the test above, at its smallest scale."""
    deviation = 0.7
    rounded = np.round(np.random.default_rng(9).normal(0, deviation, SAMPLES)).astype(np.int64)
    support = np.arange(-2, 3)
    mass = np.exp(-(support.astype(float) ** 2) / (2 * deviation**2))
    observed = np.array([(rounded == z).sum() for z in support])
    expected = observed.sum() * mass / mass.sum()
    assert stats.chisquare(observed, expected).pvalue < LEAST_P


def test_noise_is_not_of_numpys_or_torchs_generators() -> None:
    draws = []
    for _ in range(2):
        np.random.seed(0)  # noqa: NPY002 - the global generator is what must not matter
        import torch  # noqa: PLC0415

        torch.manual_seed(0)
        draws.append(DiscreteGaussian(1e6).draw(8).tolist())
    assert draws[0] != draws[1]
