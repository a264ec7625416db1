"""Inputs near those that a parser usually reads, repeated by their seed."""

import random
from collections.abc import Iterator

from tests.fuzz.stage import join, split
from tests.fuzz.targets import TARGETS, seeds_of

STREAMS = frozenset(
    {
        *("submit-a", "submit-b", "submit-seed", "submit-body", "squares", "square-replies"),
        *("link", "client", "client-with-proof", "proof-words", "deal-words", "signature"),
    }
)
"""Targets whose input is a sequence of messages."""
AWKWARD = (
    *(b"9" * 30, b"9" * 5000, b"-1", b"nan", b"1e999", b"\xff" * 8),
    *(b"\0", b"[" * 3000, b"null"),
)
MOST_BYTES, MOST_PIECES, MOST_EDITS = 200, 12, 4


def inputs_near(name: str, seed: int, count: int) -> Iterator[bytes]:
    """Well-formed inputs with a few bytes changed, any bytes, and messages in disorder."""
    chance, seeds = random.Random(f"{name} {seed}"), seeds_of(name)
    for number in range(count):
        good = chance.choice(seeds)
        if number % 4 == 0:
            yield chance.randbytes(chance.randrange(MOST_BYTES))
        elif number % 4 == 1 and name in STREAMS:
            pieces = split(good)
            yield join(*chance.choices(pieces, k=chance.randrange(MOST_PIECES)) if pieces else ())
        else:
            yield _edited(good, chance)


def _edited(good: bytes, chance: random.Random) -> bytes:
    """A few bytes are replaced, inserted or left out."""
    data = bytearray(good)
    for _ in range(chance.randint(1, MOST_EDITS)):
        start = chance.randint(0, len(data))
        end = start + chance.choice((0, 1, 1, 2, 8))
        some = chance.randbytes(chance.randrange(5))
        data[start:end] = chance.choice((some, some, chance.choice(AWKWARD)))
    return bytes(data)


def check(name: str, data: bytes, seed: int) -> None:
    """What holds for every input of a target; an input for which it doesn't is shown."""
    try:
        TARGETS[name].check(data)
    except BaseException as error:
        error.add_note(f"target {name}, seed {seed}, input {data!r}")
        raise
