"""Scattering coefficients: what they are of, whose they are, and an oracle's figures."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import research.features.fixed_features  # noqa: F401 -- the settings
from numpy.typing import NDArray
from research.features import public_digits
from research.features import scattering as features
from research.features.public_digits import drawn_digits
from research.features.scattering import LENGTH, scattering, scattering_features
from scipy.linalg import eigh

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.simulation.datasets import DataSet
from precad.simulation.demo_tasks import demo_task

KYMATIO = {
    "order 0": [0.080034],
    "order 1, fine": [
        0.004568, 0.009331, 0.016496, 0.01847, 0.012241, 0.006279, 0.004088, 0.003862,
    ],
    "order 1, coarse": [
        0.008286, 0.010783, 0.028112, 0.035329, 0.016286, 0.008676, 0.008189, 0.008175,
    ],
    "order 2, of the fourth fine": [
        0.001761, 0.001777, 0.002043, 0.00225, 0.001901, 0.001763, 0.001699, 0.001712,
    ],
}  # fmt: skip
"""Means over ``drawn()`` by Kymatio 0.3.0's Scattering2D, J = 2, L = 8; its directions begin one
later."""


SIDE = 8
"""Small, for the map that public digits give takes a minute for 28."""
COEFFICIENTS = 81 * 4


@pytest.fixture(scope="module")
def learned() -> Iterator[None]:
    """What public digits say, of few copies and once for all tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(public_digits, "COPIES", 2)
        found = features._of_public_digits(SIDE)
        patch.setattr(features, "_of_public_digits", lambda *_: [each.copy() for each in found])
        yield


@pytest.fixture
def quick(learned: None) -> Iterator[None]:  # noqa: ARG001 -- a fixture
    """A map of this test's own."""
    features._maps.clear()
    yield
    features._maps.clear()


def drawn() -> NDArray[np.float32]:
    """A wave that fades out around a place, ``[1, 1, 28, 28]``."""
    down, across = np.mgrid[0:28, 0:28]
    fading = np.exp(-((down - 12) ** 2 + (across - 15) ** 2) / 40)
    image = fading * (1 + np.cos(0.9 * down + 0.5 * across)) / 2
    found: NDArray[np.float32] = image.astype(np.float32)[None, None]
    return found


def test_coefficients_are_those_of_kymatio() -> None:
    means = scattering(drawn())[0].mean(axis=(1, 2))
    mine = {
        "order 0": means[:1],
        "order 1, fine": means[1:9],
        "order 1, coarse": means[9:17],
        "order 2, of the fourth fine": means[17:].reshape(8, 8)[3],
    }
    for name, known in KYMATIO.items():
        # Averages lie half a cell elsewhere, and what Kymatio leaves out before them differs.
        np.testing.assert_allclose(mine[name], known, rtol=0.06, err_msg=name)


def test_there_are_as_many_channels_as_paths() -> None:
    images = drawn()
    assert scattering(images).shape == (1, 1 + 16 + 64, 7, 7)
    assert scattering(images, scales=1).shape == (1, 1 + 8, 14, 14)
    assert scattering(images[:, :, :24, :24], 3, 4).shape == (1, 1 + 12 + 48, 3, 3)


def test_an_image_of_one_grey_has_no_edges() -> None:
    found = scattering(np.full((1, 1, 28, 28), 0.7, np.float32))[0]
    np.testing.assert_allclose(found[0], 0.7, rtol=1e-5)
    assert np.abs(found[1:]).max() < 1e-5


@pytest.mark.usefixtures("quick")
def test_a_records_features_are_its_own() -> None:
    images = np.random.default_rng(5).random((4, 1, SIDE, SIDE), np.float32)
    together = scattering_features(images)
    assert together.shape == (4, COEFFICIENTS)
    for number in range(4):
        alone = scattering_features(images[number : number + 1])
        np.testing.assert_allclose(alone[0], together[number], atol=1e-4 * LENGTH)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), LENGTH, rtol=1e-5)
    assert np.isfinite(scattering_features(np.zeros((1, 1, SIDE, SIDE), np.float32))).all()


@pytest.mark.usefixtures("quick")
def test_owners_that_compute_apart_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever signs, bases of ties and last bits their libraries give them."""
    images = next(drawn_digits(SIDE))[0][:50]
    mine = scattering_features(images)
    chance = np.random.default_rng(3)

    def otherwise(covariance: NDArray[np.float64], **how: Any) -> tuple[Any, Any]:
        size = np.abs(covariance).max()
        values, vectors = eigh(covariance + chance.normal(0, 1e-13 * size), **how)
        return values, vectors * chance.choice([-1.0, 1.0], len(values))

    monkeypatch.setattr(features, "eigh", otherwise)
    features._maps.clear()
    theirs = scattering_features(images)
    np.testing.assert_allclose(theirs, mine, atol=1e-4 * LENGTH)


@pytest.mark.usefixtures("quick")
def test_no_more_directions_are_kept_than_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    images = next(drawn_digits(SIDE))[0][:300]
    whole = scattering_features(images)
    monkeypatch.setattr(features, "_DIRECTIONS", 100)
    features._maps.clear()
    few = scattering_features(images)
    assert few.shape == (300, 100)
    # The leading ones: next to nothing of how images lie to each other is lost.
    agreeing = (few @ few.T).ravel() @ (whole @ whole.T).ravel()
    lengths = np.linalg.norm(few @ few.T) * np.linalg.norm(whole @ whole.T)
    assert agreeing > 0.99 * lengths


@pytest.mark.usefixtures("quick")
def test_public_digits_of_a_class_are_whitened() -> None:
    """The covariance within classes to the power -1/4 on each side leaves its square root."""
    mean, whole, within = features._of_public_digits(SIDE)
    public_mean, matrix = features._public_map(SIDE)
    np.testing.assert_allclose(public_mean, mean, rtol=1e-5)
    assert np.trace(within) < 0.9 * np.trace(whole)
    spread = np.linalg.eigvalsh(matrix.T @ within @ matrix)
    plain = np.linalg.eigvalsh(within)
    # From the largest to the hundredth: the factor that is left is about the root of what was.
    was, now = plain[-1] / plain[-100], spread[-1] / spread[-100]
    assert now < 2 * np.sqrt(was)


def test_public_digits_are_drawn_as_mnists_are() -> None:
    (plain, labels), (changed, same) = islice(drawn_digits(28), 2)
    assert plain.shape == (1797, 1, 28, 28)
    assert (plain.min(), plain.max()) == (0, 1)
    assert set(labels.tolist()) == set(range(10))
    # In the middle 20 × 20, but for what the centre of mass moves.
    assert plain[:, :, 4:24, 4:24].sum() > 0.98 * plain.sum()
    places = np.arange(28)
    across = (plain[:, 0].sum(1) @ places) / plain.sum((1, 2, 3))
    down = (plain[:, 0].sum(2) @ places) / plain.sum((1, 2, 3))
    assert np.abs(np.stack([across, down]) - 13.5).mean() < 0.5
    assert (same == labels).all()
    assert np.abs(changed - plain).mean() > 0.01
    again = next(drawn_digits(28))[0]
    assert (again == plain).all()


def test_other_images_are_refused() -> None:
    for wrong in (np.zeros((1, 3, 8, 8)), np.zeros((1, 1, 30, 30)), np.zeros((1, 64))):
        with pytest.raises(Misconfiguration, match="images"):
            scattering(wrong.astype(np.float32))
        with pytest.raises(Misconfiguration, match="images"):
            scattering_features(wrong.astype(np.float32))


def test_the_demos_settings_keep_epsilon_3_with_ten_owners_and_more() -> None:
    x = np.zeros((60_000, 1000), np.float32)
    data = DataSet("mnist", x, np.zeros(60_000, np.int64), x[:1], np.zeros(1, np.int64), 10)
    for owners in (10, 100, 1000):
        task = Task.parse(demo_task(data, "scattering", owners))
        rounds = task.training.rounds
        run = Run.of(task, rounds=rounds, participations=rounds)
        one, exact = (Adversary.ONE_SERVER,), (AccountantName.EXACT,)
        (statement,) = guarantees(run, task.privacy.delta, one, exact)
        assert task.privacy.delta == 1e-5
        assert 2.9 < statement.epsilon <= 3.0
