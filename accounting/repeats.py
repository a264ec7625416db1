"""Steps of which a release was lost and made again: the same X under independent noise.

If a sent share is lost beyond repair and the operators release that version again, whoever sees
both releases averages the noise away: with m further releases the step has σ/√(1+m). That is not m
more steps: the sample and the coin are the same, so each further release is unamplified (50
versions seen twice at p = .05, σ = 1 cost more than 100 seen once).
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeAlias

from precad.accounting.events import SampledGaussian
from precad.common import checks
from precad.common.errors import Misconfiguration

Counts: TypeAlias = Mapping[int, int]
"""m → how many versions were released 1 + m times with the same X."""


def checked(counts: Counts) -> tuple[tuple[int, int], ...]:
    """``counts`` as pairs (m, versions) in order of m, without those that never happened.

    Raises:
        Misconfiguration: an m or a number of versions isn't a count, or there is no mapping.
    """
    if not isinstance(counts, Mapping):
        raise Misconfiguration("counts", counts, "give a mapping from m to a number of versions")
    pairs = ((checks.count("m", m), checks.count("counts", n)) for m, n in counts.items())
    return tuple(sorted((m, n) for m, n in pairs if n))


def versions(counts: Counts) -> int:
    """How many versions ``counts`` are of."""
    return sum(n for _, n in checked(counts))


def steps(one: SampledGaussian, counts: Counts) -> tuple[SampledGaussian, ...]:
    """The events of ``counts`` versions, each a step like ``one``; its own count isn't used.

    Raises:
        Misconfiguration: see ``checked``.
    """
    return tuple(
        replace(one, noise_multiplier=one.noise_multiplier / math.sqrt(1 + m), count=n)
        for m, n in checked(counts)
    )
