"""``validation = "crypten"``: a Beaver square on shares, and CrypTen's comparisons."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.absorb_bodies import Absorber
from precad.aggregator.validate.crypten_import import BinarySharedTensor
from precad.aggregator.validate.crypten_party import DealtProvider, acting_as, current_rank
from precad.aggregator.validate.validation import Server, deal_request, label
from precad.common.identifiers import Digest, Role
from precad.common.ring import RingVector
from precad.common.share.submission import Submission
from precad.common.task import TAU, Task
from precad.norm_check.dealing import DealerConversation
from precad.norm_check.dealt_triples import DealtRandomness, SpentTriples


class ByShares:
    """As ``Check``: this server has shares of k + 1 words of each, and one bit is opened."""

    def __init__(self, server: Server, attempt: int) -> None:
        self._server = server
        self._attempt = attempt
        self._words: dict[Digest, RingVector] = {}

    def note(self, submission: Submission, absorber: Absorber, squares: DealerConversation) -> None:
        """As ``Check.note``: this server's share of r."""
        ctx = submission.context.digest
        self._words[ctx] = absorber.words(squares.share(ctx.value))

    def decide(self, batch: int, submissions: Sequence[Submission]) -> NDArray[np.bool_]:
        """As ``Check.decide``."""
        server = self._server
        request = deal_request(server.task, self._attempt, batch, len(submissions), server.nonces)
        return decide(
            [self._words[each.context.digest] for each in submissions],
            task=server.task,
            role=server.role,
            link=server.link,
            randomness=server.randomness(request),
            spent=server.spent,
            label=label(submissions),
        )


# From each submission's k + 1 shared words to one opened bit: is its norm within the bound?


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
        randomness: dealt for ``deal_request(task, attempt, batch, len(words), nonces)``.
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


# Sign bits and their conjunction, through CrypTen's sharings: one bit a row is opened.


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
