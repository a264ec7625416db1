"""Movie sentences (Pang and Lee 2005), positive and negative: hashed, or as the words' numbers."""

import gzip
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.datasets import DataSet
from research.datasets.published_files import where_to_get

FILES = ("rt-polarity.neg", "rt-polarity.pos")
FOLDER = "movie-sentences"
_PUBLISHED = "the sentence polarity data 1.0 of Pang and Lee, rt-polaritydata.tar.gz"
FEATURES = 256
WORDS = 20
"""Of a sentence, its first ones."""
BUCKETS = 1024
_SPLIT_SEED = 0
_TEST_PART = 0.2
_MOST_BYTES = 2**26
_WORD = re.compile(r"[a-z']+")


def movie_sentences(root: Path) -> DataSet:
    """Sentences as ``[n, 256] float32`` rows of L2 norm 1, of hashed words.

    Args:
        root: holds ``rt-polarity.neg`` and ``rt-polarity.pos``, as they are or with
            ``.gz``, itself or in ``movie-sentences``.

    Raises:
        Misconfiguration: a file is missing, damaged or empty.
    """
    # A second to import: not where another data set is wanted.
    from sklearn.feature_extraction.text import HashingVectorizer  # noqa: PLC0415

    hashing = HashingVectorizer(n_features=FEATURES, dtype=np.float32)

    def features(texts: list[str]) -> NDArray[np.float32]:
        return np.asarray(hashing.transform(texts).toarray())

    return _sentences("movie-sentences", root, features)


def movie_words(root: Path) -> DataSet:
    """Sentences as ``[n, 20] float32`` numbers of words from 1 to 1,023, 0 for what fills up.

    By a hash of the word, so that no vocabulary is learned from private text.
    """
    return _sentences("movie-words", root, word_numbers)


def word_numbers(texts: list[str]) -> NDArray[np.float32]:
    """Of each text's first words."""
    rows = np.zeros((len(texts), WORDS), np.float32)
    for row, text in zip(rows, texts, strict=True):
        words = words_of(text, WORDS)
        row[: len(words)] = [1 + crc32(word.encode()) % (BUCKETS - 1) for word in words]
    return rows


def words_of(text: str, most: int) -> list[str]:
    """A text's first words, in small letters."""
    return _WORD.findall(text.lower())[:most]


def _sentences(
    name: str, root: Path, features: Callable[[list[str]], NDArray[np.float32]]
) -> DataSet:
    negative, positive = (_lines(root, file) for file in FILES)
    x = features([*negative, *positive])
    y = np.repeat(np.arange(2), [len(negative), len(positive)])
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(y))
    test = max(1, round(_TEST_PART * len(y)))
    held, kept = order[:test], order[test:]
    return DataSet(
        name=name,
        train_x=x[kept],
        train_y=y[kept],
        test_x=x[held],
        test_y=y[held],
        classes=2,
    )


def _lines(root: Path, name: str) -> list[str]:
    tried = [
        folder / file
        for folder in (root, root / FOLDER)
        for file in (name, f"{name}.gz")
    ]
    path = next((each for each in tried if each.is_file()), None)
    if path is None:
        raise Misconfiguration(
            "data folder",
            str(root),
            f"{FOLDER} are read from {root} or {root / FOLDER}, which lack {name} and"
            f" {name}.gz; {where_to_get(_PUBLISHED)}",
        )
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            text = file.read(_MOST_BYTES).decode("latin-1")
    except (OSError, EOFError, zlib.error) as error:
        raise Misconfiguration(
            "data folder", str(path), f"can't be read: {error}"
        ) from None
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        raise Misconfiguration("data folder", str(path), "holds no sentence")
    return lines
