"""After a break: what two servers conclude from where each of them stands.

Where a server can stand around attempt 7, which starts from model 4; and what comes of every two
such places.
"""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.aggregator.rounds.recovery import Recovery, Remedy, compare
from precad.aggregator.server_messages import Position, PreparedView
from precad.common.errors import PeerViolation


def digest(byte: int) -> str:
    return bytes([byte] * 32).hex()


def view(attempt: int, valid_set: int = 1, *, bound: bool = False) -> PreparedView:
    return PreparedView(version=7, attempt=attempt, valid_set=digest(valid_set), bound=bound)


def at(version: int, prepared: PreparedView | None = None, *, model: int | None = None) -> Position:
    return Position(
        role="server-a",
        version=version,
        model=digest(version if model is None else model),
        next_attempt=10,
        opened=0,
        prepared=prepared,
        ledger_length=3,
        ledger_head=digest(250),
        nonce=digest(251),
    )


PREPARED, BOUND, NEXT = view(7), view(7, bound=True), view(8)
NUMBER, SET = view(9), view(7, valid_set=2)

PLACES = {
    "nothing": at(4),
    "prepared": at(4, PREPARED),
    "bound": at(4, BOUND),
    "prepared another number": at(4, NUMBER),
    "bound to another number": at(4, view(9, bound=True)),
    "prepared another set": at(4, SET),
    "another model": at(4, model=99),
    "another model, prepared": at(4, PREPARED, model=99),
    "done": at(5),
    "done, prepared the next": at(5, NEXT),
    "done, bound to the next": at(5, view(8, bound=True)),
    "done the next": at(6),
}
OPPOSITE = {
    Remedy.NOTHING: Remedy.NOTHING,
    Remedy.RELEASE: Remedy.RELEASE,
    Remedy.VOID: Remedy.CONFIRM_VOID,
    Remedy.CONFIRM_VOID: Remedy.VOID,
    Remedy.LOST: Remedy.LEARN_LOST,
    Remedy.LEARN_LOST: Remedy.LOST,
    Remedy.SERVE: Remedy.CATCH_UP,
    Remedy.CATCH_UP: Remedy.SERVE,
}

# With one version and one model: the remedy of the first. What isn't named here is its mirror
# image, or two different attempts of one version, both bound or neither, which stop both.
TABLE: dict[tuple[str, str], Recovery] = {
    ("nothing", "nothing"): Recovery(Remedy.NOTHING),
    ("another model", "another model"): Recovery(Remedy.NOTHING),
    ("done", "done"): Recovery(Remedy.NOTHING),
    ("done the next", "done the next"): Recovery(Remedy.NOTHING),
    # Both are prepared, whoever has countersigned: go on where the release stopped.
    ("prepared", "prepared"): Recovery(Remedy.RELEASE, PREPARED.attempt),
    ("prepared", "bound"): Recovery(Remedy.RELEASE, PREPARED.attempt),
    ("bound", "prepared"): Recovery(Remedy.RELEASE, BOUND.attempt),
    ("bound", "bound"): Recovery(Remedy.RELEASE, BOUND.attempt),
    ("prepared another number", "prepared another number"): Recovery(
        Remedy.RELEASE, NUMBER.attempt
    ),
    ("prepared another number", "bound to another number"): Recovery(
        Remedy.RELEASE, NUMBER.attempt
    ),
    ("bound to another number", "bound to another number"): Recovery(
        Remedy.RELEASE, view(9, bound=True).attempt
    ),
    ("prepared another set", "prepared another set"): Recovery(Remedy.RELEASE, SET.attempt),
    ("another model, prepared", "another model, prepared"): Recovery(
        Remedy.RELEASE, PREPARED.attempt
    ),
    ("done, prepared the next", "done, prepared the next"): Recovery(Remedy.RELEASE, NEXT.attempt),
    ("done, prepared the next", "done, bound to the next"): Recovery(Remedy.RELEASE, NEXT.attempt),
    ("done, bound to the next", "done, bound to the next"): Recovery(
        Remedy.RELEASE, view(8, bound=True).attempt
    ),
    # Prepared on one alone: void while it has countersigned nothing, the operators' after.
    ("prepared", "nothing"): Recovery(Remedy.VOID, PREPARED.attempt),
    ("prepared another number", "nothing"): Recovery(Remedy.VOID, NUMBER.attempt),
    ("prepared another set", "nothing"): Recovery(Remedy.VOID, SET.attempt),
    ("another model, prepared", "another model"): Recovery(Remedy.VOID, PREPARED.attempt),
    ("done, prepared the next", "done"): Recovery(Remedy.VOID, NEXT.attempt),
    ("bound", "nothing"): Recovery(Remedy.LOST, BOUND.attempt),
    ("bound to another number", "nothing"): Recovery(Remedy.LOST, view(9, bound=True).attempt),
    ("done, bound to the next", "done"): Recovery(Remedy.LOST, view(8, bound=True).attempt),
    # One was put back to before an attempt that was given up: what the other has prepared since
    # can't have left, and is void first; then the operators decide again.
    ("prepared", "bound to another number"): Recovery(Remedy.VOID, PREPARED.attempt),
    ("prepared another set", "bound to another number"): Recovery(Remedy.VOID, SET.attempt),
    ("prepared another number", "bound"): Recovery(Remedy.VOID, NUMBER.attempt),
}


def expected(here: str, there: str) -> Recovery | None:
    own, theirs = PLACES[here], PLACES[there]
    if own.version != theirs.version:
        # Whatever else is prepared: looked at when the two are level.
        return Recovery(Remedy.SERVE if own.version > theirs.version else Remedy.CATCH_UP)
    if (here, there) in TABLE:
        return TABLE[here, there]
    back = TABLE.get((there, here))
    if back is None:
        return None
    return Recovery(OPPOSITE[back.remedy], back.attempt)


@pytest.mark.parametrize(("here", "there"), list(product(PLACES, PLACES)))
def test_every_two_places_have_their_remedy(here: str, there: str) -> None:
    if (remedy := expected(here, there)) is not None:
        assert compare(PLACES[here], PLACES[there]) == remedy
    else:
        with pytest.raises(PeerViolation, match=r"trainings differ|different attempts"):
            compare(PLACES[here], PLACES[there])


@pytest.mark.parametrize("other", ["prepared another number", "prepared another set"])
def test_servers_that_prepared_different_attempts_of_one_model_are_told_so(other: str) -> None:
    """Either may have left with its own noise: nothing may be released beside it."""
    with pytest.raises(PeerViolation, match="different attempts, or different valid sets"):
        compare(PLACES["prepared"], PLACES[other])


def test_servers_with_different_models_are_told_what_to_do() -> None:
    with pytest.raises(PeerViolation, match="Restore both servers' newest state"):
        compare(PLACES["nothing"], PLACES["another model"])


def test_who_has_countersigned_never_voids() -> None:
    """The other server may have sent on that countersignature, and lost its database since."""
    for here, there in product(PLACES, PLACES):
        own = PLACES[here].prepared
        recovery = concluded(PLACES[here], PLACES[there])
        if own is not None and own.bound and isinstance(recovery, Recovery):
            assert recovery.remedy not in (Remedy.VOID, Remedy.NOTHING)


def concluded(own: Position, theirs: Position) -> Any:
    try:
        return compare(own, theirs)
    except PeerViolation as error:
        return type(error)


views = st.none() | st.builds(view, st.integers(6, 8), st.integers(1, 2), bound=st.booleans())
positions = st.builds(at, st.integers(3, 6), views, model=st.integers(1, 2))


@given(positions, positions)
def test_both_servers_conclude_alike(own: Position, theirs: Position) -> None:
    here, there = concluded(own, theirs), concluded(theirs, own)
    if here is PeerViolation or there is PeerViolation:
        assert here is there
        return
    assert here.remedy is OPPOSITE[there.remedy]
    assert here.attempt == there.attempt
    if here.attempt >= 0:
        assert (own.version, own.model) == (theirs.version, theirs.model)
