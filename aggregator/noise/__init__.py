"""Each server's own discrete Gaussian noise, exact on the ring's integers."""

from precad.aggregator.noise.gaussian import DiscreteGaussian
from precad.aggregator.noise.noise_source import NoiseSource

__all__ = ["DiscreteGaussian", "NoiseSource"]
