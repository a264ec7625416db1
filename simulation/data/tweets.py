"""Sentiment140: tweets with a positive or negative mood, as hashed bags of words."""

import csv
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.data.dataset import DataSet, where_to_get

TRAIN_FILE = "training.1600000.processed.noemoticon.csv"
TEST_FILE = "testdata.manual.2009.06.14.csv"
TRAIN_RECORDS = 60_000
"""Tweets drawn from the training file's 1.6 million, which would be 6.5 GB as dense features."""
FEATURES = 1024
_DRAW_SEED = 2023
_COLUMNS = 6
_LABELS = {"0": 0, "4": 1}


def sentiment140(
    folder: Path, train_records: int = TRAIN_RECORDS, features: int = FEATURES
) -> DataSet:
    """Tweets as ``[n, features] float32`` rows of L2 norm 1 (0 for a tweet without words).

    Words are hashed to features, so that no vocabulary is learned from private text. Neutral
    tweets, which only the test file has, are left out.

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
    train_texts, train_y, test_texts, test_y = train.texts, train.moods, test.texts, test.moods
    if len(train_texts) > train_records:
        # The file is sorted by mood: a draw, not its beginning.
        drawn = np.random.default_rng(_DRAW_SEED).permutation(len(train_texts))[:train_records]
        train_texts, train_y = [train_texts[i] for i in drawn], train_y[drawn]
    # A second to import: not where another data set is wanted.
    from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415

    hashing = HashingVectorizer(n_features=features, dtype=np.float32)
    return DataSet(
        "sentiment140",
        hashing.transform(train_texts).toarray(),
        train_y,
        hashing.transform(test_texts).toarray(),
        test_y,
        2,
    )


def check_there(name: str, folder: Path, files: tuple[str, ...]) -> None:
    """Refuse a folder that lacks some of the files; the error names them."""
    missing = [file for file in files if not (folder / file).is_file()]
    if missing:
        raise Misconfiguration(
            "data folder",
            str(folder),
            f"{name} needs {' and '.join(missing)} there; {where_to_get(name)}",
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
        raise Misconfiguration(str(path), "no tweets", "holds no positive or negative tweet")
    return Tweets(texts, np.array(labels, np.int64), accounts)
