"""Compare by CrypTen what was absorbed of submissions: ``validation = "crypten"``.

Of each submission's k + 1 shared words one bit is opened: is its norm within the bound?
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
import torch
from torch.distributed import ReduceOp

from precad.aggregator import PeerLink
from precad.aggregator.validate.crypten_import import BinarySharedTensor, crypten
from precad.aggregator.validate.validation import deal_request
from precad.common import (
    TAU,
    WORD_BYTES,
    Booleans,
    Integers,
    PeerViolation,
    RingVector,
    Role,
    Task,
)
from precad.common.ring import from_bytes, to_bytes
from precad.norm_check import BinaryTriple, DealtRandomness, SpentTriples

BinarySharing = Any
"""CrypTen's ``BinarySharedTensor``: CrypTen has no types."""


def decide(
    words: Sequence[RingVector],
    *,
    task: Task,
    link: PeerLink,
    randomness: DealtRandomness,
    spent: SpentTriples,
    label: str,
) -> Booleans:
    """Decide on a batch by range test and exact norm; open one bit each, nothing else.

    It is sound against clients while both servers and the dealer follow the protocol:
    an update longer than β passes with probability at most 2^−k (docs/soundness.md,
    "What is claimed").

    ``words`` are this server's shares of each submission's words, ``[k + 1] int64``
    (``Absorber.words``), in the same order on both servers. ``randomness`` is for the
    ``deal_request`` of so many submissions. ``label`` names them in every step. Return
    ``[n] bool``, the same on both servers: whether each norm is within the bound.

    Raises PeerUnavailable; PeerViolation: this randomness was used before, or the other
    server is out of step, or decides on other submissions; ValueError: the randomness
    is for something else, a caller's mistake.
    """
    request = randomness.request
    k = task.projections
    if request != deal_request(
        task,
        attempt=request.attempt,
        batch=request.batch,
        clients=len(words),
        nonces=request.nonces,
    ):
        raise ValueError(f"{request} isn't for {len(words)} submissions of this task")
    spent.spend(request.attempt, request.batch)
    rank = 0 if randomness.role is Role.SERVER_A else 1
    # Public constants are added by server A alone.
    half_width = 0 if rank else TAU * task.mechanism.bound
    shares = np.stack(words)
    z = shares[:, :k]
    y = shares[:, k:]
    compared = np.concatenate([half_width + z, half_width - z, y], axis=1)
    to_be_negative = np.array([False] * 2 * k + [True])
    provider = DealtProvider(randomness.binary_triples())
    with acting_as(rank, link, provider, step=f"decide/{request.batch}/{label}"):
        return all_signs(compared, to_be_negative)


def all_signs(shares: RingVector, negative: Booleans) -> Booleans:
    """Open which rows of shared values have all signs as demanded, and nothing else.

    It runs at both parties, inside ``acting_as``. Each party's additive share becomes a
    binary sharing of itself: its words on one side, zeros on the other, so no
    randomness is needed. CrypTen's carry tree adds the two (seven exchanges). The top
    bits are flipped where a sign is to be positive, and ANDed in a tree (log2 of w
    exchanges). Only the last bit of each row is opened. No absolute value is taken
    anywhere: |−2^63| overflows.

    ``shares``, ``[n, w] int64`` with n, w ≥ 1, are this party's additive shares of
    integers at scale 1. ``negative``, ``[w] bool``, says of each column whether it is
    to be negative. Return ``[n] bool``, the same at both parties.
    """
    own = torch.from_numpy(np.array(shares, dtype=np.int64).reshape(-1))
    zeros = torch.zeros_like(own)
    of_a, of_b = (own, zeros) if current_rank() == 0 else (zeros, own)
    total = _sharing(of_a) + _sharing(of_b)
    # Shifted and masked before anything is opened: the other 63 bits of a value stay
    # shared.
    bits = ((total >> 63) & 1).share.reshape(shares.shape)
    if current_rank() == 0:
        bits = bits ^ torch.from_numpy((~negative).astype(np.int64))
    while bits.shape[1] > 1:
        pairs = bits.shape[1] // 2
        left = _sharing(bits[:, :pairs])
        right = _sharing(bits[:, pairs : 2 * pairs])
        unpaired = bits[:, 2 * pairs :]
        bits = torch.cat([(left & right).share, unpaired], dim=1)
    opened: Integers = _sharing(bits[:, 0] & 1).reveal().numpy()
    passes: Booleans = opened == 1
    return passes


def _sharing(bits: torch.Tensor) -> BinarySharing:
    """Return the binary sharing that ``bits`` are this party's share of."""
    return BinarySharedTensor.from_shares(bits.contiguous(), precision=0)


_OPERATIONS = {
    ReduceOp.SUM: ("sum", np.add),
    ReduceOp.BXOR: ("xor", np.bitwise_xor),
}
"""What each operation is called in a step's name, and what does it."""


class LinkCommunicator:
    """Carry CrypTen's openings and comparisons between two parties over a link.

    It stands in place of torch.distributed over plaintext Gloo, and sends raw ring
    words in the link's frames. Every message names its operation and its number, and a
    message of another length than this party's own is refused, so that parties out of
    step fail instead of computing a wrong number. Nothing is ever pickled: the methods
    that CrypTen has for objects don't exist here, nor do those of its interface that no
    opening and no comparison asks for.
    """

    def __init__(self, rank: int, link: PeerLink, step: str) -> None:
        self._rank = rank
        self._link = link
        self._step = step
        self._collectives = 0
        """How many messages were exchanged."""

    def get_rank(self) -> int:
        """Return 0 for A, 1 for B."""
        return self._rank

    def get_world_size(self) -> int:
        """Return the number of parties, two."""
        return 2

    def all_reduce(
        self,
        input: torch.Tensor | list[torch.Tensor],  # noqa: A002 - CrypTen's name
        op: ReduceOp.RedOpType = ReduceOp.SUM,
        batched: bool = False,  # noqa: FBT001, FBT002 - CrypTen's signature
    ) -> torch.Tensor | list[torch.Tensor]:
        """Return the sum or xor of both parties' tensors, at both; a batch at once.

        Raises PeerUnavailable; PeerViolation: the other is out of step or sent another
        length; TypeError: CrypTen hands over what are no ring elements: that is an
        error, never a wrong number.
        """
        tensors = input if isinstance(input, list) else [input]
        if batched != isinstance(input, list) or any(
            tensor.dtype != torch.int64 for tensor in tensors
        ):
            raise TypeError(
                "only ring elements cross the link, a list of tensors as a batch"
            )
        name, combine = _OPERATIONS[op]
        own = np.concatenate(
            [tensor.detach().numpy().reshape(-1) for tensor in tensors]
        )
        step = f"{self._step}/all-reduce-{name}/{self._collectives}"
        self._collectives += 1
        theirs = self._link.exchange(step, memoryview(to_bytes(own)))
        if len(theirs) != own.size * WORD_BYTES:
            raise PeerViolation(
                f"step {step!r}: got {len(theirs)} bytes, expected"
                f" {own.size * WORD_BYTES}"
            )
        words = torch.from_numpy(combine(own, from_bytes(theirs)))
        pieces = words.split_with_sizes([tensor.numel() for tensor in tensors])
        shaped = [
            piece.reshape(tensor.shape)
            for piece, tensor in zip(pieces, tensors, strict=True)
        ]
        return shaped if batched else shaped[0]


class UnexpectedDemand(RuntimeError):
    """CrypTen asked for randomness that isn't dealt: a bug, never a peer's doing."""


class DealtProvider:
    """Hand out each dealt binary triple once, in order, and refuse anything else.

    It stands in place of CrypTen's own providers, which draw from torch's MT19937 and
    are breakable (docs/soundness.md, "Randomness").
    """

    def __init__(self, triples: Iterable[BinaryTriple]) -> None:
        self._triples = iter(triples)

    def generate_binary_triple(
        self,
        size0: torch.Size,
        size1: torch.Size,
        device: object = None,  # noqa: ARG002 - CrypTen's; shares stay on the CPU
    ) -> tuple[BinarySharing, ...]:
        """Return binary sharings of random a, b and of c = a & b.

        Raises UnexpectedDemand: no triple is left, or it has other shapes.
        """
        triple = next(self._triples, None)
        if triple is None:
            raise UnexpectedDemand("all dealt binary triples are used up")
        asked = (tuple(size0), tuple(size1))
        dealt = (triple.a.shape, triple.b.shape)
        if dealt != asked:
            raise UnexpectedDemand(
                f"dealt a binary triple of shapes {dealt}, asked for {asked}"
            )
        return tuple(
            _sharing(torch.from_numpy(share))
            for share in (triple.a, triple.b, triple.c)
        )

    def __getattr__(self, demand: str) -> NoReturn:
        """Refuse whatever else CrypTen's own providers hand out.

        There are no additive triples and no squares: norms are validated with dealt
        squares that clients open (aggregator.validate). Nothing is truncated, so there
        are no wrap counts (``wrap_rng``), and sign bits are opened as bits (``B2A_rng``).
        """
        raise UnexpectedDemand(f"no randomness is dealt for {demand}")


_Party = tuple[LinkCommunicator, DealtProvider]
_party: ContextVar[_Party | None] = ContextVar("precad_mpc_party", default=None)
"""The party that CrypTen's code plays in the current context."""


@contextmanager
def acting_as(
    rank: int,
    link: PeerLink,
    provider: DealtProvider,
    *,
    step: str = "mpc",
) -> Iterator[None]:
    """Let CrypTen's code in this thread play party ``rank``, 0 for A, within the block.

    Party 1 is B. Every message's step begins with ``step``, the same at both. CrypTen
    keeps one communicator and one provider for a process. It looks both up at every
    use. So they are replaced below, once, by look-ups of the current context, and two
    threads of one process can play both servers. Outside the block there is no party,
    and CrypTen fails instead of falling back on Gloo or on its own providers. Its
    generators are never seeded, so that whatever would draw from MT19937 fails too.
    """
    token = _party.set((LinkCommunicator(rank, link, step), provider))
    try:
        yield
    finally:
        _party.reset(token)


def _current() -> _Party:
    """Return the acting party. Raises RuntimeError: outside ``acting_as``."""
    party = _party.get()
    if party is None:
        raise RuntimeError("CrypTen is only used inside crypten_comparisons.acting_as")
    return party


def current_rank() -> int:
    """Return the acting party's rank. Raises RuntimeError: outside ``acting_as``."""
    return _current()[0].get_rank()


crypten.communicator.get = lambda: _current()[0]
crypten.communicator.is_initialized = lambda: _party.get() is not None
crypten.mpc.get_default_provider = lambda: _current()[1]
