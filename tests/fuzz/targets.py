"""Every parser of bytes from outside, as a function of bytes that raises PrecadError alone.

A target has seeds: well-formed inputs, from which both the first tier's inputs near
them (tests/property) and the coverage-guided run (run.py beside this file) start.
``check`` is what holds for every input.
"""

import random
from collections.abc import Iterator, Sequence
from functools import cache

from tests.fuzz import calls, files, peers
from tests.fuzz.stage import TARGETS, join, split

__all__ = ["TARGETS", "calls", "files", "peers"]
STREAMS = {
    *(
        "submit-a",
        "submit-b",
        "submit-seed",
        "submit-body",
        "squares",
        "square-replies",
    ),
    *("link", "client", "client-with-proof", "proof-words", "deal-words", "signature"),
}  # Targets whose input is a sequence of messages
AWKWARD = (
    *(b"9" * 30, b"9" * 5000, b"-1", b"nan", b"1e999", b"\xff" * 8),
    *(b"\0", b"[" * 3000, b"null"),
)
MOST_BYTES, MOST_PIECES, MOST_EDITS = 200, 12, 4


@cache
def seeds_of(name: str) -> Sequence[bytes]:
    return TARGETS[name].seeds()


def inputs_near(name: str, seed: int, count: int) -> Iterator[bytes]:
    """Well-formed inputs with a few bytes changed, any bytes, and messages in disorder."""
    chance, seeds = random.Random(f"{name} {seed}"), seeds_of(name)
    for number in range(count):
        good = chance.choice(seeds)
        if number % 4 == 0:
            yield chance.randbytes(chance.randrange(MOST_BYTES))
        elif number % 4 == 1 and name in STREAMS:
            pieces = split(good)
            yield join(
                *(
                    chance.choices(pieces, k=chance.randrange(MOST_PIECES))
                    if pieces
                    else ()
                )
            )
        else:
            yield _edited(good, chance)


def _edited(good: bytes, chance: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(chance.randint(1, MOST_EDITS)):
        start = chance.randint(0, len(data))
        end = start + chance.choice((0, 1, 1, 2, 8))
        some = chance.randbytes(chance.randrange(5))
        data[start:end] = chance.choice((some, some, chance.choice(AWKWARD)))
    return bytes(data)
