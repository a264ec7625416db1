"""What `precad plan` answers: σ for an ε, C for a number of malicious owners.

All of it is a plan: privacy over the 0.999 quantile of participations, C by the central limit
theorem. What a run gave stands in its ledger; what a setting learns, `precad simulate` shows.
"""

import math
import sys
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from precad.accounting import gdp
from precad.accounting.adversaries import (
    Adversary,
    Run,
    planned_participations,
)
from precad.accounting.calibrate import least_noise_multiplier
from precad.accounting.events import SampledGaussian, poisson_gaussian
from precad.accounting.exact import largest_count
from precad.accounting.guarantees import ASSUMED, PrivacyStatement, planned_guarantees
from precad.certify.exact_groups import ExactGroups
from precad.certify.guarantee import (
    BOTH,
    Direction,
    Guarantee,
    Replacements,
    ValidationAllowance,
)
from precad.certify.inefficacy import attack_bounds
from precad.cli.options import task_numbers
from precad.cli.plan import PlanRequest
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.roster import most_records
from precad.common.task import MAX_BOUND, Task
from precad.common.terminal import say, upper

Change: TypeAlias = Literal["replacements", "additions"]
"""What malicious owners do: honest ones turn bad (+C may become −C), or bad ones join."""

MOST_EPSILON = 100.0
"""An ε beyond it protects nothing and leaves floating point."""
MOST_SEARCHED = 2**12
"""No more attackers than that are looked for."""
_DIGITS = 4
_MOST_FRACTIONAL_BITS = 20
# With less noise than this over one unit's bound nothing is certified.
_LEAST_NOISE = 0.01


_NUMBERS = ("record_rate", "client_rate", "rounds", "delta", "record_clip", "dimension")


@dataclass(frozen=True, slots=True)
class Plan:
    """What `precad plan` answers.

    Attributes:
        task: of the request's numbers, with σ and C where they were left open.
        asked: what malicious owners may cause; one owner where no number was given.
        owners: how many there are, where that is known and malicious ones were asked about.
        statements: exact, each against its adversary.
    """

    task: Task
    asked: "Robustness"
    owners: int | None
    statements: tuple[PrivacyStatement, ...]

    @classmethod
    def of(cls, request: PlanRequest) -> "Plan":
        """Answer a request."""
        asked = Robustness(
            malicious=1 if request.malicious is None else request.malicious,
            loss=request.loss,
            tolerated_loss=request.tolerated_loss,
            loss_bound=request.loss_bound,
            change=request.change,
        )
        task = _of_task(request) if request.task is not None else _of_numbers(request, asked)
        owners = request.clients if request.task is None else task.enrolment.clients
        owners = None if request.malicious is None else owners
        return cls(task, asked, owners, planned_guarantees(task))

    @property
    def participations(self) -> int:
        """How often all but one owner in 1,000 take part at most."""
        return participations_of(self.task.privacy.client_rate, self.task.training.rounds)

    @property
    def upload_bytes(self) -> int:
        """What an owner uploads in all, at most."""
        covered = self.task.privacy.cover_uploads
        uploads = self.task.training.rounds if covered else self.participations
        return uploads * (8 * self.task.dimension + 32)

    def document(self) -> dict[str, Any]:
        """One JSON object; what leaves floating point becomes null when it is printed."""
        return {
            "status": "planned",
            "task": {
                "privacy": self.task.privacy.model_dump(mode="json", exclude={"epsilon_limit"}),
                "training": {"rounds": self.task.training.rounds},
                "fractional_bits": self.task.fractional_bits,
            },
            "participations": self.participations,
            "upload_bytes": self.upload_bytes,
            "statements": [each.to_json() for each in self.statements],
            "robustness": self._robustness(),
        }

    def _robustness(self) -> dict[str, Any]:
        asked, mu = self.asked, client_mu(self.task)
        costs = None
        if self.owners is not None:
            costs = asked.noise_over_signal(self.task.dimension, self.owners)
        return {
            **asdict(asked),
            "client_mu": mu,
            "loss_replacements": asked.worst_loss(mu, "replacements"),
            "loss_additions": asked.worst_loss(mu, "additions"),
            "certified": certified(self.task, asked),
            "noise_over_signal": costs,
        }

    def show(self) -> None:
        """Print the plan for people."""
        privacy, record = self.task.privacy, self.statements[0]
        say(
            sys.stdout,
            f"Planned: σ = {privacy.noise_multiplier:g} gives a record ε = {upper(record.epsilon)} "
            f"at δ = {record.delta:g}, against one curious server. Into the task:",
            style="bold",
        )
        names = ("record_clip", "client_clip", "noise_multiplier", "record_rate", "client_rate")
        say(
            sys.stdout,
            "".join(f"    privacy.{name} = {getattr(privacy, name)}\n" for name in names)
            + f"    training.rounds = {self.task.training.rounds}\n"
            f"    fractional_bits = {self.task.fractional_bits}\n"
            f"It costs an owner up to {self.participations:,} participations and "
            f"{self.upload_bytes / 1e6:,.1f} MB of uploads.",
        )
        for each in self.statements:
            what, more = "planned", each.rejection_delta or 0.0
            added = f"; δ and {more:.0e} more for honest rejection"
            if each.malicious_server:
                what = f"at {each.compositions:,} participations"
                added = f"; δ and {more + (each.advantage_delta or 0.0):.0e} more ({ASSUMED})"
            say(
                sys.stdout,
                f"  {what}: ε = {upper(each.epsilon, 3)} ({each.adjacency}), {each.against}{added}",
            )
        found = self._robustness()
        owners, some, costs = found["malicious"], found["certified"], found["noise_over_signal"]
        say(
            sys.stdout,
            f"With {owners:,} malicious owner{'' if owners == 1 else 's'} a loss of "
            f"{found['loss']:g} becomes at most {found['loss_replacements']:.3g} by replacements, "
            f"{found['loss_additions']:.3g} by additions, by the central limit theorem: planned, "
            "not a certificate.\n"
            f"Certified to stay at or below {found['tolerated_loss']:g}, exactly: up to "
            f"{some['clients_replaced']:,} owners replaced, {some['clients_added']:,} added, or "
            f"{some['records']:,} records added or deleted.",
        )
        if costs is not None:
            say(
                sys.stdout,
                f"That costs: a run's noise is at least {costs:.2g} times its signal. More owners, "
                "or fewer parameters, make it less.",
            )


def _of_task(request: PlanRequest) -> Task:
    """The task in the file, with another σ where an ε is wanted."""
    path = request.task
    assert path is not None
    task_numbers(asdict(request), (*_NUMBERS, "noise_multiplier", "client_clip", "clients"), ())
    loaded = Task.load(path)
    if request.epsilon is None:
        return loaded
    privacy = loaded.privacy
    taken = participations_of(privacy.client_rate, loaded.training.rounds)
    values = loaded.model_dump(mode="json")
    values["privacy"] |= {
        "noise_multiplier": least_noise(request.epsilon, privacy.delta, privacy.record_rate, taken)
    }
    return Task.parse(values)


def _of_numbers(request: PlanRequest, asked: "Robustness") -> Task:
    numbers = task_numbers(asdict(request), _NUMBERS, ())
    if (request.epsilon is None) == (request.noise_multiplier is None):
        raise Misconfiguration("epsilon", request.epsilon, "give --epsilon or --noise-multiplier")
    if request.client_clip is None and request.malicious is None:
        raise Misconfiguration("client_clip", None, "give --client-clip, or --malicious")
    clip, sigma = request.client_clip, request.noise_multiplier
    rate, rounds = numbers["client_rate"], numbers["rounds"]
    if request.epsilon is not None:
        taken = participations_of(rate, rounds)
        sigma = least_noise(request.epsilon, numbers["delta"], numbers["record_rate"], taken)
    assert sigma is not None
    if clip is None:
        clip, raised = asked.clip_and_noise(numbers["record_clip"], sigma, rate, rounds)
        # A σ that was given stays: then C is no less than R, and the plan says what that bounds.
        sigma = raised if request.noise_multiplier is None else sigma
    checks.count("dimension", numbers["dimension"], 1)
    return Task.parse(
        {
            "name": "plan",
            "model": {"parameters": [{"name": "parameters", "shape": [numbers["dimension"]]}]},
            "privacy": {
                "record_clip": numbers["record_clip"],
                "client_clip": clip,
                "noise_multiplier": sigma,
                "record_rate": numbers["record_rate"],
                "client_rate": rate,
                "delta": numbers["delta"],
            },
            "training": {"learning_rate": 1.0, "rounds": rounds},
            "enrolment": {"clients": 1, "max_expected_records": 1.0},
            "fractional_bits": fractional_bits(clip),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness:
    """What K ≥ 1 malicious owners may cause at most, 0 < L < tolerated < B; PRECAD Theorem 2."""

    malicious: int = 1
    loss: float = 0.2
    tolerated_loss: float = 0.5
    loss_bound: float = 1.0
    change: Change = "replacements"

    def __post_init__(self) -> None:
        checks.count("malicious", self.malicious, 1)
        self.largest_mu()

    def largest_mu(self) -> float:
        """Return μ of one owner up to which the loss bound stays tolerated."""
        group = gdp.tolerated_group_mu(self.loss, self.tolerated_loss, self.loss_bound)
        return group / (self.malicious * _shifts(self.change))

    def worst_loss(self, mu: float, change: Change) -> float:
        """Return the loss that K owners can cause at most; ``mu`` is that of one of them."""
        group = gdp.group_mu(mu, self.malicious * _shifts(change))
        return self.loss_bound * float(gdp.shifted(self.loss / self.loss_bound, group))

    def clip_and_noise(
        self, record_clip: float, noise_multiplier: float, client_rate: float, rounds: int
    ) -> tuple[float, float]:
        """Return the largest C that tolerates the K, and σ, raised where C would be below R.

        R stands for R', which is larger: C errs on the safe side.
        """
        ratio = gdp.largest_clip_ratio(self.largest_mu(), client_rate, rounds)
        sigma = max(noise_multiplier, rounded(1 / ratio, up=True))
        return max(record_clip, rounded(ratio * sigma * record_clip, up=False)), sigma

    def noise_over_signal(self, dimension: int, owners: int) -> float:
        """Return √d/(n·μ): a run's noise over its signal, if all gradients agreed, at least.

        So much the bound costs at every σ, q, p and T (docs/privacy-accounting.md, "Planning").
        """
        return math.sqrt(dimension) / (owners * self.largest_mu())


def _shifts(change: Change) -> int:
    """By how many μ one malicious owner shifts a score."""
    return 2 if change == "replacements" else 1


def least_noise(epsilon: float, delta: float, record_rate: float, participations: int) -> float:
    """Return the least σ for which a record has (ε, δ) against one curious server, exactly.

    Rounded up to four digits.
    """
    if checks.positive("epsilon", epsilon, "the wanted ε") > MOST_EPSILON:
        raise Misconfiguration(
            "epsilon", epsilon, f"give at most {MOST_EPSILON:g}: 10 is little already"
        )
    sigma = least_noise_multiplier(
        lambda sigma: poisson_gaussian(
            rate=record_rate, noise_multiplier=sigma, count=participations
        ),
        epsilon=epsilon,
        delta=delta,
    )
    return rounded(sigma, up=True)


RECORD_RATE = 0.05
"""p of a plan, unless another is asked for."""
_COHORT = 20
"""Owners that take part in a round, about; of fewer all do."""
MOVES = {"classes": 0.3, "classes, hidden layers": 0.2, "regression": 0.07}
"""How far the noise alone moves a weight over the whole training, by what is learnt. These, and C's
numbers below, are the best of benchmarks/results/default_settings.json."""
_LARGEST_STEP = 10.0
_LEAST_CLIP, _CLIP_ROOT = 2.0, 1.5


def cohort_rate(owners: int) -> float:
    """Return q: about 20 owners take part in a round, or all."""
    return min(1.0, rounded(_COHORT / owners, 2))


def default_clip(record_clip: float, largest: int, record_rate: float) -> float:
    """Return C where nobody chose it: R·1.5·√(p·|D|) of the largest owner, and 2·R at least.

    Never more than an owner can sample, times R: beyond that it arms attackers alone. A sum of n
    gradients rarely is longer than a few √n; one that is keeps its direction.
    """
    wanted = max(_LEAST_CLIP, _CLIP_ROOT * math.sqrt(record_rate * largest))
    return rounded(record_clip * min(wanted, most_records(largest, record_rate)), 2, up=False)


def default_step(
    *, expected_records: float, noise_multiplier: float, rounds: int, record_clip: float, kind: str
) -> float:
    """Return η where nobody chose it: so that noise moves a weight by ``MOVES[kind]`` in all.

    T rounds of both servers' noise over S records are a walk of η·R·σ·√(2T)/S.

    Args:
        expected_records: S = q·p·N, what the sum is divided by.
        noise_multiplier: σ.
        rounds: T.
        record_clip: R.
        kind: one of ``MOVES``.
    """
    walk = noise_multiplier * math.sqrt(2 * rounds) / expected_records
    return rounded(min(_LARGEST_STEP, MOVES[kind] / walk) / record_clip, 2)


def participations_of(client_rate: float, rounds: int) -> int:
    """Return how often all but one owner in 1,000 take part at most; at least once."""
    return max(1, planned_participations(client_rate, rounds))


def fractional_bits(client_clip: float) -> int:
    """Return f: the most, up to 20, with β = floor(C·2^f) at most 2^25; at least 1."""
    fitting = math.floor(math.log2(MAX_BOUND / client_clip)) if client_clip < MAX_BOUND else 1
    return max(1, min(_MOST_FRACTIONAL_BITS, fitting))


def client_mu(task: Task) -> float:
    """Return μ of one added owner over the run, by the central limit theorem; PRECAD Lemma 8."""
    event = Run.of(task).event(Adversary.CLIENT_LEVEL)
    return gdp.clt_mu(event.rate, event.noise_multiplier, event.count)


def certified(task: Task, robustness: Robustness) -> dict[str, int]:
    """Return how many attackers at most keep the loss tolerated, exactly, as in `precad certify`.

    ``MOST_SEARCHED`` means at least so many.
    """
    run = Run.of(task)
    clients = run.event(Adversary.CLIENT_LEVEL)
    records = Run.of(task, participations=run.rounds).event(Adversary.CLIENTS_ONLY)
    attempts = run.rounds * task.training.attempts
    checked = ValidationAllowance(ExactGroups(clients), attempts, task.projections)
    additions = (Direction.ADDITIONS,)
    return {
        "clients_replaced": _most(robustness, Replacements(checked), clients, additions),
        "clients_added": _most(robustness, checked, clients, additions),
        "records": _most(robustness, ExactGroups(records), records, BOTH),
    }


def _most(
    robustness: Robustness,
    guarantee: Guarantee,
    mechanism: SampledGaussian,
    directions: tuple[Direction, ...],
) -> int:
    if mechanism.effective_noise_multiplier < _LEAST_NOISE:
        return 0
    loss, bound = robustness.loss, robustness.loss_bound

    def holds(k: int) -> bool:
        worst = float(attack_bounds(loss, bound, guarantee, k, directions).upper)
        return worst <= robustness.tolerated_loss

    return largest_count(holds, MOST_SEARCHED)


def rounded(value: float, digits: int = _DIGITS, *, up: bool | None = None) -> float:
    """Return ``value`` to so many digits: the nearest, or up, or down."""
    exponent = math.floor(math.log10(value)) - digits + 1
    scaled = value / 10.0**exponent
    # What is a rounding away from such a number already stays.
    if up is None or abs(scaled - round(scaled)) < 1e-9:
        whole = round(scaled)
    else:
        whole = math.ceil(scaled) if up else math.floor(scaled)
    return float(f"{whole}e{exponent}")
