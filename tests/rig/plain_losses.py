"""ε of sampled Gaussian steps from first principles: a plain transform, and nothing of precad.

Losses are rounded down and what lies outside the grid is left out, so that the number is
never above the truth.
"""

from collections.abc import Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

CELL = 1e-3
POINTS = 2**16
"""The lattice of losses: some 65 nats, which wrap around."""
_INPUTS = 40_001


def _masses(rate: float, noise: float, *, removing: bool) -> NDArray[np.float64]:
    """One step's losses on the lattice, in one direction; [POINTS], index 0 is loss 0."""
    x = np.linspace(-12 * noise, 12 * noise + 1, _INPUTS)
    without = np.exp(-((x / noise) ** 2) / 2)
    drawn = np.exp(-(((x - 1) / noise) ** 2) / 2)
    with_record = (1 - rate) * without + rate * drawn
    loss = np.log1p(rate * np.expm1((2 * x - 1) / (2 * noise**2)))
    density, loss = (with_record, loss) if removing else (without, -loss)
    places = np.floor(loss / CELL).astype(np.int64)
    kept = np.abs(places) < POINTS // 4
    mass = density * ((x[1] - x[0]) / (noise * np.sqrt(2 * np.pi)))
    masses = np.bincount(places[kept] % POINTS, mass[kept], POINTS)
    return masses.astype(np.float64)


def plain_epsilon(rate: float, steps: Mapping[float, int], delta: float) -> float:
    """At most ε at δ of so many steps by σ, the larger of both directions."""
    return _plain_epsilon(rate, tuple(sorted(steps.items())), delta)


@lru_cache
def _plain_epsilon(
    rate: float, steps: tuple[tuple[float, int], ...], delta: float
) -> float:
    found = 0.0
    for removing in (True, False):
        transformed = np.ones(POINTS // 2 + 1, dtype=np.complex128)
        for noise, count in steps:
            one = np.fft.rfft(_masses(rate, noise, removing=removing))
            transformed *= one**count
        masses = np.fft.irfft(transformed, POINTS)
        signed = np.arange(POINTS)
        losses = CELL * np.where(signed < POINTS // 2, signed, signed - POINTS)
        low, high = 0.0, losses.max()
        while high - low > 1e-5:
            middle = (low + high) / 2
            gained = masses @ -np.expm1(np.minimum(middle - losses, 0.0))
            low, high = (middle, high) if gained > delta else (low, middle)
        found = max(found, low)
    return found
