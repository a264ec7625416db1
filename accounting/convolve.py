"""Convolution of many probability distributions by Fourier transforms, rounded up.

A transform of size N has an error of at most c·u·log2(N)·Σ|input| at every point, with the unit
roundoff u and c = 8 (Higham 2002, Theorem 24.2, has below 4·√2 for exact twiddles, and 8 with
rounded ones). With an error of at most Δ at a factor ĝ, its n-th power is off by at most
(|ĝ| + Δ)^n − |ĝ|^n, and by 8·n·u·|ln ĝ|·|ĝ|^n for the power's own arithmetic. The mean of all
that over the frequencies, and the inverse transform's error, bound the error of every composed
mass: they are added to every mass.
"""

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from precad.accounting.losses import UNIT, Floats

Complexes = NDArray[np.complex128]

# From this share on, rounds that all lose nothing are kept apart from the transform.
_MOSTLY_NOTHING = 1e-3
# What a power of one number may lack.
_POWER = 1e-9
# Within this distance of 1, logarithms are taken relative to it.
_NEAR = 0.5


def convolved(factors: Iterable[tuple[Floats, int]], size: int) -> Floats:
    """Convolution of all factors, each ``count`` times, every mass raised by what it may lack.

    What lies at 0 needs no transform and is never rounded with the rest: where nearly every round
    loses nothing, the few that do stand in full precision beside it.
    """
    log_product = np.zeros(size // 2 + 1, dtype=np.complex128)
    log_largest, arithmetic = np.zeros((2, size // 2 + 1))
    log_atom, loss = 0.0, 8 * UNIT * math.log2(size)
    for masses, count in factors:
        others, atom = masses.copy(), float(masses[0])
        others[0] = 0.0
        rest = rfft(others)
        wrong = loss * float(rest[0].real)
        rest += atom - 1
        magnitude = np.abs(1 + rest)
        log_factor = _log1p(rest)
        log_atom += count * math.log(atom) if atom > 0 else -math.inf
        log_product += count * log_factor
        log_largest += count * np.log(magnitude + wrong)
        arithmetic += count * (np.abs(log_factor) + abs(atom - 1))
    atoms = math.exp(log_atom)
    if atoms > _MOSTLY_NOTHING:
        product = atoms * np.expm1(log_product - log_atom)
    else:
        atoms, product = 0.0, np.exp(log_product)
    whole = np.exp(log_product.real)
    wrong_by = np.exp(log_largest) - whole + 8 * UNIT * arithmetic * whole
    wrong_by += (8 * UNIT + loss) * np.abs(product)
    # Every frequency but the first, and for an even size the last, stands for two.
    error = 2 * float(wrong_by.sum()) - float(wrong_by[0])
    error = max(0.0, error - (float(wrong_by[-1]) if size % 2 == 0 else 0.0)) / size
    composed = np.maximum(irfft(product, size), 0.0) + error
    composed[0] += atoms * (1 + _POWER)
    return np.asarray(composed)


def _log1p(values: Complexes) -> Complexes:
    """ln(1 + z), relatively exact also near 0, unlike NumPy's; its real part at least −700."""
    x, y = values.real, values.imag
    found = np.empty_like(values)
    with np.errstate(divide="ignore", invalid="ignore"):
        near = 0.5 * np.log1p(x * (2 + x) + y * y)
        found.real = np.where(np.abs(values) < _NEAR, near, np.log(np.abs(1 + values)))
    np.maximum(found.real, -700.0, out=found.real)
    found.imag = np.arctan2(y, 1 + x)
    return found
