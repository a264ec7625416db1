"""Each server's own discrete Gaussian noise, exact on the ring's integers.

Sampled by OpenDP (Canonne, Kamath and Steinke 2020, the exact sampler) from the operating
system's CSPRNG: a rounded floating-point Gaussian would leak through its low bits.
"""

from functools import cache
from typing import Any, Protocol

import numpy as np

from precad.common.ring import RingVector


class NoiseSource(Protocol):
    """Where a server's noise comes from; replaceable so that tests can switch it off."""

    def draw(self, dimension: int) -> RingVector:
        """Fresh noise, ``[d] int64`` in units of the last place."""


class DiscreteGaussian:
    """Discrete Gaussian N_Z(0, s²) for each coordinate.

    Args:
        noise_units: s, standard deviation in units of the last place (``Task.noise_units``).
    """

    def __init__(self, noise_units: float) -> None:
        self.noise_units = noise_units
        self._measurement = _measurement(noise_units)

    def draw(self, dimension: int) -> RingVector:
        """Fresh noise, ``[d] int64`` in units of the last place."""
        return np.asarray(self._measurement(np.zeros(dimension, dtype=np.int64)), dtype=np.int64)


@cache
def _measurement(noise_units: float) -> Any:
    # Not OpenDP's prelude: it loads scikit-learn and pandas, which no server needs.
    from opendp import domains, measurements, metrics  # noqa: PLC0415 -- a large native library
    from opendp.mod import enable_features  # noqa: PLC0415

    enable_features("contrib")
    domain = domains.vector_domain(domains.atom_domain(T="i64"))
    return measurements.make_gaussian(domain, metrics.l2_distance(T="f64"), scale=noise_units)
