"""Before an audit: how many coins to guess, and what bound a sound system is expected to give."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from precad.accounting import gdp
from precad.audit.one_run import Guesses, TradeOff, gaussian, lower_bound, refutes

_SHARES = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
_LEAST = 10
_LEAST_MU, _MOST_MU = 1e-3, 16.0
_STEPS = 14
_POWER_TRIALS = 20


@dataclass(frozen=True, slots=True)
class Power:
    """What is planned, by audits that are played with ideal scores.

    Attributes:
        guesses: r, how many coins are guessed in a training: those with the surest scores.
        expected: the median lower bound of ε, were the statement just met.
        expected_of_half: the same of a training with half of the noise.
        caught: power: share of the trials in which the build at hand is refuted.
        trials: how many audits of that build were played.
    """

    guesses: int
    expected: float
    expected_of_half: float
    caught: float
    trials: int


def guess(scores: NDArray[np.float64], coins: NDArray[np.bool_], made: int) -> Guesses:
    """The scores furthest from zero are guessed, by their sign; the rest abstain."""
    surest = np.argsort(-np.abs(scores), kind="stable")[:made]
    return Guesses(len(coins), made, int(((scores[surest] > 0) == coins[surest]).sum()))


def ideal_scores(
    coins: NDArray[np.bool_],
    rate: float,
    noise: float,
    rounds: int,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Scores of canaries at right angles to all else, each of the full clip.

    Args:
        coins: ``[m] bool``.
        rate: p.
        noise: standard deviation over the clip, as this view sees it.
        rounds: T.
        generator: of the samples and the noise.
    """
    found = np.zeros(len(coins))
    for _ in range(rounds):
        drawn = coins & (generator.random(len(coins)) < rate)
        seen = drawn + noise * generator.standard_normal(len(coins))
        likelier = (2.0 * seen - 1.0) / (2.0 * noise**2)
        found += np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + likelier)
    return found


def plan(
    canaries: int,
    rate: float,
    noise: float,
    rounds: int,
    *,
    repetitions: int = 1,
    delta: float,
    significance: float,
    stated: TradeOff,
    less: float = 1.0,
    crowding: float = 0.0,
    trials: int = 15,
    seed: int = 0,
) -> Power:
    """The number of guesses at which half of the noise shows best, and what comes of them.

    To find the number trade-offs are taken as Gaussian, as they nearly are by the central limit
    theorem. What is caught is judged by the exact one, as the audit judges.

    Args:
        canaries: coins of one training.
        rate: p.
        noise: standard deviation over the clip.
        rounds: that one coin holds for.
        repetitions: trainings, each with canaries of its own.
        delta: δ at which ε is bounded.
        significance: of the audit.
        stated: the trade-off that is stated for one coin.
        less: how many times less noise the build at hand has.
        crowding: canaries by dimensions, below 1, where they point anywhere: each that counts
            hides the others a little. That adds a quarter of it to the variance, a coin's, or
            where it is taken out divides the noise's by what is left of the dimensions.
        trials: audits that are played to find the number.
        seed: of the trials.
    """
    generator = np.random.default_rng(seed)
    shares = sorted({max(min(_LEAST, canaries), round(canaries * share)) for share in _SHARES})

    def played(noise: float) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
        tossed = generator.random((repetitions, canaries)) < 1 / 2
        seen = math.sqrt(min(noise**2 + crowding / 4, noise**2 / (1 - crowding)))
        return [(ideal_scores(coins, rate, seen, rounds, generator), coins) for coins in tossed]

    def medians(noise: float) -> NDArray[np.float64]:
        bounds = []
        for _ in range(trials):
            runs = played(noise)
            bounds.append(
                [_mu([guess(*run, made) for run in runs], significance) for made in shares]
            )
        found: NDArray[np.float64] = np.median(bounds, axis=0)
        return found

    half, sound = medians(noise / 2), medians(noise)
    best = int(half.argmax())

    def refuted() -> bool:
        # As `judge` does: in two ways, which share the significance.
        runs = played(noise / less)
        ways = [pooled([guess(*run, made) for run in runs]) for made in (shares[best], canaries)]
        return any(refutes(stated, way, significance / len(ways)) for way in ways)

    def epsilon(mu: float) -> float:
        return gdp.epsilon_of_delta(mu, delta) if mu > _LEAST_MU else 0.0

    return Power(
        guesses=shares[best],
        expected=epsilon(float(sound[best])),
        expected_of_half=epsilon(float(half[best])),
        caught=sum(refuted() for _ in range(_POWER_TRIALS)) / _POWER_TRIALS,
        trials=_POWER_TRIALS,
    )


def pooled(guesses: list[Guesses]) -> Guesses:
    """Of several trainings together: one mechanism, whose coins are all fair and independent."""
    return Guesses(
        sum(each.canaries for each in guesses),
        sum(each.made for each in guesses),
        sum(each.correct for each in guesses),
    )


def _mu(guesses: list[Guesses], significance: float) -> float:
    return lower_bound(
        gaussian, pooled(guesses), significance, _MOST_MU, least=_LEAST_MU, steps=_STEPS
    )
