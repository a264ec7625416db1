"""Noise that is drawn while uploads come in."""

import threading

import numpy as np
import pytest

from precad.common.aggregator.release.ahead import DrawnAhead
from precad.common.ring import RingVector


class Slow:
    """Draws when it is let."""

    def __init__(self, error: Exception | None = None) -> None:
        self.asked: list[int] = []
        self.let = threading.Event()
        self.begun = threading.Event()
        self._error = error

    def draw(self, dimension: int) -> RingVector:
        self.asked.append(dimension)
        self.begun.set()
        assert self.let.wait(10)
        if self._error is not None:
            raise self._error
        return np.arange(dimension, dtype=np.int64)


def test_it_is_drawn_before_anybody_asks_and_given_out_once() -> None:
    source = Slow()
    ahead = DrawnAhead(source, 5)
    assert source.begun.wait(10)
    source.let.set()
    assert ahead.draw(5).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RuntimeError, match="used once"):
        ahead.draw(5)
    assert source.asked == [5]


def test_another_dimension_is_a_callers_bug() -> None:
    source = Slow()
    source.let.set()
    with pytest.raises(RuntimeError, match="noise for 5 words"):
        DrawnAhead(source, 5).draw(6)


def test_what_the_source_raises_is_raised_where_the_noise_is_asked_for() -> None:
    source = Slow(OSError("no entropy"))
    ahead = DrawnAhead(source, 5)
    source.let.set()
    with pytest.raises(OSError, match="no entropy"):
        ahead.draw(5)
