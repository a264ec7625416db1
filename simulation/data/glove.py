"""Sentiment140 by account, each word as its GloVe vector (Pennington et al. 2014)."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from precad.common.errors import Misconfiguration
from precad.simulation.data.dataset import DataSet
from precad.simulation.data.sentences import words_of
from precad.simulation.data.tweets import TEST_FILE, TRAIN_FILE, check_there, read_tweets

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
    names, of, counts = np.unique(train.accounts, return_inverse=True, return_counts=True)
    chosen = np.argsort(-counts, kind="stable")[: min(ACCOUNTS, len(names))]
    kept = np.flatnonzero(np.isin(of, chosen))
    texts = [words_of(train.texts[i], WORDS) for i in kept]
    held = [words_of(text, WORDS) for text in test.texts]
    vectors = _vectors(folder / GLOVE_FILE, {word for text in (*texts, *held) for word in text})
    return DataSet(
        "sentiment140-glove",
        _embedded(texts, vectors),
        train.moods[kept],
        _embedded(held, vectors),
        test.moods,
        2,
        np.searchsorted(np.sort(chosen), of[kept]),
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
                        f"{path.name}, line {number}", word, "must have numbers after the word"
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
