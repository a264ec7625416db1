"""Sign bits and their conjunction, through CrypTen's sharings: one bit a row is opened."""

import numpy as np
import torch
from numpy.typing import NDArray

from precad.aggregator.mpc.crypten_import import BinarySharedTensor
from precad.aggregator.mpc.party import current_rank
from precad.common.ring import RingVector

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

    Raises:
        PeerViolation: the other party is out of step or sent another length.
        PeerUnavailable: it sent nothing in time.
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
