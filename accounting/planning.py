"""Planning a task: what a setting would give, what it costs, and whether it is good enough.

Every setting is a ``Task`` that was made and thereby checked: nothing is recommended that a server
would refuse. All of it is a plan: privacy over the 0.999 quantile of participations, robustness by
the central limit theorem, accuracy by a forecast. What a run gave stands in its ledger.

- **Privacy** (guarantee 1, one curious server) is exact and sets the least σ.
- **Robustness** against K of the owners is PRECAD Theorem 2 in closed form with Lemma 8's μ by the
  central limit theorem: asymptotic, good for planning. An enrolled owner that turns malicious
  *replaces* its update, which moves the sum by up to 2C: K replacements shift by 2Kμ, K additions
  by Kμ (``precad.certify.guarantee.Replacements``).
- **Accuracy** is forecast (``precad.accounting.forecast``), to order settings.
"""

from dataclasses import dataclass
from enum import StrEnum

from precad.accounting import gdp
from precad.accounting.forecast import (
    REFERENCE_GRADIENT_NORM,
    Architecture,
    Forecast,
    Training,
    forecast,
)
from precad.accounting.guarantees import Adversary, Run, planned_participations, spent
from precad.accounting.participations import record_epsilon
from precad.common import checks
from precad.common.enrolment import Enrolment
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.task import Task

VACUOUS = 0.99
"""A loss bound above this share of B says nothing."""
USABLE = 0.5
"""A forecast below it isn't worth a training."""
INDIFFERENT = 0.005
"""Forecasts that differ by less are alike: about what it misses real trainings by."""
MOST_EPSILON = 100.0
"""An ε beyond it protects nothing and leaves floating point."""
ROUNDS_LIMIT = 1_000_000
"""The most rounds that a task takes."""
SLACK = 1 + 1e-9
"""The search for σ and for C ends a rounding away from its target."""


class Change(StrEnum):
    """What K malicious owners do to a run in which they were honest, or absent."""

    REPLACEMENTS = "replacements"
    """Enrolled owners turn malicious: +C may become −C."""
    ADDITIONS = "additions"
    """Malicious owners enrol beside the honest ones: 0 becomes up to C."""

    @property
    def shifts(self) -> int:
        """By how many μ one malicious owner shifts a score."""
        return 2 if self is Change.REPLACEMENTS else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """What malicious owners may cause at most.

    Attributes:
        malicious: K ≥ 1 owners that may submit anything.
        loss: expected loss L on one record without attackers, in (0, B).
        tolerated_loss: the loss that the K may cause at most, in (L, B).
        loss_bound: B, the largest value that the loss takes.
        change: which change of theirs the bound must hold for.

    Raises:
        Misconfiguration: a value is out of its range.
    """

    malicious: int = 1
    loss: float = 0.2
    tolerated_loss: float = 0.5
    loss_bound: float = 1.0
    change: Change = Change.REPLACEMENTS

    def __post_init__(self) -> None:
        checks.count("malicious", self.malicious, 1)
        self.largest_mu()

    def largest_mu(self) -> float:
        """μ of one owner up to which the loss bound stays tolerated."""
        group = gdp.tolerated_group_mu(self.loss, self.tolerated_loss, self.loss_bound)
        return group / (self.malicious * self.change.shifts)

    def worst_loss(self, mu: float, change: Change) -> float:
        """The loss that K owners can cause at most; ``mu`` is that of one of them."""
        group = gdp.group_mu(mu, self.malicious * change.shifts)
        return self.loss_bound * float(gdp.shifted(self.loss / self.loss_bound, group))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a task should give, and who holds what.

    Attributes:
        records: m of each owner.
        epsilon: ε of a record against one curious server.
        delta: δ, in (0, 1).
        robust: whether the loss must stay bounded; else nothing is stated about a whole owner.
        robustness: the malicious owners that bounds are for, wanted or only shown.
        gradient_norm: G, typical norm of one record's gradient at the initial model.
        architecture: for the forecast.

    Raises:
        Misconfiguration: a value is out of its range.
    """

    records: tuple[int, ...]
    epsilon: float
    delta: float
    robust: bool
    robustness: Robustness = Robustness()
    gradient_norm: float = REFERENCE_GRADIENT_NORM
    architecture: Architecture = Architecture.LINEAR

    def __post_init__(self) -> None:
        if not self.records:
            raise Misconfiguration("records", "none", "give the number of records of each owner")
        for size in self.records:
            checks.count("records", size, 1)
        if checks.positive("epsilon", self.epsilon, "the wanted ε") > MOST_EPSILON:
            raise Misconfiguration(
                "epsilon",
                self.epsilon,
                f"give at most {MOST_EPSILON:g}: 10 is little already",
            )
        checks.inside_unit_interval("delta", self.delta)
        checks.positive("gradient_norm", self.gradient_norm, "typical of a record")


class SettingVerdict(StrEnum):
    """How a setting fares."""

    MEETS = "meets all"
    LEARNS_LITTLE = "learns little"
    NOT_PRIVATE = "ε too large"
    LOSS_TOO_HIGH = "loss too high"
    SAYS_NOTHING = "says nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One task: what it would give and what it would cost.

    Attributes:
        task: made, so that all of its own rules hold.
        participations: the 0.999 quantile of one owner's.
        epsilon: of a record against one curious server, exact.
        epsilon_clients_only: of a record against other owners, exact.
        forecast: of its accuracy.
        robustness: what the loss bounds below are for.
        client_mu: μ of one owner by the central limit theorem, for additions; infinite where it
            leaves floating point.
        loss_additions: what K added owners can cause at most, by that μ.
        loss_replacements: what K replaced owners can.
        gradients: per-record gradients that the largest owner computes.
        upload_bytes: that one owner sends to both servers: a seed and d ring elements in each of
            its participations, in every round under ``cover_uploads``.
        verdict: against what was wanted.
    """

    task: Task
    participations: int
    epsilon: float
    epsilon_clients_only: float
    forecast: Forecast
    robustness: Robustness
    client_mu: float
    loss_additions: float
    loss_replacements: float
    gradients: int
    upload_bytes: int
    verdict: SettingVerdict

    def worst_loss(self, change: Change) -> float:
        """The loss bound for this change."""
        both = {
            Change.ADDITIONS: self.loss_additions,
            Change.REPLACEMENTS: self.loss_replacements,
        }
        return both[change]


def setting_of(wanted: Wanted, task: Task) -> Setting:
    """How ``task`` would fare.

    Raises:
        Misconfiguration: the task takes fewer clients than there are owners, or not the largest
            one at its p, or a number that the accountant can't take.
    """
    owners, room = len(wanted.records), task.enrolment.clients
    if owners > room:
        raise Misconfiguration("records", f"{owners} owners", f"the task takes {room} clients")
    privacy, run = task.privacy, Run.of(task)
    Enrolment(ClientId("owner"), max(wanted.records), privacy.record_rate).check(task)
    participations = max(1, planned_participations(privacy.client_rate, task.training.rounds))
    uploads = task.training.rounds if privacy.cover_uploads else participations
    epsilon = record_epsilon(
        record_rate=privacy.record_rate,
        noise_multiplier=privacy.noise_multiplier,
        participations=participations,
        delta=wanted.delta,
    )
    mu = client_mu(run)
    robustness = wanted.robustness
    loss = {change: robustness.worst_loss(mu, change) for change in Change}
    made = forecast(training_of(wanted, task))
    return Setting(
        task=task,
        participations=participations,
        epsilon=epsilon,
        epsilon_clients_only=spent(run.event(Adversary.CLIENTS_ONLY), wanted.delta),
        forecast=made,
        robustness=robustness,
        client_mu=mu,
        loss_additions=loss[Change.ADDITIONS],
        loss_replacements=loss[Change.REPLACEMENTS],
        gradients=round(privacy.record_rate * max(wanted.records) * participations),
        upload_bytes=uploads * (8 * task.dimension + 32),
        verdict=_verdict(wanted, epsilon, made, loss),
    )


def client_mu(run: Run) -> float:
    """μ of one added owner over the run, by the central limit theorem; PRECAD Lemma 8."""
    event = run.event(Adversary.CLIENT_LEVEL)
    return gdp.clt_mu(event.rate, event.noise_multiplier, event.count)


def training_of(wanted: Wanted, task: Task) -> Training:
    """What the forecast looks at."""
    privacy = task.privacy
    return Training(
        records=wanted.records,
        record_rate=privacy.record_rate,
        client_rate=privacy.client_rate,
        rounds=task.training.rounds,
        noise_multiplier=privacy.noise_multiplier,
        record_clip=privacy.record_clip,
        effective_record_clip=task.effective_record_clip,
        client_clip=privacy.client_clip,
        learning_rate=task.training.learning_rate,
        dimension=task.dimension,
        gradient_norm=wanted.gradient_norm,
        architecture=wanted.architecture,
    )


def _verdict(
    wanted: Wanted, epsilon: float, made: Forecast, loss: dict[Change, float]
) -> SettingVerdict:
    if epsilon > wanted.epsilon * SLACK:
        return SettingVerdict.NOT_PRIVATE
    robustness = wanted.robustness
    if wanted.robust:
        worst = loss[robustness.change]
        if worst > VACUOUS * robustness.loss_bound:
            return SettingVerdict.SAYS_NOTHING
        if worst > robustness.tolerated_loss * SLACK:
            return SettingVerdict.LOSS_TOO_HIGH
    return SettingVerdict.MEETS if made.accuracy >= USABLE else SettingVerdict.LEARNS_LITTLE
