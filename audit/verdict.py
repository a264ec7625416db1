"""From one training's scores to a verdict: bounds of ε below, and whether they pass the stated ε.

Each of many canaries is put in by a fair coin, and an adversary guesses some of the
coins. If the mechanism were as private as stated, more correct guesses than counted
would be rare, however the adversary guesses: whatever holds of the training, the model
or the scores, a bound that passes the stated ε refutes the statement. Before an audit:
how many coins to guess, and what bound a sound system is expected to give.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from precad.accounting import gdp
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.common import checks
from precad.common.errors import Misconfiguration

TradeOff = Callable[[float], float]
"""f: least false negative rate by false positive rate, both in [0, 1]; convex and
symmetric."""

_NORMAL = NormalDist()

_EPSILONS = (
    *(0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3, 1.5, 1.7),
    *(
        1.9,
        2.1,
        2.3,
        2.6,
        2.9,
        3.2,
        3.5,
        3.8,
        4.2,
        4.6,
        5.0,
        5.5,
        6.0,
        6.5,
        7.0,
        8.0,
        10.0,
    ),
)


def gaussian(mu: float) -> TradeOff:
    """Trade-off of N(0, 1) against N(μ, 1); Dong, Roth and Su 2022, eq. (6)."""
    checks.positive("mu", mu, "distance in standard deviations")

    def f(alpha: float) -> float:
        if not 0.0 < alpha < 1.0:
            return 1.0 if alpha <= 0.0 else 0.0
        return _NORMAL.cdf(-_NORMAL.inv_cdf(alpha) - mu)

    return f


def from_profile(profile: dict[float, float]) -> TradeOff:
    """Trade-off of all (ε, δ) statements at once: the largest of their trade-offs, pointwise.

    ``profile`` has δ by ε ≥ 0. Fewer or larger ones give a smaller f: an audit refutes
    less.
    """
    lines = []
    for epsilon, delta in profile.items():
        checks.epsilon(epsilon)
        kept = 1.0 - min(max(delta, 0.0), 1.0)
        lines += [
            (kept, math.exp(epsilon)),
            (math.exp(-epsilon) * kept, math.exp(-epsilon)),
        ]

    def f(alpha: float) -> float:
        return max(0.0, *(height - slope * alpha for height, slope in lines))

    return f


def of_statement(delta_of_epsilon: Callable[[float], float]) -> TradeOff:
    """Trade-off of a mechanism whose δ at any ε an accountant bounds."""
    return from_profile({epsilon: delta_of_epsilon(epsilon) for epsilon in _EPSILONS})


@dataclass(frozen=True, slots=True)
class Guesses:
    """How an adversary did: m canaries, r guesses made, c of them correct.

    Raises Misconfiguration: 0 ≤ c ≤ r ≤ m and 1 ≤ r don't hold.
    """

    canaries: int
    made: int
    """Fixed before the scores were seen."""
    correct: int

    def __post_init__(self) -> None:
        checks.count("canaries", self.canaries, 1)
        if not 1 <= checks.count("guesses made", self.made) <= self.canaries:
            remedy = f"must be from 1 to the {self.canaries} canaries"
            raise Misconfiguration("guesses made", self.made, remedy)
        if checks.count("correct guesses", self.correct) > self.made:
            raise Misconfiguration(
                "correct guesses", self.correct, f"only {self.made} were made"
            )


def refutes(f: TradeOff, guesses: Guesses, significance: float) -> bool:
    """Whether so many correct guesses have a probability below ``significance`` under f-DP.

    Mahloujifar, Melis and Chaudhuri 2024, "Auditing f-Differential Privacy in One Run",
    Algorithm 3 for coins (k = 2). f, of one canary in or out, is what is stated;
    symmetric.
    """
    checks.inside_unit_interval("significance", significance)
    m = guesses.canaries
    made = guesses.made
    correct = guesses.correct
    right = significance * correct / m
    wrong = significance * (made - correct) / m
    for i in range(correct - 1, -1, -1):
        # The inverse of 1 − f at `right`: by symmetry f(1 − right).
        allowed = max(wrong, f(1.0 - right))
        if allowed == wrong:
            break  # nor does anything move further down
        right = min(1.0, right + i / (made - i) * (allowed - wrong))
        wrong = allowed
    return right + wrong > made / m


def lower_bound(
    family: Callable[[float], TradeOff],
    guesses: Guesses,
    *,
    significance: float,
    most: float,
    least: float = 0.0,
    steps: int = 24,
) -> float:
    """The largest parameter that is refuted, to within 2^−steps of the range; ``least`` if none is.

    ``family`` has f by its parameter, between ``least`` and ``most``, and falls as it
    grows: less private. ``significance`` is 1 − confidence; the range is halved
    ``steps`` times.
    """
    low = least
    high = most
    if refutes(family(most), guesses, significance):
        return most
    for _ in range(steps):
        middle = (low + high) / 2
        if refutes(family(middle), guesses, significance):
            low = middle
        else:
            high = middle
    return low


_SHARES = (0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0)
_LEAST = 10
_LEAST_MU = 1e-3
_TRIALS, _POWER_TRIALS = 15, 20
"""Audits that are played to find the number of guesses, and its power."""
MODELS, ONE_SERVER = "models", "one server"
"""Statements of a record by who looks: at the models alone, or as one of the servers.
"""
_LEAST_TIMES, _MOST_TIMES, _NOISE_STEPS = 1 / 16, 16.0, 7
"""How many times less noise than stated is looked for, and the search's steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What is planned, by audits that are played with ideal scores."""

    guesses: int
    """r, how many coins are guessed in a training: those with the surest scores."""
    expected: float
    """The median lower bound of ε, were the statement just met; next, with half of the
    noise."""
    expected_of_half: float
    caught: float
    """Power: share of 20 trials in which the build at hand is refuted."""


def guess(scores: NDArray[np.float64], coins: NDArray[np.bool_], made: int) -> Guesses:
    """The scores furthest from zero are guessed, by their sign; the rest abstain."""
    surest = np.argsort(-np.abs(scores), kind="stable")[:made]
    return Guesses(len(coins), made, int(((scores[surest] > 0) == coins[surest]).sum()))


def ideal_scores(
    coins: NDArray[np.bool_],
    *,
    rate: float,
    noise: float,
    rounds: int,
    generator: np.random.Generator,
) -> NDArray[np.float64]:
    """Scores of canaries at right angles to all else, each of the full clip.

    ``coins`` are ``[m] bool``, ``noise`` a standard deviation over the clip, as this
    view sees it.
    """
    found = np.zeros(len(coins))
    for _ in range(rounds):
        drawn = coins & (generator.random(len(coins)) < rate)
        seen = drawn + noise * generator.standard_normal(len(coins))
        likelier = (2.0 * seen - 1.0) / (2.0 * noise**2)
        found += np.logaddexp(
            np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + likelier
        )
    return found


def pooled(guesses: Sequence[Guesses]) -> Guesses:
    """Of several trainings together: one mechanism, whose coins are all fair and independent."""
    counts = ((each.canaries, each.made, each.correct) for each in guesses)
    return Guesses(*map(sum, zip(*counts, strict=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedStatement:
    """What is audited: T Gaussians on records that are drawn with probability p."""

    name: str
    """Whose view it is."""
    rate: float
    """p, of what the canaries are: records, or clients."""
    noise: float
    """Standard deviation of the noise that this view can't take off, over the clip."""
    rounds: int
    """That one coin holds for, in each of which a canary may count: T, or fewer."""
    delta: float
    """Of the ε that is stated."""

    def accountant(self, share: float = 1.0) -> ExactAccountant:
        """Of the same training with this share of the noise."""
        noise = self.noise * share
        accountant = ExactAccountant()
        accountant.compose(
            poisson_gaussian(
                rate=self.rate,
                noise_multiplier=noise,
                count=self.rounds,
            )
        )
        return accountant

    @property
    def epsilon(self) -> float:
        """The stated ε, exact."""
        return self.accountant().epsilon(self.delta)

    def plan(
        self,
        *,
        canaries: int,
        significance: float,
        repetitions: int = 1,
        less: float = 1.0,
        crowding: float = 0.0,
    ) -> Power:
        """The number of guesses at which half of the noise shows best, and what comes of them.

        To find the number trade-offs are taken as Gaussian, as they nearly are by the
        central limit theorem. What is caught, by a build with ``less`` times less
        noise, is judged by the exact one, as the audit judges. Each of the
        ``repetitions`` has ``canaries`` of its own. ``crowding`` are canaries by
        dimensions, below 1, where they point anywhere: each that counts hides the
        others a little. That adds a quarter of it to the variance, a coin's, or where
        it is taken out divides the noise's by what is left of the dimensions.
        """
        generator = np.random.default_rng(0)
        shares = sorted(
            {max(min(_LEAST, canaries), round(canaries * share)) for share in _SHARES}
        )

        def played(noise: float) -> list[tuple[NDArray[np.float64], NDArray[np.bool_]]]:
            tossed = generator.random((repetitions, canaries)) < 1 / 2
            seen = math.sqrt(min(noise**2 + crowding / 4, noise**2 / (1 - crowding)))
            return [
                (
                    ideal_scores(
                        coins,
                        rate=self.rate,
                        noise=seen,
                        rounds=self.rounds,
                        generator=generator,
                    ),
                    coins,
                )
                for coins in tossed
            ]

        def mu(guesses: list[Guesses]) -> float:
            found = pooled(guesses)
            return lower_bound(
                gaussian,
                found,
                significance=significance,
                most=16.0,
                least=_LEAST_MU,
                steps=14,
            )

        def medians(noise: float) -> NDArray[np.float64]:
            trials = (played(noise) for _ in range(_TRIALS))
            bounds = [
                [mu([guess(*run, r) for run in runs]) for r in shares]
                for runs in trials
            ]
            return np.asarray(np.median(bounds, axis=0))

        half = medians(self.noise / 2)
        sound = medians(self.noise)
        best = int(half.argmax())
        stated = self.family()(1.0)

        def refuted() -> bool:
            # As `judge` does: in two ways, which share the significance.
            runs = played(self.noise / less)
            ways = [
                pooled([guess(*run, r) for run in runs])
                for r in (shares[best], canaries)
            ]
            return any(refutes(stated, way, significance / len(ways)) for way in ways)

        def epsilon(mu: float) -> float:
            return gdp.epsilon_of_delta(mu, self.delta) if mu > _LEAST_MU else 0.0

        caught = sum(refuted() for _ in range(_POWER_TRIALS)) / _POWER_TRIALS
        expected, of_half = (epsilon(float(found[best])) for found in (sound, half))
        return Power(
            guesses=shares[best],
            expected=expected,
            expected_of_half=of_half,
            caught=caught,
        )

    def family(self) -> Callable[[float], TradeOff]:
        """F of the same training by how many times less noise it has."""

        @lru_cache
        def f(times: float) -> TradeOff:
            return of_statement(self.accountant(1 / times).delta)

        return f


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditVerdict:
    """An audit of one statement, with what was planned beforehand and the stated ε."""

    statement: AuditedStatement
    power: Power
    guesses: Guesses
    """How the adversary did, in the way that proves most."""
    significance: float
    """How likely a sound system fails, at most."""
    epsilon: float
    by_family: float
    """The largest ε of the same training with less noise that is refuted: the sharpest
    bound. It reaches the stated ε where the statement is refuted, and only there."""
    refuted: bool
    """Whether fewer right guesses are expected of anybody, with confidence 1 −
    significance."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        stated = asdict(self.statement)
        return {
            "view": stated.pop("name"),
            **stated,
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
    statement: AuditedStatement,
    power: Power,
    ways: Sequence[Guesses],
    significance: float,
) -> AuditVerdict:
    """What the guesses prove, in the way that proves most; the ways share the significance.

    ``power`` and the ways are fixed before the scores were seen.
    """
    family = statement.family()
    epsilon = statement.epsilon
    each = significance / len(ways)
    times = {way: _largest_refuted(family, way, each) for way in ways}
    best = max(ways, key=times.__getitem__)
    less = times[best]
    refuted = refutes(family(1.0), best, each)
    found = statement.accountant(1 / less).epsilon(statement.delta) if less else 0.0
    return AuditVerdict(
        statement=statement,
        power=power,
        guesses=best,
        significance=significance,
        epsilon=epsilon,
        by_family=found,
        refuted=refuted,
    )


def _largest_refuted(
    family: Callable[[float], TradeOff], guesses: Guesses, significance: float
) -> float:
    """How many times less noise at most is refuted; 0 where nothing is."""
    # The stated noise first: whether that is refuted is the verdict, and stays on its
    # side.
    least = _LEAST_TIMES
    most = 1.0
    if refutes(family(1.0), guesses, significance):
        least = 1.0
        most = _MOST_TIMES
    elif not refutes(family(least), guesses, significance):
        return 0.0
    return lower_bound(
        family,
        guesses,
        significance=significance,
        most=most,
        least=least,
        steps=_NOISE_STEPS,
    )
