"""What accountants make of events; δ(ε) of one round by its definition, by mpmath."""

from mpmath import mp, mpf

from precad.accounting.events import Accountant, AccountantName, SampledGaussian
from precad.accounting.guarantees import accountant_named
from precad.accounting.losses import SampledRound


def composed(
    *events: SampledGaussian, by: AccountantName = AccountantName.EXACT
) -> Accountant:
    accountant = accountant_named(by)
    for event in events:
        accountant.compose(event)
    return accountant


def delta_of_round(one: SampledRound, epsilon: float, *, reverse: bool) -> mpf:
    """In one direction, at any real ε."""
    q, s, e, c = (
        mpf(v) for v in (one.rate, one.noise_multiplier, epsilon, one.participation)
    )
    nothing, least = max(mpf(0), 1 - mp.exp(e)), mp.exp(-e if reverse else e) - 1 + q
    # Where the loss is ε; with no such place every x is above it.
    at = s**2 * mp.log(least / q) + mpf(1) / 2 if least > 0 else -mp.inf
    side = 1 if reverse else -1
    base, moved = mp.ncdf(side * at / s), mp.ncdf(side * (at - 1) / s)
    record = (1 - q) * base + q * moved
    p, other = (base, record) if reverse else (record, base)
    return c * (p - mp.exp(e) * other) + (1 - c) * nothing
