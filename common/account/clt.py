"""The GDP accountant: PRECAD's μ by the central limit theorem. Asymptotic, not a guarantee."""

import math

from precad.common import checks
from precad.common.account import gdp
from precad.common.account.accountant import AccountantName, require_bound
from precad.common.account.events import SampledGaussian


class GdpCltAccountant:
    """μ² added over events; ε from the sum.

    For an atom mixture the limit is that of the rounds in which the step runs:
    μ² = participation·count·rate²·(e^{1/σ²} − 1).
    """

    name = AccountantName.GDP_CLT

    def __init__(self) -> None:
        self._mu = 0.0

    @property
    def mu(self) -> float:
        """μ of all that was composed; infinite where it leaves floating point."""
        return self._mu

    def compose(self, event: SampledGaussian) -> None:
        """Add ``event``; see ``Accountant``.

        Raises:
            Misconfiguration: not Poisson sampling under add/remove; nothing changed.
        """
        require_bound(event, self.name)
        if not event.silent:
            mu = gdp.clt_mu(event.rate, event.effective_noise_multiplier, event.count)
            self._mu = gdp.composed_mu([self._mu, math.sqrt(event.participation) * mu])

    def epsilon(self, delta: float) -> float:
        """ε of the limit; see ``Accountant``.

        Raises:
            Misconfiguration: δ outside (0, 1).
        """
        return gdp.epsilon_of_delta(self._mu, delta)

    def delta(self, epsilon: float) -> float:
        """δ of the limit, in [0, 1]; see ``Accountant``.

        Raises:
            Misconfiguration: ε negative or not finite.
        """
        checks.epsilon(epsilon)
        return gdp.delta_of_epsilon(self._mu, epsilon)
