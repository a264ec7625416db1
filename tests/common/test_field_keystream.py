"""Random words below p: fixed places, no bias, and what becomes of a word that is too large."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from precad.common.identifiers import Secret
from precad.common.prime_field import FieldKeystream
from precad.common.proof_shape import P
from precad.common.ring import derive

KEY = Secret(bytes(range(32)))
REJECTED = 3_716_396_515
"""The first word of this stream's W_0 that isn't below p: found by reading that far."""


def stream() -> FieldKeystream:
    return FieldKeystream(KEY, "field-words")


def raw(again: int, place: int) -> int:
    """W_again[place] by the cipher alone."""
    cipher = algorithms.AES256(derive(KEY, "field-words").reveal())
    counter = ((again << 64) + place // 2).to_bytes(16, "big")
    block = Cipher(cipher, modes.CTR(counter)).encryptor().update(bytes(16))
    half = block[8:] if place % 2 else block[:8]
    return int.from_bytes(half, "little")


def test_words_are_the_ciphers_where_these_are_below_p() -> None:
    assert stream().words(5).tolist() == [raw(0, i) for i in range(5)]


def test_a_word_that_is_too_large_is_replaced_by_its_own_place_in_the_next_stream() -> None:
    assert raw(0, REJECTED) >= P
    assert stream().words(1, REJECTED).tolist() == [raw(1, REJECTED)]
    around = stream().words(5, REJECTED - 2).tolist()
    right = [raw(int(place == REJECTED), place) for place in range(REJECTED - 2, REJECTED + 3)]
    assert around == right
    # The mutant that reduces and the one that takes the next word are both caught.
    assert right[2] not in {raw(0, REJECTED) - P, raw(0, REJECTED + 1)}


@pytest.mark.parametrize("start", [0, 1, 2, 7, REJECTED - 6])
def test_every_piece_is_the_same_however_it_is_cut(start: int) -> None:
    whole = stream().words(13, start)
    for cut in range(14):
        parts = stream().words(cut, start), stream().words(13 - cut, start + cut)
        assert np.concatenate(parts).tolist() == whole.tolist()


def test_words_below_p_that_were_too_large_twice_come_from_the_third_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def drawn(_self: FieldKeystream, again: int, start: int, count: int) -> np.ndarray:
        words = np.arange(start, start + count, dtype=np.uint64) + np.uint64(100 * again)
        if again < 2:
            words[(start <= 4) * (4 - start) if count > 1 else 0] = P + again
        return words

    monkeypatch.setattr(FieldKeystream, "_drawn", drawn)
    assert stream().words(6).tolist() == [0, 1, 2, 3, 204, 5]


def test_purpose_and_context_give_other_words() -> None:
    others = [
        FieldKeystream(KEY, "field-words", b"x"),
        FieldKeystream(KEY, "field-wordsx"),
        FieldKeystream(KEY, "field-words", 0),
    ]
    assert len({tuple(each.words(4).tolist()) for each in [stream(), *others]}) == 4
