"""From scores to a verdict: bounds of ε below, the stated ε above, and whether they cross."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from precad.accounting.events import poisson_gaussian
from precad.accounting.exact import ExactAccountant
from precad.audit.one_run import (
    Guesses,
    TradeOff,
    epsilon_by_counts,
    epsilon_by_trade_off,
    lower_bound,
    of_statement,
    refutes,
)
from precad.audit.power import Power, plan

MODELS, ONE_SERVER = "models", "one server"
"""Statements of a record by who looks: at the models alone, or as one of the servers."""
_USUAL = 0.05
"""Significance at which the papers compare their bounds."""
_STEPS = 7
"""Of the search for how much less noise is refuted."""
_LEAST_TIMES, _MOST_TIMES = 1 / 16, 16.0
"""Trainings with so many times less noise than stated are told apart."""


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
        """How many coins to guess, before any is, and how likely so much less noise is caught."""
        return plan(
            canaries,
            self.rate,
            self.noise,
            self.rounds,
            repetitions=repetitions,
            delta=self.delta,
            significance=significance,
            stated=self.family()(1.0),
            less=less,
            crowding=crowding,
        )

    def family(self) -> Callable[[float], TradeOff]:
        """F of the same training by how many times less noise it has."""

        @lru_cache
        def f(times: float) -> TradeOff:
            return of_statement(self.accountant(1 / times).delta)

        return f


@dataclass(frozen=True, slots=True)
class Verdict:
    """An audit of one statement.

    Attributes:
        statement: what was audited.
        power: what was planned beforehand.
        guesses: how the adversary did, in the way that proves most.
        significance: how likely a sound system fails, at most.
        epsilon: the stated one.
        by_family: the largest ε of the same training with less noise that is refuted: the
            sharpest bound. It reaches the stated ε where the statement is refuted, and only there.
        by_trade_off: the bound from (ε, δ) alone at 95 % confidence, Mahloujifar et al. 2024.
        by_counts: the same, Steinke et al. 2023.
        refuted: whether the statement doesn't hold: fewer correct guesses would be expected of
            any adversary, with confidence 1 − significance.
    """

    statement: Statement
    power: Power
    guesses: Guesses
    significance: float
    epsilon: float
    by_family: float
    by_trade_off: float
    by_counts: float
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
            "build_trials": self.power.trials,
            "epsilon_stated": self.epsilon,
            "epsilon_at_least": self.by_family,
            "epsilon_at_least_by_trade_off": self.by_trade_off,
            "epsilon_at_least_by_counts": self.by_counts,
            "refuted": self.refuted,
        }


def judge(
    statement: Statement,
    power: Power,
    ways: Sequence[Guesses],
    significance: float,
) -> Verdict:
    """What the guesses prove, in the way that proves most; the ways share the significance.

    Args:
        statement: what is audited.
        power: fixed before the scores were seen.
        ways: of all trainings, the planned number of guesses and all; fixed beforehand too.
        significance: in (0, 1).

    Raises:
        Misconfiguration: the significance is outside (0, 1).
    """
    family, epsilon = statement.family(), statement.epsilon
    each, usual = significance / len(ways), _USUAL / len(ways)

    def times(guesses: Guesses) -> float:
        return _largest_refuted(family, guesses, each)

    best = max(ways, key=times)
    refuted = refutes(family(1.0), best, each)
    less = times(best)
    found = statement.accountant(1 / less).epsilon(statement.delta) if less else 0.0
    return Verdict(
        statement=statement,
        power=power,
        guesses=best,
        significance=significance,
        epsilon=epsilon,
        by_family=found,
        by_trade_off=max(epsilon_by_trade_off(one, statement.delta, usual) for one in ways),
        by_counts=max(epsilon_by_counts(one, statement.delta, usual) for one in ways),
        refuted=refuted,
    )


def _largest_refuted(
    family: Callable[[float], TradeOff], guesses: Guesses, significance: float
) -> float:
    """How many times less noise at most is refuted; 0 where nothing is."""
    # The stated noise first: whether that is refuted is the verdict, and stays on its side.
    if refutes(family(1.0), guesses, significance):
        return lower_bound(family, guesses, significance, _MOST_TIMES, least=1.0, steps=_STEPS)
    if not refutes(family(_LEAST_TIMES), guesses, significance):
        return 0.0
    return lower_bound(family, guesses, significance, 1.0, least=_LEAST_TIMES, steps=_STEPS)
