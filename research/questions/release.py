"""A release as the two servers make it: integer sums with two discrete Gaussians.

A record's vector of block j is u_j times the block's, rounded to the nearest integer.
The unit u_j is itself an integer, so that a one-hot vector isn't rounded at all: an
error that is the same for every record would add up (at 30,000 records it can pass the
noise). The units leave room for all other rounding, so that no record's integer norm
passes R·2^f: nothing is cut afterwards, which would be a bias.

Records stand for R = 1: the scale of a block is its share alone.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.optimize import brentq

from precad.accounting.gdp import epsilon_of_delta
from precad.aggregator.noise import DiscreteGaussian
from research.questions.block import Block, Floats, Integers
from research.questions.split import Split, shares_of

MOST_BITS = 25
"""β = C·2^f is at most 2^25 under either norm check."""
SERVERS = 2
"""Each adds noise of its own."""
LEAST_ROOM = 4
"""R·2^f is at least so many times √d; else rounding takes too much of the norm."""


def noise_multiplier(epsilon: float, delta: float) -> float:
    """Return σ of one server for one release: the least with (ε, δ), exactly.

    It is against one curious server: the other server's noise alone counts.
    """

    def excess(sigma: float) -> float:
        return epsilon_of_delta(1 / sigma, delta) - epsilon

    return float(brentq(excess, 0.05, 1e4, xtol=1e-9))


def bits_of(largest_owner: int) -> int:
    """Return f, the most fractional bits with C·2^f ≤ 2^25 for an owner of that many."""
    return math.floor(MOST_BITS - math.log2(largest_owner))


@dataclass(frozen=True, kw_only=True)
class Release:
    """How several blocks share one release.

    Attributes:
        blocks: The queries' blocks.
        sigma: Noise multiplier of one server, over R.
        bits: f: a record's norm is at most 2^f units.
        weights: w of each block; all 1 if it is empty.
        split: How the norm is shared.

    Raises:
        ValueError: 2^f < 4·√d: so many sums need more bits, so smaller owners.
    """

    blocks: Sequence[Block]
    sigma: float
    bits: int
    weights: Sequence[float] = ()
    split: Split = Split.SQUARES

    def __post_init__(self) -> None:
        dimension = sum(block.dimension for block in self.blocks)
        if 2**self.bits < LEAST_ROOM * math.sqrt(dimension):
            most = int((2**self.bits / LEAST_ROOM) ** 2)
            raise ValueError(f"{dimension} sums at {self.bits} bits: {most} fit")

    @cached_property
    def shares(self) -> Floats:
        """The shares a, ``[blocks]``."""
        weights = self.weights or [1.0] * len(self.blocks)
        return shares_of([block.norm for block in self.blocks], weights, self.split)

    @cached_property
    def units(self) -> Integers:
        """The units u, ``[blocks] int64``: what a block's 1 is in the integer sum."""
        rounded = sum(block.rounded for block in self.blocks)
        length = 2**self.bits - math.sqrt(rounded) / 2
        norms = np.array([block.norm for block in self.blocks])
        units: Integers = np.floor(length * self.shares / norms).astype(np.int64)
        return units

    @property
    def unit_noise(self) -> float:
        """Standard deviation of both servers' noise, in integer units."""
        return self.sigma * math.sqrt(SERVERS) * 2.0**self.bits

    @property
    def noise(self) -> Floats:
        """Standard deviation of each block's sums in the block's own scale."""
        noise: Floats = self.unit_noise / self.units
        return noise

    def drawn(
        self, totals: Sequence[Integers], draws: int, generator: np.random.Generator
    ) -> list[Floats]:
        """Return so many releases, ``[draws, d_j] float64`` a block, in its own scale.

        The noise is the discrete Gaussian's continuous stand-in, for simulations: at
        thousands of units nothing tells them apart (``tests/research``).

        Args:
            totals: Integer sums over all records, ``[d_j] int64`` a block.
            draws: How many.
            generator: Of the noise.
        """
        return [
            (total + generator.normal(0.0, self.unit_noise, (draws, total.size))) / unit
            for total, unit in zip(totals, self.units, strict=True)
        ]

    def drawn_exactly(self, totals: Sequence[Integers], draws: int) -> list[Floats]:
        """As ``drawn``, with the servers' own two discrete Gaussians."""
        server = DiscreteGaussian(self.sigma * 2**self.bits)
        released = []
        for total, unit in zip(totals, self.units, strict=True):
            noise = sum(server.draw(draws * total.size) for _ in range(SERVERS))
            released.append((total + np.reshape(noise, (draws, total.size))) / unit)
        return released
