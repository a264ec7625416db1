"""Scattering coefficients: what they are of, whose they are, and an oracle's figures."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.ndimage import zoom
from sklearn.datasets import load_digits

from precad.common.account.accountant import AccountantName
from precad.common.account.guarantees import Adversary, Run, guarantees
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.experiments.data import DataSet
from precad.experiments.data.scattering import LENGTH, scattering, scattering_features
from precad.experiments.defaults import demo_task

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


def test_a_records_features_are_its_own() -> None:
    images = np.random.default_rng(5).random((4, 1, 28, 28), np.float32)
    together = scattering_features(images)
    assert together.shape == (4, 81 * 49)
    for number in range(4):
        assert (scattering_features(images[number : number + 1]) == together[number]).all()
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), LENGTH, rtol=1e-5)
    assert np.isfinite(scattering_features(np.zeros((1, 1, 28, 28), np.float32))).all()


def test_public_digits_are_the_centre_of_the_features() -> None:
    digits = load_digits().images[:300] / 16
    drawn = np.zeros((300, 1, 28, 28), np.float32)
    drawn[:, 0, 4:24, 4:24] = zoom(digits, (1, 2.5, 2.5), order=1)
    features = scattering_features(drawn)
    # No centre at all leaves a mean almost as long as the features themselves.
    assert np.linalg.norm(features.mean(axis=0)) < LENGTH / 4


def test_other_images_are_refused() -> None:
    for wrong in (np.zeros((1, 3, 8, 8)), np.zeros((1, 1, 30, 30)), np.zeros((1, 64))):
        with pytest.raises(Misconfiguration, match="images"):
            scattering(wrong.astype(np.float32))


def test_the_demos_settings_keep_epsilon_3_with_ten_owners_and_more() -> None:
    x = np.zeros((60_000, 3969), np.float32)
    data = DataSet("mnist", x, np.zeros(60_000, np.int64), x[:1], np.zeros(1, np.int64), 10)
    for owners in (10, 100, 1000):
        task = Task.parse(demo_task(data, "scattering", owners))
        rounds = task.training.rounds
        run = Run.of(task, rounds=rounds, participations=rounds)
        one, exact = (Adversary.ONE_SERVER,), (AccountantName.EXACT,)
        (statement,) = guarantees(run, task.privacy.delta, one, exact)
        assert task.privacy.delta == 1e-5
        assert 2.9 < statement.epsilon <= 3.0
