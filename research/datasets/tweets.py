"""Sentiment140: tweets, by hashed words or by their words' GloVe vectors."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import DataSet
from research.datasets.published_files import where_to_get
from research.datasets.sentences import words_of

TRAIN_FILE = "training.1600000.processed.noemoticon.csv"
TEST_FILE = "testdata.manual.2009.06.14.csv"
TRAIN_RECORDS = 60_000
"""Tweets drawn from the training file's 1.6 million, which would be 6.5 GB as dense
features."""
FEATURES = 1024
_DRAW_SEED = 2023
_COLUMNS = 6
_LABELS = {"0": 0, "4": 1}

_PUBLISHED = {
    "sentiment140": "Sentiment140 of Go, Bhayani and Huang, trainingandtestdata.zip",
    "sentiment140-glove": (
        "Sentiment140 of Go, Bhayani and Huang, trainingandtestdata.zip, and "
        "GloVe of Stanford NLP, glove.6B.zip"
    ),
}


def sentiment140(
    folder: Path, train_records: int = TRAIN_RECORDS, features: int = FEATURES
) -> DataSet:
    """Tweets as ``[n, features] float32`` rows of L2 norm 1 (0 for a tweet without words).

    Words are hashed to features, so that no vocabulary is learned from private text.
    Neutral tweets, which only the test file has, are left out.

    Args:
        folder: holds ``training.1600000.processed.noemoticon.csv`` and
            ``testdata.manual.2009.06.14.csv`` as published.
        train_records: most training tweets, drawn with a fixed seed.
        features: number of hash buckets.

    Raises:
        Misconfiguration: a file is missing or isn't in the published form.
    """
    check_there("sentiment140", folder, (TRAIN_FILE, TEST_FILE))
    train, test = read_tweets(folder / TRAIN_FILE), read_tweets(folder / TEST_FILE)
    train_texts, train_y, test_texts, test_y = (
        train.texts,
        train.moods,
        test.texts,
        test.moods,
    )
    if len(train_texts) > train_records:
        # The file is sorted by mood: a draw, not its beginning.
        drawn = np.random.default_rng(_DRAW_SEED).permutation(len(train_texts))[
            :train_records
        ]
        train_texts, train_y = [train_texts[i] for i in drawn], train_y[drawn]
    # A second to import: not where another data set is wanted.
    from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415

    hashing = HashingVectorizer(n_features=features, dtype=np.float32)
    return DataSet(
        name="sentiment140",
        train_x=hashing.transform(train_texts).toarray(),
        train_y=train_y,
        test_x=hashing.transform(test_texts).toarray(),
        test_y=test_y,
        classes=2,
    )


def check_there(name: str, folder: Path, files: tuple[str, ...]) -> None:
    """Refuse a folder that lacks some of the files; the error names them."""
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise Misconfiguration(
            "data folder",
            str(folder),
            f"{name} needs {' and '.join(missing)} there;"
            f" {where_to_get(_PUBLISHED[name])}",
        )


@dataclass(frozen=True, slots=True)
class Tweets:
    """A file's positive and negative tweets, in its order: texts, 0 or 1, and who wrote them."""

    texts: list[str]
    moods: NDArray[np.int64]
    accounts: list[str]


def read_tweets(path: Path) -> Tweets:
    """A file in the published form.

    Raises:
        Misconfiguration: it isn't in that form, or has no positive or negative tweet.
    """
    texts, labels, accounts = [], [], []
    with path.open(encoding="latin-1", newline="") as file:
        for number, row in enumerate(csv.reader(file), start=1):
            if len(row) != _COLUMNS or row[0] not in {"0", "2", "4"}:
                raise Misconfiguration(
                    f"{path.name}, record {number}",
                    row[:1],
                    "must have six columns, the first a mood of 0, 2 or 4",
                )
            if row[0] in _LABELS:
                texts.append(row[5])
                labels.append(_LABELS[row[0]])
                accounts.append(row[4])
    if not texts:
        raise Misconfiguration(
            str(path), "no tweets", "holds no positive or negative tweet"
        )
    return Tweets(texts, np.array(labels, np.int64), accounts)


GLOVE_FILE = "glove.6B.300d.txt"
DIMENSIONS = 300
WORDS = 25
"""Of a tweet, its first ones."""
ACCOUNTS = 805
"""Those with the most tweets, as many as Xie et al. have."""


def sentiment140_glove(folder: Path) -> DataSet:
    """Tweets as ``[n, 25, 300] float32``, zeros for unknown words and what fills up.

    Vectors are public; a tweet's are its own. ``owners`` says which account wrote it.

    Args:
        folder: holds Sentiment140's two files and ``glove.6B.300d.txt`` as published.

    Raises:
        Misconfiguration: a file is missing or isn't in the published form.
    """
    check_there("sentiment140-glove", folder, (TRAIN_FILE, TEST_FILE, GLOVE_FILE))
    train, test = read_tweets(folder / TRAIN_FILE), read_tweets(folder / TEST_FILE)
    names, of, counts = np.unique(
        train.accounts, return_inverse=True, return_counts=True
    )
    chosen = np.argsort(-counts, kind="stable")[: min(ACCOUNTS, len(names))]
    kept = np.flatnonzero(np.isin(of, chosen))
    texts = [words_of(train.texts[i], WORDS) for i in kept]
    held = [words_of(text, WORDS) for text in test.texts]
    vectors = _vectors(
        folder / GLOVE_FILE, {word for text in (*texts, *held) for word in text}
    )
    return DataSet(
        name="sentiment140-glove",
        train_x=_embedded(texts, vectors),
        train_y=train.moods[kept],
        test_x=_embedded(held, vectors),
        test_y=test.moods,
        classes=2,
        owners=np.searchsorted(np.sort(chosen), of[kept]),
    )


def _vectors(path: Path, wanted: set[str]) -> dict[str, NDArray[np.float32]]:
    """Of those words that the file has; a line is a word and its numbers, with blanks between."""
    found: dict[str, NDArray[np.float32]] = {}
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            word, *values = line.rstrip("\n").split(" ")
            if len(values) != DIMENSIONS:
                raise Misconfiguration(
                    f"{path.name}, line {number}",
                    len(values),
                    f"must have {DIMENSIONS} numbers after the word",
                )
            if word in wanted:
                try:
                    found[word] = np.array(values, np.float32)
                except ValueError:
                    raise Misconfiguration(
                        f"{path.name}, line {number}",
                        word,
                        "must have numbers after the word",
                    ) from None
    return found


def _embedded(
    texts: list[list[str]], vectors: dict[str, NDArray[np.float32]]
) -> NDArray[np.float32]:
    rows = np.zeros((len(texts), WORDS, DIMENSIONS), np.float32)
    for row, words in zip(rows, texts, strict=True):
        for place, word in enumerate(words):
            if word in vectors:
                row[place] = vectors[word]
    return rows
