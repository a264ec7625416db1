"""After a break: what two servers conclude from where each of them stands.

Where a server can stand around attempt 7, which starts from model 4; and what comes of every two
such places.
"""

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precad.aggregator.server_messages import Position, PreparedView
from precad.aggregator.training.recovery import Recovery, Remedy, compare
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


PLACES = {
    "nothing": at(4),
    "prepared": at(4, view(7)),
    "bound": at(4, view(7, bound=True)),
    "prepared another number": at(4, view(9)),
    "bound to another number": at(4, view(9, bound=True)),
    "prepared another set": at(4, view(7, valid_set=2)),
    "another model": at(4, model=99),
    "another model, prepared": at(4, view(7), model=99),
    "done": at(5),
    "done, prepared the next": at(5, view(8)),
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

# With one version and one model: the remedy of the first, for what it has prepared. What isn't
# named is its mirror image, or two different attempts of one version, both bound or neither, which
# stop both.
TABLE: dict[tuple[str, str], Remedy] = {
    **dict.fromkeys(
        ((each, each) for each in ("nothing", "another model", "done", "done the next")),
        Remedy.NOTHING,
    ),
    # Both are prepared, whoever has countersigned: go on where the release stopped.
    **dict.fromkeys(
        (
            ("prepared", "prepared"),
            ("prepared", "bound"),
            ("bound", "prepared"),
            ("bound", "bound"),
            ("prepared another number", "prepared another number"),
            ("prepared another number", "bound to another number"),
            ("bound to another number", "bound to another number"),
            ("prepared another set", "prepared another set"),
            ("another model, prepared", "another model, prepared"),
            ("done, prepared the next", "done, prepared the next"),
            ("done, prepared the next", "done, bound to the next"),
            ("done, bound to the next", "done, bound to the next"),
        ),
        Remedy.RELEASE,
    ),
    # Prepared on one alone: void while it has countersigned nothing, the operators' after.
    **dict.fromkeys(
        (
            ("prepared", "nothing"),
            ("prepared another number", "nothing"),
            ("prepared another set", "nothing"),
            ("another model, prepared", "another model"),
            ("done, prepared the next", "done"),
            # One was put back to before an attempt that was given up: what the other has prepared
            # since can't have left, and is void first; then the operators decide again.
            ("prepared", "bound to another number"),
            ("prepared another set", "bound to another number"),
            ("prepared another number", "bound"),
        ),
        Remedy.VOID,
    ),
    ("bound", "nothing"): Remedy.LOST,
    ("bound to another number", "nothing"): Remedy.LOST,
    ("done, bound to the next", "done"): Remedy.LOST,
}


def expected(here: str, there: str) -> Recovery | None:
    own, theirs = PLACES[here], PLACES[there]
    if own.version != theirs.version:
        # Whatever else is prepared: looked at when the two are level.
        return Recovery(Remedy.SERVE if own.version > theirs.version else Remedy.CATCH_UP)
    for pair in ((here, there), (there, here)):
        if pair in TABLE:
            remedy, prepared = TABLE[pair], PLACES[pair[0]].prepared
            attempt = -1 if prepared is None else prepared.attempt
            return Recovery(remedy if pair[0] == here else OPPOSITE[remedy], attempt)
    return None


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
