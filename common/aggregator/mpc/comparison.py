"""Opening values and sign bits, through CrypTen's sharings.

Both functions run at both parties inside ``acting_as``.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from precad.common.aggregator.mpc.crypten_import import ArithmeticSharedTensor, BinarySharedTensor
from precad.common.aggregator.mpc.party import current_rank
from precad.common.ring import RingVector

_SIGN_BIT = 63


def open_vector(share: RingVector) -> RingVector:
    """The sum of both parties' shares, known to both afterwards: one exchange.

    Args:
        share: ``[d] int64``, this party's additive share. Whatever is opened must be masked.

    Returns:
        ``[d] int64``.

    Raises:
        PeerViolation: the other party is out of step or sent another length.
        PeerUnavailable: it sent nothing in time.
    """
    tensor = ArithmeticSharedTensor.from_shares(torch.from_numpy(share), precision=0)
    opened: RingVector = tensor.reveal().numpy()
    return opened


def sign_bits(shares: RingVector) -> NDArray[np.bool_]:
    """Which of the shared values are negative, and nothing else about them: eight exchanges.

    Each party's additive share becomes a binary sharing of itself (its words on one side, zeros
    on the other, so no randomness is needed); CrypTen's carry tree adds the two; only the top bit
    of the sum is opened. No absolute value is taken anywhere: |−2^63| overflows.

    Args:
        shares: ``[m] int64``, m ≥ 1, this party's additive shares of integers at scale 1.

    Returns:
        ``[m] bool``, True where the value in [−2^63, 2^63) is negative; the same at both parties.

    Raises:
        PeerViolation: the other party is out of step or sent another length.
        PeerUnavailable: it sent nothing in time.
    """
    own = torch.from_numpy(np.array(shares, dtype=np.int64))
    zeros = torch.zeros_like(own)
    of_a, of_b = (own, zeros) if current_rank() == 0 else (zeros, own)
    total = BinarySharedTensor.from_shares(of_a, precision=0) + BinarySharedTensor.from_shares(
        of_b, precision=0
    )
    # Shifted and masked before it is revealed: the other 63 bits of a value stay shared.
    sign = (total >> _SIGN_BIT) & 1
    bits: NDArray[np.bool_] = sign.reveal().numpy() == 1
    return bits
