"""What several runs on the same records cost together: exact composition of all their events.

This is the cost of a list that was fixed beforehand. Where tasks are chosen as one goes, a limit
holds through ``filter``, and this number stands beside it as what it is.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from precad.accounting.accountant import AccountantName, BeyondReach
from precad.accounting.events import SampledGaussian
from precad.accounting.guarantees import (
    Adversary,
    Basis,
    Run,
    accountant_named,
    honest_rejection,
)
from precad.common import checks
from precad.common.errors import Misconfiguration


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
        """A JSON object; an infinite ε is null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


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
    broken = [run.advantages(epsilon) if malicious else None for run in runs]
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
