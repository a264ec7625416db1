"""What both ledgers must hold alike, as a digest that grows with each version.

A ledger's own chain has salts and an order of its own, so that its head tells nothing and shows
that nothing was changed. What the two ledgers have in common are facts: each attempt's charge, or
that it was voided. Their digest stands in every head that a server signs: a server that has lost
its newest entries knows its own signature over them again. But for one that the other server alone
remembers (``adoptable``) nobody can make it learn others.
"""

from collections.abc import Iterable, Sequence

from precad.aggregator.rounds.server_messages import Evidence, Fact, HeadBody
from precad.common.identifiers import ClientId, Digest
from precad.common.keystream import encode_context


def history_start(task: Digest) -> Digest:
    """Before version 0."""
    return Digest.of(encode_context("history", task.value))


def history_after(before: Digest, facts: Iterable[Fact]) -> Digest:
    """The history after the facts of one more version, in whatever order they come."""
    parts: list[bytes | int] = [before.value]
    for fact in sorted(facts, key=lambda fact: (fact.attempt, fact.voided)):
        names = sorted(ClientId(name).encoded() for name in fact.clients)
        parts += [fact.version, fact.attempt, int(fact.voided), len(names), *names]
    return Digest.of(encode_context("history-of-a-version", *parts))


def settled(facts: Iterable[Fact], *pending: int | None) -> tuple[Fact, ...]:
    """The facts without those of attempts that one of the servers hasn't finished."""
    return tuple(fact for fact in facts if fact.attempt not in pending)


def adoptable(
    start: Digest,
    evidence: Sequence[Evidence],
    sealed: HeadBody | None,
    heard: range = range(0),
) -> tuple[Fact, ...]:
    """Those of the other server's facts that one's own signature stands for.

    Args:
        start: of the history.
        evidence: the other server's facts, a version each, from version 0 on.
        sealed: the own newest head, as the other kept it; its signature is checked.
        heard: attempts that this server has forgotten, and that the dealer, an owner or the other
            server has named to it. They are charged anyway (``training.reconcile``).

    Returns:
        All facts under the seal, and at most one charge more: the attempt that the other has
        prepared and countersigned or sent, or that its journal remembers. Nobody can invent
        others. And all voids: they charge nobody, and don't touch what this server has
        countersigned. And charges of attempts that were ``heard`` of.
    """
    pending = evidence[0].pending if evidence else None
    found = [] if pending is None else [pending]
    found += [fact for each in evidence for fact in each.facts if fact.voided]
    found += [
        fact
        for each in evidence
        for fact in each.facts
        if not fact.voided and fact.attempt in heard
    ]
    if sealed is None or sealed.version >= len(evidence):
        return tuple(found)
    history = start
    for earlier in evidence[: sealed.version]:
        history = history_after(history, earlier.facts)
    last = [fact for fact in evidence[sealed.version].facts if fact.attempt <= sealed.attempt]
    shown = {fact.attempt for fact in last}
    if pending is not None and pending.attempt == sealed.attempt and pending.attempt not in shown:
        last.append(pending)
    if str(history_after(history, last)) != sealed.history:
        return tuple(found)
    return (*(fact for each in evidence[: sealed.version] for fact in each.facts), *last, *found)
