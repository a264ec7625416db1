"""The crash table: what two servers conclude from where each of them stands.

Where a server can stand around round 7, the one that starts from model 4; and what comes of every
two such places. What the table doesn't name is a lost or restored state: both servers stop.
"""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.common.aggregator.round.messages import Position, ReleaseView
from precad.common.aggregator.round.recovery import Recovery, Remedy, compare
from precad.common.errors import PeerViolation


def digest(byte: int) -> str:
    return bytes([byte] * 32).hex()


def release(number: int, version: int, valid_set: int = 1) -> ReleaseView:
    return ReleaseView(
        attempt=number,
        version=version,
        cohort_size=3,
        valid_set=digest(valid_set),
        valid=("a", "b"),
    )


EARLIER, ROUND, NEXT = release(6, 3), release(7, 4), release(8, 5)
OTHER_NUMBER, OTHER_SET = release(9, 4), release(7, 4, valid_set=2)


def at(version: int, *, model: int | None = None, **releases: ReleaseView | None) -> Position:
    return Position(
        role="server-a",
        version=version,
        model=digest(version if model is None else model),
        next_attempt=10,
        **releases,
    )


PLACES = {
    "nothing": at(4, last=EARLIER),
    "released": at(4, last=EARLIER, pending=ROUND),
    "released another number": at(4, last=EARLIER, pending=OTHER_NUMBER),
    "released another set": at(4, last=EARLIER, pending=OTHER_SET),
    "another model": at(4, model=99, last=EARLIER),
    "another model, released": at(4, model=99, last=EARLIER, pending=ROUND),
    "done": at(5, last=ROUND),
    "done another number": at(5, last=OTHER_NUMBER),
    "done another set": at(5, last=OTHER_SET),
    "done without a record": at(5),
    "released the next": at(5, last=ROUND, pending=NEXT),
    "done the next": at(6, last=NEXT),
}
LEVEL = {Remedy.NOTHING, Remedy.EXCHANGE, Remedy.FORFEIT}

# The remedy of the first; of the second it is the same, or RECEIVE where the first is to SEND.
TABLE: dict[tuple[str, str], Recovery] = {
    **{(place, place): Recovery(Remedy.NOTHING) for place, p in PLACES.items() if not p.pending},
    **{
        (place, place): Recovery(Remedy.EXCHANGE, p.pending)
        for place, p in PLACES.items()
        if p.pending
    },
    ("released", "nothing"): Recovery(Remedy.FORFEIT, ROUND),
    ("released another number", "nothing"): Recovery(Remedy.FORFEIT, OTHER_NUMBER),
    ("released another set", "nothing"): Recovery(Remedy.FORFEIT, OTHER_SET),
    ("another model, released", "another model"): Recovery(Remedy.FORFEIT, ROUND),
    ("done", "released"): Recovery(Remedy.SEND, ROUND),
    ("done", "another model, released"): Recovery(Remedy.SEND, ROUND),
    ("done another number", "released another number"): Recovery(Remedy.SEND, OTHER_NUMBER),
    ("done another set", "released another set"): Recovery(Remedy.SEND, OTHER_SET),
    # Its next round is looked at when the two are level: forfeited.
    ("released the next", "released"): Recovery(Remedy.SEND, ROUND),
    ("released the next", "another model, released"): Recovery(Remedy.SEND, ROUND),
    ("done the next", "released the next"): Recovery(Remedy.SEND, NEXT),
}
# With one model, how either came to it is over; the next round's release is forfeited.
DONE = [place for place in PLACES if PLACES[place].version == 5 and not PLACES[place].pending]
TABLE |= {pair: Recovery(Remedy.NOTHING) for pair in product(DONE, DONE)}
TABLE |= {("released the next", place): Recovery(Remedy.FORFEIT, NEXT) for place in DONE}


def mirrored(recovery: Recovery) -> Recovery:
    swapped = {Remedy.SEND: Remedy.RECEIVE, Remedy.RECEIVE: Remedy.SEND}
    return Recovery(swapped.get(recovery.remedy, recovery.remedy), recovery.attempt)


def expected(here: str, there: str) -> Recovery | None:
    if (here, there) in TABLE:
        return TABLE[here, there]
    back = TABLE.get((there, here))
    return None if back is None else mirrored(back)


@pytest.mark.parametrize(("here", "there"), list(product(PLACES, PLACES)))
def test_every_two_places_have_their_remedy(here: str, there: str) -> None:
    if (remedy := expected(here, there)) is not None:
        assert compare(PLACES[here], PLACES[there]) == remedy
    else:
        with pytest.raises(PeerViolation, match=r"restored from an old copy|different rounds"):
            compare(PLACES[here], PLACES[there])


def test_servers_that_released_different_rounds_from_one_model_are_told_so() -> None:
    for other in ("released another number", "released another set"):
        with pytest.raises(PeerViolation, match="different rounds, or different valid sets"):
            compare(PLACES["released"], PLACES[other])


releases = st.none() | st.builds(release, st.integers(6, 8), st.integers(3, 5), st.integers(1, 2))
positions = st.builds(
    at, st.integers(3, 6), model=st.integers(1, 2), pending=releases, last=releases
)


def concluded(own: Position, theirs: Position) -> Any:
    try:
        return compare(own, theirs)
    except PeerViolation as error:
        return type(error)


@given(positions, positions)
def test_both_servers_conclude_alike(own: Position, theirs: Position) -> None:
    here, there = concluded(own, theirs), concluded(theirs, own)
    if here is PeerViolation or there is PeerViolation:
        assert here is there
        return
    assert here.remedy is mirrored(there).remedy
    assert (here.attempt is None) == (there.attempt is None) == (here.remedy is Remedy.NOTHING)
    if here.attempt is not None:
        assert (here.attempt.attempt, here.attempt.valid_set) == (
            there.attempt.attempt,
            there.attempt.valid_set,
        )
    if here.remedy in LEVEL:
        assert (own.version, own.model) == (theirs.version, theirs.model)
