"""Reconstruct: from both noisy shares to the next model."""

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.messages import ModelBody, SealMessage
from precad.aggregator.rounds.states import Finished, Sent
from precad.common.errors import PeerViolation
from precad.common.identity.seal import Kind
from precad.common.model import apply_update, model_digest
from precad.common.ring import RingVector, byte_view


def reconstruct(aggregator: Aggregator, sent: Sent, theta: NDArray[np.float64]) -> Finished:
    """Exchange noisy shares, decode, divide by the fixed denominator, step with η.

    The next model is kept, and shown to anybody, only once the other server has signed the same
    digest: a server that loses it later takes it back on its own signature.

    Args:
        aggregator: this server.
        sent: both servers are prepared, and say so.
        theta: ``[d] float64``, θ_t, which becomes θ_{t+1}: a large model has room for few vectors.

    Raises:
        PeerViolation: the other server's share has the wrong size, or its next model differs.
    """
    link, seals = aggregator.link, aggregator.seals
    link.send("noisy-share", byte_view(sent.noisy_share))
    other_share = np.empty(aggregator.task.dimension, dtype="<i8")
    link.receive_into("noisy-share", byte_view(other_share))
    finished = step(aggregator, sent, theta, other_share.astype(np.int64, copy=False))
    version = finished.opened.version + 1
    own = ModelBody(task=str(aggregator.task.digest), version=version, digest=str(finished.model))
    answer = link.exchange("model", seals.write(Kind.MODEL, own).to_bytes())
    theirs = SealMessage.from_bytes(answer)
    found = seals.read(seals.other, Kind.MODEL, theirs, ModelBody)
    if found != own:
        raise PeerViolation(
            f"the servers computed different models of version {version}: {own.digest} here, "
            f"{found.digest} there; nothing more is released"
        )
    aggregator.journal.keep_model_seal(version, theirs)
    return finished


def step(
    aggregator: Aggregator, sent: Sent, theta: NDArray[np.float64], theirs: RingVector
) -> Finished:
    """θ_{t+1} from θ_t, the own noisy share and the other server's, ``[d] int64`` each.

    The other server's becomes the noisy sum, and θ_t the next model.
    """
    task, counted = aggregator.task, sent.counted
    theirs += sent.noisy_share
    stepped = apply_update(theta, theirs, task, aggregator.denominator, out=theta)
    digest = model_digest(task.digest, counted.opened.version + 1, task.model.parameters, stepped)
    return Finished(counted.opened, counted.valid, counted.rejections, theirs, stepped, digest)
