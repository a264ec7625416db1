"""Privacy as the papers print it. None of these numbers is a guarantee.

A parameter out of its range raises Misconfiguration.
"""

import math
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from precad.accounting import gdp
from precad.accounting.events import poisson_gaussian
from precad.accounting.guarantees import spent
from precad.accounting.rdp import RdpAccountant
from precad.common import checks
from research.printed.fixed_size import XIE_ORDERS, fixed_size_rdp, mironov_epsilon

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Reproduction(Generic[Value]):
    """A printed number, reproduced to be compared; never a budget or a certificate.

    Deliberately not a `Guarantee`, a `Result` or a `PrivacyStatement`: nothing that certifies or
    charges takes one.

    Attributes:
        source: the printed statement.
        value: what it gives: an ε, a radius (None where not even 0 holds), or two
            bounds.
        flaw: why it certifies nothing.
        delta: of an ε.
        mu: of the Gaussian that an ε was read from, where one is printed.
    """

    source: str
    value: Value
    flaw: str
    delta: float | None = None
    mu: float | None = None


_DRAWN_TOGETHER = (
    "takes each record as sampled at rate q·p on its own; a client's records are drawn"
    " together, so its others give the client's coin away"
)
_WRONG_SCHEME = (
    "states sampling without replacement, where the sum moves by two clips; these"
    " numbers hold for Poisson sampling only"
)


def precad_theorem_1_case_2(
    *,
    record_rate: float,
    client_rate: float,
    noise_multiplier: float,
    rounds: int,
    delta: float,
) -> Reproduction[float]:
    """PRECAD Theorem 1, case 2 (Lemma 7): μ = q·p·√(T(e^{1/(2σ²)} − 1)).

    The atom mixture (``Run.event``) is what holds.
    """
    rate = checks.rate("record_rate", record_rate) * checks.rate(
        "client_rate", client_rate
    )
    mu = gdp.clt_mu(rate, math.sqrt(2) * noise_multiplier, rounds)
    epsilon = gdp.epsilon_of_delta(mu, delta)
    return Reproduction("PRECAD Theorem 1, case 2", epsilon, _DRAWN_TOGETHER, delta, mu)


def precad_case_2_by_pld(
    *,
    record_rate: float,
    client_rate: float,
    noise_multiplier: float,
    rounds: int,
    delta: float,
) -> Reproduction[float]:
    """PRECAD Lemma 7's rate q·p, accounted exactly: the rate is wrong, not the accountant.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    rate = checks.rate("record_rate", record_rate) * checks.rate(
        "client_rate", client_rate
    )
    sigma = math.sqrt(2) * noise_multiplier
    epsilon = spent(
        poisson_gaussian(rate=rate, noise_multiplier=sigma, count=rounds), delta
    )
    return Reproduction(
        "PRECAD Lemma 7 with an exact accountant", epsilon, _DRAWN_TOGETHER, delta
    )


def xie_table(
    *, rate: float, noise_multiplier: float, steps: int, delta: float
) -> Reproduction[float]:
    """Xie et al. Tables 4 to 8: Poisson RDP, Mironov's conversion, orders up to 63.

    Table 7 prints V = 25 local steps a round; its numbers are those of 26.
    """
    accountant = RdpAccountant(XIE_ORDERS)
    accountant.compose(
        poisson_gaussian(rate=rate, noise_multiplier=noise_multiplier, count=steps)
    )
    epsilon, _ = mironov_epsilon(accountant, delta)
    return Reproduction("Xie et al. 2023, Tables 4 to 8", epsilon, _WRONG_SCHEME, delta)


def xie_proposition_1(
    *,
    batch_rate: float,
    user_rate: float,
    noise_multiplier: float,
    users_per_round: int,
    rounds: int,
    delta: float,
) -> Reproduction[float]:
    """Xie et al. Proposition 1 (InsDP-FedSGD): Wang et al.'s bound at rate p·q with σ·√m.

    ``algorithms.insdp_fedsgd`` is what holds.
    """
    rate = checks.rate("batch_rate", batch_rate) * checks.rate("user_rate", user_rate)
    checks.count("users_per_round", users_per_round, 1)
    checks.count("rounds", rounds)
    orders = tuple(range(2, 257))
    sigma = noise_multiplier * math.sqrt(users_per_round)
    accountant = RdpAccountant(tuple(map(float, orders)))
    accountant.divergence = rounds * np.array(
        [fixed_size_rdp(rate, sigma, a) for a in orders]
    )
    epsilon = accountant.epsilon(delta)
    return Reproduction(
        "Xie et al. 2023, Proposition 1",
        epsilon,
        f"{_DRAWN_TOGETHER}; {_WRONG_SCHEME}",
        delta,
    )
