"""What fixed-size sampling costs at least: what no account of the papers may go below."""

from typing import NamedTuple

from dp_accounting.pld import privacy_loss_distribution as pld

from precad.common import checks


class AttainedEpsilon(NamedTuple):
    """Brackets of the ε that one explicit pair of data sets reaches."""

    lower: float
    """No accountant may report less for fixed-size sampling with these parameters."""
    upper: float
    """At most this for the pair; other pairs may reach more."""


def attained_epsilon(
    *, rate: float, clip_noise_multiplier: float, steps: int, delta: float
) -> AttainedEpsilon:
    """What fixed-size sampling costs at least: all records at −clip, one replaced by +clip.

    The noise-free sum is −m·clip, or with probability ``rate`` two clips more: the pair of a
    Poisson-sampled Gaussian with half the noise multiplier.

    Args:
        rate: share of records in a step, in (0, 1].
        clip_noise_multiplier: standard deviation of the noise over *one* clip, as printed.
        steps: number of steps.
        delta: δ, in (0, 1).

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.rate("rate", rate)
    checks.noise_multiplier(clip_noise_multiplier)
    checks.count("steps", steps, 1)
    checks.inside_unit_interval("delta", delta)

    def epsilon(*, pessimistic: bool) -> float:
        step = pld.from_gaussian_mechanism(
            clip_noise_multiplier,
            sensitivity=2.0,
            sampling_prob=rate,
            pessimistic_estimate=pessimistic,
            use_connect_dots=pessimistic,
            value_discretization_interval=1e-3 if pessimistic else min(1e-3, 1e-2 / steps),
        )
        return float(step.self_compose(steps).get_epsilon_for_delta(delta))

    return AttainedEpsilon(epsilon(pessimistic=False), epsilon(pessimistic=True))
