"""What this system guarantees, each (ε, δ) against its own adversary, of one run or of several.

Several runs on the same records cost what all their events together cost. That is the cost of a
list that was fixed beforehand: where tasks are chosen as one goes, a limit holds through
``filter``, and this number stands beside it as what it is.

Where one server is malicious, δ' has beside honest rejection "advantages against the PRG, the
commitments, the signatures and M(k + 1) gate keys" (docs/cheating-server.md, "What is claimed").
Nobody can prove such a number: it is computed from an assumption about an adversary that works for
so long.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from precad.accounting.adversaries import MALICIOUS_SERVER, Adversary, Basis, Run
from precad.accounting.calibrate import accountant_named
from precad.accounting.events import AccountantName, BeyondReach, SampledGaussian
from precad.accounting.exact import most_participations
from precad.accounting.gdp import GdpCltAccountant
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import TAU

if TYPE_CHECKING:
    from precad.common.task import Task

LOG_WORK = 64
"""The adversary computes AES 2^64 times in all: 600 years of one core at 10^9 a second."""
LOG_ADVANTAGE = -80
"""Assumed of it: with that work it breaks one use of one primitive with a chance of 2^−80 at most.
That allows for streams of 2^24 blocks, which differ from random ones by 2^−81 anyway."""
USES = 8
"""Of primitives that one dealing's privacy rests on: the honest half's mask and its word's mask
(AES-256, and the derivation of both), its commitment, whose hiding counts once and whose binding,
with that of h, once (SHA-256, BLAKE3), the client's signature (ECDSA on P-256), the gates' roots
(SHAKE-256), and the honest server's noise (AES-256)."""
_TREE_LEVELS = 58
"""57 levels of a gate's tree and its leaf: hidden seeds on the way to α."""
_SEED_BITS = 126

ASSUMED = (
    f"assumed: 2^{LOG_WORK} AES operations break one use of AES, SHA or ECDSA with a chance of "
    f"2^−{-LOG_ADVANTAGE}"
)
"""The assumption in words, for people."""


def advantages(epsilon: float, dealings: int, projections: int) -> float:
    """(1 + e^ε)·M·(8·2^−80 + (k + 1)·58·2^64/2^126), at most 1.

    The second term is proved in the ideal-cipher model: who evaluates the generator's permutation q
    times finds one of N hidden seeds of 126 bits with a chance of at most q·N/2^126
    (docs/function-secret-sharing.md, "Why one key says nothing"). Only one client's keys count.

    Args:
        epsilon: ε ≥ 0 of the statement; infinite where there is none.
        dealings: M, how often this client's masks are dealt for, at most.
        projections: k, rows of the range test.

    Raises:
        Misconfiguration: a number isn't a count.
    """
    gates = checks.count("projections", projections) + 1
    if not checks.count("dealings", dealings):
        return 0.0
    seeds = gates * _TREE_LEVELS
    each = USES * 2.0**LOG_ADVANTAGE + seeds * 2.0 ** (LOG_WORK - _SEED_BITS)
    log_added = math.log(dealings * each) + float(np.logaddexp(0.0, epsilon))
    return math.exp(min(0.0, log_added))


def honest_rejection(epsilon: float, attempts: int, projections: int) -> float:
    """(1 + e^ε)·attempts·2k·e^{−τ²}, at most 1: what the range test adds to δ.

    It rejects an honest update with a probability that depends on it (docs/soundness.md, "Honest
    clients pass"): the real outcomes are within attempts·2k·e^{−τ²} of those that are accounted.

    Args:
        epsilon: ε ≥ 0 of the statement; infinite where there is none.
        attempts: how often an update was tested.
        projections: k, rows of the test.

    Raises:
        Misconfiguration: a number isn't a count.
    """
    tests = 2 * checks.count("projections", projections) * checks.count("attempts", attempts)
    if not tests:
        return 0.0
    log_added = math.log(tests) - TAU**2 + float(np.logaddexp(0.0, epsilon))
    return math.exp(min(0.0, log_added))


def _broken(run: Run, epsilon: float) -> float | None:
    """What breaking the cryptography adds to δ; None where attempts aren't known."""
    if run.attempts is None or run.projections is None:
        return None
    return advantages(epsilon, run.attempts, run.projections)


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    """The same, with None for what is infinite, which JSON hasn't."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


@dataclass(frozen=True, slots=True)
class PrivacyStatement:
    """One (ε, δ) with everything that it means.

    Attributes:
        adversary: against whom.
        adjacency: ``zero-out-record`` or ``zero-out-client``: one's gradient or update is zero.
        accountant: where ε comes from; ``gdp-clt`` is asymptotic, not a guarantee.
        record_rate: the task's p; enters the two record-level guarantees.
        client_rate: the task's q; enters the client-level guarantee and, before a run, the
            others.
        noise_multiplier: standard deviation of the noise that this adversary can't remove,
            over the sensitivity: σ, √2·σ or √2·σ·R'/C.
        compositions: number of steps (participations) or rounds composed.
        basis: what that number is.
        delta: δ, in (0, 1).
        rejection_delta: what honest rejection adds to δ; None where it isn't known how often the
            range test was made.
        advantage_delta: what breaking the cryptography adds to δ under the assumption of
            ``advantages``; None where no malicious server is meant.
        epsilon: ε ≥ 0; infinite where the accountant gives no bound.
        mu: μ of the central limit theorem; None for the other accountants.
        malicious_server: whether it holds against one server that departs from the protocol too
            (docs/cheating-server.md).
    """

    adversary: Adversary
    adjacency: str
    accountant: AccountantName
    record_rate: float
    client_rate: float
    noise_multiplier: float
    compositions: int
    basis: Basis
    delta: float
    rejection_delta: float | None
    epsilon: float
    mu: float | None
    malicious_server: bool = False
    advantage_delta: float | None = None

    @property
    def against(self) -> str:
        """The adversary in words, for people."""
        return MALICIOUS_SERVER if self.malicious_server else self.adversary.words

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; an infinite ε or μ is null."""
        return _finite(asdict(self))


def guarantees(
    run: Run,
    delta: float,
    adversaries: Iterable[Adversary] | None = None,
    accountants: Iterable[AccountantName] = tuple(AccountantName),
) -> tuple[PrivacyStatement, ...]:
    """Every guarantee by every accountant, adversary by adversary.

    Args:
        run: what was run, or will be.
        delta: δ, in (0, 1).
        adversaries: which ones; by default all, the client level only where R'/C is known.
        accountants: which ones; all by default. One that can't answer at so small a δ has an
            infinite ε, and the others stand beside it.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.inside_unit_interval("delta", delta)
    if adversaries is None:
        without_clips = (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
        adversaries = without_clips if run.sensitivity_ratio is None else tuple(Adversary)
    accountants = tuple(accountants)
    return tuple(
        _statement(run, delta, adversary, name) for adversary in adversaries for name in accountants
    )


def _statement(
    run: Run, delta: float, adversary: Adversary, name: AccountantName
) -> PrivacyStatement:
    alone = _joint((run,), delta, adversary, name)
    limit = GdpCltAccountant()
    events = run.events(adversary)
    for event in events if name is AccountantName.GDP_CLT else ():
        limit.compose(event)
    return PrivacyStatement(
        adversary=adversary,
        adjacency=alone.adjacency,
        accountant=name,
        record_rate=run.record_rate,
        client_rate=run.client_rate,
        noise_multiplier=events[0].effective_noise_multiplier,
        compositions=alone.compositions,
        basis=alone.basis,
        delta=delta,
        rejection_delta=alone.rejection_delta,
        epsilon=alone.epsilon,
        mu=limit.mu if name is AccountantName.GDP_CLT else None,
        malicious_server=alone.malicious_server,
        advantage_delta=alone.advantage_delta,
    )


@dataclass(frozen=True, slots=True)
class JointStatement:
    """One (ε, δ) of several runs together.

    Attributes:
        adversary: against whom, in every run.
        adjacency: as in ``PrivacyStatement``.
        accountant: where ε comes from.
        runs: how many.
        compositions: number of steps or rounds of all.
        basis: what they are: planned where one is, else the cap where one is at its, else counted.
        delta: δ, in (0, 1).
        rejection_delta: what honest rejection adds to δ; None where a run doesn't say.
        epsilon: ε ≥ 0; infinite where the accountant gives no bound.
        malicious_server: whether it holds in every run against a server that cheats.
        advantage_delta: what breaking the cryptography of all runs adds to δ then.
    """

    adversary: Adversary
    adjacency: str
    accountant: AccountantName
    runs: int
    compositions: int
    basis: Basis
    delta: float
    rejection_delta: float | None
    epsilon: float
    malicious_server: bool = False
    advantage_delta: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object; an infinite ε is null."""
        return _finite(asdict(self))


def together(
    runs: Sequence[Run],
    delta: float,
    accountants: Iterable[AccountantName] = tuple(AccountantName),
    adversaries: Iterable[Adversary] = tuple(Adversary),
) -> tuple[JointStatement, ...]:
    """Every guarantee of all ``runs`` together, adversary by adversary.

    Args:
        runs: at least one; each as it was planned, counted or capped.
        delta: δ of the whole, in (0, 1).
        accountants: which ones; all by default.
        adversaries: which ones; all by default.

    Returns:
        The client level only where every run knows R'/C.

    Raises:
        Misconfiguration: no run, or a parameter is out of its range.
    """
    checks.inside_unit_interval("delta", delta)
    if not runs:
        raise Misconfiguration("runs", "none", "give at least one")
    whole = all(run.sensitivity_ratio is not None for run in runs)
    stated = [who for who in adversaries if whole or who is not Adversary.CLIENT_LEVEL]
    accountants = tuple(accountants)
    return tuple(_joint(runs, delta, who, name) for who in stated for name in accountants)


def _joint(
    runs: Sequence[Run], delta: float, adversary: Adversary, name: AccountantName
) -> JointStatement:
    events = tuple(event for run in runs for event in run.events(adversary))
    epsilon = _epsilon(events, delta, name)
    bases = {run.basis for run in runs}
    basis = next(b for b in (Basis.PLANNED, Basis.CAP, Basis.COUNTED) if b in bases)
    added: float | None = 0.0
    for run in runs:
        if run.attempts is None or run.projections is None or added is None:
            added = None
        else:
            added += honest_rejection(epsilon, run.attempts, run.projections)
    malicious = all(run.covers_a_malicious_server(adversary) for run in runs)
    broken = [_broken(run, epsilon) if malicious else None for run in runs]
    known = [each for each in broken if each is not None]
    return JointStatement(
        adversary=adversary,
        adjacency=adversary.adjacency,
        accountant=name,
        runs=len(runs),
        compositions=sum(event.count for event in events),
        basis=basis,
        delta=delta,
        rejection_delta=added if added is None else min(1.0, added),
        epsilon=epsilon,
        malicious_server=malicious,
        advantage_delta=min(1.0, sum(known)) if len(known) == len(runs) else None,
    )


@lru_cache(maxsize=32)
def _epsilon(events: tuple[SampledGaussian, ...], delta: float, name: AccountantName) -> float:
    """ε of all events; kept, since runs at their caps often are what was planned."""
    accountant = accountant_named(name)
    for event in events:
        accountant.compose(event)
    try:
        return accountant.epsilon(delta)
    except BeyondReach:
        return math.inf


def against_a_cheating_server(task: "Task", delta: float) -> PrivacyStatement | None:
    """The exact guarantee of a record at the cap; None where norms aren't checked by gates.

    The cap is the most participations that the task's limit lets count, or T: a server that cheats
    decides when an owner takes part (docs/cheating-server.md).

    Args:
        task: may be planned.
        delta: δ, in (0, 1).
    """
    run, privacy = Run.of(task), task.privacy
    if not run.malicious_server:
        return None
    cap = run.rounds
    if privacy.epsilon_limit is not None:
        cap = most_participations(
            record_rate=privacy.record_rate,
            noise_multiplier=privacy.noise_multiplier,
            delta=privacy.delta,
            epsilon_limit=privacy.epsilon_limit,
            ceiling=run.rounds,
        )
    (found,) = guarantees(run.at_cap(cap), delta, (Adversary.ONE_SERVER,), (AccountantName.EXACT,))
    return found
