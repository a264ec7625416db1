"""After a break, of every two places: what the servers conclude, and what one takes
back."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.rig.aggregators import head_of
from tests.rig.documents import Document

from precad.aggregator.server_messages import (
    Evidence,
    Fact,
    HeadBody,
    Position,
    PreparedView,
)
from precad.aggregator.store.ledger import history_after, history_start
from precad.aggregator.training.recovery import (
    Recovery,
    Remedy,
    adoptable,
    compare,
    settled,
)
from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest


def digest(byte: int) -> bytes:
    return bytes([byte] * 32)


def view(attempt: int, valid_set: int = 1, *, bound: bool = False) -> PreparedView:
    return PreparedView(
        version=7, attempt=attempt, valid_set=digest(valid_set), bound=bound
    )


def at(
    version: int, prepared: PreparedView | None = None, *, model: int | None = None
) -> Position:
    seen = digest(version if model is None else model)
    ledger: Document = {
        "ledger_length": 3,
        "ledger_head": digest(250),
        "nonce": digest(251),
    }
    ledger |= {"role": "server-a", "next_attempt": 10, "opened": 0}
    return Position(version=version, model=seen, prepared=prepared, **ledger)


# Where a server can stand around attempt 7, which starts from model 4.
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
OPPOSITE = {each: each for each in (Remedy.NOTHING, Remedy.RELEASE)}
OPPOSITE |= {Remedy.VOID: Remedy.CONFIRM_VOID, Remedy.LOST: Remedy.LEARN_LOST}
OPPOSITE[Remedy.SERVE] = Remedy.CATCH_UP
OPPOSITE |= {theirs: own for own, theirs in OPPOSITE.items()}
# With one version and one model: the remedy of the first, for what it has prepared.
SEVEN, NINE, NEXT = "prepared", "prepared another number", "done, prepared the next"
B_SEVEN, B_NINE, B_NEXT = "bound", "bound to another number", "done, bound to the next"
TABLE = {
    # Both are prepared, whoever has countersigned: go on where the release stopped.
    **dict.fromkeys([(SEVEN, B_SEVEN), (NINE, B_NINE), (NEXT, B_NEXT)], Remedy.RELEASE),
    # Prepared on one alone: void while it has countersigned nothing, the operators'
    # after.
    **{
        (each, "nothing"): Remedy.VOID for each in (SEVEN, NINE, "prepared another set")
    },
    ("another model, prepared", "another model"): Remedy.VOID,
    (NEXT, "done"): Remedy.VOID,
    **{(each, "nothing"): Remedy.LOST for each in (B_SEVEN, B_NINE)},
    (B_NEXT, "done"): Remedy.LOST,
    # One was put back to before an attempt that was given up: what the other has
    # prepared since can't have left, and is void first; then the operators decide
    # again.
    **{(each, B_NINE): Remedy.VOID for each in (SEVEN, "prepared another set")},
    (NINE, B_SEVEN): Remedy.VOID,
}
DIFFERENT = "different attempts, or different valid sets"
SAYS = {
    # Either may have left with its own noise: nothing may be released beside it.
    **{(SEVEN, each): DIFFERENT for each in (NINE, "prepared another set")},
    ("nothing", "another model"): "Restore both servers' newest state",
}


def expected(here: str, there: str) -> Recovery | None:
    """By the table, whose mirror image and what is alike aren't named.

    What remains are two different attempts of one version, both bound or neither, which
    stop both.
    """
    own, theirs = PLACES[here], PLACES[there]
    if own.version != theirs.version:
        # Whatever else is prepared: looked at when the two are level.
        return Recovery(
            Remedy.SERVE if own.version > theirs.version else Remedy.CATCH_UP
        )
    alike = Remedy.RELEASE if own.prepared else Remedy.NOTHING
    table = TABLE | {(here, here): alike}
    for pair in ((here, there), (there, here)):
        if pair in table:
            remedy, prepared = table[pair], PLACES[pair[0]].prepared
            attempt = -1 if prepared is None else prepared.attempt
            return Recovery(remedy if pair[0] == here else OPPOSITE[remedy], attempt)
    return None


@pytest.mark.parametrize("here", PLACES)
@pytest.mark.parametrize("there", PLACES)
def test_every_two_places_have_their_remedy(here: str, there: str) -> None:
    own = PLACES[here].prepared
    if (recovery := expected(here, there)) is not None:
        assert compare(PLACES[here], PLACES[there]) == recovery
        # Who has countersigned never voids: the other server may have sent on that
        # countersignature, and lost its database since.
        bound = own is not None and own.bound
        assert not bound or recovery.remedy not in (Remedy.VOID, Remedy.NOTHING)
    else:
        says = SAYS.get((here, there), "trainings differ|different attempts")
        with pytest.raises(PeerViolation, match=says):
            compare(PLACES[here], PLACES[there])


def concluded(own: Position, theirs: Position) -> Recovery | type[PeerViolation]:
    try:
        return compare(own, theirs)
    except PeerViolation as error:
        return type(error)


views = st.none() | st.builds(
    view, st.integers(6, 8), st.integers(1, 2), bound=st.booleans()
)
positions = st.builds(at, st.integers(3, 6), views, model=st.integers(1, 2))


@given(positions, positions)
def test_both_servers_conclude_alike(own: Position, theirs: Position) -> None:
    here, there = concluded(own, theirs), concluded(theirs, own)
    if not isinstance(here, Recovery) or not isinstance(there, Recovery):
        assert here is there
        return
    assert (here.remedy, here.attempt) == (OPPOSITE[there.remedy], there.attempt)
    if here.attempt >= 0:
        assert (own.version, own.model) == (theirs.version, theirs.model)


# --- what both ledgers hold alike, and what a server that forgot may take from the
# other's word ---

TASK = Digest.of(b"task")
START = history_start(TASK)
NAMES = st.sets(st.sampled_from(("ann", "ben", "cleo")))
Ledger = list[list[Fact]]  # A version's facts each


def fact(version: int, attempt: int, *clients: str, voided: bool = False) -> Fact:
    return Fact(version=version, attempt=attempt, voided=voided, clients=clients)


def evidence(ledger: Ledger, pending: Fact | None = None) -> list[Evidence]:
    return [
        Evidence(
            versions=len(ledger), facts=tuple(facts), pending=None if i else pending
        )
        for i, facts in enumerate(ledger)
    ]


def history(ledger: Ledger) -> Digest:
    digest = START
    for facts in ledger:
        digest = history_after(digest, facts)
    return digest


def signed_until(
    ledger: Ledger, version: int, attempt: int
) -> tuple[HeadBody, list[Fact]]:
    """What this server signed when ``attempt`` was prepared, over its own ledger at
    that moment."""
    then = [
        *ledger[:version],
        [each for each in ledger[version] if each.attempt <= attempt],
    ]
    head = head_of(TASK, version, attempt, history=history(then).value)
    return head, [each for facts in then for each in facts]


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """A training's facts, a version each: attempts count up, each is charged or
    voided."""
    number, ledger = 0, []
    for version in range(draw(st.integers(1, 4))):
        facts = []
        for _ in range(draw(st.integers(0, 2))):
            number += draw(st.integers(0, 1))
            voided = draw(st.booleans())
            names = () if voided else tuple(sorted(draw(NAMES)))
            facts.append(fact(version, number, *names, voided=voided))
            number += 1
        facts.append(fact(version, number, *list(draw(NAMES))[:1]))
        number += 1
        ledger.append(facts)
    return ledger


@st.composite
def lies(draw: st.DrawFn, ledger: Ledger) -> Ledger:
    """The ledger after whatever edits the other server likes, none among them."""
    shown = [list(facts) for facts in ledger]
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(shown) - 1))
        facts = shown[place]
        change = draw(
            st.sampled_from(["add", "drop", "rename", "flip", "move", "swap", "cut"])
        )
        if change == "add":
            version, attempt = draw(st.integers(0, 4)), draw(st.integers(0, 12))
            made = fact(version, attempt, *draw(NAMES), voided=draw(st.booleans()))
            facts.insert(draw(st.integers(0, len(facts))), made)
        elif change == "cut":
            shown = shown[: place + 1]
        elif facts:
            victim = draw(st.integers(0, len(facts) - 1))
            if change == "drop":
                facts.pop(victim)
            elif change == "rename":
                facts[victim] = facts[victim].model_copy(
                    update={"clients": tuple(draw(NAMES))}
                )
            elif change == "flip":
                flipped = not facts[victim].voided
                facts[victim] = facts[victim].model_copy(update={"voided": flipped})
            elif change == "move":
                shown[draw(st.integers(0, len(shown) - 1))].append(facts.pop(victim))
            else:
                facts.reverse()
    return shown


def key(fact: Fact) -> tuple[int, int, bool, tuple[str, ...]]:
    return fact.version, fact.attempt, fact.voided, tuple(sorted(fact.clients))


def content(facts: Sequence[Fact]) -> set[tuple[int, int, bool, tuple[str, ...]]]:
    return set(map(key, facts))


@given(st.data())
def test_nobody_can_invent_charges_and_what_was_signed_is_taken_back(
    data: st.DataObject,
) -> None:
    """Whatever the other shows: only what the own seal stands for, and one pending
    attempt."""
    ledger = data.draw(ledgers())
    shown = data.draw(lies(ledger))
    pending = data.draw(
        st.none() | st.builds(fact, st.integers(0, 4), st.integers(0, 12))
    )
    version = data.draw(st.integers(0, len(ledger) - 1))
    attempt = data.draw(st.sampled_from([each.attempt for each in ledger[version]]))
    head, signed = signed_until(ledger, version, attempt)
    unfinished = content([] if pending is None else [pending])
    for sealed, theirs in ((None, []), (head, signed)):
        found = adoptable(START, evidence(shown, pending), sealed)
        # All that was signed or none of it: half a history is none. Voids charge
        # nobody.
        charges = content([each for each in found if not each.voided]) - unfinished
        wanted = content([each for each in theirs if not each.voided]) - unfinished
        assert charges in (set(), wanted)
    voids = [each for facts in ledger for each in facts if each.voided]
    found = adoptable(START, evidence(ledger), head)
    assert content(found) == content(signed) | content(voids)
    # Other facts are another history.
    own, other = ([sorted(map(key, facts)) for facts in of] for of in (ledger, shown))
    assert (history(ledger) == history(shown)) == (own == other)


def test_the_pending_attempt_under_the_own_head_is_among_its_facts() -> None:
    """Countersigned by this server, prepared there, and not over: its charge is in the
    head."""
    done, newest, other = [fact(0, 0, "ann")], fact(1, 2, "ben"), fact(1, 2, "cleo")
    sealed, _ = signed_until([done, [newest]], 1, 2)
    # With another pending one the head doesn't fit, and stands for nothing.
    for pending, facts in ((newest, [*done, newest]), (other, [other])):
        assert content(
            adoptable(START, evidence([done, []], pending), sealed)
        ) == content(facts)


def test_what_is_settled_is_all_but_the_unfinished() -> None:
    facts = tuple(fact(0, number) for number in range(4))
    assert settled(facts, None, None) == facts
    assert settled(facts, 2, None) == (facts[0], facts[1], facts[3])
    assert settled(facts, 2, 0) == (facts[1], facts[3])
