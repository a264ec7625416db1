"""OpenDP's exact discrete Gaussian, the reference for this system's own."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray


class OpenDPGaussian:
    """N_Z(0, s²) by Canonne, Kamath and Steinke's sampler, one sample at a time."""

    def __init__(self, noise_units: float) -> None:
        self._measurement = _measurement(noise_units)

    def draw(self, dimension: int) -> NDArray[np.int64]:
        return np.asarray(self._measurement(np.zeros(dimension, dtype=np.int64)), dtype=np.int64)


@cache
def _measurement(noise_units: float) -> Any:
    # Not OpenDP's prelude, which loads scikit-learn and pandas.
    from opendp import domains, measurements, metrics  # noqa: PLC0415 -- a large native library
    from opendp.mod import enable_features  # noqa: PLC0415

    enable_features("contrib")
    domain = domains.vector_domain(domains.atom_domain(T="i64"))
    return measurements.make_gaussian(domain, metrics.l2_distance(T="f64"), scale=noise_units)
