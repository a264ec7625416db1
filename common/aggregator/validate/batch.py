"""Validating a batch of shared updates: both servers run this, one bit a client comes out."""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.common.aggregator.mpc.comparison import open_vector, sign_bits
from precad.common.aggregator.mpc.party import acting_as
from precad.common.aggregator.mpc.provider import DealtProvider
from precad.common.aggregator.round.states import Shared, Validated
from precad.common.aggregator.validate.norm import excess_share
from precad.common.aggregator.validate.rows import project
from precad.common.deal.randomness import DealtRandomness
from precad.common.deal.request import DealRequest
from precad.common.deal.spent import SpentTriples
from precad.common.errors import Rejection
from precad.common.headroom import TAU
from precad.common.identifiers import Role
from precad.common.keystream import encode_context
from precad.common.link import PeerLink
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import Task

_RANKS = {Role.SERVER_A: 0, Role.SERVER_B: 1}


def comparisons_per_client(task: Task) -> int:
    """2k + 1: both sides of k ranges, and the norm."""
    return 2 * task.projections + 1


def deal_request(task: Task, attempt: int, batch: int, clients: int, nonces: bytes) -> DealRequest:
    """What to ask the dealer for before ``clients`` updates are validated in one batch."""
    return DealRequest(
        task=task.digest,
        attempt=attempt,
        batch=batch,
        clients=clients,
        dimension=task.dimension,
        comparisons=clients * comparisons_per_client(task),
        nonces=nonces,
    )


def validate(
    updates: Sequence[Shared],
    *,
    task: Task,
    attempt: int,
    role: Role,
    link: PeerLink,
    row_secret: Secret,
    randomness: DealtRandomness,
    spent: SpentTriples,
) -> tuple[Validated | Rejection, ...]:
    """Range test and exact norm of every update of a batch, with one batch of comparisons.

    Sound against clients while both servers and the dealer follow the protocol: an update longer
    than β passes with probability at most 2^−k (docs/soundness.md, "What is claimed").

    Args:
        updates: this server's shares, in the same order on both servers. Each is read once, in
            order, so that a sequence may load them as they are asked for.
        task: the task; gives d, β and k.
        attempt: the round.
        role: SERVER_A or SERVER_B.
        link: to the other server.
        row_secret: the servers' common secret for this task, unknown to clients.
        randomness: dealt for ``deal_request(task, round_number, batch, len(updates))``.
        spent: remembers that this randomness was used.

    Returns:
        For each update its share where it is valid, else the reason; the same on both servers.

    Raises:
        PeerViolation: this randomness was used before, or the other server is out of step, or
            validates other updates.
        PeerUnavailable: the other server didn't answer in time.
        ValueError: an update isn't ``[d] int64``, or the randomness is for something else: a
            caller's mistake. Nothing of that update was opened.
    """
    request = randomness.request
    expected = deal_request(task, attempt, request.batch, len(updates), request.nonces)
    if request != expected:
        raise ValueError(f"{request} isn't for {len(updates)} updates of attempt {attempt}")
    if randomness.role is not role:
        raise ValueError(f"the randomness of {randomness.role.value} is held by {role.value}")
    spent.spend(request.attempt, request.batch)
    half_width = TAU * task.bound if role is Role.SERVER_A else 0
    labels = hashlib.sha256()
    compared: list[RingVector] = []
    passing: list[Validated] = []
    for place, update in enumerate(updates):
        share = update.share
        if share.dtype != np.int64 or share.shape != (task.dimension,):
            raise ValueError(f"{update.client}: share of {share.dtype} {share.shape}")
        # In every step's name: if the servers validate different submissions, or in another
        # order, they stop at once instead of agreeing on wrong bits.
        labels.update(
            encode_context(
                "validate/update",
                update.client.encoded(),
                update.commitment_a,
                update.commitment_b,
            )
        )
        step = f"validate/{request.batch}/{place}/{labels.hexdigest()[:16]}"
        z = project(
            row_secret,
            share,
            task.projections,
            task=task.digest,
            attempt=attempt,
            client=update.client,
            commitment_a=update.commitment_a,
            commitment_b=update.commitment_b,
        )
        a_share, r_share = randomness.inner_product_triple(place)
        with acting_as(_RANKS[role], link, DealtProvider(()), step=step):
            opened = open_vector(share - a_share)
        y = excess_share(role, opened, a_share, r_share, task.bound)
        passing.append(Validated(update.client, share))
        # Public constants are added by server A alone.
        compared += [half_width + z, half_width - z, np.array([y], dtype=np.int64)]
    step = f"validate/{request.batch}/compare/{labels.hexdigest()[:16]}"
    provider = DealtProvider(randomness.binary_triples())
    with acting_as(_RANKS[role], link, provider, step=step):
        negative = sign_bits(np.concatenate(compared))
    reasons = [_reason(bits) for bits in negative.reshape(len(updates), -1)]
    return tuple(
        one if reason is None else reason for one, reason in zip(passing, reasons, strict=True)
    )


def _reason(negative: NDArray[np.bool_]) -> Rejection | None:
    """From the sign bits of z + τβ (k), of τβ − z (k) and of X·X − β² − 1."""
    if negative[:-1].any():
        return Rejection.OUT_OF_RANGE
    if not negative[-1]:
        return Rejection.NORM_EXCEEDED
    return None
