"""After a break: what the two servers make of where each of them stands.

An attempt is prepared (charged, noisy share persisted), countersigned (this server has signed that
it is prepared too), sent (it holds the other's countersignature, and the share may have left) and
done. A share leaves only after both are prepared, and never changes. So:

| here | there | then |
| --- | --- | --- |
| nothing prepared | nothing prepared | a new attempt |
| prepared | prepared, the same attempt | go on with the release where it stopped |
| prepared, nothing countersigned | nothing prepared | void: both ledgers say so, it costs nothing |
| countersigned or sent | nothing prepared | the other lost its state: both operators decide |
| countersigned or sent | another prepared, not countersigned | that one is void, then as above |
| done | not done | the other takes the model, whose digest it has signed itself |

The same comparison is made again after each remedy, until nothing is left to do. It is the plan of
`release_model` (tests/model), which a search has gone through with cuts, crashes and replaced
databases.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from precad.aggregator.server_messages import Evidence, Fact, HeadBody, Position
from precad.aggregator.store.ledger import history_after
from precad.common.errors import PeerViolation
from precad.common.identifiers import Digest


class Remedy(Enum):
    """What this server does about the newest attempt before a new one may open."""

    NOTHING = "nothing"
    RELEASE = "release"
    """Both are prepared and neither is done."""
    VOID = "void"
    """This server alone is prepared for it, and has countersigned nothing."""
    CONFIRM_VOID = "confirm-void"
    """The other is."""
    LOST = "lost"
    """This server has countersigned or sent, and the other isn't prepared."""
    LEARN_LOST = "learn-lost"
    """The other has, and this one isn't prepared."""
    SERVE = "serve"
    """The other server lacks this one's model."""
    CATCH_UP = "catch-up"
    """This server lacks the other's model."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The remedy, and the attempt that it is about."""

    remedy: Remedy
    attempt: int = -1


def compare(own: Position, theirs: Position) -> Recovery:
    """Return what to do about the newest attempt; both servers come to matching conclusions.

    Raises PeerViolation: the trainings differ in a way that nothing mends.
    """
    if own.version != theirs.version:
        return Recovery(Remedy.SERVE if own.version > theirs.version else Remedy.CATCH_UP)
    if own.model != theirs.model:
        raise PeerViolation(
            f"the servers' trainings differ: after {own.version} rounds model {own.model} here, "
            f"{theirs.model} there. Restore both servers' newest state, or start a new task"
        )
    here, there = own.prepared, theirs.prepared
    if here is not None and there is not None:
        if here.attempt != there.attempt and here.bound != there.bound:
            # One was put back. Of what isn't bound nothing has left.
            if here.bound:
                return Recovery(Remedy.CONFIRM_VOID, there.attempt)
            return Recovery(Remedy.VOID, here.attempt)
        if (here.attempt, here.valid_set) != (there.attempt, there.valid_set):
            raise PeerViolation(
                "the servers prepared different attempts, or different valid sets, of one version"
            )
        return Recovery(Remedy.RELEASE, here.attempt)
    if here is not None:
        return Recovery(Remedy.LOST if here.bound else Remedy.VOID, here.attempt)
    if there is not None:
        return Recovery(Remedy.LEARN_LOST if there.bound else Remedy.CONFIRM_VOID, there.attempt)
    return Recovery(Remedy.NOTHING)


def settled(facts: Iterable[Fact], *pending: int | None) -> tuple[Fact, ...]:
    """The facts without those of attempts that one of the servers hasn't finished."""
    return tuple(fact for fact in facts if fact.attempt not in pending)


def adoptable(
    start: Digest, evidence: Sequence[Evidence], signed: HeadBody | None, heard: range = range(0)
) -> tuple[Fact, ...]:
    """Those of the other server's facts that one's own signature stands for.

    Args:
        start: of the history.
        evidence: the other server's facts, a version each, from version 0 on.
        signed: the own newest head, as the other kept it; its signature is checked.
        heard: attempts that this server has forgotten, and that the dealer, an owner or the other
            server has named to it. They are charged anyway (``training.reconcile``).

    Returns:
        All facts that were signed, and at most one charge more: the attempt that the other has
        prepared and countersigned or sent, or that its journal remembers. Nobody can invent
        others. And all voids: they charge nobody, and don't touch what this server has
        countersigned. And charges of attempts that were ``heard`` of.
    """
    pending = evidence[0].pending if evidence else None
    facts = [fact for each in evidence for fact in each.facts]
    found = [] if pending is None else [pending]
    found += [fact for fact in facts if fact.voided or fact.attempt in heard]
    if signed is None or signed.version >= len(evidence):
        return tuple(found)
    history = start
    for earlier in evidence[: signed.version]:
        history = history_after(history, earlier.facts)
    last = [fact for fact in evidence[signed.version].facts if fact.attempt <= signed.attempt]
    shown = {fact.attempt for fact in last}
    if pending is not None and pending.attempt == signed.attempt and pending.attempt not in shown:
        last.append(pending)
    if str(history_after(history, last)) != signed.history:
        return tuple(found)
    return (*(fact for each in evidence[: signed.version] for fact in each.facts), *last, *found)
