"""Validate and aggregate: from matched submissions to the sum of the valid ones."""

import logging
from collections.abc import Iterator, Sequence

import numpy as np

from precad.common.aggregator.release.agree import agree
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.states import Counted, Matched, Shared, Summed, Validated
from precad.common.aggregator.validate import deal_request, validate
from precad.common.errors import BodyUnreadable, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.keystream import derive, encode_context
from precad.common.ring import RingVector
from precad.common.share.submission import Submission

log = logging.getLogger("precad")

BATCH_WORDS = 1 << 21
"""Ring elements of shares that one validation batch may hold: memory stays O(d) per client."""
MAX_BATCH_CLIENTS = 256


def aggregate(aggregator: Aggregator, matched: Matched) -> Summed:
    """Both parts of docs/soundness.md for every matched submission, then the sum of the valid ones.

    Batches of clients keep memory bounded; each valid share goes into one accumulator and is
    dropped.

    Raises:
        PeerViolation: the servers disagree about the valid set.
    """
    task = aggregator.task
    total = np.zeros(task.dimension, dtype=np.int64)
    rejections = dict(matched.rejections)
    valid: list[ClientId] = []
    for batch, clients in enumerate(_batches(tuple(matched.submissions), task.dimension)):
        shared = [_shared(c, matched.submissions[c], task.dimension) for c in clients]
        verdicts = _validated(aggregator, matched.opened.attempt, batch, shared)
        for client, verdict in zip(clients, verdicts, strict=True):
            if isinstance(verdict, Validated):
                if client in matched.opened.counted:
                    add(total, verdict)
                valid.append(client)
            else:
                rejections[client] = verdict
    # Who isn't counted is validated all the same: nothing shows which of them the coin drew.
    counted = tuple(client for client in valid if client in matched.opened.counted)
    digest = _set_digest(aggregator, matched, counted)
    agree(aggregator.link, "valid-set", digest, len(counted))
    for submission in matched.submissions.values():
        submission.discard()
    return Summed(Counted(matched.opened, counted, digest, rejections), total)


def add(total: RingVector, validated: Validated) -> None:
    """Add a valid share into ``total``, ``[d] int64``."""
    total += validated.share


def _validated(
    aggregator: Aggregator, attempt: int, batch: int, shared: list[Shared]
) -> tuple[Validated | Rejection, ...]:
    nonces = aggregator.nonces
    request = deal_request(aggregator.task, attempt, batch, len(shared), nonces)
    return validate(
        shared,
        task=aggregator.task,
        attempt=attempt,
        role=aggregator.role,
        link=aggregator.link,
        row_secret=aggregator.row_secret,
        randomness=aggregator.randomness(request),
        spent=aggregator.journal,
    )


def _batches(clients: tuple[ClientId, ...], dimension: int) -> Iterator[tuple[ClientId, ...]]:
    size = max(1, min(MAX_BATCH_CLIENTS, BATCH_WORDS // dimension))
    for start in range(0, len(clients), size):
        yield clients[start : start + size]


def _shared(client: ClientId, submission: Submission, dimension: int) -> Shared:
    header = submission.header
    try:
        share = _expanded(submission, dimension)
    except BodyUnreadable as error:
        # Not even noticed by the others: without its half the vector is uniform, and both servers
        # find it out of range.
        log.warning("the share of client %s can't be read, and won't count: %s", client, error)
        share = np.zeros(dimension, dtype=np.int64)
    return Shared(client, header.commitment_a.value, header.commitment_b.value, share)


def _expanded(submission: Submission, dimension: int) -> RingVector:
    """This server's share of x: a_A at A, b + a_B at B."""
    share = submission.mask().words(dimension)
    if submission.role is Role.SERVER_B:
        start = 0
        for piece in submission.body_pieces():
            words = np.frombuffer(piece, dtype="<i8")
            share[start : start + words.size] += words
            start += words.size
    return share


def _set_digest(aggregator: Aggregator, matched: Matched, valid: Sequence[ClientId]) -> Digest:
    """Salted with what only the two servers know: else the digest were the list itself."""
    task, attempt = aggregator.task.digest.value, matched.opened.attempt
    salt = derive(aggregator.row_secret, "set-salt", task, attempt).reveal()
    parts: list[bytes | int] = [salt, task, attempt]
    for client in valid:
        header = matched.submissions[client].header
        parts += [client.encoded(), header.commitment_a.value, header.commitment_b.value]
    return Digest.of(encode_context("valid-set", *parts))
