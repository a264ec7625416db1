"""Each server's own discrete Gaussian noise, exact on the ring's integers."""

from precad.common.noise.gaussian import DiscreteGaussian
from precad.common.noise.source import NoiseSource

__all__ = ["DiscreteGaussian", "NoiseSource"]
