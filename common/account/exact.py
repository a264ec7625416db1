"""The exact accountant: privacy-loss distributions, rounded up, in both directions.

The distributions come from dp-accounting (connect-the-dots, Doroshenko et al. 2022), which
bounds the hockey-stick divergence from above. Adding and removing a record are different pairs
of distributions under sampling; δ(ε) is the larger of the two.
"""

import math
from collections import Counter
from functools import lru_cache
from typing import NamedTuple

from dp_accounting.pld import privacy_loss_distribution as pld

from precad.common import checks
from precad.common.account import gdp
from precad.common.account.accountant import AccountantName, require_bound
from precad.common.account.events import SampledGaussian
from precad.common.errors import Misconfiguration

# Tails below e^−50 of one step's noise become infinite loss (dp-accounting's default): they
# start at ten standard deviations.
_TAIL = 10.0
# Grid cells per standard deviation of one step's loss. The excess of ε over a grid that is five
# times finer stays below 0.1 %.
_CELLS_PER_DEVIATION = 30
_FEWEST_CELLS, _MOST_CELLS = 1_000, 40_000
_WIDEST_CELL = 0.02
# The Fourier transform of a composition loses about this much mass per step to rounding; it is
# added to δ, so that the answer stays an upper bound.
_ROUNDING_PER_STEP = 1e-15
_ROUNDING = 1e-13


class _Round(NamedTuple):
    """One round, without its count: what events are merged by."""

    rate: float
    noise_multiplier: float
    participation: float


class ExactAccountant:
    """Pessimistic privacy-loss distributions of Poisson-sampled Gaussians and atom mixtures.

    Rounds in which everyone is drawn (rate 1) are composed in closed form.
    """

    name = AccountantName.EXACT

    def __init__(self) -> None:
        self._rounds: Counter[_Round] = Counter()

    def compose(self, event: SampledGaussian) -> None:
        """Add ``event``; see ``Accountant``.

        Raises:
            Misconfiguration: not Poisson sampling under add/remove; nothing changed.
        """
        require_bound(event, self.name)
        if not event.silent:
            one = _Round(event.rate, event.effective_noise_multiplier, event.participation)
            self._rounds[one] += event.count

    def epsilon(self, delta: float) -> float:
        """The least ε ≥ 0; see ``Accountant``.

        Raises:
            Misconfiguration: δ outside (0, 1), or so small that rounding would decide.
        """
        checks.inside_unit_interval("delta", delta)
        gaussian, sampled = self._split()
        if not sampled:
            return gdp.epsilon_of_delta(gaussian, delta)
        rounding = self._rounding()
        if delta < 10 * rounding:
            raise Misconfiguration(
                "delta",
                delta,
                f"too small for the exact accountant's arithmetic; give {10 * rounding:.1e} or "
                "more, or use the RDP accountant",
            )
        composed = _composed(gaussian, sampled)
        return float(composed.get_epsilon_for_delta(delta - rounding))

    def delta(self, epsilon: float) -> float:
        """The least δ, in [0, 1]; see ``Accountant``.

        Raises:
            Misconfiguration: ε negative or not finite.
        """
        checks.epsilon(epsilon)
        gaussian, sampled = self._split()
        if not sampled:
            return gdp.delta_of_epsilon(gaussian, epsilon)
        composed = _composed(gaussian, sampled)
        return min(1.0, float(composed.get_delta_for_epsilon(epsilon)) + self._rounding())

    def _split(self) -> tuple[float, tuple[tuple[_Round, int], ...]]:
        """μ of the rounds that sample nothing, and the others with their counts."""
        plain = {r: n for r, n in self._rounds.items() if r.rate == 1 and r.participation == 1}
        mus = [math.sqrt(n) / r.noise_multiplier for r, n in plain.items()]
        sampled = tuple(sorted((r, n) for r, n in self._rounds.items() if r not in plain))
        return gdp.composed_mu(mus), sampled

    def _rounding(self) -> float:
        return _ROUNDING + _ROUNDING_PER_STEP * self._rounds.total()


def _composed(
    gaussian: float, sampled: tuple[tuple[_Round, int], ...]
) -> pld.PrivacyLossDistribution:
    """The loss distribution of all sampled rounds and one Gaussian of μ ``gaussian``."""
    cell = min(_cell(one) for one, _ in sampled)
    parts = [_loss(one, cell).self_compose(count) for one, count in sampled]
    if gaussian > 0:
        parts.append(_loss(_Round(1.0, 1 / gaussian, 1.0), cell))
    composed = parts[0]
    for part in parts[1:]:
        composed = composed.compose(part)
    return composed


@lru_cache(maxsize=64)
def _loss(one: _Round, cell: float) -> pld.PrivacyLossDistribution:
    """The loss distribution of one round, both directions, on a grid of width ``cell``."""
    step = pld.from_gaussian_mechanism(
        one.noise_multiplier, sampling_prob=one.rate, value_discretization_interval=cell
    )
    if one.participation == 1:
        return step
    return step.compute_mixture(pld.identity(cell), one.participation)


def _cell(one: _Round) -> float:
    """Grid width for one round's loss: fine against its standard deviation, bounded in number.

    The standard deviation of the loss of a sampled Gaussian is about rate·√(e^{1/σ²} − 1), and
    never more than the 1/σ of the Gaussian alone. Widths are powers of two, so that rounds
    with almost the same parameters share a grid.
    """
    sigma = one.noise_multiplier
    deviation = min(gdp.clt_mu(one.rate, sigma, 1), 1 / sigma)
    unsampled = 1 / (2 * sigma**2) + _TAIL / sigma
    largest = unsampled + math.log(one.rate + (1 - one.rate) * math.exp(-unsampled))
    wanted = min(deviation / _CELLS_PER_DEVIATION, max(_WIDEST_CELL, largest / _FEWEST_CELLS))
    return 2.0 ** math.floor(math.log2(max(wanted, largest / _MOST_CELLS)))
