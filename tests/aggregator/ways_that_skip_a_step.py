"""The sum's way in types: what skips a step doesn't type-check.

No test runs this: ``make lint`` reads it, where a line that mypy takes after all is an error, since
its ``ignore`` is unused then. That one argument alone is wrong of each, the first function shows.
"""

import numpy as np
from numpy.typing import NDArray

from precad.aggregator.noise import NoiseSource
from precad.aggregator.release import add_noise, aggregate, countersign, prepare, reconstruct
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.states import Matched, Noised, Prepared, Sent, Summed
from precad.aggregator.store import Store
from precad.common.prime_field import Group

Theta = NDArray[np.float64]


def the_way(
    matched: Matched,
    noise: NoiseSource,
    group: Group,
    store: Store,
    server: Aggregator,
    theta: Theta,
) -> None:
    """As it is taken."""
    noised = add_noise(aggregate(server, matched), noise, group)
    reconstruct(server, countersign(server, prepare(store, noised)), theta)


def noises_what_nobody_validated(matched: Matched, noise: NoiseSource, group: Group) -> None:
    """A step that is skipped, as those below."""
    add_noise(matched, noise, group)  # type: ignore[arg-type]


def prepares_without_noise(summed: Summed, store: Store) -> None:
    """One server's noise would be missing."""
    prepare(store, summed)  # type: ignore[arg-type]


def countersigns_what_nobody_charged(server: Aggregator, noised: Noised) -> None:
    """The ledger wouldn't hold it."""
    countersign(server, noised)  # type: ignore[arg-type]


def sends_what_nobody_charged(server: Aggregator, noised: Noised, theta: Theta) -> None:
    """Nor here."""
    reconstruct(server, noised, theta)  # type: ignore[arg-type]


def sends_what_nobody_countersigned(server: Aggregator, ready: Prepared, theta: Theta) -> None:
    """The other server may hold other facts."""
    reconstruct(server, ready, theta)  # type: ignore[arg-type]


def noises_twice(noised: Noised, noise: NoiseSource, group: Group) -> None:
    """And more than is accounted for."""
    add_noise(noised, noise, group)  # type: ignore[arg-type]


def noises_what_was_sent(sent: Sent, noise: NoiseSource, group: Group) -> None:
    """What left is what is sent again."""
    add_noise(sent, noise, group)  # type: ignore[arg-type]
