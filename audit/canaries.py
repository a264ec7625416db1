"""Canaries: records of a consenting owner that count, or count as zero, by fair coins."""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from precad.client.train import Records
from precad.common import checks
from precad.common.errors import Misconfiguration

LOUD = 1.5
"""How many times as large as a record's inputs: gradients pass usual clips, and aren't learned."""


@dataclass(frozen=True, slots=True)
class Canaries:
    """Records and their coins. The coins are the audit's secret until the guesses are made.

    Attributes:
        records: m records, of the shape of the owner's own.
        coins: ``[periods, m] bool``, whether each counts; where not, its gradient is zero in every
            sample that it is drawn into, which is what neighbouring data sets differ in. A row
            holds for one of equally many rounds: one row is for the whole training, T are for one
            round each.
    """

    records: Records
    coins: NDArray[np.bool_] = field(repr=False)

    def __len__(self) -> int:
        return len(self.records)

    def counting(self, indices: NDArray[np.int64], version: int, rounds: int) -> NDArray[np.int64]:
        """A round's sample of the canaries, ``[n] int64``, without those that are out."""
        return indices[coins_at(self.coins, version, rounds)[indices]]


def coins_at(coins: NDArray[np.bool_], version: int, rounds: int) -> NDArray[np.bool_]:
    """A round's coins, ``[m] bool``, of all periods'."""
    found: NDArray[np.bool_] = coins[version * len(coins) // rounds]
    return found


def loud_canaries(
    like: Records, count: int, classes: int, seed: int, loud: float = LOUD, periods: int = 1
) -> Canaries:
    """Canaries whose gradients are long and nearly at right angles to each other.

    Inputs are Gaussian; labels are drawn at random. The coins come from the same generator: the
    seed is the audit's secret until it is over, and repeats it afterwards.

    Args:
        like: records that give the shape and spread.
        count: m.
        classes: labels are below it.
        seed: of the canaries and coins.
        loud: how many times the spread of the records' inputs theirs have.
        periods: of the training, each with coins of its own.

    Raises:
        Misconfiguration: inputs that aren't real numbers, or labels that aren't whole ones.
    """
    checks.count("canaries", count, 1)
    if not like.inputs.is_floating_point() or like.targets.is_floating_point():
        raise Misconfiguration(
            "data",
            f"{like.inputs.dtype}, {like.targets.dtype}",
            "canaries are made for inputs of real numbers with a label each",
        )
    generator = torch.Generator().manual_seed(seed)
    spread = float(like.inputs.std()) or 1.0
    shape = (count, *like.inputs.shape[1:])
    noise = torch.randn(shape, generator=generator, dtype=like.inputs.dtype)
    inputs = loud * spread * noise
    targets = torch.randint(0, classes, (count,), generator=generator).to(like.targets.dtype)
    coins = torch.rand(periods, count, generator=generator).numpy() < 1 / 2
    return Canaries(Records(inputs, targets), coins)
