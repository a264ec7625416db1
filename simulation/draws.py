"""A simulation's randomness: the real samplers on streams that a seed repeats.

Seeds exist here and in tests alone. A server and an owner draw from the operating system.
"""

import secrets
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.noise import DiscreteGaussian
from precad.client.gradients.local_update import poisson_sample
from precad.common.errors import Misconfiguration
from precad.common.identifiers import Role
from precad.common.keystream import Keystream, derive, encode_context
from precad.common.ring import RingVector
from precad.common.secret import Secret
from precad.common.task import Task

SEEDS = 2**63


def checked_seed(seed: int | None) -> int:
    """The seed, or a fresh one.

    Raises:
        Misconfiguration: it isn't a whole number from 0 to below 2^63.
    """
    if seed is None:
        return secrets.randbelow(SEEDS)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < SEEDS:
        raise Misconfiguration("seed", seed, "give a whole number from 0 to below 2^63")
    return seed


class Draws:
    """Who is drawn, which records, and both servers' noise; the same for the same seed.

    Args:
        task: gives the noise's scale.
        seed: see ``checked_seed``.
    """

    def __init__(self, task: Task, seed: int) -> None:
        self._seed = seed
        self._key = Secret(seed.to_bytes(32, "little"))
        self._noise_at: tuple[bytes | int, ...] = ()
        self._gaussian = DiscreteGaussian(
            task.noise_units, lambda: self._stream("noise", *self._noise_at)
        )

    def cohort(self, version: int, clients: tuple[str, ...], rate: float) -> tuple[str, ...]:
        """Each client with probability q, exact to 2^−64, as the servers' coin does."""
        threshold = int(Fraction(rate) * 2**64)
        words = self._stream("cohort", version).words(len(clients)).view(np.uint64).tolist()
        return tuple(
            client for client, word in zip(clients, words, strict=True) if word < threshold
        )

    def sample(self, version: int, client: str, count: int, rate: float) -> NDArray[np.int64]:
        """An owner's Poisson sample of its records, by the owner's own code."""
        return poisson_sample(count, rate, self._stream("records", version, client.encode()))

    def copies(self, version: int, client: str) -> Secret:
        """The key of the noise of an owner's copies of its records."""
        return derive(self._key, "simulated-copies", version, client.encode())

    def noise(self, server: Role, version: int, dimension: int) -> RingVector:
        """A server's discrete Gaussian noise, by the server's own sampler."""
        self._noise_at = (version, server.value.encode())
        return self._gaussian.draw(dimension)

    def generator(self, version: int) -> np.random.Generator:
        """For an attack or another aggregation."""
        return np.random.default_rng([self._seed, version])

    def _stream(self, purpose: str, *context: bytes | int) -> Keystream:
        return Keystream(self._key, f"simulated-{purpose}", *context)


def partition_order(records: int, seed: int) -> NDArray[np.int64]:
    """In which order one data set's records are dealt out to clients."""
    context = int.from_bytes(encode_context("simulated-partition", seed), "little")
    return np.random.default_rng(context).permutation(records)
