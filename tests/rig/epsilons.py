"""The exact ε of a record from numbers alone, where no task says them."""

from precad.accounting.events import ReleaseCounts, poisson_gaussian
from precad.accounting.exact import epsilon_spent


def record_epsilon(
    *,
    record_rate: float,
    noise_multiplier: float,
    delta: float,
    participations: int | None = None,
    counts: ReleaseCounts | None = None,
) -> float:
    step = poisson_gaussian(rate=record_rate, noise_multiplier=noise_multiplier)
    if participations is not None:
        counts = {0: participations}
    return epsilon_spent(step, delta=delta, counts=counts or {})
