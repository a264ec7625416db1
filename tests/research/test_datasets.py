"""The papers' data sets, read from files in their published formats, and features of
images."""

import csv
import gzip
import hashlib
import pickle
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from examples.demo.demo_task import demo_task
from numpy.typing import NDArray
from PIL import Image
from research.datasets import load
from research.datasets.cifar10 import torchvision_datasets
from research.datasets.cifar_jpeg import CLASSES, cifar10_jpeg
from research.datasets.tweets import (
    DIMENSIONS,
    GLOVE_FILE,
    TEST_FILE,
    TRAIN_FILE,
    sentiment140,
)
from research.features import public_digits
from research.features import scattering as features
from research.features.fixed_features import Rule  # with its settings
from research.features.oriented_gradients import LENGTH, oriented_gradients
from research.features.scattering import scattering, scattering_features
from scipy.linalg import eigh

from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.simulation.datasets import DataSet

GENERATED = np.random.default_rng(0).integers(0, 256, (6, 2, 3072), np.uint8)
NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def test_cifar_is_read_from_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "cifar-10-batches-py"
    place.mkdir()
    contents = {
        name: pickle.dumps({"data": pixels, "labels": [i, 9]}, protocol=2)
        for i, (name, pixels) in enumerate(zip(NAMES, GENERATED, strict=True))
    }
    names = {"label_names": [str(i) for i in range(10)]}
    contents["batches.meta"] = pickle.dumps(names, protocol=2)
    for name, content in contents.items():
        (place / name).write_bytes(content)
    # These few images can't have the published sums: without the patch they are
    # refused.
    with pytest.raises(Misconfiguration, match="can't be read"):
        load("cifar10", tmp_path)
    sums = [
        [name, hashlib.md5(content).hexdigest()] for name, content in contents.items()
    ]
    reader = torchvision_datasets().CIFAR10
    monkeypatch.setattr(reader, "train_list", sums[:5])
    monkeypatch.setattr(reader, "test_list", sums[5:6])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": sums[6][1]})
    data = load("cifar10", tmp_path)
    assert (data.train_x.shape, data.test_y.tolist()) == ((10, 3, 32, 32), [5, 9])
    np.testing.assert_array_equal(
        np.rint(data.test_x * 255), GENERATED[5].reshape(2, 3, 32, 32)
    )


def test_cifar_is_read_from_the_binary_archive(tmp_path: Path) -> None:
    place = tmp_path / "cifar-10-batches-bin"
    place.mkdir()
    for i, name in enumerate(NAMES[:-1]):
        records = (bytes([i + k]) + GENERATED[i, k].tobytes() for k in (0, 1))
        (place / f"{name}.bin").write_bytes(b"".join(records))
    with pytest.raises(Misconfiguration, match=r"lacks test_batch\.bin"):
        load("cifar10", tmp_path)
    for wrong in (b"", bytes(3072), bytes([10]) + bytes(3072)):
        (place / "test_batch.bin").write_bytes(wrong)
        with pytest.raises(Misconfiguration, match=r"test_batch\.bin.*fetch it again"):
            load("cifar10", tmp_path)
    (place / "test_batch.bin").write_bytes(bytes([9]) + GENERATED[5, 0].tobytes())
    data = load("cifar10", tmp_path)
    assert (data.train_y.tolist(), data.test_y.tolist()) == (
        [0, 1, 1, 2, 2, 3, 3, 4, 4, 5],
        [9],
    )
    # Red, green and blue planes, each row by row.
    np.testing.assert_array_equal(
        np.rint(data.test_x[0] * 255).ravel(), GENERATED[5, 0]
    )


def test_cifar_is_read_from_jpegs(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in CLASSES:
            folder = tmp_path / "cifar10-jpeg" / part / name
            folder.mkdir(parents=True)
            red = CLASSES.index(name) * 25
            Image.new("RGB", (32, 32), (red, 0, 200)).save(
                folder / "0001.jpg", quality=95
            )
    data = load("cifar10-jpeg", tmp_path)
    assert (data.train_x.shape, data.test_y.tolist()) == (
        (10, 3, 32, 32),
        list(range(10)),
    )
    red, green = data.train_x[8, :2] * 255
    assert max(np.abs(red - 200).max(), np.abs(green).max()) < 5
    pair = cifar10_jpeg(tmp_path, (0, 2))
    assert pair.train_y.tolist() == [0, 2]
    np.testing.assert_array_equal(pair.train_x, data.train_x[[0, 2]])
    wrong = tmp_path / "cifar10-jpeg" / "test" / "dog" / "0002.jpg"
    Image.new("RGB", (33, 32)).save(wrong)
    with pytest.raises(Misconfiguration, match=r"0002\.jpg.*32×32"):
        load("cifar10-jpeg", tmp_path)
    wrong.write_bytes(b"no image")
    with pytest.raises(Misconfiguration, match=r"0002\.jpg"):
        load("cifar10-jpeg", tmp_path)


def test_movie_sentences_are_hashed_or_numbered(tmp_path: Path) -> None:
    good = "a good , good film .\n" * 5
    (tmp_path / "rt-polarity.pos").write_text(good, "latin-1")
    (tmp_path / "rt-polarity.neg.gz").write_bytes(gzip.compress(b"caf\xe9 bad\n" * 5))
    hashed, numbered = load("movie-sentences", tmp_path), load("movie-words", tmp_path)
    assert len(hashed.train_y) + len(hashed.test_y) == 10
    assert (hashed.train_y == numbered.train_y).all()
    np.testing.assert_allclose(np.linalg.norm(hashed.train_x, axis=1), 1, rtol=1e-6)
    row = numbered.train_x[numbered.train_y == 1][0]
    assert row[1] == row[2] > 0
    assert (row[4:] == 0).all()
    assert numbered.train_x.max() < 1024
    (tmp_path / "rt-polarity.neg.gz").write_bytes(b"\x1f\x8b cut short")
    with pytest.raises(Misconfiguration, match="can't be read"):
        load("movie-words", tmp_path)


def write_tweets(path: Path, *rows: tuple[int, str]) -> None:
    with path.open("w", encoding="latin-1", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        for number, (mood, text) in enumerate(rows):
            writer.writerow([mood, number, "Mon Apr 06", "NO_QUERY", "someone", text])


def test_tweets_by_account_have_their_words_vectors(tmp_path: Path) -> None:
    write_tweets(tmp_path / TRAIN_FILE, (0, "sad Day"), (4, "good xyzzy"))
    write_tweets(tmp_path / TEST_FILE, (4, "day"))
    lines = [
        " ".join([word, *["0.5"] * DIMENSIONS]) for word in ("day", "good", "other")
    ]
    (tmp_path / GLOVE_FILE).write_text("\n".join(lines) + "\n", "utf-8")
    data = load("sentiment140-glove", tmp_path)
    assert data.owners is not None
    assert (data.train_x.shape, data.owners.tolist()) == ((2, 25, DIMENSIONS), [0, 0])
    assert data.train_x[:, :3, 0].tolist() == [[0, 0.5, 0], [0.5, 0, 0]]
    assert data.test_x[0, 0, 0] == 0.5
    (tmp_path / GLOVE_FILE).write_text("day 0.5\n", "utf-8")
    with pytest.raises(Misconfiguration, match=r"line 1.*300 numbers"):
        load("sentiment140-glove", tmp_path)


def test_tweets_are_hashed_and_neutral_ones_left_out(tmp_path: Path) -> None:
    good = (4, "good day")
    write_tweets(tmp_path / TRAIN_FILE, (0, 'café, "sad" day'), good, good)
    write_tweets(tmp_path / TEST_FILE, (2, "a table"), good, (0, "day good"))
    data = load("sentiment140", tmp_path)
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 1, 1], [1, 0])
    assert data.train_x.shape == (3, 1024)
    np.testing.assert_allclose(np.linalg.norm(data.train_x, axis=1), 1, rtol=1e-6)
    same = [(data.train_x[row] == data.test_x).all(axis=1).tolist() for row in (1, 0)]
    assert same == [[True, True], [False, False]]
    assert len(sentiment140(tmp_path, train_records=2, features=16).train_y) == 2
    # Those in another form are refused.
    write_tweets(tmp_path / TRAIN_FILE, (2, "neither"))
    with pytest.raises(Misconfiguration, match="no positive or negative"):
        load("sentiment140", tmp_path)
    (tmp_path / TRAIN_FILE).write_text("text,label\nhello,1\n")
    with pytest.raises(Misconfiguration, match=r"record 1.*six columns"):
        load("sentiment140", tmp_path)


@pytest.mark.parametrize(
    ("name", "file", "published"),
    [
        ("mnist", "t10k-labels-idx1-ubyte", "LeCun"),
        ("fashion-mnist", "train-images-idx3-ubyte", "Zalando Research"),
        ("cifar10", "data_batch_4", "University of Toronto"),
        ("cifar10-jpeg", "train/airplane", "Krizhevsky"),
        ("sentiment140", TEST_FILE, "trainingandtestdata.zip"),
        ("sentiment140-glove", GLOVE_FILE, "glove.6B.zip"),
        ("movie-sentences", "rt-polarity.neg", "Pang and Lee"),
        ("movie-words", "rt-polarity.neg", "Pang and Lee"),
    ],
)
def test_missing_files_and_publishers_are_named(
    tmp_path: Path, name: str, file: str, published: str
) -> None:
    with pytest.raises(Misconfiguration, match=file) as refused:
        load(name, tmp_path)
    assert published in str(refused.value)
    with pytest.raises(Misconfiguration, match="nothing is downloaded"):
        load(name)


def test_an_image_of_one_grey_has_no_features_and_others_have_one_length() -> None:
    images = np.zeros((3, 1, 8, 8), np.float32)
    images[1, 0, 2:5, 3] = 1.0
    images[2, 0, 4, 1:7] = 0.5
    found = oriented_gradients(images)
    assert found.shape == (3, 128)
    assert np.linalg.norm(found, axis=1).tolist() == pytest.approx(
        [0.0, LENGTH, LENGTH], rel=1e-6
    )
    # A record's features are its own.
    assert (oriented_gradients(images[1:2]) == found[1:2]).all()


@pytest.mark.parametrize("read", [oriented_gradients, scattering, scattering_features])
def test_other_images_are_refused(read: Rule) -> None:
    for wrong in (np.zeros((1, 3, 8, 8)), np.zeros((1, 1, 30, 30)), np.zeros((1, 64))):
        with pytest.raises(Misconfiguration, match="images"):
            read(wrong.astype(np.float32))


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
"""Means over a wave by Kymatio 0.3.0's Scattering2D, J = 2, L = 8; its directions begin
one later."""
SIDE = 8  # Small, for the map that public digits give takes a minute for 28
COEFFICIENTS = 81 * 4


@cache
def of_few_digits() -> list[NDArray[np.float64]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(public_digits, "COPIES", 2)
        return list(features._of_public_digits(SIDE))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_few_digits()
    monkeypatch.setattr(
        features, "_of_public_digits", lambda *_: [each.copy() for each in found]
    )
    monkeypatch.setattr(features, "_maps", {})


def test_coefficients_are_those_of_kymatio() -> None:
    # A wave that fades out around a place.
    down, across = np.mgrid[0:28, 0:28]
    fading = np.exp(-((down - 12) ** 2 + (across - 15) ** 2) / 40)
    image = fading * (1 + np.cos(0.9 * down + 0.5 * across)) / 2
    means = scattering(image.astype(np.float32)[None, None])[0].mean(axis=(1, 2))
    mine = (means[:1], means[1:9], means[9:17], means[17:].reshape(8, 8)[3])
    for found, (name, known) in zip(mine, KYMATIO.items(), strict=True):
        # Averages lie half a cell elsewhere, and what Kymatio leaves out before them
        # differs.
        np.testing.assert_allclose(found, known, rtol=0.06, err_msg=name)


@pytest.mark.usefixtures("quick")
def test_a_records_features_are_its_own() -> None:
    images = np.random.default_rng(5).random((4, 1, SIDE, SIDE), np.float32)
    together = scattering_features(images)
    assert together.shape == (4, COEFFICIENTS)
    for number in range(4):
        alone = scattering_features(images[number : number + 1])
        np.testing.assert_allclose(
            alone[0], together[number], atol=1e-4 * features.LENGTH
        )
    np.testing.assert_allclose(
        np.linalg.norm(together, axis=1), features.LENGTH, rtol=1e-5
    )
    assert np.isfinite(
        scattering_features(np.zeros((1, 1, SIDE, SIDE), np.float32))
    ).all()


@pytest.mark.usefixtures("quick")
def test_owners_that_compute_apart_get_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever signs, bases of ties and last bits their libraries give them."""
    images = next(public_digits.drawn_digits(SIDE))[0][:50]
    mine = scattering_features(images)
    chance = np.random.default_rng(3)

    def otherwise(
        covariance: NDArray[np.float64], **how: object
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
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
    data = DataSet(
        name="mnist", train_x=x, train_y=y, test_x=x[:1], test_y=y[:1], classes=10
    )
    task = Task.parse(demo_task(data, "scattering", owners))
    rounds = task.training.rounds
    run = Run.of(task, rounds=rounds, participations=rounds)
    (one,) = guarantees(run, 1e-5, (Adversary.ONE_SERVER,), (AccountantName.EXACT,))
    assert task.privacy.delta == 1e-5
    assert 2.9 < one.epsilon <= 3.0
