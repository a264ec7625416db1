"""Each server's own discrete Gaussian noise, exact on the ring's integers."""

from precad.aggregator.noise.gaussian import DiscreteGaussian, NoiseSource

__all__ = ["DiscreteGaussian", "NoiseSource"]
