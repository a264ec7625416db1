"""From each submission's k + 1 shared words to one opened bit: is its norm within the bound?"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.mpc.comparison import all_signs
from precad.aggregator.mpc.party import acting_as
from precad.aggregator.mpc.provider import DealtProvider
from precad.aggregator.validate.comparisons import deal_request
from precad.common.headroom import TAU
from precad.common.identifiers import Role
from precad.common.link import PeerLink
from precad.common.ring import RingVector
from precad.common.task import Task
from precad.norm_check.dealt_triples import DealtRandomness, SpentTriples

_RANKS = {Role.SERVER_A: 0, Role.SERVER_B: 1}


def decide(
    words: Sequence[RingVector],
    *,
    task: Task,
    role: Role,
    link: PeerLink,
    randomness: DealtRandomness,
    spent: SpentTriples,
    label: str,
) -> NDArray[np.bool_]:
    """Range test and exact norm of a batch: one bit each is opened, and nothing else.

    Sound against clients while both servers and the dealer follow the protocol: an update longer
    than β passes with probability at most 2^−k (docs/soundness.md, "What is claimed").

    Args:
        words: each submission's, ``[k + 1] int64`` (``Absorber.words``), in the same order on both
            servers.
        task: gives β and k.
        role: SERVER_A or SERVER_B.
        link: to the other server.
        randomness: dealt for ``deal_request(task, attempt, batch, len(words), nonces)``.
        spent: remembers that this randomness was used.
        label: names the submissions in every step: servers that decide on others stop at once.

    Returns:
        ``[n] bool``, True where the norm is within the bound; the same on both servers.

    Raises:
        PeerViolation: this randomness was used before, or the other server is out of step, or
            decides on other submissions.
        PeerUnavailable: the other server didn't answer in time.
        ValueError: the randomness is for something else: a caller's mistake.
    """
    request, k = randomness.request, task.projections
    expected = deal_request(task, request.attempt, request.batch, len(words), request.nonces)
    if request != expected:
        raise ValueError(f"{request} isn't for {len(words)} submissions of this task")
    if randomness.role is not role:
        raise ValueError(f"the randomness of {randomness.role.value} is held by {role.value}")
    spent.spend(request.attempt, request.batch)
    # Public constants are added by server A alone.
    half_width = TAU * task.bound if role is Role.SERVER_A else 0
    z, y = np.stack(words)[:, :k], np.stack(words)[:, k:]
    compared = np.concatenate([half_width + z, half_width - z, y], axis=1)
    negative = np.array([False] * 2 * k + [True])
    provider = DealtProvider(randomness.binary_triples())
    step = f"decide/{request.batch}/{label}"
    with acting_as(_RANKS[role], link, provider, step=step):
        return all_signs(compared, negative)
