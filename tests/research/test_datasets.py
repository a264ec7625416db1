"""The papers' data sets, read from files in their published formats, and features of images."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import research.features.fixed_features  # noqa: F401 -- the settings
from numpy.typing import NDArray
from research.datasets import load
from research.features import public_digits
from research.features import scattering as features
from research.features.oriented_gradients import LENGTH, oriented_gradients
from research.features.scattering import scattering, scattering_features
from scipy.linalg import eigh

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.simulation.datasets import DataSet, demo_task

GENERATED = np.random.default_rng(0).integers(0, 256, (6, 2, 3072), np.uint8)
NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def test_cifar_is_read_from_the_binary_archive(tmp_path: Path) -> None:
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    for i, name in enumerate(NAMES[:-1]):
        records = (bytes([i + k]) + GENERATED[i, k].tobytes() for k in (0, 1))
        (place / f"{name}.bin").write_bytes(b"".join(records))
    for wrong in (b"", bytes(3072), bytes([10]) + bytes(3072)):
        (place / "test_batch.bin").write_bytes(wrong)
        with pytest.raises(Misconfiguration, match=r"test_batch\.bin.*fetch it again"):
            load("cifar10", tmp_path)
    (place / "test_batch.bin").write_bytes(bytes([9]) + GENERATED[5, 0].tobytes())
    data = load("cifar10", tmp_path)
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 1, 1, 2, 2, 3, 3, 4, 4, 5], [9])
    # Red, green and blue planes, each row by row.
    np.testing.assert_array_equal(np.rint(data.test_x[0] * 255).ravel(), GENERATED[5, 0])


def test_an_image_of_one_grey_has_no_features_and_others_have_one_length() -> None:
    images = np.zeros((3, 1, 8, 8), np.float32)
    images[1, 0, 2:5, 3] = 1.0
    images[2, 0, 4, 1:7] = 0.5
    found = oriented_gradients(images)
    assert found.shape == (3, 128)
    assert np.linalg.norm(found, axis=1).tolist() == pytest.approx([0.0, LENGTH, LENGTH], rel=1e-6)
    # A record's features are its own.
    assert (oriented_gradients(images[1:2]) == found[1:2]).all()


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
"""Means over a wave by Kymatio 0.3.0's Scattering2D, J = 2, L = 8; its directions begin one
later."""
SIDE = 8  # Small, for the map that public digits give takes a minute for 28
COEFFICIENTS = 81 * 4


@cache
def of_few_digits() -> list[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(public_digits, "COPIES", 2)
        return list(features._of_public_digits(SIDE))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_few_digits()
    monkeypatch.setattr(features, "_of_public_digits", lambda *_: [each.copy() for each in found])
    monkeypatch.setattr(features, "_maps", {})


def test_coefficients_are_those_of_kymatio() -> None:
    # A wave that fades out around a place.
    down, across = np.mgrid[0:28, 0:28]
    fading = np.exp(-((down - 12) ** 2 + (across - 15) ** 2) / 40)
    image = fading * (1 + np.cos(0.9 * down + 0.5 * across)) / 2
    means = scattering(image.astype(np.float32)[None, None])[0].mean(axis=(1, 2))
    mine = (means[:1], means[1:9], means[9:17], means[17:].reshape(8, 8)[3])
    for found, (name, known) in zip(mine, KYMATIO.items(), strict=True):
        # Averages lie half a cell elsewhere, and what Kymatio leaves out before them differs.
        np.testing.assert_allclose(found, known, rtol=0.06, err_msg=name)


@pytest.mark.usefixtures("quick")
def test_a_records_features_are_its_own() -> None:
    images = np.random.default_rng(5).random((4, 1, SIDE, SIDE), np.float32)
    together = scattering_features(images)
    assert together.shape == (4, COEFFICIENTS)
    for number in range(4):
        alone = scattering_features(images[number : number + 1])
        np.testing.assert_allclose(alone[0], together[number], atol=1e-4 * features.LENGTH)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), features.LENGTH, rtol=1e-5)
    assert np.isfinite(scattering_features(np.zeros((1, 1, SIDE, SIDE), np.float32))).all()


@pytest.mark.usefixtures("quick")
def test_owners_that_compute_apart_get_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever signs, bases of ties and last bits their libraries give them."""
    images = next(public_digits.drawn_digits(SIDE))[0][:50]
    mine = scattering_features(images)
    chance = np.random.default_rng(3)

    def otherwise(covariance: NDArray[np.float64], **how: Any) -> tuple[Any, Any]:
        size = np.abs(covariance).max()
        values, vectors = eigh(covariance + chance.normal(0, 1e-13 * size), **how)
        return values, vectors * chance.choice([-1.0, 1.0], len(values))

    monkeypatch.setattr(features, "eigh", otherwise)
    features._maps.clear()
    theirs = scattering_features(images)
    np.testing.assert_allclose(theirs, mine, atol=1e-4 * features.LENGTH)


@pytest.mark.parametrize("owners", [10, 100, 1000])
def test_the_demos_settings_keep_epsilon_3(owners: int) -> None:
    x, y = np.zeros((60_000, 1000), np.float32), np.zeros(60_000, np.int64)
    data = DataSet("mnist", x, y, x[:1], y[:1], 10)
    task = Task.parse(demo_task(data, "scattering", owners))
    rounds = task.training.rounds
    run = Run.of(task, rounds=rounds, participations=rounds)
    (one,) = guarantees(run, 1e-5, (Adversary.ONE_SERVER,), (AccountantName.EXACT,))
    assert task.privacy.delta == 1e-5
    assert 2.9 < one.epsilon <= 3.0
