"""What is guaranteed against each adversary, and the noise for a wanted ε.

Several runs on the same records cost what all their events together cost. That is the
cost of a list that was fixed beforehand: where tasks are chosen as one goes, a limit
holds through ``filter``, and this number stands beside it as what it is.
"""

import math
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache

import numpy as np

from precad.accounting import (
    MALICIOUS_SERVER,
    RECORD_LEVEL,
    Accountant,
    AccountantName,
    Adversary,
    Basis,
    BeyondReach,
    ExactAccountant,
    GdpCltAccountant,
    RdpAccountant,
    Run,
    SampledGaussian,
    epsilon_of,
    most_participations,
)
from precad.common import (
    HALF_WIDTHS,
    TAU,
    Claim,
    Misconfiguration,
    Task,
    Unit,
    checks,
    frozen_kw_only_dataclass,
    upper,
)

EXACT = (AccountantName.EXACT,)


def accountant_named(name: AccountantName) -> Accountant:
    """Return a fresh accountant of that name."""
    match name:
        case AccountantName.EXACT:
            return ExactAccountant()
        case AccountantName.RDP:
            return RdpAccountant()
        case AccountantName.GDP_CLT:
            return GdpCltAccountant()


def spent(event: SampledGaussian, delta: float) -> float:
    """Return the exact ε at ``delta`` of one event alone."""
    return epsilon_of((event,), delta)


LOG_WORK = 64
"""The adversary computes AES 2^64 times in all: 600 years of one core at 10^9 a second.
"""
LOG_ADVANTAGE = -80
"""Assumed of it: with that work it breaks one use of one primitive with a chance of
2^−80 at most, of a stream of up to 2^24 blocks: such a one differs from random words by
2^−81 anyway (n² / 2^129 for n blocks). Longer streams have (n / 2^24)² times that."""
BLOCKS = 2
"""AES blocks that a coordinate takes in one stream, at most: noise takes three words a
proposal, of which 95 of 100 are accepted, so 1.6; a mask takes half a block."""
USES = 16
"""Of primitives that one submission's privacy rests on, where its owner proves its
norm: the seed's five streams and the mask's one with the derivation of each (AES-256,
SHAKE-256), what hides four values and what binds them, once (SHA-256, BLAKE3), the
client's signature (ECDSA on P-256), and the honest server's noise (AES-256)."""

ASSUMED = (
    f"assumed: 2^{LOG_WORK} AES operations break one use of AES, SHA or ECDSA with a"
    f" chance of 2^−{-LOG_ADVANTAGE}"
)
"""The assumption in words, for people."""


def advantages(epsilon: float, run: Run) -> float:
    """Return (1 + e^ε)·M·16·2^−80·max(1, d/2^23)², at most 1, for an owner's M uploads.

    M is at most that, attempts that broke off included. It is a malicious server's
    advantage against PRG, commitments and signatures (docs/cheating-server.md, "What is
    claimed"), which is assumed. ε is infinite where there is none. M must be known.
    """
    assert run.attempts is not None
    chance = run.attempts * USES * 2.0**LOG_ADVANTAGE
    chance *= max(1.0, math.ldexp(BLOCKS * run.dimension, -24)) ** 2
    return _on_both_sides(epsilon, chance)


def honest_rejection(epsilon: float, run: Run) -> float:
    """Return (1 + e^ε)·attempts·2k·e^{−w²}, at most 1: what the range test adds to δ.

    It rejects an honest update with a probability that depends on it
    (docs/soundness.md, "Honest clients pass"): the real outcomes are within
    attempts·2k·e^{−w²} of those that are accounted, k the rows of the test and w its
    half-width over β: τ = 7, and 8 where norms are proved. ε is infinite where there is
    none. The run must say how often it was tested.
    """
    assert run.attempts is not None
    assert run.projections is not None
    tests = 2 * run.projections * run.attempts
    width = HALF_WIDTHS if run.malicious_server else TAU
    return _on_both_sides(epsilon, tests * math.exp(-(width**2)))


def _on_both_sides(epsilon: float, chance: float) -> float:
    """Return (1 + e^ε)·``chance``, at most 1; without overflow."""
    if chance == 0:
        return 0.0
    log_both_sides = float(np.logaddexp(0.0, epsilon))
    return math.exp(min(0.0, math.log(chance) + log_both_sides))


@frozen_kw_only_dataclass
class PrivacyStatement:
    """One (ε, δ), of one run or of several together, with everything that it means."""

    adversary: Adversary
    unit: Unit
    """What is protected at the record level."""
    accountant: AccountantName
    """Where ε comes from; ``gdp-clt`` is asymptotic, not a guarantee."""
    runs: int
    record_rate: float | None
    """The task's p; None of several runs, as the next two."""
    client_rate: float | None
    noise_multiplier: float | None
    """Of the noise that this adversary can't remove, over the sensitivity: σ, √2·σ or
    √2·σ·R'/C."""
    compositions: int
    """Steps (participations) or rounds."""
    basis: Basis
    """What these are: planned where one is, else the cap where one is at its, else
    counted."""
    delta: float
    rejection_delta: float | None
    """What honest rejection adds to δ; None where nobody knows how often ranges were
    tested."""
    epsilon: float
    """Infinite where the accountant gives no bound."""
    least_epsilon: float | None
    """Of the owner with the least bound; None where no owner's size matters."""
    owners_per_unit: int
    """At how many owners a unit may be for it; 1 at the client level."""
    epsilon_at_one: float
    """ε of a unit that is at one owner alone."""
    mu: float | None
    """Of the central limit theorem; None for the other accountants."""
    malicious_server: bool
    """Whether it holds against one server that departs from the protocol too."""
    advantage_delta: float | None
    """``advantages``, what is added to δ; None where no malicious server is meant."""

    @property
    def added_delta(self) -> float | None:
        """What is added to δ; None where nobody knows how often ranges were tested."""
        if self.rejection_delta is None:
            return None
        return self.rejection_delta + (self.advantage_delta or 0.0)

    @property
    def at_owners(self) -> str:
        """At how many owners the unit may be, with ε at one; empty where it is one."""
        return at_owners(self.owners_per_unit, self.epsilon_at_one)

    @property
    def against(self) -> str:
        """The adversary in words, for people."""
        return MALICIOUS_SERVER if self.malicious_server else self.adversary.description

    def to_json(self) -> dict[str, object]:
        """Return a JSON object; an infinite ε or μ is null."""
        document = asdict(self)
        document["adjacency"] = self.adversary.adjacency(self.unit)
        document["at_owners"] = self.at_owners
        for name, value in document.items():
            if isinstance(value, float) and not math.isfinite(value):
                document[name] = None
        return document


def at_owners(owners_per_unit: int, epsilon_at_one: float) -> str:
    """Say after an ε at how many owners the unit may be; empty where it is one.

    Args:
        owners_per_unit: m, as the task declares it.
        epsilon_at_one: ε of a unit that is at one owner, by the same accountant.
    """
    if owners_per_unit == 1:
        return ""
    return f" at up to {owners_per_unit} owners (ε = {upper(epsilon_at_one)} at one)"


def guarantees(
    runs: Run | Sequence[Run],
    delta: float,
    adversaries: Iterable[Adversary] | None = None,
    accountants: Iterable[AccountantName] = tuple(AccountantName),
) -> tuple[PrivacyStatement, ...]:
    """Return every guarantee of a run, or of several together, adversary by adversary.

    By default against all, at the client level only where every run knows R'/C. An
    accountant that can't answer at so small a δ of the whole has an infinite ε, and the
    others stand beside it. Raises Misconfiguration: no run, or a parameter is out of
    its range.
    """
    every = (runs,) if isinstance(runs, Run) else tuple(runs)
    if not every:
        raise Misconfiguration("runs", "none", "give at least one")
    units = {run.unit for run in every}
    if len(units) > 1:
        raise Misconfiguration(
            "runs",
            ", ".join(sorted(units)),
            "protect different things, whose ε don't add up: account for each alone",
        )
    if adversaries is None:
        whole = all(run.sensitivity_ratio is not None for run in every)
        adversaries = tuple(Adversary) if whole else RECORD_LEVEL
    names = tuple(accountants)
    return tuple(
        _statement(every, delta, adversary, name)
        for adversary in adversaries
        for name in names
    )


def _statement(
    runs: tuple[Run, ...],
    delta: float,
    adversary: Adversary,
    name: AccountantName,
) -> PrivacyStatement:
    """Return what all runs together guarantee, by one adversary and accountant."""
    events = tuple(event for run in runs for event in run.events(adversary))
    epsilon, mu = _epsilon_and_mu(events, delta, name)
    least_epsilon = None
    by_size = any(run.least_owner_bound < 1 for run in runs)
    if by_size and adversary is Adversary.CLIENT_LEVEL:
        least = tuple(
            event
            for run in runs
            for event in replace(run, owner_bounds=(run.least_owner_bound,)).events(
                adversary
            )
        )
        least_epsilon, _ = _epsilon_and_mu(least, delta, name)
    at_one = tuple(replace(event, owners=1) for event in events)
    epsilon_at_one, _ = _epsilon_and_mu(at_one, delta, name)
    bases = {run.basis for run in runs}
    malicious = all(run.covers_a_malicious_server(adversary) for run in runs)
    alone = len(runs) == 1
    return PrivacyStatement(
        adversary=adversary,
        unit=runs[0].unit,
        accountant=name,
        runs=len(runs),
        record_rate=runs[0].record_rate if alone else None,
        client_rate=runs[0].client_rate if alone else None,
        noise_multiplier=events[0].effective_noise_multiplier if alone else None,
        compositions=sum(run.event(adversary).count for run in runs),
        basis=next(b for b in (Basis.PLANNED, Basis.CAP, Basis.COUNTED) if b in bases),
        delta=delta,
        rejection_delta=_added(honest_rejection, runs, epsilon),
        epsilon=epsilon,
        least_epsilon=least_epsilon,
        owners_per_unit=max(event.owners for event in events),
        epsilon_at_one=epsilon_at_one,
        mu=mu,
        malicious_server=malicious,
        advantage_delta=_added(advantages, runs, epsilon) if malicious else None,
    )


def _added(
    term: Callable[[float, Run], float], runs: tuple[Run, ...], epsilon: float
) -> float | None:
    """Return what ``term`` adds to δ in all; None where a run's tests aren't known."""
    if any(run.attempts is None or run.projections is None for run in runs):
        return None
    return min(1.0, sum(term(epsilon, run) for run in runs))


@lru_cache(maxsize=32)
def _epsilon_and_mu(
    events: tuple[SampledGaussian, ...], delta: float, name: AccountantName
) -> tuple[float, float | None]:
    """Return ε of all events at ``delta``, and the central limit theorem's μ.

    Kept, since runs at their caps often are what was planned.
    """
    accountant = accountant_named(name)
    for event in events:
        accountant.compose(event)
    mu = accountant.mu if isinstance(accountant, GdpCltAccountant) else None
    try:
        return accountant.epsilon(delta), mu
    except BeyondReach:
        return math.inf, mu


def cap_of(task: Task) -> int:
    """Return the most participations at the task's p within its limit, or T."""
    releases = task.mechanism.releases
    limit = task.privacy.epsilon_limit
    if limit is None:
        return releases
    return most_participations(
        Run.of(task).step(Adversary.ONE_SERVER),
        delta=task.privacy.delta,
        epsilon_limit=limit,
        ceiling=releases,
    )


def planned_guarantees(
    task: Task, claims: Collection[Claim] = ()
) -> tuple[PrivacyStatement, ...]:
    """Return a task's exact guarantees at its δ, before a run.

    ``claims`` are of all owners, where they are known. Where norms are proved, the last
    is a unit's at the cap: a server that cheats decides when an owner takes part
    (docs/cheating-server.md).
    """
    run = Run.of(task, claims=claims)
    delta = task.privacy.delta
    planned = guarantees(run, delta, accountants=EXACT)
    if not run.malicious_server:
        return planned
    at_cap = run.at_cap(cap_of(task))
    return planned + guarantees(at_cap, delta, (Adversary.ONE_SERVER,), EXACT)


# The other way round: the noise for a wanted ε.

_DIGITS = 4
"""Significant digits of σ."""
_SIGNIFICANDS = 9 * 10 ** (_DIGITS - 1)
"""How many numbers of so many digits lie between two powers of ten."""
_DECADES = (-2, 5)
"""The least σ is looked for from 10^−2 to below 10^5."""


def least_noise_multiplier(
    event_of: Callable[[float], SampledGaussian],
    *,
    epsilon: float,
    delta: float,
) -> float:
    """Return the least σ of four digits with which ``event_of(σ)`` is (ε, δ)-DP.

    By the exact accountant, from 0.01 on. Raises Misconfiguration: a parameter is out
    of its range, or no σ below 10^5 suffices.
    """
    checks.epsilon(epsilon)
    first, last = _DECADES

    def sigma(place: int) -> float:
        """Return the σ of this place, from 0, among all in ascending order."""
        decade, significand = divmod(place, _SIGNIFICANDS)
        shift = first + decade - _DIGITS + 1
        return float(f"{10 ** (_DIGITS - 1) + significand}e{shift}")

    def suffices(place: int) -> bool:
        return spent(event_of(sigma(place)), delta) <= epsilon

    places = range((last - first) * _SIGNIFICANDS)
    least = bisect_left(places, x=True, key=suffices)
    if least == len(places):
        raise Misconfiguration(
            "epsilon", epsilon, f"no noise multiplier below 10^{last} reaches it"
        )
    return sigma(least)
