"""Attempts that only an owner or the dealer still knows: charged, counted again later or not.

Both servers were put back, and their journal files don't name what the dealer has dealt for or
what an owner has their signature on. Such an attempt may have left. So each is an entry in both
ledgers, and charges everybody whom its version's coin draws. Nobody remembers its version either:
versions that are over without a charge come first, what is left over is of the newest.

The servers write entry after entry in step, so that after a break one of them is ahead by one at
most; the other takes that one over (``adoptable``), since it has heard of the attempt itself.
"""

import logging

from precad.aggregator.peer_link import SETUP_ATTEMPT
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.agree_coin import agree_coin
from precad.aggregator.rounds.joint_coin import cohort_of
from precad.aggregator.rounds.server_messages import Fact, Remembered
from precad.aggregator.training.session import Session
from precad.common.errors import PeerViolation

log = logging.getLogger("precad")

MOST = 100_000
"""Attempts at once. No training has lost more; a peer that says so is broken."""


def charge_unknown(session: Session, aggregator: Aggregator) -> None:
    """Charge what both ledgers lack and somebody remembers; before any attempt opens.

    Both servers stand at the same version with the same history by now (``meet``).

    Raises:
        PeerViolation: the other server charges something else, or has heard of too much.
        NeedsOperators: a version's coin can't be known without new ones.
    """
    aggregator.link.begin_attempt(SETUP_ATTEMPT)
    for attempt, version in _unknown(session, aggregator):
        coin = agree_coin(aggregator, version)
        drawn = cohort_of(coin, aggregator.roster, session.task.privacy.client_rate, version)
        names = tuple(client.name for client in drawn)
        fact = Fact(version=version, attempt=attempt, voided=False, clients=names)
        theirs = aggregator.link.exchange("unknown", fact.to_bytes())
        if Fact.from_bytes(theirs) != fact:
            raise PeerViolation("the other server charges a forgotten attempt in another way")
        session.store.attempts.charge_unknown(fact)
        log.warning(
            "attempt %d was forgotten by both servers, and may have left: whoever it may have held "
            "is charged for version %d",
            attempt,
            version,
        )


def _unknown(session: Session, aggregator: Aggregator) -> list[tuple[int, int]]:
    """Attempts and the versions that they are charged for."""
    store, link = session.store, aggregator.link
    own = Remembered(unused=store.attempts.unused_here(), unheard=store.attempts.next_number())
    theirs = Remembered.from_bytes(link.exchange("remembered", own.to_bytes()))
    unused, unheard = max(own.unused, theirs.unused), max(own.unheard, theirs.unheard)
    if unheard - unused > MOST:
        raise PeerViolation(f"{unheard - unused} attempts are said to be forgotten")
    current = session.shelf.current.version
    versions = list(store.ledger.uncharged_versions(current))
    lost = max(unheard - unused, len(versions))
    newest = min(current, session.task.training.rounds - 1)
    versions += [newest] * (lost - len(versions))
    # Durable on both, so that a server that breaks off knows that these attempts existed.
    store.attempts.hear(unused + lost - 1)
    progress = session.progress
    progress.next_attempt = max(progress.next_attempt, unused + lost)
    return list(zip(range(unused, unused + lost), versions, strict=True))
