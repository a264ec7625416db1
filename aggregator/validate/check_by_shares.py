"""``validation = "crypten"``: CrypTen's comparisons of what was absorbed of submissions.

From each one's k + 1 shared words to one opened bit: is its norm within the bound?
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.crypten_import import BinarySharedTensor
from precad.aggregator.validate.crypten_party import DealtProvider, acting_as, current_rank
from precad.aggregator.validate.validation import deal_request
from precad.common.identifiers import Role
from precad.common.ring import RingVector
from precad.common.task import TAU, Task
from precad.norm_check.dealing import DealtRandomness, SpentTriples


def decide(
    words: Sequence[RingVector],
    *,
    task: Task,
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
        randomness: dealt to this server, for the ``deal_request`` of so many clients.
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
    spent.spend(request.attempt, request.batch)
    rank = 0 if randomness.role is Role.SERVER_A else 1
    # Public constants are added by server A alone.
    half_width = 0 if rank else TAU * task.bound
    z, y = np.stack(words)[:, :k], np.stack(words)[:, k:]
    compared = np.concatenate([half_width + z, half_width - z, y], axis=1)
    negative = np.array([False] * 2 * k + [True])
    provider = DealtProvider(randomness.binary_triples())
    step = f"decide/{request.batch}/{label}"
    with acting_as(rank, link, provider, step=step):
        return all_signs(compared, negative)


_SIGN_BIT = 63


def all_signs(shares: RingVector, negative: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows of the shared values have all their signs as demanded, and nothing else of them.

    Runs at both parties inside ``acting_as``. Each party's additive share becomes a binary sharing
    of itself (its words on one side, zeros on the other, so no randomness is needed); CrypTen's
    carry tree adds the two (seven exchanges); the top bits are flipped where a sign is to be
    positive, and ANDed in a tree (log2 of w exchanges); only the last bit of each row is opened.
    No absolute value is taken anywhere: |−2^63| overflows.

    Args:
        shares: ``[n, w] int64``, n, w ≥ 1, this party's additive shares of integers at scale 1.
        negative: ``[w] bool``, the sign that each column is to have.

    Returns:
        ``[n] bool``; the same at both parties.
    """
    own = torch.from_numpy(np.array(shares, dtype=np.int64).reshape(-1))
    zeros = torch.zeros_like(own)
    of_a, of_b = (own, zeros) if current_rank() == 0 else (zeros, own)
    total = BinarySharedTensor.from_shares(of_a, precision=0) + BinarySharedTensor.from_shares(
        of_b, precision=0
    )
    # Shifted and masked before anything is opened: the other 63 bits of a value stay shared.
    bits = ((total >> _SIGN_BIT) & 1).share.reshape(shares.shape)
    if current_rank() == 0:
        bits = bits ^ torch.from_numpy((~negative).astype(np.int64))
    while (width := bits.shape[1]) > 1:
        pairs = width // 2
        left, right = _sharing(bits[:, :pairs]), _sharing(bits[:, pairs : 2 * pairs])
        bits = torch.cat([(left & right).share, bits[:, 2 * pairs :]], dim=1)
    opened: NDArray[np.int64] = _sharing(bits[:, 0] & 1).reveal().numpy()
    passes: NDArray[np.bool_] = opened == 1
    return passes


def _sharing(bits: torch.Tensor) -> BinarySharedTensor:
    return BinarySharedTensor.from_shares(bits.contiguous(), precision=0)
