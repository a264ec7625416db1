"""CrypTen's communicator over the servers' link.

In place of torch.distributed over plaintext Gloo: raw ring words in the link's frames. Every
message names its operation and its number, and a message of another length than this party's own
is refused, so that parties out of step fail instead of computing a wrong number. Nothing is ever
pickled: the methods that CrypTen has for objects don't exist here.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.distributed import ReduceOp

from precad.common.errors import PeerViolation
from precad.common.link import PeerLink
from precad.common.ring import WORD_BYTES, RingVector, from_bytes, to_bytes

PARTIES = 2
_OPERATIONS = {ReduceOp.SUM: "sum", ReduceOp.BXOR: "xor"}


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
        self._sent = 0
        self._received = 0

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
        own = _pack(tensors)
        step = self._collective(f"all-reduce-{_name(op)}")
        theirs = _parse(self._link.exchange(step, memoryview(to_bytes(own))), own.size, step)
        return _unpack(_combine(own, theirs, op), tensors, batched=batched)

    def reduce(
        self,
        input: torch.Tensor | list[torch.Tensor],  # noqa: A002 - CrypTen's name
        dst: int,
        op: object = ReduceOp.SUM,
        batched: bool = False,  # noqa: FBT001, FBT002 - CrypTen's signature
    ) -> torch.Tensor | list[torch.Tensor] | None:
        """Sum or xor at party ``dst``; None at the other. Raises as ``all_reduce``."""
        tensors = _as_list(input, batched=batched)
        own = _pack(tensors)
        step = self._collective(f"reduce-{_name(op)}-to-{dst}")
        if dst != self._rank:
            self._link.send(step, to_bytes(own))
            return None
        theirs = _parse(self._link.receive(step), own.size, step)
        return _unpack(_combine(own, theirs, op), tensors, batched=batched)

    def broadcast(
        self,
        input: torch.Tensor | list[torch.Tensor],  # noqa: A002 - CrypTen's name
        src: int,
        batched: bool = False,  # noqa: FBT001, FBT002 - CrypTen's signature
    ) -> torch.Tensor | list[torch.Tensor]:
        """Party ``src``'s tensors, written into the other's. Raises as ``all_reduce``."""
        tensors = _as_list(input, batched=batched)
        step = self._collective(f"broadcast-from-{src}")
        if src == self._rank:
            self._link.send(step, to_bytes(_pack(tensors)))
        else:
            words = _parse(self._link.receive(step), sum(t.numel() for t in tensors), step)
            for tensor, value in zip(tensors, _split(words, tensors), strict=True):
                tensor.copy_(value)
        return input

    def isend(self, tensor: torch.Tensor, dst: int) -> "Completed":
        """Send to the other party; done when this returns."""
        self._check_other(dst)
        step = f"{self._step}/from-{self._rank}/{self._sent}"
        self._sent += 1
        self._link.send(step, to_bytes(_pack([tensor])))
        return Completed()

    def irecv(self, tensor: torch.Tensor, src: int) -> "Receiving":
        """Receive into ``tensor`` when waited for: both parties may call this before sending."""
        self._check_other(src)
        step = f"{self._step}/from-{src}/{self._received}"
        self._received += 1
        return Receiving(self._link, step, tensor)

    def _collective(self, operation: str) -> str:
        step = f"{self._step}/{operation}/{self._collectives}"
        self._collectives += 1
        return step

    def _check_other(self, party: int) -> None:
        if party != PARTIES - 1 - self._rank:
            raise ValueError(f"party {self._rank} has no link to party {party}")


class Completed:
    """A request that has nothing left to do."""

    def wait(self) -> None:
        """Returns at once."""


class Receiving:
    """A receive that takes place when it is waited for."""

    def __init__(self, link: PeerLink, step: str, tensor: torch.Tensor) -> None:
        self._link = link
        self._step = step
        self._tensor = tensor

    def wait(self) -> None:
        """Fill the tensor. Raises PeerViolation, PeerUnavailable."""
        words = _parse(self._link.receive(self._step), self._tensor.numel(), self._step)
        self._tensor.copy_(_split(words, [self._tensor])[0])


def _as_list(value: torch.Tensor | list[torch.Tensor], *, batched: bool) -> Sequence[torch.Tensor]:
    tensors = value if isinstance(value, list) else [value]
    if batched != isinstance(value, list):
        raise TypeError("a batch is a list of tensors, and nothing else is")
    for tensor in tensors:
        if tensor.dtype != torch.int64:
            raise TypeError(f"only ring elements cross the link, not {tensor.dtype}")
    return tensors


def _name(op: object) -> str:
    try:
        return _OPERATIONS[op]  # type: ignore[index]
    except (KeyError, TypeError):
        raise ValueError(f"{op}: only sum and bitwise xor are reduced") from None


def _pack(tensors: Sequence[torch.Tensor]) -> RingVector:
    return np.concatenate([t.detach().numpy().reshape(-1) for t in tensors])


def _parse(payload: bytes, words: int, step: str) -> RingVector:
    if len(payload) != words * WORD_BYTES:
        raise PeerViolation(
            f"step {step!r}: got {len(payload)} bytes, expected {words * WORD_BYTES}"
        )
    return from_bytes(payload)


def _combine(own: RingVector, theirs: RingVector, op: object) -> RingVector:
    if op == ReduceOp.SUM:
        return own + theirs
    return own ^ theirs


def _split(words: RingVector, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    pieces = torch.split_with_sizes(torch.from_numpy(words), [t.numel() for t in like])
    return [piece.reshape(t.shape) for piece, t in zip(pieces, like, strict=True)]


def _unpack(
    words: RingVector, like: Sequence[torch.Tensor], *, batched: bool
) -> torch.Tensor | list[torch.Tensor]:
    tensors = _split(words, like)
    return tensors if batched else tensors[0]
