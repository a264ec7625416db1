"""What both servers do alike around the rounds: the aggregator's parts, a round's end, errors."""

import time
from collections.abc import Mapping

from precad.common.collect import Held
from precad.common.errors import Rejection
from precad.common.identifiers import ClientId
from precad.common.link import FrameTransport, PeerLink
from precad.common.noise import DiscreteGaussian
from precad.common.ring import WORD_BYTES
from precad.common.round.aggregator import Aggregator
from precad.common.round.matching import match
from precad.common.round.messages import HeldList
from precad.common.round.settling import (
    BATCH_WORDS,
    MAX_BATCH_CLIENTS,
    reconstruct,
    release,
    validate_and_sum,
)
from precad.common.round.setup import agree_row_secret, greet
from precad.common.round.states import Opened
from precad.common.secret import Secret
from precad.common.serve.feed import RoundDone
from precad.common.serve.session import Session
from precad.common.task import Task
from precad.common.wire.dealing import RemoteDealer

_ENTRY_BYTES = 512
_WORDS_PER_COMPARISON = 64


def max_message_bytes(task: Task) -> int:
    """Cap of one message between the servers, from the task alone.

    The largest are an opening (a batch of d-vectors), the comparisons' openings and the lists
    over a cohort.
    """
    opening = max(BATCH_WORDS, task.dimension) * WORD_BYTES
    comparisons = (
        MAX_BATCH_CLIENTS * (2 * task.projections + 1) * _WORDS_PER_COMPARISON * WORD_BYTES
    )
    lists = task.enrolment.clients * _ENTRY_BYTES
    return max(opening, comparisons, lists) + 4096


def connect(session: Session, transport: FrameTransport) -> tuple[PeerLink, Secret]:
    """Open the protocol on a transport: greet, agree on the row secret."""
    link = PeerLink(
        transport,
        session.task.digest,
        max_message_bytes=max_message_bytes(session.task),
        timeout_s=session.task.deadlines.peer,
    )
    current = session.shelf.current
    greet(link, session.role, current.round, current.digest)
    return link, agree_row_secret(link, session.role, session.task)


def make_aggregator(
    session: Session, link: PeerLink, row_secret: Secret, dealer: RemoteDealer
) -> Aggregator:
    """This server's role object; its roster is frozen."""
    dealer_key = dealer.join()
    session.store.keep_key("dealer", dealer_key)
    return Aggregator(
        task=session.task,
        role=session.role,
        roster=session.register.roster(),
        link=link,
        dealing=dealer,
        dealer_key=dealer_key,
        row_secret=row_secret,
        noise=DiscreteGaussian(session.task.noise_units),
        store=session.store,
    )


def settle(
    session: Session,
    aggregator: Aggregator,
    opened: Opened,
    collected: Mapping[ClientId, Held | Rejection],
    theirs: HeldList,
    started: float,
) -> None:
    """From two lists of held submissions to the next model, persisted and announced."""
    matched = match(opened, session.role, collected, theirs)
    released = release(aggregator, validate_and_sum(aggregator, matched))
    finished = reconstruct(aggregator, released, session.shelf.current.theta)
    session.shelf.put(opened.number + 1, finished.theta)
    session.store.finish_round(opened.number, finished.model)
    session.rounds_done += 1
    participations = session.store.participations()
    session.feed.publish(
        RoundDone(
            opened,
            frozenset(finished.valid),
            finished.rejections,
            finished.model,
            max(participations.values(), default=0),
            time.monotonic() - started,
        )
    )
