"""What `precad plan` answers: σ for an ε, C for a number of malicious owners; all planned."""

import math
import sys
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, TypeAlias

from precad.accounting import gdp
from precad.accounting.adversaries import Adversary, Run
from precad.accounting.events import SampledGaussian
from precad.accounting.exact import largest_count
from precad.accounting.guarantees import ASSUMED, PrivacyStatement, planned_guarantees
from precad.certify.group_guarantees import ExactGroups
from precad.certify.guarantee import (
    BOTH,
    Direction,
    Guarantee,
    Replacements,
    ValidationAllowance,
)
from precad.certify.inefficacy import attack_bounds
from precad.cli.command_options import PlanRequest, Wishes
from precad.cli.main import refuse_given, require_given
from precad.cli.task_planning import (
    least_noise,
    participations_of,
    planned,
    rounded,
    upload_bytes,
)
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import Task
from precad.common.terminal import say, upper

Change: TypeAlias = Literal["replacements", "additions"]
"""What malicious owners do: honest ones turn bad (+C may become −C), or bad ones join.
"""

_SHIFTS = {"replacements": 2, "additions": 1}
"""By how many μ one malicious owner shifts a score."""
MOST_SEARCHED = 2**12
"""No more attackers than that are looked for: it means at least so many."""
# With less noise than this over one unit's bound nothing is certified.
_LEAST_NOISE = 0.01
_NUMBERS = ("record_rate", "client_rate", "rounds", "delta", "record_clip", "dimension")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What `precad plan` answers."""

    task: Task
    """Of the request's numbers, with σ and C where they were left open."""
    asked: "PlannedRobustness"
    """What malicious owners may cause; one owner where no number was given."""
    owners: int | None
    """How many there are, where that is known and malicious ones were asked about."""
    whole: bool
    """Whether the task is one, and not numbers alone: η is meant, and so is its limit.
    """
    statements: tuple[PrivacyStatement, ...]
    """Exact, each against its adversary."""

    @classmethod
    def of(cls, request: PlanRequest) -> "Plan":
        """Answer a request."""
        names = ("loss", "tolerated_loss", "loss_bound", "change")
        malicious = 1 if request.malicious is None else request.malicious
        asked = PlannedRobustness(
            malicious=malicious, **{name: getattr(request, name) for name in names}
        )
        task = _of_words(request, asked) if request.task is None else _of_task(request)
        known = request.task or request.records or request.owners
        owners = (
            task.enrolment.clients if known and request.malicious is not None else None
        )
        whole = request.task is not None or request.records is not None
        return cls(
            task=task,
            asked=asked,
            owners=owners,
            whole=whole,
            statements=planned_guarantees(task),
        )

    @property
    def participations(self) -> int:
        """As ``participations_of`` the task's rounds."""
        mechanism = self.task.mechanism
        return participations_of(mechanism.owner_rate, mechanism.releases)

    @property
    def upload_bytes(self) -> int:
        """What an owner uploads in all, at most."""
        mechanism = self.task.mechanism
        uploads = mechanism.releases if mechanism.hides_coin else self.participations
        return uploads * upload_bytes(self.task)

    def document(self) -> dict[str, Any]:
        """One JSON object; what leaves floating point becomes null when it is printed."""
        of_training = {"rounds", "learning_rate"} if self.whole else {"rounds"}
        return {
            "status": "planned",
            "task": {
                "privacy": self.task.privacy.model_dump(
                    mode="json", exclude={"epsilon_limit"}
                ),
                "training": self.task.training.model_dump(include=of_training),
                "fractional_bits": self.task.fractional_bits,
            },
            "participations": self.participations,
            "upload_bytes": self.upload_bytes,
            "statements": [each.to_json() for each in self.statements],
            "robustness": self._robustness(),
        }

    def _robustness(self) -> dict[str, Any]:
        asked = self.asked
        mu = client_mu(self.task)
        n = self.owners
        # √d/(n·μ) at least, if all gradients agreed, at every σ, q, p and T: "Planning"
        # of docs/privacy-accounting.md.
        return {
            **asdict(asked),
            "client_mu": mu,
            "planned_units": self.task.mechanism.planned_units,
            "loss_replacements": asked.worst_loss(mu, "replacements"),
            "loss_additions": asked.worst_loss(mu, "additions"),
            "certified": certified(self.task, asked),
            "noise_over_signal": (
                n and math.sqrt(self.task.dimension) / (n * asked.largest_mu())
            ),
        }

    def show(self) -> None:
        """Print the plan for people."""
        privacy = self.task.privacy
        record = self.statements[0]
        rate = self.task.training.learning_rate
        gives = (
            f"σ = {privacy.noise_multiplier:g} gives a record ε ="
            f" {upper(record.epsilon)}"
        )
        at = f"at δ = {record.delta:g}, against one curious server"
        say(sys.stdout, f"Planned: {gives} {at}. Into the task:", style="bold")
        names = (
            "record_clip",
            "client_clip",
            "noise_multiplier",
            "record_rate",
            "client_rate",
        )
        say(
            sys.stdout,
            "".join(
                f"    privacy.{name} = {getattr(privacy, name)}\n" for name in names
            )
            + (f"    training.learning_rate = {rate:g}\n" if self.whole else "")
            + f"    training.rounds = {self.task.training.rounds}\n"
            f"    fractional_bits = {self.task.fractional_bits}\n"
            f"It costs an owner up to {self.participations:,} participations and "
            f"{self.upload_bytes / 1e6:,.1f} MB of uploads.",
        )
        for each in self.statements:
            what = "planned"
            why = "for honest rejection"
            if each.malicious_server:
                what = f"at {each.compositions:,} participations"
                why = f"({ASSUMED})"
            added = f"; δ and {upper(each.added_delta or 0.0, 2)} more {why}"
            adjacency = each.adversary.adjacency(each.unit)
            epsilon = f"ε = {upper(each.epsilon, 3)} ({adjacency})"
            say(sys.stdout, f"  {what}: {epsilon}, {each.against}{added}")
        found = self._robustness()
        owners = found["malicious"]
        some = found["certified"]
        costs = found["noise_over_signal"]
        assumed = self.task.mechanism.assumed_of_claims
        say(
            sys.stdout,
            f"With {owners:,} malicious owner{'' if owners == 1 else 's'} a loss of"
            f" {found['loss']:g} becomes at most {found['loss_replacements']:.3g} by"
            f" replacements, {found['loss_additions']:.3g} by additions, by the central"
            f" limit theorem{assumed}: planned, not a certificate.\nCertified to stay at or"
            f" below {found['tolerated_loss']:g}, exactly: up to"
            f" {some['clients_replaced']:,} owners replaced, {some['clients_added']:,}"
            f" added, or {some['records']:,} records added or deleted{assumed}.",
        )
        if costs is not None:
            cost = (
                f"That costs: a run's noise is at least {costs:.2g} times its signal."
            )
            say(sys.stdout, f"{cost} More owners, or fewer parameters, make it less.")


def _of_task(request: PlanRequest) -> Task:
    """The task in the file, with another σ where an ε is wanted."""
    assert request.task is not None
    words = {field.name for field in fields(Wishes)} - {
        "epsilon",
        "hidden",
        "validation",
    }
    refuse_given(asdict(request), sorted(words | {"dimension"}))
    loaded = Task.load(request.task)
    if request.epsilon is None:
        return loaded
    values = loaded.model_dump(mode="json")
    mechanism = loaded.mechanism
    sigma = least_noise(
        epsilon=request.epsilon,
        delta=loaded.privacy.delta,
        unit_rate=mechanism.unit_rate,
        participations=participations_of(mechanism.owner_rate, mechanism.releases),
    )
    values["privacy"]["noise_multiplier"] = sigma
    return Task.parse(values)


def _of_words(request: PlanRequest, asked: "PlannedRobustness") -> Task:
    """As `precad task new` would write it; without records, from all its numbers."""
    if request.records is None:
        require_given(asdict(request), _NUMBERS)
        if request.client_clip is None and request.malicious is None:
            raise Misconfiguration(
                "client_clip", None, "give --client-clip, or --malicious"
            )
        owners = request.owners
        request = replace(
            request, records="1" if owners is None else f"{owners}x1", owners=None
        )
    if request.dimension is not None:
        checks.count("dimension", request.dimension, 1)
        model = ("architecture", "model", "weights")
        why = "it is in place of a model"
        refuse_given(asdict(request), model, why=why, by="--dimension")
    clip_for = None if request.malicious is None else asked.clip_and_noise
    task, _, _ = planned(
        request, "plan", dimension=request.dimension, clip_for=clip_for
    )
    return task


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRobustness:
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
        return group / (self.malicious * _SHIFTS[self.change])

    def worst_loss(self, mu: float, change: Change) -> float:
        """Return the loss that K owners can cause at most; ``mu`` is that of one of them."""
        group = mu * self.malicious * _SHIFTS[change]
        return self.loss_bound * float(gdp.shifted(self.loss / self.loss_bound, group))

    def clip_and_noise(
        self,
        record_clip: float,
        noise_multiplier: float,
        client_rate: float,
        rounds: int,
    ) -> tuple[float, float]:
        """Return the largest C that tolerates the K, and σ, raised where C would be below R."""
        # R stands for R', which is larger: C errs on the safe side.
        ratio = gdp.largest_clip_ratio(self.largest_mu(), client_rate, rounds)
        sigma = max(noise_multiplier, rounded(1 / ratio, up=True))
        return max(record_clip, rounded(ratio * sigma * record_clip, up=False)), sigma


def client_mu(task: Task) -> float:
    """Return μ of one added owner over the run, by the central limit theorem; PRECAD Lemma 8."""
    event = Run.of(task).event(Adversary.CLIENT_LEVEL)
    return gdp.clt_mu(event.rate, event.noise_multiplier, event.count)


def certified(task: Task, robustness: PlannedRobustness) -> dict[str, int]:
    """Return how many attackers at most keep the loss tolerated, exactly, as `precad certify`."""
    loss = robustness.loss
    bound = robustness.loss_bound

    def most(
        guarantee: Guarantee, mechanism: SampledGaussian, of: tuple[Direction, ...]
    ) -> int:
        if mechanism.effective_noise_multiplier < _LEAST_NOISE:
            return 0

        def holds(k: int) -> bool:
            worst = float(
                attack_bounds(
                    loss,
                    bound,
                    guarantee,
                    k,
                    of,
                ).upper
            )
            return worst <= robustness.tolerated_loss

        return largest_count(holds, MOST_SEARCHED)

    run = Run.of(task)
    clients = run.event(Adversary.CLIENT_LEVEL)
    records = Run.of(task, participations=run.rounds).event(Adversary.CLIENTS_ONLY)
    assert run.attempts is not None
    points = None if task.proof is None else task.proof.points
    checked = ValidationAllowance(
        ExactGroups(clients), run.attempts, task.projections, points
    )
    additions = (Direction.ADDITIONS,)
    return {
        "clients_replaced": most(Replacements(checked), clients, additions),
        "clients_added": most(checked, clients, additions),
        "records": most(ExactGroups(records), records, BOTH),
    }
