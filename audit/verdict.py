"""From scores to a verdict: bounds of ε below, the stated ε above, and whether they cross.

Before an audit: how many coins to guess, and what bound a sound system is expected to give.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.accounting import gdp
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.audit import one_run

_SHARES = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
_LEAST = 10
_LEAST_MU = 1e-3
_POWER_TRIALS = 20
_TRIALS = 15
"""Audits that are played to find the number of guesses."""
MODELS, ONE_SERVER = "models", "one server"
"""Statements of a record by who looks: at the models alone, or as one of the servers."""
_STEPS = 7
"""Of the search for how much less noise is refuted."""
_LEAST_TIMES, _MOST_TIMES = 1 / 16, 16.0
"""Trainings with so many times less noise than stated are told apart."""


@dataclass(frozen=True, slots=True)
class Power:
    """What is planned, by audits that are played with ideal scores.

    Attributes:
        guesses: r, how many coins are guessed in a training: those with the surest scores.
        expected: the median lower bound of ε, were the statement just met.
        expected_of_half: the same of a training with half of the noise.
        caught: power: share of 20 trials in which the build at hand is refuted.
    """

    guesses: int
    expected: float
    expected_of_half: float
    caught: float


def guess(scores: NDArray[np.float64], coins: NDArray[np.bool_], made: int) -> one_run.Guesses:
    """The scores furthest from zero are guessed, by their sign; the rest abstain."""
    surest = np.argsort(-np.abs(scores), kind="stable")[:made]
    return one_run.Guesses(len(coins), made, int(((scores[surest] > 0) == coins[surest]).sum()))


def ideal_scores(
    coins: NDArray[np.bool_], rate: float, noise: float, rounds: int, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Scores of canaries at right angles to all else, each of the full clip.

    ``coins`` are ``[m] bool``, ``noise`` a standard deviation over the clip, as this view sees it.
    """
    found = np.zeros(len(coins))
    for _ in range(rounds):
        drawn = coins & (generator.random(len(coins)) < rate)
        seen = drawn + noise * generator.standard_normal(len(coins))
        likelier = (2.0 * seen - 1.0) / (2.0 * noise**2)
        found += np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + likelier)
    return found


def pooled(guesses: Sequence[one_run.Guesses]) -> one_run.Guesses:
    """Of several trainings together: one mechanism, whose coins are all fair and independent."""
    return one_run.Guesses(
        sum(each.canaries for each in guesses),
        sum(each.made for each in guesses),
        sum(each.correct for each in guesses),
    )


@dataclass(frozen=True, slots=True)
class Statement:
    """What is audited: T Gaussians on records that are drawn with probability p.

    Attributes:
        name: whose view it is.
        rate: p, of what the canaries are: records, or clients.
        noise: standard deviation of the noise that this view can't take off, over the clip.
        rounds: that one coin holds for, in each of which a canary may count: T, or fewer.
        delta: δ of the ε that is stated.
    """

    name: str
    rate: float
    noise: float
    rounds: int
    delta: float

    def accountant(self, share: float = 1.0) -> ExactAccountant:
        """Of the same training with this share of the noise."""
        accountant = ExactAccountant()
        event = poisson_gaussian(
            rate=self.rate, noise_multiplier=self.noise * share, count=self.rounds
        )
        accountant.compose(event)
        return accountant

    @property
    def epsilon(self) -> float:
        """The stated ε, exact."""
        return self.accountant().epsilon(self.delta)

    def plan(
        self,
        canaries: int,
        significance: float,
        repetitions: int = 1,
        less: float = 1.0,
        crowding: float = 0.0,
    ) -> Power:
        """The number of guesses at which half of the noise shows best, and what comes of them.

        To find the number trade-offs are taken as Gaussian, as they nearly are by the central
        limit theorem. What is caught is judged by the exact one, as the audit judges.

        Args:
            canaries: coins of one training.
            significance: of the audit.
            repetitions: trainings, each with canaries of its own.
            less: how many times less noise the build at hand has.
            crowding: canaries by dimensions, below 1, where they point anywhere: each that counts
                hides the others a little. That adds a quarter of it to the variance, a coin's, or
                where it is taken out divides the noise's by what is left of the dimensions.
        """
        generator = np.random.default_rng(0)
        shares = sorted({max(min(_LEAST, canaries), round(canaries * share)) for share in _SHARES})

        def played(noise: float) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
            tossed = generator.random((repetitions, canaries)) < 1 / 2
            seen = math.sqrt(min(noise**2 + crowding / 4, noise**2 / (1 - crowding)))
            return [
                (ideal_scores(coins, self.rate, seen, self.rounds, generator), coins)
                for coins in tossed
            ]

        def mu(guesses: list[one_run.Guesses]) -> float:
            found = pooled(guesses)
            return one_run.lower_bound(
                one_run.gaussian, found, significance, 16.0, least=_LEAST_MU, steps=14
            )

        def medians(noise: float) -> NDArray[np.float64]:
            bounds = []
            for _ in range(_TRIALS):
                runs = played(noise)
                bounds.append([mu([guess(*run, made) for run in runs]) for made in shares])
            found: NDArray[np.float64] = np.median(bounds, axis=0)
            return found

        half, sound = medians(self.noise / 2), medians(self.noise)
        best, stated = int(half.argmax()), self.family()(1.0)

        def refuted() -> bool:
            # As `judge` does: in two ways, which share the significance.
            runs = played(self.noise / less)
            ways = [
                pooled([guess(*run, made) for run in runs]) for made in (shares[best], canaries)
            ]
            return any(one_run.refutes(stated, way, significance / len(ways)) for way in ways)

        def epsilon(mu: float) -> float:
            return gdp.epsilon_of_delta(mu, self.delta) if mu > _LEAST_MU else 0.0

        return Power(
            guesses=shares[best],
            expected=epsilon(float(sound[best])),
            expected_of_half=epsilon(float(half[best])),
            caught=sum(refuted() for _ in range(_POWER_TRIALS)) / _POWER_TRIALS,
        )

    def family(self) -> Callable[[float], one_run.TradeOff]:
        """F of the same training by how many times less noise it has."""

        @lru_cache
        def f(times: float) -> one_run.TradeOff:
            return one_run.of_statement(self.accountant(1 / times).delta)

        return f


@dataclass(frozen=True, slots=True)
class Verdict:
    """An audit of one statement, with what was planned beforehand and the stated ε.

    Attributes:
        guesses: how the adversary did, in the way that proves most.
        significance: how likely a sound system fails, at most.
        by_family: the largest ε of the same training with less noise that is refuted: the
            sharpest bound. It reaches the stated ε where the statement is refuted, and only there.
        refuted: whether the statement doesn't hold: fewer correct guesses would be expected of
            any adversary, with confidence 1 − significance.
    """

    statement: Statement
    power: Power
    guesses: one_run.Guesses
    significance: float
    epsilon: float
    by_family: float
    refuted: bool

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "view": self.statement.name,
            "rate": self.statement.rate,
            "noise": self.statement.noise,
            "rounds": self.statement.rounds,
            "delta": self.statement.delta,
            "significance": self.significance,
            "canaries": self.guesses.canaries,
            "guesses": self.guesses.made,
            "correct": self.guesses.correct,
            "expected_bound": self.power.expected,
            "expected_bound_of_half_noise": self.power.expected_of_half,
            "build_caught": self.power.caught,
            "build_trials": _POWER_TRIALS,
            "epsilon_stated": self.epsilon,
            "epsilon_at_least": self.by_family,
            "refuted": self.refuted,
        }


def judge(
    statement: Statement, power: Power, ways: Sequence[one_run.Guesses], significance: float
) -> Verdict:
    """What the guesses prove, in the way that proves most; the ways share the significance.

    ``power`` and the ways, the planned number of guesses and all, are fixed before the scores
    were seen.
    """
    family, epsilon = statement.family(), statement.epsilon
    each = significance / len(ways)
    times = {way: _largest_refuted(family, way, each) for way in ways}
    best = max(ways, key=times.__getitem__)
    less, refuted = times[best], one_run.refutes(family(1.0), best, each)
    found = statement.accountant(1 / less).epsilon(statement.delta) if less else 0.0
    return Verdict(
        statement=statement,
        power=power,
        guesses=best,
        significance=significance,
        epsilon=epsilon,
        by_family=found,
        refuted=refuted,
    )


def _largest_refuted(
    family: Callable[[float], one_run.TradeOff], guesses: one_run.Guesses, significance: float
) -> float:
    """How many times less noise at most is refuted; 0 where nothing is."""
    # The stated noise first: whether that is refuted is the verdict, and stays on its side.
    if one_run.refutes(family(1.0), guesses, significance):
        return one_run.lower_bound(
            family, guesses, significance, _MOST_TIMES, least=1.0, steps=_STEPS
        )
    if not one_run.refutes(family(_LEAST_TIMES), guesses, significance):
        return 0.0
    return one_run.lower_bound(family, guesses, significance, 1.0, least=_LEAST_TIMES, steps=_STEPS)
