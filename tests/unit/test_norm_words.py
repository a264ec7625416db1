"""The client's two words make the norm public but for the dealer's offset."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.common.identifiers import Digest, Role
from precad.common.ring import dot, signed
from precad.common.secret import Secret
from precad.common.share.words import norm_offset, norm_point, norm_word, word_mask

A, B = Role.SERVER_A, Role.SERVER_B
CTX, OTHER = Digest(b"\1" * 32), Digest(b"\2" * 32)
SEED, OTHER_SEED = Secret(b"\3" * 32), Secret(b"\4" * 32)
words = st.integers(-(2**63), 2**63 - 1)


@given(
    vectors=st.lists(st.tuples(words, words, words), min_size=1, max_size=6),
    masks=st.tuples(words, words),
    bound=st.integers(1, 2**25),
)
def test_point_and_offset_add_up_to_the_norms_excess(
    vectors: list[tuple[int, int, int]], masks: tuple[int, int], bound: int
) -> None:
    """For every update and every mask: c_y + t_y = X·X − β² − 1 mod 2^64."""
    x, a_a, a_b = np.array(vectors, dtype=np.int64).T
    b = x - a_a - a_b
    pair = zip((a_a, a_b), masks, strict=True)
    word_a, word_b = (norm_word(dot(b, a), mask) for a, mask in pair)
    point = norm_point(word_a, word_b, dot(b, b), bound)
    offset = norm_offset(dot(a_a + a_b, a_a + a_b), *masks)
    excess = sum(value * value for value, _, _ in vectors) - bound**2 - 1
    assert signed(point + offset) == signed(excess)


@given(crossed=words, mask=words, lie=words.filter(bool))
def test_a_word_is_right_for_one_value_alone(crossed: int, mask: int, lie: int) -> None:
    word = norm_word(crossed, mask)
    assert -(2**63) <= word < 2**63
    assert norm_word(crossed, signed(mask + lie)) != word


def test_every_part_of_what_a_words_mask_is_bound_to_gives_another() -> None:
    uses = [
        (SEED, A, CTX, CTX, CTX),
        (OTHER_SEED, A, CTX, CTX, CTX),
        (SEED, B, CTX, CTX, CTX),
        (SEED, A, OTHER, CTX, CTX),
        (SEED, A, CTX, OTHER, CTX),
        (SEED, A, CTX, CTX, OTHER),
    ]
    masks = [word_mask(*use) for use in uses]
    for one, other in itertools.combinations(masks, 2):
        assert one != other


@pytest.mark.parametrize("bound", [1, 7, 2**25])
def test_the_excess_is_negative_up_to_the_bound_and_not_beyond(bound: int) -> None:
    for squared, negative in ((0, True), (bound**2, True), (bound**2 + 1, False)):
        assert (norm_point(0, 0, squared, bound) < 0) is negative
