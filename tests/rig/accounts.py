"""What accountants make of events; δ(ε) of one round by its definition, by mpmath."""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import numpy as np
from mpmath import mp, mpf

from precad.accounting.events import Accountant, AccountantName, SampledGaussian
from precad.accounting.filter import RenyiLimit, Steps
from precad.accounting.guarantees import accountant_named
from precad.accounting.losses import SampledRound
from precad.common.arrays import Floats
from precad.common.errors import BudgetExceeded

Moves: TypeAlias = tuple[tuple[float, tuple[float, ...]], ...]
"""A probability for each vector that a record's presence adds to what is seen."""


def composed(
    *events: SampledGaussian, by: AccountantName = AccountantName.EXACT
) -> Accountant:
    accountant = accountant_named(by)
    for event in events:
        accountant.compose(event)
    return accountant


class RenyiFilter:
    """Charges events as long as a limit holds."""

    def __init__(self, limit: RenyiLimit) -> None:
        self.limit, self._charged = limit, Steps()

    def _after(self, events: Iterable[SampledGaussian]) -> Steps:
        after = self._charged.copy()
        for event in events:
            after[event.times(1)] += event.count
        return +after

    def allows(self, *events: SampledGaussian) -> bool:
        return self.limit.holds(self._after(events))

    def charge(self, *events: SampledGaussian) -> None:
        if not self.allows(*events):
            raise BudgetExceeded("the limit would be passed")
        self._charged = self._after(events)

    @property
    def spent(self) -> float:
        return self.limit.spent(self._charged)

    def epsilon(self) -> float:
        return self.limit.epsilon_of(self._charged)


def delta_of_round(one: SampledRound, epsilon: float, *, reverse: bool) -> mpf:
    """In one direction, at any real ε."""
    q, s, e, c = (
        mpf(v) for v in (one.rate, one.noise_multiplier, epsilon, one.participation)
    )
    nothing, least = max(mpf(0), 1 - mp.exp(e)), mp.exp(-e if reverse else e) - 1 + q
    # Where the loss is ε; with no such place every x is above it.
    at = s**2 * mp.log(least / q) + mpf(1) / 2 if least > 0 else -mp.inf
    side = 1 if reverse else -1
    base, moved = mp.ncdf(side * at / s), mp.ncdf(side * (at - 1) / s)
    record = (1 - q) * base + q * moved
    p, other = (base, record) if reverse else (record, base)
    return c * (p - mp.exp(e) * other) + (1 - c) * nothing


def epsilon_by_grid(
    rounds: Mapping[Moves, int],
    noise: float,
    delta: float,
) -> float:
    """The larger ε of both directions, by plain grids and transforms.

    ``rounds`` counts rounds by what a record's presence adds to what is seen of one: a
    probability for each vector. Every coordinate has Gaussian noise of deviation
    ``noise``. Losses are split onto multiples of 1e-3 so that their mean stays.
    """
    cell, size = 1e-3, 2**18
    found = []
    for sign in (1, -1):
        spectrum = np.ones(size // 2 + 1, dtype=complex)
        for moves, count in rounds.items():
            dimensions = len(moves[0][1])
            reach = max(max(vector) for _, vector in moves)
            axis = np.arange(-9 * noise, 9 * noise + reach, noise / 50)
            points = tuple(np.meshgrid(*[axis] * dimensions, indexing="ij"))

            def density(
                vector: tuple[float, ...], points: tuple[Floats, ...] = points
            ) -> Floats:
                squares = sum(
                    (x - at) ** 2 for x, at in zip(points, vector, strict=True)
                )
                found = np.exp(-np.asarray(squares) / (2 * noise**2))
                return found / float(found.sum())

            without = density((0.0,) * dimensions)
            stays = 1 - sum(weight for weight, _ in moves)
            with_it = stays * without + sum(w * density(v) for w, v in moves)
            seen, other = (with_it, without)[::sign]
            losses, mass = np.log(seen / other).ravel() / cell, seen.ravel()
            below = np.floor(losses).astype(int)
            low = np.bincount(below % size, mass * (1 - losses + below), size)
            high = np.bincount((below + 1) % size, mass * (losses - below), size)
            spectrum = spectrum * np.fft.rfft(low + high) ** count
        sums = np.fft.irfft(spectrum, size)
        losses = np.fft.fftfreq(size, 1 / size).astype(np.float64) * cell

        def excess(
            epsilon: float, sums: Floats = sums, losses: Floats = losses
        ) -> float:
            above = losses > epsilon
            return float((sums[above] * -np.expm1(epsilon - losses[above])).sum())

        found.append(bisected(excess, delta))
    return max(found)


def bisected(excess: Callable[[float], float], most: float) -> float:
    """Least argument from 0 to 100 at which a falling function is at most ``most``."""
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) > most else (low, middle)
    return high


def drawn_twice(
    rate: float, first: tuple[float, ...], second: tuple[float, ...]
) -> Moves:
    """What two samples of one record add to what is seen of a round."""
    both = tuple(a + b for a, b in zip(first, second, strict=True))
    one = rate * (1 - rate)
    return (one, first), (one, second), (rate**2, both)
