"""CrypTen's communicator over the servers' link.

In place of torch.distributed over plaintext Gloo: raw ring words in the link's frames. Every
message names its operation and its number, and a message of another length than this party's own
is refused, so that parties out of step fail instead of computing a wrong number. Nothing is ever
pickled: the methods that CrypTen has for objects don't exist here, nor do those of its interface
that no opening and no comparison asks for.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch.distributed import ReduceOp

from precad.common.errors import PeerViolation
from precad.common.link import PeerLink
from precad.common.ring import WORD_BYTES, RingVector, from_bytes, to_bytes

PARTIES = 2
_OPERATIONS = {ReduceOp.SUM: ("sum", np.add), ReduceOp.BXOR: ("xor", np.bitwise_xor)}


class LinkCommunicator:
    """What CrypTen's openings and comparisons ask of a communicator, for two parties.

    Args:
        rank: 0 for server A, 1 for server B.
        link: to the other server.
        step: prefix of every message's step; both parties give the same.
    """

    def __init__(self, rank: int, link: PeerLink, step: str) -> None:
        if rank not in range(PARTIES):
            raise ValueError(f"rank {rank}: there are two parties, 0 and 1")
        self._rank = rank
        self._link = link
        self._step = step
        self._collectives = 0

    def get_rank(self) -> int:
        """0 for server A, 1 for server B."""
        return self._rank

    def get_world_size(self) -> int:
        """Two."""
        return PARTIES

    def all_reduce(
        self,
        input: torch.Tensor | list[torch.Tensor],  # noqa: A002 - CrypTen's name
        op: object = ReduceOp.SUM,
        batched: bool = False,  # noqa: FBT001, FBT002 - CrypTen's signature
    ) -> torch.Tensor | list[torch.Tensor]:
        """Sum or xor of both parties' tensors, at both; a batch is one exchange.

        Raises:
            PeerViolation: the other party is out of step or sent another length.
            PeerUnavailable: it sent nothing in time.
        """
        tensors = _as_list(input, batched=batched)
        name, combine = _operation(op)
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


def _as_list(value: torch.Tensor | list[torch.Tensor], *, batched: bool) -> Sequence[torch.Tensor]:
    tensors = value if isinstance(value, list) else [value]
    if batched != isinstance(value, list):
        raise TypeError("a batch is a list of tensors, and nothing else is")
    for tensor in tensors:
        if tensor.dtype != torch.int64:
            raise TypeError(f"only ring elements cross the link, not {tensor.dtype}")
    return tensors


def _operation(op: object) -> tuple[str, Callable[[RingVector, RingVector], RingVector]]:
    try:
        return _OPERATIONS[op]  # type: ignore[index]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: only sum and bitwise xor are reduced") from None
