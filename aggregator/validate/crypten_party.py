"""CrypTen's communicator over the servers' link.

In place of torch.distributed over plaintext Gloo: raw ring words in the link's frames. Every
message names its operation and its number, and a message of another length than this party's own
is refused, so that parties out of step fail instead of computing a wrong number. Nothing is ever
pickled: the methods that CrypTen has for objects don't exist here, nor do those of its interface
that no opening and no comparison asks for.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch.distributed import ReduceOp

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.crypten_import import (
    BinarySharedTensor,
    crypten,
    crypten_communicator,
)
from precad.common.errors import PeerViolation
from precad.common.ring import WORD_BYTES, from_bytes, to_bytes
from precad.norm_check.dealing import BinaryTriple

_OPERATIONS = {ReduceOp.SUM: ("sum", np.add), ReduceOp.BXOR: ("xor", np.bitwise_xor)}


class LinkCommunicator:
    """What CrypTen's openings and comparisons ask of a communicator, for two parties.

    Args:
        rank: 0 for server A, 1 for server B.
        step: prefix of every message's step; both parties give the same.
    """

    def __init__(self, rank: int, link: PeerLink, step: str) -> None:
        self._rank = rank
        self._link = link
        self._step = step
        self._collectives = 0

    def get_rank(self) -> int:
        """0 for server A, 1 for server B."""
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

        Raises:
            PeerViolation: the other party is out of step or sent another length.
            PeerUnavailable: it sent nothing in time.
            TypeError: CrypTen hands over what are no ring elements: an error, never a wrong number.
        """
        tensors = input if isinstance(input, list) else [input]
        if batched != isinstance(input, list) or any(t.dtype != torch.int64 for t in tensors):
            raise TypeError("only ring elements cross the link, a list of tensors as a batch")
        name, combine = _OPERATIONS[op]
        own = np.concatenate([t.detach().numpy().reshape(-1) for t in tensors])
        step = f"{self._step}/all-reduce-{name}/{self._collectives}"
        self._collectives += 1
        theirs = self._link.exchange(step, memoryview(to_bytes(own)))
        if len(theirs) != own.size * WORD_BYTES:
            raise PeerViolation(
                f"step {step!r}: got {len(theirs)} bytes, expected {own.size * WORD_BYTES}"
            )
        words = torch.from_numpy(combine(own, from_bytes(theirs)))
        pieces = words.split_with_sizes([t.numel() for t in tensors])
        shaped = [piece.reshape(t.shape) for piece, t in zip(pieces, tensors, strict=True)]
        return shaped if batched else shaped[0]


class UnexpectedDemand(RuntimeError):
    """CrypTen asked for randomness that wasn't foreseen: a bug, never a peer's doing."""


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnexpectedDemand(f"no randomness is dealt for {what}")

    return refuse


class DealtProvider:
    """Hands out each dealt binary triple once, and refuses anything else.

    CrypTen's own providers draw from torch's MT19937 and are breakable (docs/soundness.md,
    "Randomness").

    Args:
        triples: in the order of ``program``; read as they are demanded.
    """

    def __init__(self, triples: Iterable[BinaryTriple]) -> None:
        self._triples = iter(triples)

    def generate_binary_triple(
        self,
        size0: torch.Size,
        size1: torch.Size,
        device: object = None,  # noqa: ARG002 - CrypTen's signature; shares stay on the CPU
    ) -> tuple[Any, Any, Any]:
        """Binary sharings of random a, b and of c = a & b.

        Raises UnexpectedDemand: the shapes aren't the next ones dealt, or nothing is left.
        """
        triple = next(self._triples, None)
        if triple is None:
            raise UnexpectedDemand("all dealt binary triples are used up")
        asked = tuple(size0), tuple(size1)
        if (dealt := (triple.a.shape, triple.b.shape)) != asked:
            raise UnexpectedDemand(f"dealt a binary triple of shapes {dealt}, asked for {asked}")
        return _sharing(triple.a), _sharing(triple.b), _sharing(triple.c)

    generate_additive_triple = _refusing("additive triples")
    # Norms are validated with dealt squares that clients open (aggregator.validate).
    square = _refusing("squares")
    # Nothing is truncated.
    wrap_rng = _refusing("wrap counts")
    # Sign bits are opened as bits.
    B2A_rng = _refusing("binary to arithmetic conversions")


def _sharing(words: NDArray[np.int64]) -> Any:
    return BinarySharedTensor.from_shares(torch.from_numpy(words), precision=0)


_Party = tuple[LinkCommunicator, DealtProvider]
_party: ContextVar[_Party | None] = ContextVar("precad_mpc_party", default=None)


@contextmanager
def acting_as(
    rank: int, link: PeerLink, provider: DealtProvider, *, step: str = "mpc"
) -> Iterator[None]:
    """Within the block, CrypTen's code in this thread plays party ``rank``.

    CrypTen keeps one communicator and one provider a process. It looks both up at every use, so
    they are replaced below, once, by look-ups of the current context: two threads of one process
    can play both servers. Outside there is no party, and CrypTen fails instead of falling back on
    Gloo or on its own providers. Its generators are never seeded, so that whatever would draw from
    MT19937 fails too.

    Args:
        rank: 0 for server A, 1 for server B.
        step: prefix of every message's step; both parties give the same.
    """
    token = _party.set((LinkCommunicator(rank, link, step), provider))
    try:
        yield
    finally:
        _party.reset(token)


def _current() -> _Party:
    party = _party.get()
    if party is None:
        raise RuntimeError("CrypTen is only used inside crypten_party.acting_as")
    return party


def current_rank() -> int:
    """The acting party's rank. Raises RuntimeError outside ``acting_as``."""
    return _current()[0].get_rank()


crypten_communicator.get = lambda: _current()[0]
crypten_communicator.is_initialized = lambda: _party.get() is not None
crypten.mpc.get_default_provider = lambda: _current()[1]
