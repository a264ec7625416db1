"""What both ledgers hold alike, and what a server that forgot may take from the other's word."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.rig.aggregators import head_of

from precad.aggregator.server_messages import Evidence, Fact, HeadBody
from precad.aggregator.store.ledger import history_after, history_start
from precad.aggregator.training.recovery import adoptable, settled
from precad.common.identifiers import Digest

TASK = Digest.of(b"task")
START = history_start(TASK)
NAMES = ("ann", "ben", "cleo")


def fact(version: int, attempt: int, *clients: str, voided: bool = False) -> Fact:
    return Fact(version=version, attempt=attempt, voided=voided, clients=clients)


def evidence(ledger: Sequence[Sequence[Fact]], pending: Fact | None = None) -> list[Evidence]:
    return [
        Evidence(versions=len(ledger), facts=tuple(facts), pending=None if i else pending)
        for i, facts in enumerate(ledger)
    ]


def head(ledger: Sequence[Sequence[Fact]], version: int, attempt: int) -> HeadBody:
    """What this server signed when ``attempt`` was prepared: its own ledger at that moment."""
    history = START
    for facts in ledger[:version]:
        history = history_after(history, facts)
    then = [each for each in ledger[version] if each.attempt <= attempt]
    return head_of(TASK, version, attempt, history=str(history_after(history, then)))


@st.composite
def ledgers(draw: Any) -> list[list[Fact]]:
    """A training's facts, a version each: attempts count up, each is charged or voided."""
    number, ledger = 0, []
    for version in range(draw(st.integers(1, 4))):
        facts = []
        for _ in range(draw(st.integers(0, 2))):
            number += draw(st.integers(0, 1))
            voided = draw(st.booleans())
            names = () if voided else tuple(sorted(draw(st.sets(st.sampled_from(NAMES)))))
            facts.append(fact(version, number, *names, voided=voided))
            number += 1
        facts.append(fact(version, number, *draw(st.sets(st.sampled_from(NAMES), max_size=1))))
        number += 1
        ledger.append(facts)
    return ledger


@st.composite
def lies(draw: Any, ledger: list[list[Fact]]) -> list[list[Fact]]:
    """The ledger after whatever edits the other server likes, none among them."""
    shown = [list(facts) for facts in ledger]
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(shown) - 1))
        facts = shown[place]
        change = draw(st.sampled_from(["add", "drop", "rename", "flip", "move", "swap", "cut"]))
        if change == "add":
            names = draw(st.sets(st.sampled_from(NAMES)))
            made = fact(
                draw(st.integers(0, 4)),
                draw(st.integers(0, 12)),
                *names,
                voided=draw(st.booleans()),
            )
            facts.insert(draw(st.integers(0, len(facts))), made)
        elif change == "cut":
            shown = shown[: place + 1]
        elif facts:
            victim = draw(st.integers(0, len(facts) - 1))
            if change == "drop":
                facts.pop(victim)
            elif change == "rename":
                names = tuple(draw(st.sets(st.sampled_from(NAMES))))
                facts[victim] = facts[victim].model_copy(update={"clients": names})
            elif change == "flip":
                flipped = not facts[victim].voided
                facts[victim] = facts[victim].model_copy(update={"voided": flipped})
            elif change == "move":
                shown[draw(st.integers(0, len(shown) - 1))].append(facts.pop(victim))
            else:
                facts.reverse()
    return shown


def content(facts: Sequence[Fact]) -> set[tuple[int, int, bool, tuple[str, ...]]]:
    return {(f.version, f.attempt, f.voided, tuple(sorted(f.clients))) for f in facts}


@given(st.data())
def test_nobody_can_invent_charges(data: st.DataObject) -> None:
    """Whatever the other shows: only what the own seal stands for, and one pending attempt."""
    ledger = data.draw(ledgers())
    shown = data.draw(lies(ledger))
    pending = data.draw(st.none() | st.builds(fact, st.integers(0, 4), st.integers(0, 12)))
    version = data.draw(st.integers(0, len(ledger) - 1))
    attempt = data.draw(st.sampled_from([each.attempt for each in ledger[version]]))
    sealed = data.draw(st.sampled_from([None, head(ledger, version, attempt)]))

    found = adoptable(START, evidence(shown, pending), sealed)

    signed: list[Fact] = []
    if sealed is not None:
        signed = [each for facts in ledger[:version] for each in facts]
        signed += [each for each in ledger[version] if each.attempt <= attempt]
    unfinished = content([] if pending is None else [pending])
    # All that was signed or none of it: half a history is none. Voids charge nobody.
    charges = content([each for each in found if not each.voided]) - unfinished
    wanted = content([each for each in signed if not each.voided]) - unfinished
    assert charges in (set(), wanted)


@given(st.data())
def test_what_was_signed_and_is_shown_is_taken_back(data: st.DataObject) -> None:
    ledger = data.draw(ledgers())
    version = data.draw(st.integers(0, len(ledger) - 1))
    attempt = data.draw(st.sampled_from([each.attempt for each in ledger[version]]))
    sealed = head(ledger, version, attempt)
    found = adoptable(START, evidence(ledger), sealed)
    signed = [each for facts in ledger[:version] for each in facts]
    signed += [each for each in ledger[version] if each.attempt <= attempt]
    voids = [each for facts in ledger for each in facts if each.voided]
    assert content(found) == content(signed) | content(voids)


def test_the_pending_attempt_under_the_own_head_is_among_its_facts() -> None:
    """Countersigned by this server, prepared there, and not over: its charge is in the head."""
    done, newest = [fact(0, 0, "ann")], fact(1, 2, "ben")
    sealed = head([done, [newest]], 1, 2)
    shown = evidence([done, []], newest)
    assert content(adoptable(START, shown, sealed)) == content([*done, newest])
    # With another pending one the head doesn't fit, and stands for nothing.
    other = fact(1, 2, "cleo")
    assert content(adoptable(START, evidence([done, []], other), sealed)) == content([other])


@given(st.data())
def test_other_facts_are_another_history(data: st.DataObject) -> None:
    ledger = data.draw(ledgers())
    shown = data.draw(lies(ledger))

    def history(of: list[list[Fact]]) -> Digest:
        digest = START
        for facts in of:
            digest = history_after(digest, facts)
        return digest

    def whole(of: list[list[Fact]]) -> list[list[Any]]:
        return [
            sorted((f.version, f.attempt, f.voided, sorted(f.clients)) for f in facts)
            for facts in of
        ]

    assert (history(ledger) == history(shown)) == (whole(ledger) == whole(shown))


def test_what_is_settled_is_all_but_the_unfinished() -> None:
    facts = tuple(fact(0, number) for number in range(4))
    assert settled(facts, None, None) == facts
    assert settled(facts, 2, None) == (facts[0], facts[1], facts[3])
    assert settled(facts, 2, 0) == (facts[1], facts[3])
