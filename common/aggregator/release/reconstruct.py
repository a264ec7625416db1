"""Reconstruct: from both noisy shares to the next model."""

import numpy as np
from numpy.typing import NDArray

from precad.common.aggregator.release.agree import agree
from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.states import Finished, Released
from precad.common.errors import PeerViolation
from precad.common.model import apply_update, model_digest
from precad.common.ring import WORD_BYTES, from_bytes, to_bytes


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
    link, counted = aggregator.link, released.counted
    agree(link, "charged", counted.valid_set, len(counted.valid))
    data = link.exchange("noisy-share", to_bytes(released.noisy_share))
    finished = step(aggregator, released, theta, data)
    agree(link, "model", finished.model, len(counted.valid))
    return finished


def step(
    aggregator: Aggregator, released: Released, theta: NDArray[np.float64], theirs: bytes
) -> Finished:
    """θ_{t+1} from θ_t, the own noisy share and the other server's bytes.

    Raises:
        PeerViolation: the other server's share has the wrong size.
    """
    task, counted = aggregator.task, released.counted
    if len(theirs) != task.dimension * WORD_BYTES:
        raise PeerViolation(f"noisy share has {len(theirs)} bytes for d = {task.dimension}")
    noisy_sum = released.noisy_share + from_bytes(theirs)
    stepped = apply_update(theta, noisy_sum, task, aggregator.denominator)
    digest = model_digest(task.digest, counted.opened.version + 1, task.model.parameters, stepped)
    return Finished(counted.opened, counted.valid, counted.rejections, noisy_sum, stepped, digest)
