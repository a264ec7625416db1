"""Validate, aggregate, charge, release, reconstruct: from matched shares to the next model."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from precad.common.aggregator.round.aggregator import Aggregator, SpentInJournal
from precad.common.aggregator.round.messages import SetCheck
from precad.common.aggregator.round.states import (
    Finished,
    Matched,
    MatchedSubmission,
    Released,
    Validated,
)
from precad.common.aggregator.validate import SharedUpdate, deal_request, validate
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest
from precad.common.keystream import encode_context
from precad.common.model import apply_update, model_digest
from precad.common.ring import WORD_BYTES, from_bytes, to_bytes

BATCH_WORDS = 1 << 21
"""Ring elements of shares that one validation batch may hold: memory stays O(d) per client."""
MAX_BATCH_CLIENTS = 256


def validate_and_sum(aggregator: Aggregator, matched: Matched) -> Validated:
    """Both parts of docs/soundness.md for every matched submission, then the sum of the valid ones.

    Batches of clients keep memory bounded; each valid share goes into one accumulator and is
    dropped.

    Raises:
        PeerViolation: the servers disagree about the valid set.
    """
    task, number = aggregator.task, matched.opened.number
    total = np.zeros(task.dimension, dtype=np.int64)
    rejections = dict(matched.rejections)
    valid: list[ClientId] = []
    for batch, clients in enumerate(_batches(tuple(matched.submissions), task.dimension)):
        updates = [
            _shared_update(client, matched.submissions[client], task.dimension)
            for client in clients
        ]
        request = deal_request(task, number, batch, len(updates))
        verdicts = validate(
            updates,
            task=task,
            round_number=number,
            role=aggregator.role,
            link=aggregator.link,
            row_secret=aggregator.row_secret,
            randomness=aggregator.randomness(request),
            spent=SpentInJournal(aggregator.journal),
        )
        for client, update, reason in zip(clients, updates, verdicts, strict=True):
            if reason is None:
                valid.append(client)
                total += update.share
            else:
                rejections[client] = reason
    digest = _set_digest(aggregator, matched, valid)
    _agree(aggregator, "valid-set", digest, len(valid))
    for submission in matched.submissions.values():
        submission.held.discard()
    return Validated(matched.opened, tuple(valid), digest, rejections, total)


def release(aggregator: Aggregator, validated: Validated) -> Released:
    """Add this server's own noise once, charge the ledger and persist; then, and only then, send.

    Raises:
        AlreadyReleased: this round has released before.
    """
    noisy = validated.share_sum + aggregator.noise.draw(aggregator.task.dimension)
    aggregator.journal.release(
        validated.opened.number,
        validated.valid,
        validated.valid_set,
        validated.rejections,
        to_bytes(noisy),
    )
    return Released(
        validated.opened, validated.valid, validated.valid_set, validated.rejections, noisy
    )


def reconstruct(aggregator: Aggregator, released: Released, theta: NDArray[np.float64]) -> Finished:
    """Exchange noisy shares, decode, divide by the fixed denominator, step with η.

    No noisy share leaves before both servers say that they have charged the same valid set: if
    one dies in between, what the other forfeits was never seen by anybody.

    Args:
        aggregator: this server.
        released: after the charge.
        theta: ``[d] float64``, θ_t.

    Raises:
        PeerViolation: the other server's share has the wrong size, or its next model differs.
    """
    _agree(aggregator, "charged", released.valid_set, len(released.valid))
    data = aggregator.link.exchange("noisy-share", to_bytes(released.noisy_share))
    finished = step(aggregator, released, theta, data)
    _agree(aggregator, "model", finished.model, len(released.valid))
    return finished


def step(
    aggregator: Aggregator, released: Released, theta: NDArray[np.float64], theirs: bytes
) -> Finished:
    """θ_{t+1} from θ_t, the own noisy share and the other server's bytes.

    Raises:
        PeerViolation: the other server's share has the wrong size.
    """
    task = aggregator.task
    if len(theirs) != task.dimension * WORD_BYTES:
        raise PeerViolation(f"noisy share has {len(theirs)} bytes for d = {task.dimension}")
    noisy_sum = released.noisy_share + from_bytes(theirs)
    stepped = apply_update(theta, noisy_sum, task, aggregator.denominator)
    digest = model_digest(task.digest, released.opened.version + 1, task.model.parameters, stepped)
    return Finished(
        released.opened, released.valid, released.rejections, noisy_sum, stepped, digest
    )


def _batches(clients: tuple[ClientId, ...], dimension: int) -> Iterator[tuple[ClientId, ...]]:
    size = max(1, min(MAX_BATCH_CLIENTS, BATCH_WORDS // dimension))
    for start in range(0, len(clients), size):
        yield clients[start : start + size]


def _shared_update(client: ClientId, submission: MatchedSubmission, dimension: int) -> SharedUpdate:
    return SharedUpdate(
        client,
        submission.commitment_a,
        submission.commitment_b,
        submission.held.expand(dimension),
    )


def _set_digest(aggregator: Aggregator, matched: Matched, valid: list[ClientId]) -> Digest:
    parts: list[bytes | int] = [aggregator.task.digest.value, matched.opened.number]
    for client in valid:
        submission = matched.submissions[client]
        parts += [client.encoded(), submission.commitment_a, submission.commitment_b]
    return Digest.of(encode_context("valid-set", *parts))


def _agree(aggregator: Aggregator, step: str, digest: Digest, count: int) -> None:
    own = SetCheck(digest=str(digest), count=count)
    theirs = SetCheck.from_bytes(aggregator.link.exchange(step, own.to_bytes()))
    if theirs != own:
        raise PeerViolation(
            f"the servers disagree at step {step!r}: ours {own.digest} ({own.count}), "
            f"theirs {theirs.digest} ({theirs.count}); nothing more is released"
        )
