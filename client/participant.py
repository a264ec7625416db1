"""Taking part in a whole training: watch, fetch, compute, submit, until it is over."""

import logging
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from precad.client.budget import OwnBudget
from precad.client.connection import Servers, rejection_of
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.ring import RingVector
from precad.protos import precad_pb2 as pb

log = logging.getLogger("precad")

BACKOFF_S = (0.2, 5.0)
"""First and longest wait before reconnecting."""


@dataclass(frozen=True, slots=True)
class RoundView:
    """What a client knows of the round that it computes for."""

    number: int
    theta: NDArray[np.float64] = field(repr=False)
    """``[d] float64``, θ_t."""
    model: Digest


Compute = Callable[[RoundView], RingVector]
"""Gives the encoded update ``[d] int64`` for a round."""


@dataclass(slots=True)
class Participation:
    """How a client's training went."""

    submitted: int = 0
    counted: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    epsilon: float = 0.0
    """The owner's own account: exact, record level, one server corrupted."""
    ended: str = ""
    """`finished`, or `budget` when the owner's limit was reached first."""
    rounds: int = 0
    theta: NDArray[np.float64] | None = field(default=None, repr=False)
    """The final model, ``[d] float64``; None when the owner's limit ended it."""
    model: Digest | None = None


def take_part(
    servers: Servers,
    budget: OwnBudget,
    compute: Compute,
    on_notice: Callable[[Participation, pb.Notice], None] | None = None,
) -> Participation:
    """Take part until the training is over or the owner's budget is.

    Args:
        servers: enrolled already.
        budget: charged before each submission.
        compute: called for each round this client is drawn for.
        on_notice: called after each notice, for progress.

    Raises:
        PeerViolation: the servers disagree about the model, or training stopped.
        PeerUnavailable: server A stayed away for longer than the task's enrolment deadline.
    """
    result = Participation()
    seen: set[int] = set()
    patience = servers.task.deadlines.enrol
    last_contact = time.monotonic()
    wait_s = BACKOFF_S[0]
    while not result.ended:
        try:
            for notice in servers.watch():
                last_contact, wait_s = time.monotonic(), BACKOFF_S[0]
                _handle(notice, servers, budget, compute, result, seen)
                if on_notice is not None:
                    on_notice(result, notice)
                if result.ended:
                    break
        except PeerUnavailable as error:
            if time.monotonic() - last_contact > patience:
                raise
            log.warning("%s; reconnecting", error)
        if not result.ended:
            # Jitter: clients that lost one server don't come back in one wave.
            time.sleep(wait_s * (0.5 + random.random()))  # noqa: S311 -- not a secret
            wait_s = min(2 * wait_s, BACKOFF_S[1])
    result.epsilon = budget.epsilon()
    return result


def _handle(
    notice: pb.Notice,
    servers: Servers,
    budget: OwnBudget,
    compute: Compute,
    result: Participation,
    seen: set[int],
) -> None:
    match notice.WhichOneof("event"):
        case "open":
            event = notice.open
            if event.selected and event.round not in seen:
                seen.add(event.round)
                _play(event, servers, budget, compute, result)
        case "over":
            if notice.over.counted:
                result.counted += 1
            elif notice.over.rejection:
                reason = rejection_of(notice.over.rejection).value
                result.rejected[reason] += 1
                log.warning("round %d: submission rejected: %s", notice.over.round, reason)
        case "finished":
            result.theta = servers.fetch_model(
                notice.finished.version, notice.finished.model_digest
            )
            result.model = Digest(notice.finished.model_digest)
            result.rounds = notice.finished.version
            result.ended = "finished"
        case "stopped":
            raise PeerViolation(f"training stopped: {notice.stopped.error}")
        case None:
            pass


def _play(
    event: pb.RoundOpen,
    servers: Servers,
    budget: OwnBudget,
    compute: Compute,
    result: Participation,
) -> None:
    if budget.exhausted:
        log.warning("the owner's privacy limit is reached; leaving the training")
        result.ended = "budget"
        return
    # The task's own deadline first: whatever is announced, NaN too, can't stretch it.
    deadline = time.monotonic() + min(servers.task.deadlines.collect, event.collect_seconds)
    theta = servers.fetch_model(event.version, event.model_digest)
    view = RoundView(event.round, theta, Digest(event.model_digest))
    pair = servers.prepare(event.round, view.model, compute(view))
    budget.charge(event.round)
    result.submitted += 1
    try:
        for receipt in servers.submit(pair, max(1.0, deadline - time.monotonic())):
            if receipt.rejection is not None:
                log.warning(
                    "round %d: %s rejected the upload: %s",
                    event.round,
                    receipt.role.value,
                    receipt.detail,
                )
    except PeerUnavailable as error:
        # The round goes on without this client; the next one may work.
        log.warning("round %d: %s", event.round, error)
