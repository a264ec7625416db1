"""From one training's scores to a verdict: lower bounds of ε against the stated ε.

Each of many canaries is put in by a fair coin, and an adversary guesses some of the
coins. If the mechanism were as private as stated, more correct guesses than counted
would be rare, however the adversary guesses: whatever holds of the training, the model
or the scores, a bound that passes the stated ε refutes the statement. Before an audit:
how many coins to guess, and what bound a sound system is expected to give.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from precad.accounting import gdp
from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.frozen import frozen_dataclass, frozen_kw_only_dataclass

TradeOff = Callable[[float], float]
"""f: least false negative rate by false positive rate, both in [0, 1]; convex and
symmetric."""

Floats = NDArray[np.float64]
Booleans = NDArray[np.bool_]

_NORMAL = NormalDist()

_EPSILONS = (
    0.0,
    0.05,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1.0,
    1.15,
    1.3,
    1.5,
    1.7,
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
)
"""ε at which an accountant is asked for δ: more of them refute more."""


def gaussian(mu: float) -> TradeOff:
    """Return the trade-off of N(0, 1) against N(μ, 1).

    Dong, Roth and Su 2022, eq. (6). Raises Misconfiguration: μ isn't above 0.
    """
    checks.positive("mu", mu, "distance in standard deviations")

    def f(alpha: float) -> float:
        if not 0.0 < alpha < 1.0:
            return 1.0 if alpha <= 0.0 else 0.0
        return _NORMAL.cdf(-_NORMAL.inv_cdf(alpha) - mu)

    return f


def from_profile(profile: dict[float, float]) -> TradeOff:
    """Return the trade-off of all (ε, δ) statements at once.

    That is the largest of their trade-offs, pointwise. ``profile`` has δ by ε ≥ 0;
    fewer statements or larger ones give a smaller f, and an audit refutes less. Raises
    Misconfiguration: an ε is out of its range.
    """
    # Height at 0 and slope of each line, two a statement.
    lines = []
    for epsilon, delta in profile.items():
        checks.epsilon(epsilon)
        kept = 1.0 - min(max(delta, 0.0), 1.0)
        lines.append((kept, math.exp(epsilon)))
        lines.append((math.exp(-epsilon) * kept, math.exp(-epsilon)))

    def f(alpha: float) -> float:
        return max(0.0, *(height - slope * alpha for height, slope in lines))

    return f


def of_statement(delta_of_epsilon: Callable[[float], float]) -> TradeOff:
    """Return the trade-off of a mechanism whose δ at any ε an accountant bounds."""
    return from_profile({epsilon: delta_of_epsilon(epsilon) for epsilon in _EPSILONS})


@frozen_dataclass
class Guesses:
    """How an adversary did that guessed some of the canaries' coins.

    Raises Misconfiguration: 0 ≤ ``correct`` ≤ ``made`` ≤ ``canaries`` and 1 ≤ ``made``
    don't hold.
    """

    canaries: int
    """m, how many canaries there are, each with a coin."""
    made: int
    """r, how many coins are guessed. Fixed before the scores were seen."""
    correct: int
    """c, how many guesses are right."""

    def __post_init__(self) -> None:
        checks.count("canaries", self.canaries, 1)
        if not 1 <= checks.count("guesses made", self.made) <= self.canaries:
            raise Misconfiguration(
                "guesses made",
                self.made,
                f"must be from 1 to the {self.canaries} canaries",
            )
        if checks.count("correct guesses", self.correct) > self.made:
            raise Misconfiguration(
                "correct guesses", self.correct, f"only {self.made} were made"
            )


def refutes(f: TradeOff, guesses: Guesses, significance: float) -> bool:
    """Return whether the guesses refute the stated f, of one canary in or out.

    They do if so many correct ones have a probability below ``significance`` under
    f-DP. f is symmetric. Mahloujifar, Melis and Chaudhuri 2024, "Auditing
    f-Differential Privacy in One Run", Algorithm 3 for coins (k = 2). Raises
    Misconfiguration: the significance isn't in (0, 1).
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
            # Nor does anything move further down.
            break
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
    """Return the largest parameter of a family of trade-offs that is refuted.

    It is right to within 2^−steps of the range from ``least`` to ``most``; ``least`` if
    none is refuted.

    Args:
        family: Gives f by its parameter. f falls as the parameter grows: less private.
        guesses: How the adversary did.
        significance: 1 − confidence, in (0, 1).
        most: The largest parameter that is tried.
        least: The smallest one.
        steps: How often the range is halved.
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
"""Shares of the canaries that are tried as the number of guesses."""
_LEAST = 10
"""The smallest number of guesses that is tried, where there are so many canaries."""
_LEAST_MU = 1e-3
"""μ up to which nothing was refuted."""
_TRIALS = 15
"""Audits that are played to find the number of guesses."""
_POWER_TRIALS = 20
"""Audits that are played to find the power."""
MODELS = "models"
"""The statement about a record by whoever looks at the models alone."""
ONE_SERVER = "one server"
"""The statement about a record by whoever looks as one of the servers."""
_LEAST_TIMES = 1 / 16
"""How many times less noise than stated is looked for at least."""
_MOST_TIMES = 16.0
"""How many times less noise than stated is looked for at most."""
_NOISE_STEPS = 7
"""Halvings of the range between these."""


@frozen_kw_only_dataclass
class Power:
    """What an audit is planned to show, by audits that are played with ideal scores."""

    guesses: int
    """r, how many coins are guessed in a training: those with the surest scores."""
    expected: float
    """The median lower bound of ε, were the statement just met."""
    expected_of_half: float
    """The median lower bound of ε with half of the stated noise."""
    caught: float
    """Power: share of 20 trials in which the build at hand is refuted."""


def guess(scores: Floats, coins: Booleans, made: int) -> Guesses:
    """Guess the coins with the scores furthest from zero, by their sign.

    ``scores`` and ``coins`` are [m]. ``made`` coins are guessed, the rest abstain.
    """
    surest = np.argsort(-np.abs(scores), kind="stable")[:made]
    correct = int(((scores[surest] > 0) == coins[surest]).sum())
    return Guesses(canaries=len(coins), made=made, correct=correct)


def ideal_scores(
    coins: Booleans,
    *,
    rate: float,
    noise: float,
    rounds: int,
    generator: np.random.Generator,
) -> Floats:
    """Draw scores of canaries at right angles to all else, each of the full clip.

    Args:
        coins: [m] bool, whether each canary is in.
        rate: Probability with which a canary that is in is drawn in a round.
        noise: A standard deviation over the clip, as this view sees it.
        rounds: How many rounds are seen.
        generator: What everything random is drawn from.

    Returns:
        [m] float64, the log-likelihood ratio of in over out.
    """
    scores = np.zeros(len(coins))
    log_not_drawn = np.log1p(-rate) if rate < 1 else -np.inf
    for _ in range(rounds):
        drawn = coins & (generator.random(len(coins)) < rate)
        seen = drawn + noise * generator.standard_normal(len(coins))
        likelier = (2.0 * seen - 1.0) / (2.0 * noise**2)
        scores += np.logaddexp(log_not_drawn, np.log(rate) + likelier)
    return scores


def pooled(trainings: Sequence[Guesses]) -> Guesses:
    """Return the guesses of several trainings together.

    They are guesses about one mechanism, whose coins are all fair and independent.
    """
    return Guesses(
        canaries=sum(guesses.canaries for guesses in trainings),
        made=sum(guesses.made for guesses in trainings),
        correct=sum(guesses.correct for guesses in trainings),
    )


def _pooled_guesses(trainings: Sequence[tuple[Floats, Booleans]], made: int) -> Guesses:
    """Guess ``made`` coins of each training by its scores, and pool the guesses."""
    return pooled([guess(scores, coins, made) for scores, coins in trainings])


def _median_bounds(
    audits: Iterable[Sequence[tuple[Floats, Booleans]]],
    numbers: Sequence[int],
    significance: float,
) -> Floats:
    """Return the median lower bound of μ over ``audits``, for each number of guesses.

    An audit is the scores and coins of each of its trainings. Returns [numbers].
    """
    bounds = [
        lower_bound(
            gaussian,
            _pooled_guesses(trainings, made),
            significance=significance,
            most=16.0,
            least=_LEAST_MU,
            steps=14,
        )
        for trainings in audits
        for made in numbers
    ]
    return np.asarray(np.median(np.reshape(bounds, (-1, len(numbers))), axis=0))


@frozen_kw_only_dataclass
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
        """Return the accountant of the same training with this share of the noise."""
        accountant = ExactAccountant()
        accountant.compose(
            poisson_gaussian(
                rate=self.rate,
                noise_multiplier=self.noise * share,
                count=self.rounds,
            )
        )
        return accountant

    @property
    def epsilon(self) -> float:
        """Return the stated ε, exact."""
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
        """Find the number of guesses at which half of the noise shows best, and power.

        To find the number, trade-offs are taken as Gaussian, as they nearly are by the
        central limit theorem. What is caught is judged by the exact one, as the audit
        judges.

        Args:
            canaries: How many there are in each training.
            significance: How likely a sound system may fail.
            repetitions: Trainings of one audit, each with canaries of its own.
            less: How many times less noise the build at hand has.
            crowding: Canaries by dimensions, below 1, where they point anywhere: each
                that counts hides the others a little. That adds a quarter of it to the
                variance, a coin's, or where it is taken out divides the noise's by what
                is left of the dimensions.
        """
        generator = np.random.default_rng(0)
        numbers = sorted(
            {max(min(_LEAST, canaries), round(canaries * share)) for share in _SHARES}
        )

        def played(noise: float) -> list[tuple[Floats, Booleans]]:
            """Play one audit: scores and coins of each of its trainings."""
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

        def median_bounds(noise: float) -> Floats:
            audits = (played(noise) for _ in range(_TRIALS))
            return _median_bounds(audits, numbers, significance)

        of_half = median_bounds(self.noise / 2)
        of_sound = median_bounds(self.noise)
        best = int(of_half.argmax())
        made = numbers[best]
        stated = self.family()(1.0)

        def refuted() -> bool:
            # As `judge` does: in two ways, which share the significance.
            trainings = played(self.noise / less)
            return any(
                refutes(stated, _pooled_guesses(trainings, number), significance / 2)
                for number in (made, canaries)
            )

        def epsilon(mu: float) -> float:
            return gdp.epsilon_of_delta(mu, self.delta) if mu > _LEAST_MU else 0.0

        caught = sum(refuted() for _ in range(_POWER_TRIALS)) / _POWER_TRIALS
        return Power(
            guesses=made,
            expected=epsilon(float(of_sound[best])),
            expected_of_half=epsilon(float(of_half[best])),
            caught=caught,
        )

    def family(self) -> Callable[[float], TradeOff]:
        """Return f of the same training by how many times less noise it has."""

        @lru_cache
        def f(times: float) -> TradeOff:
            return of_statement(self.accountant(1 / times).delta)

        return f


@frozen_kw_only_dataclass
class AuditVerdict:
    """An audit of one statement, with what was planned beforehand and the stated ε."""

    statement: AuditedStatement
    power: Power
    guesses: Guesses
    """How the adversary did, in the way that proves most."""
    significance: float
    """How likely a sound system fails, at most."""
    epsilon: float
    """The stated ε."""
    by_family: float
    """The largest ε of the same training with less noise that is refuted: the sharpest
    bound. It reaches the stated ε where the statement is refuted, and only there."""
    refuted: bool
    """Whether fewer right guesses are expected of anybody, with confidence 1 −
    significance."""

    def to_json(self) -> dict[str, object]:
        """Return a JSON object."""
        statement = asdict(self.statement)
        return {
            "view": statement.pop("name"),
            **statement,
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
    """Return what the guesses prove, in the way that proves most.

    Args:
        statement: What is audited.
        power: What was planned, before the scores were seen.
        ways: The guesses in each of several ways, which were fixed before the scores
            were seen too, and share the significance.
        significance: How likely a sound system may fail.
    """
    family = statement.family()
    epsilon = statement.epsilon
    significance_of_way = significance / len(ways)
    times = {way: _largest_refuted(family, way, significance_of_way) for way in ways}
    best = max(ways, key=times.__getitem__)
    refuted = refutes(family(1.0), best, significance_of_way)
    by_family = 0.0
    if times[best]:
        accountant = statement.accountant(1 / times[best])
        by_family = accountant.epsilon(statement.delta)
    return AuditVerdict(
        statement=statement,
        power=power,
        guesses=best,
        significance=significance,
        epsilon=epsilon,
        by_family=by_family,
        refuted=refuted,
    )


def _largest_refuted(
    family: Callable[[float], TradeOff], guesses: Guesses, significance: float
) -> float:
    """Return how many times less noise at most is refuted; 0 if none is."""
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
