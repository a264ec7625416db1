"""CrypTen's provider of correlated randomness, backed by what the dealer dealt.

CrypTen's own providers draw from torch's MT19937 and are breakable (docs/soundness.md,
"Randomness"); this one hands out dealt binary triples in the order that the comparisons are known
to ask, and refuses anything else.
"""

from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray

from precad.aggregator.mpc.crypten_import import BinarySharedTensor
from precad.norm_check.dealt_triples import BinaryTriple


class UnexpectedDemand(RuntimeError):
    """CrypTen asked for randomness that wasn't foreseen: a bug, never a peer's doing."""


def _refusing(what: str) -> Callable[..., NoReturn]:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise UnexpectedDemand(f"no randomness is dealt for {what}")

    return refuse


class DealtProvider:
    """Hands out each dealt binary triple once.

    Args:
        triples: in the order of ``comparison_triples``; read as they are demanded.
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

        Raises:
            UnexpectedDemand: the shapes aren't the next ones dealt, or nothing is left.
        """
        triple = next(self._triples, None)
        if triple is None:
            raise UnexpectedDemand("all dealt binary triples are used up")
        dealt = (triple.a.shape, triple.b.shape)
        if dealt != (tuple(size0), tuple(size1)):
            raise UnexpectedDemand(
                f"dealt a binary triple of shapes {dealt}, asked for {tuple(size0), tuple(size1)}"
            )
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
