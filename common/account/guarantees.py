"""The three guarantees of this system, each against its own adversary."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from precad.common import checks
from precad.common.account.accountant import Accountant, AccountantName
from precad.common.account.events import SampledGaussian, poisson_gaussian
from precad.common.account.exact import ExactAccountant
from precad.common.account.gdp import GdpCltAccountant
from precad.common.account.rdp import RdpAccountant
from precad.common.errors import Misconfiguration
from precad.common.headroom import effective_record_clip

if TYPE_CHECKING:
    from precad.common.task import Task

PLANNING_QUANTILE = 0.999
"""Before a run, a client's participations are taken as this quantile of Bin(T, q)."""


class Adversary(StrEnum):
    """Against whom a guarantee holds."""

    ONE_SERVER = "one-server"
    """One curious server, with any clients except the victim: it sees who takes part, and
    knows its own noise."""
    CLIENTS_ONLY = "clients-only"
    """Any clients except the victim: they see the models only, noised by both servers."""
    CLIENT_LEVEL = "client-level"
    """Whoever sees the models: hides (or bounds) a whole client, and feeds robustness."""

    @property
    def words(self) -> str:
        """The adversary in words, for people."""
        return _WORDS[self]

    @property
    def adjacency(self) -> str:
        """What neighbours differ in."""
        return "add-remove-client" if self is Adversary.CLIENT_LEVEL else "add-remove-record"


_WORDS = {
    Adversary.ONE_SERVER: "one curious server, with any other clients",
    Adversary.CLIENTS_ONLY: "other clients only, both servers honest",
    Adversary.CLIENT_LEVEL: "anyone who sees the models, both servers honest",
}


@dataclass(frozen=True, slots=True)
class PrivacyStatement:
    """One (ε, δ) with everything that it means.

    Attributes:
        adversary: against whom.
        adjacency: ``add-remove-record`` or ``add-remove-client``.
        accountant: where ε comes from; ``gdp-clt`` is asymptotic, not a guarantee.
        record_rate: the task's p; enters the two record-level guarantees.
        client_rate: the task's q; enters the client-level guarantee and, before a run, the
            others.
        noise_multiplier: standard deviation of the noise that this adversary can't remove,
            over the sensitivity: σ, √2·σ or √2·σ·R'/C.
        compositions: number of steps (participations) or rounds composed.
        delta: δ, in (0, 1).
        epsilon: ε ≥ 0; infinite where the accountant gives no bound.
        mu: μ of the central limit theorem; None for the other accountants.
    """

    adversary: Adversary
    adjacency: str
    accountant: AccountantName
    record_rate: float
    client_rate: float
    noise_multiplier: float
    compositions: int
    delta: float
    epsilon: float
    mu: float | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object; an infinite ε or μ is null."""
        return {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in asdict(self).items()
        }


def accountant_named(name: AccountantName) -> Accountant:
    """A fresh accountant."""
    made: dict[AccountantName, Callable[[], Accountant]] = {
        AccountantName.EXACT: ExactAccountant,
        AccountantName.RDP: RdpAccountant,
        AccountantName.GDP_CLT: GdpCltAccountant,
    }
    return made[name]()


def spent(
    event: SampledGaussian, delta: float, name: AccountantName = AccountantName.EXACT
) -> float:
    """ε at ``delta`` of one event alone.

    Raises:
        Misconfiguration: the accountant has no bound for the event, or for so small a δ.
    """
    accountant = accountant_named(name)
    accountant.compose(event)
    return accountant.epsilon(delta)


def planned_participations(client_rate: float, rounds: int) -> int:
    """The 0.999 quantile of Bin(``rounds``, ``client_rate``): how often one client is drawn.

    Its mean qT, which the paper uses, is exceeded by almost half of all clients.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.rate("client_rate", client_rate)
    checks.count("rounds", rounds)
    # scipy.stats takes a second to import; only plans need it.
    from scipy.stats import binom  # noqa: PLC0415

    return int(binom.ppf(PLANNING_QUANTILE, rounds, client_rate))


def sensitivity_ratio(
    record_clip: float, client_clip: float, dimension: int, fractional_bits: int
) -> float:
    """R'/C, of a run without a task, from numbers that a person gave.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.positive("client_clip", client_clip, "the bound on a client's update")
    checks.positive("record_clip", record_clip, "the bound on a record's gradient")
    checks.count("dimension", dimension, 1)
    checks.count("fractional_bits", fractional_bits)
    return effective_record_clip(record_clip, dimension, fractional_bits) / client_clip


def client_noise_multiplier(noise_multiplier: float, ratio: float) -> float:
    """√2·σ·R'/C: both servers' noise over one client's bound; PRECAD Lemma 8 with R' for R.

    Args:
        noise_multiplier: σ, each server's noise over R'.
        ratio: R'/C.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.noise_multiplier(noise_multiplier)
    checks.positive("sensitivity_ratio", ratio, "R'/C, record over client clip")
    return math.sqrt(2) * noise_multiplier * ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All of a run that decides what it costs in privacy, before it (a plan) or after.

    Attributes:
        record_rate: p, in [0, 1].
        client_rate: q, in [0, 1].
        noise_multiplier: σ, each server's noise over R'.
        rounds: T.
        participations: T_i, what the client's ledger counts; None before a run.
        sensitivity_ratio: R'/C; only the client level needs it.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """

    record_rate: float
    client_rate: float
    noise_multiplier: float
    rounds: int
    participations: int | None = None
    sensitivity_ratio: float | None = None

    def __post_init__(self) -> None:
        checks.rate("record_rate", self.record_rate)
        checks.rate("client_rate", self.client_rate)
        checks.noise_multiplier(self.noise_multiplier)
        checks.count("rounds", self.rounds)
        taken = self.participations
        if taken is not None and checks.count("participations", taken) > self.rounds:
            raise Misconfiguration(
                "participations", taken, f"a client takes part at most {self.rounds} times"
            )

    @classmethod
    def of(
        cls, task: "Task", *, rounds: int | None = None, participations: int | None = None
    ) -> "Run":
        """A task's run, over its own T where no ``rounds`` are given."""
        return cls(
            record_rate=task.privacy.record_rate,
            client_rate=task.privacy.client_rate,
            noise_multiplier=task.privacy.noise_multiplier,
            rounds=task.training.rounds if rounds is None else rounds,
            participations=participations,
            sensitivity_ratio=task.sensitivity_ratio,
        )

    def event(self, adversary: Adversary) -> SampledGaussian:
        """What ``adversary`` sees of the run, as one event.

        1. one server: Poisson(p) steps with σ, once for each participation T_i. Before a run T_i
           is the 0.999 quantile of Bin(T, q). PRECAD Theorem 1, case 1.
        2. clients only: after a run, Poisson(p) steps with √2·σ over T_i; before it, T rounds that
           run such a step with probability q (an atom mixture, never rate q·p).
        3. client level: T Poisson(q) steps with √2·σ·R'/C. PRECAD Lemma 8.

        Raises:
            Misconfiguration: the client level lacks R'/C, or that is out of its range.
        """
        match adversary:
            case Adversary.ONE_SERVER:
                steps = self.participations
                if steps is None:
                    steps = planned_participations(self.client_rate, self.rounds)
                return poisson_gaussian(
                    rate=self.record_rate, noise_multiplier=self.noise_multiplier, count=steps
                )
            case Adversary.CLIENTS_ONLY:
                return poisson_gaussian(
                    rate=self.record_rate,
                    noise_multiplier=math.sqrt(2) * self.noise_multiplier,
                    count=self.rounds if self.participations is None else self.participations,
                    participation=self.client_rate if self.participations is None else 1.0,
                )
            case Adversary.CLIENT_LEVEL:
                ratio = self.sensitivity_ratio
                if ratio is None:
                    raise Misconfiguration(
                        "sensitivity_ratio", None, "the client level needs R'/C: give both clips"
                    )
                return poisson_gaussian(
                    rate=self.client_rate,
                    noise_multiplier=client_noise_multiplier(self.noise_multiplier, ratio),
                    count=self.rounds,
                )


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
        accountants: which ones; all by default.

    Raises:
        Misconfiguration: a parameter is out of its range.
    """
    checks.inside_unit_interval("delta", delta)
    if adversaries is None:
        without_clips = (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
        adversaries = without_clips if run.sensitivity_ratio is None else tuple(Adversary)
    accountants = tuple(accountants)
    statements = []
    for adversary in adversaries:
        event = run.event(adversary)
        for name in accountants:
            accountant = accountant_named(name)
            accountant.compose(event)
            statements.append(
                PrivacyStatement(
                    adversary=adversary,
                    adjacency=adversary.adjacency,
                    accountant=name,
                    record_rate=run.record_rate,
                    client_rate=run.client_rate,
                    noise_multiplier=event.effective_noise_multiplier,
                    compositions=event.count,
                    delta=delta,
                    epsilon=accountant.epsilon(delta),
                    mu=accountant.mu if isinstance(accountant, GdpCltAccountant) else None,
                )
            )
    return tuple(statements)
