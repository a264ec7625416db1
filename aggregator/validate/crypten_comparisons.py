"""``validation = "crypten"``: CrypTen's comparisons of what was absorbed of submissions.

From each one's k + 1 shared words to one opened bit: is its norm within the bound?
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import ReduceOp

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.crypten_import import BinarySharedTensor, crypten
from precad.aggregator.validate.validation import deal_request
from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.ring import WORD_BYTES, RingVector, from_bytes, to_bytes
from precad.common.task import TAU, Task
from precad.norm_check.dealing import BinaryTriple, DealtRandomness, SpentTriples


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

    Sound against clients while both servers and the dealer follow the protocol: an
    update longer than β passes with probability at most 2^−k (docs/soundness.md, "What
    is claimed").

    ``words`` are each submission's, ``[k + 1] int64`` (``Absorber.words``), in the same
    order on both servers, and ``randomness`` is for the ``deal_request`` of so many.
    ``label`` names them in every step. Return ``[n] bool``, the same on both: whether
    the norm is within the bound.

    Raises PeerUnavailable; PeerViolation: this randomness was used before, or the other
    server is out of step, or decides on others; ValueError: it is for something else, a
    caller's mistake.
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
    half_width = 0 if rank else TAU * task.bound
    z = np.stack(words)[:, :k]
    y = np.stack(words)[:, k:]
    compared = np.concatenate([half_width + z, half_width - z, y], axis=1)
    provider = DealtProvider(randomness.binary_triples())
    with acting_as(rank, link, provider, step=f"decide/{request.batch}/{label}"):
        return all_signs(compared, np.array([False] * 2 * k + [True]))


def all_signs(shares: RingVector, negative: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Which rows of the shared values have all their signs as demanded, and nothing else of them.

    Runs at both parties inside ``acting_as``. Each party's additive share becomes a
    binary sharing of itself (its words on one side, zeros on the other, so no
    randomness is needed); CrypTen's carry tree adds the two (seven exchanges); the top
    bits are flipped where a sign is to be positive, and ANDed in a tree (log2 of w
    exchanges); only the last bit of each row is opened. No absolute value is taken
    anywhere: |−2^63| overflows.

    ``shares`` are ``[n, w] int64``, n, w ≥ 1, this party's additive shares of integers
    at scale 1; ``negative``, ``[w] bool``, is the sign that each column is to have.
    Return ``[n] bool``, the same at both parties.
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
    while (width := bits.shape[1]) > 1:
        pairs = width // 2
        left = _sharing(bits[:, :pairs])
        right = _sharing(bits[:, pairs : 2 * pairs])
        bits = torch.cat([(left & right).share, bits[:, 2 * pairs :]], dim=1)
    opened: NDArray[np.int64] = _sharing(bits[:, 0] & 1).reveal().numpy()
    passes: NDArray[np.bool_] = opened == 1
    return passes


def _sharing(bits: torch.Tensor) -> Any:
    return BinarySharedTensor.from_shares(bits.contiguous(), precision=0)


_OPERATIONS = {ReduceOp.SUM: ("sum", np.add), ReduceOp.BXOR: ("xor", np.bitwise_xor)}


class LinkCommunicator:
    """What CrypTen's openings and comparisons ask of a communicator, for two parties.

    In place of torch.distributed over plaintext Gloo: raw ring words in the link's
    frames. Every message names its operation and its number, and a message of another
    length than this party's own is refused, so that parties out of step fail instead of
    computing a wrong number. Nothing is ever pickled: the methods that CrypTen has for
    objects don't exist here, nor do those of its interface that no opening and no
    comparison asks for.
    """

    def __init__(self, rank: int, link: PeerLink, step: str) -> None:
        self._rank = rank
        self._link = link
        self._step = step
        self._collectives = 0

    def get_rank(self) -> int:
        """0 for A, 1 for B."""
        return self._rank

    def get_world_size(self) -> int:
        """Two."""
        return 2

    def all_reduce(
        self,
        input: torch.Tensor | list[torch.Tensor],  # noqa: A002 - CrypTen's name
        op: Any = ReduceOp.SUM,
        batched: bool = False,  # noqa: FBT001, FBT002 - CrypTen's signature
    ) -> torch.Tensor | list[torch.Tensor]:
        """Sum or xor of both parties' tensors, at both; a batch is one exchange.

        Raises PeerUnavailable; PeerViolation: the other is out of step or sent another
        length; TypeError: CrypTen hands over what are no ring elements: an error, never
        a wrong number.
        """
        tensors = input if isinstance(input, list) else [input]
        if batched != isinstance(input, list) or any(
            t.dtype != torch.int64 for t in tensors
        ):
            raise TypeError(
                "only ring elements cross the link, a list of tensors as a batch"
            )
        name, combine = _OPERATIONS[op]
        own = np.concatenate([t.detach().numpy().reshape(-1) for t in tensors])
        step = f"{self._step}/all-reduce-{name}/{self._collectives}"
        self._collectives += 1
        theirs = self._link.exchange(step, memoryview(to_bytes(own)))
        if len(theirs) != own.size * WORD_BYTES:
            why = f"got {len(theirs)} bytes, expected {own.size * WORD_BYTES}"
            raise PeerViolation(f"step {step!r}: {why}")
        words = torch.from_numpy(combine(own, from_bytes(theirs)))
        pieces = words.split_with_sizes([t.numel() for t in tensors])
        shaped = [
            piece.reshape(t.shape) for piece, t in zip(pieces, tensors, strict=True)
        ]
        return shaped if batched else shaped[0]


class UnexpectedDemand(RuntimeError):
    """CrypTen asked for randomness that wasn't foreseen: a bug, never a peer's doing."""


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnexpectedDemand(f"no randomness is dealt for {what}")

    return refuse


class DealtProvider:
    """Hands out each dealt binary triple once, in order, and refuses anything else.

    CrypTen's own draw from torch's MT19937 and are breakable (docs/soundness.md,
    "Randomness").
    """

    def __init__(self, triples: Iterable[BinaryTriple]) -> None:
        self._triples = iter(triples)

    def generate_binary_triple(
        self,
        size0: torch.Size,
        size1: torch.Size,
        device: object = None,  # noqa: ARG002 - CrypTen's signature; shares stay on the CPU
    ) -> tuple[Any, ...]:
        """Binary sharings of random a, b and of c = a & b. Raises UnexpectedDemand."""
        triple = next(self._triples, None)
        if triple is None:
            raise UnexpectedDemand("all dealt binary triples are used up")
        asked = tuple(size0), tuple(size1)
        dealt = (triple.a.shape, triple.b.shape)
        if dealt != asked:
            raise UnexpectedDemand(
                f"dealt a binary triple of shapes {dealt}, asked for {asked}"
            )
        return tuple(
            _sharing(torch.from_numpy(each)) for each in (triple.a, triple.b, triple.c)
        )

    generate_additive_triple = _refusing("additive triples")
    # Norms are validated with dealt squares that clients open (aggregator.validate).
    square = _refusing("squares")
    # Nothing is truncated.
    wrap_rng = _refusing("wrap counts")
    # Sign bits are opened as bits.
    B2A_rng = _refusing("binary to arithmetic conversions")


_Party = tuple[LinkCommunicator, DealtProvider]
_party: ContextVar[_Party | None] = ContextVar("precad_mpc_party", default=None)


@contextmanager
def acting_as(
    rank: int,
    link: PeerLink,
    provider: DealtProvider,
    *,
    step: str = "mpc",
) -> Iterator[None]:
    """Within the block, CrypTen's code in this thread plays party ``rank``: 0 for A, 1 for B.

    Every message's step begins with ``step``, the same at both. CrypTen keeps one
    communicator and one provider a process. It looks both up at every use, so they are
    replaced below, once, by look-ups of the current context: two threads of one process
    can play both servers. Outside there is no party, and CrypTen fails instead of
    falling back on Gloo or on its own providers. Its generators are never seeded, so
    that whatever would draw from MT19937 fails too.
    """
    token = _party.set((LinkCommunicator(rank, link, step), provider))
    try:
        yield
    finally:
        _party.reset(token)


def _current() -> _Party:
    party = _party.get()
    if party is None:
        raise RuntimeError("CrypTen is only used inside crypten_comparisons.acting_as")
    return party


def current_rank() -> int:
    """The acting party's rank. Raises RuntimeError outside ``acting_as``."""
    return _current()[0].get_rank()


crypten.communicator.get = lambda: _current()[0]
crypten.communicator.is_initialized = lambda: _party.get() is not None
crypten.mpc.get_default_provider = lambda: _current()[1]
