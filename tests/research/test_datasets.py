"""The papers' data sets, read from files in their published formats."""

import csv
import gzip
import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from research.datasets import load
from research.datasets.cifar10 import torchvision_datasets
from research.datasets.cifar_jpeg import CLASSES, cifar10_jpeg
from research.datasets.tweets import DIMENSIONS, GLOVE_FILE, TEST_FILE, TRAIN_FILE, sentiment140
from research.features.oriented_gradients import LENGTH, oriented_gradients

from precad.common.errors import Misconfiguration


def test_an_image_of_one_grey_has_no_features_and_others_have_one_length() -> None:
    images = np.zeros((3, 1, 8, 8), np.float32)
    images[1, 0, 2:5, 3] = 1.0
    images[2, 0, 4, 1:7] = 0.5
    found = oriented_gradients(images)
    assert found.shape == (3, 128)
    assert np.linalg.norm(found, axis=1).tolist() == pytest.approx([0.0, LENGTH, LENGTH], rel=1e-6)
    # A record's features are its own.
    assert (oriented_gradients(images[1:2]) == found[1:2]).all()
    for wrong in (np.zeros((1, 3, 8, 8)), np.zeros((1, 1, 30, 30)), np.zeros((1, 64))):
        with pytest.raises(Misconfiguration, match="images"):
            oriented_gradients(wrong.astype(np.float32))


GENERATED = np.random.default_rng(0).integers(0, 256, (6, 2, 3072), np.uint8)
NAMES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")


def test_cifar_is_read_from_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    # These few images can't have the published sums: without the patch they are refused.
    with pytest.raises(Misconfiguration, match="can't be read"):
        load("cifar10", tmp_path)
    sums = [[name, hashlib.md5(content).hexdigest()] for name, content in contents.items()]
    reader = torchvision_datasets().CIFAR10
    monkeypatch.setattr(reader, "train_list", sums[:5])
    monkeypatch.setattr(reader, "test_list", sums[5:6])
    monkeypatch.setattr(reader, "meta", {**reader.meta, "md5": sums[6][1]})
    data = load("cifar10", tmp_path)
    assert (data.train_x.shape, data.test_y.tolist()) == ((10, 3, 32, 32), [5, 9])
    np.testing.assert_array_equal(np.rint(data.test_x * 255), GENERATED[5].reshape(2, 3, 32, 32))


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
    assert (data.train_y.tolist(), data.test_y.tolist()) == ([0, 1, 1, 2, 2, 3, 3, 4, 4, 5], [9])
    # Red, green and blue planes, each row by row.
    np.testing.assert_array_equal(np.rint(data.test_x[0] * 255).ravel(), GENERATED[5, 0])


def test_cifar_is_read_from_jpegs(tmp_path: Path) -> None:
    for part in ("train", "test"):
        for name in CLASSES:
            folder = tmp_path / "cifar10-jpeg" / part / name
            folder.mkdir(parents=True)
            red = CLASSES.index(name) * 25
            Image.new("RGB", (32, 32), (red, 0, 200)).save(folder / "0001.jpg", quality=95)
    data = load("cifar10-jpeg", tmp_path)
    assert (data.train_x.shape, data.test_y.tolist()) == ((10, 3, 32, 32), list(range(10)))
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
    lines = [" ".join([word, *["0.5"] * DIMENSIONS]) for word in ("day", "good", "other")]
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
