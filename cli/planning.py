"""The answer of `precad plan`: σ for an ε, and C for a number of malicious owners."""

import math
from collections.abc import Collection
from dataclasses import asdict, fields, replace
from typing import Literal

from precad.accounting import (
    ASSUMED,
    Adversary,
    PrivacyStatement,
    Run,
    SampledGaussian,
    gdp,
    largest_count,
    of_worst_owners,
    planned_guarantees,
)
from precad.certify import (
    BOTH,
    Direction,
    ExactGroups,
    Guarantee,
    Replacements,
    ValidationAllowance,
    attack_bounds,
)
from precad.cli import (
    JsonObject,
    PlanRequest,
    Wishes,
    least_noise,
    participations_of,
    planned,
    refuse_given,
    require_given,
    round_in_words,
    sizes_of,
    toml_value,
    upload_bytes,
)
from precad.common import (
    Claim,
    ClientId,
    Enrolment,
    Misconfiguration,
    Task,
    between,
    checks,
    frozen_kw_only_dataclass,
    say,
    upper,
)

Change = Literal["replacements", "additions"]
"""What malicious owners do: honest ones turn bad (+C may become −C), or bad ones join.
"""

_SHIFTS = {"replacements": 2, "additions": 1}
"""By how many μ one malicious owner shifts a score."""
MOST_SEARCHED = 2**12
"""More attackers than this aren't looked for: so many means at least so many."""
_SAID_APART = {"delta", "epsilon_limit", "cover_uploads"}
"""Of a task's [privacy], what isn't a number to write into it."""
_NUMBERS = ("record_rate", "client_rate", "rounds", "delta", "record_clip", "dimension")
"""Options that a plan without owners' records needs."""


@frozen_kw_only_dataclass
class Plan:
    """The answer of `precad plan`."""

    task: Task
    """A task of the request's numbers, with σ and C where they were left open."""
    asked: "PlannedRobustness"
    """What malicious owners may cause; one owner where no number was given."""
    owners: int | None
    """How many owners there are, where that is known and malicious ones were asked
    about."""
    whole: bool
    """Whether a whole task was planned, and not numbers alone. Only then its η and its
    limit of ε mean something."""
    claims: tuple[Enrolment, ...]
    """The owners' sizes; empty where they aren't known: then each has C."""
    of_share: dict[str, float] | None
    """``loss_with_share``; None where nobody asked."""
    statements: tuple[PrivacyStatement, ...]
    """Exact guarantees, each against its adversary."""

    @classmethod
    def of(cls, request: PlanRequest) -> "Plan":
        """Return the answer to a request.

        Raises Misconfiguration: a number is missing, or can't be.
        """
        asked = PlannedRobustness(
            malicious=1 if request.malicious is None else request.malicious,
            loss=request.loss,
            tolerated_loss=request.tolerated_loss,
            loss_bound=request.loss_bound,
            change=request.change,
        )
        task = _of_words(request, asked) if request.task is None else _of_task(request)
        owners = None
        if request.malicious is not None and (
            request.task or request.records or request.owners
        ):
            owners = task.enrolment.clients
        claims: tuple[Enrolment, ...] = ()
        if request.records is not None:
            rate = task.mechanism.unit_rate
            claims = tuple(
                Enrolment(ClientId(f"owner-{number}"), size, rate)
                for number, size in enumerate(sizes_of(request))
            )
        of_share = None
        if request.data_share is not None:
            of_share = loss_with_share(task, asked, claims, request.data_share)
        return cls(
            task=task,
            asked=asked,
            owners=owners,
            whole=request.task is not None or request.records is not None,
            claims=claims,
            of_share=of_share,
            statements=planned_guarantees(task, claims),
        )

    @property
    def participations(self) -> int:
        """Return how often an owner takes part at most, as ``participations_of``."""
        mechanism = self.task.mechanism
        return participations_of(mechanism.owner_rate, mechanism.releases)

    @property
    def upload_bytes(self) -> int:
        """Return the bytes that an owner uploads in all, at most."""
        mechanism = self.task.mechanism
        uploads = mechanism.releases if mechanism.hides_coin else self.participations
        return uploads * upload_bytes(self.task)

    @property
    def _noise_over_signal(self) -> float | None:
        """Return how many times its signal a run's noise is at least.

        It is √d/(n·μ), if all gradients agreed, at every σ, q, p and T: "Planning" of
        docs/privacy-accounting.md. None where n isn't known.
        """
        if self.owners is None:
            return None
        signal = self.owners * self.asked.largest_mu()
        return math.sqrt(self.task.dimension) / signal

    def document(self) -> dict[str, object]:
        """Return the plan as one JSON object.

        Numbers that leave floating point become null when it is printed.
        """
        task = self.task
        meant = {"rounds", "learning_rate"} if self.whole else {"rounds"}
        return {
            "status": "planned",
            "task": task.model_dump(
                mode="json",
                include={
                    "privacy": True,
                    "training": meant,
                    "local": True,
                    "fractional_bits": True,
                },
                exclude={"privacy": {"epsilon_limit"}},
            ),
            "participations": self.participations,
            "upload_bytes": self.upload_bytes,
            "statements": [statement.to_json() for statement in self.statements],
            "robustness": self._robustness(),
        }

    def _robustness(self) -> JsonObject:
        """Return what malicious owners may cause at most, and what that costs."""
        task = self.task
        asked = self.asked
        mu = group_mu(task, 1)
        replaced_mu = group_mu(task, asked.malicious, self.claims)
        return {
            **asdict(asked),
            "client_mu": mu,
            "planned_units": task.mechanism.planned_units,
            "loss_replacements": asked.worst_loss(replaced_mu, "replacements"),
            "loss_additions": asked.worst_loss(mu * asked.malicious, "additions"),
            "certified": certified(task, asked, self.claims),
            "data_share": self.of_share,
            "noise_over_signal": self._noise_over_signal,
        }

    def show(self) -> None:
        """Print the plan for people."""
        self._show_numbers()
        for statement in self.statements:
            _show_statement(statement)
        self._show_robustness()

    def _show_numbers(self) -> None:
        """Print what to write into the task, and what that costs an owner."""
        task = self.task
        privacy = task.privacy
        written = task.model_dump(exclude_none=True, exclude={"privacy": _SAID_APART})
        record = self.statements[0]
        say(
            f"Planned: σ = {privacy.noise_multiplier:g} gives {record.unit.one} ε ="
            f" {upper(record.epsilon)}{record.at_owners} at δ = {record.delta:g},"
            " against one curious server. Into the task:",
            style="bold",
        )
        lines = [
            f"    {section}.{name} = {toml_value(value)}"
            for section in ("privacy", "local")
            for name, value in written.get(section, {}).items()
        ]
        if self.whole:
            lines.append(
                f"    training.learning_rate = {task.training.learning_rate:g}"
            )
        lines += [
            f"    training.rounds = {task.training.rounds}",
            f"    fractional_bits = {task.fractional_bits}",
            (
                f"It costs an owner up to {self.participations:,} participations and"
                f" {self.upload_bytes / 1e6:,.1f} MB of uploads."
            ),
        ]
        if self.whole:
            lines.append(round_in_words(task))
        say("\n".join(lines))

    def _show_robustness(self) -> None:
        """Print what malicious owners may cause at most, and what that costs."""
        asked = self.asked
        robustness = self._robustness()
        attackers = robustness["certified"]
        assumed = self.task.mechanism.assumed_of_claims
        plural = "" if asked.malicious == 1 else "s"
        say(
            f"With {asked.malicious:,} malicious owner{plural} a loss of"
            f" {asked.loss:g} becomes at most {robustness['loss_replacements']:.3g} by"
            f" replacements, {robustness['loss_additions']:.3g} by additions, by the"
            f" central limit theorem{assumed}: planned, not a certificate.\nCertified"
            f" to stay at or below {asked.tolerated_loss:g}, exactly: up to"
            f" {attackers['clients_replaced']:,} owners replaced,"
            f" {attackers['clients_added']:,} added, or {attackers['records']:,}"
            f" {self.task.mechanism.unit.plural} added or deleted{assumed}.",
        )
        if self.of_share is not None:
            say(
                "Owners with {share:.1%} of the records, at most {owners:,}, who turn"
                " bad: at most {loss:.3g}, by the exact accountant".format(
                    **self.of_share
                )
                + f"{assumed}.",
            )
        cost = robustness["noise_over_signal"]
        if cost is not None:
            say(
                f"That costs: a run's noise is at least {cost:.2g} times its signal."
                " More owners, or fewer parameters, make it less.",
            )


def _show_statement(statement: PrivacyStatement) -> None:
    """Print one guarantee: its ε, whom it is against, and the δ that is added."""
    when = "planned"
    why = "for honest rejection"
    if statement.malicious_server:
        when = f"at {statement.compositions:,} participations"
        why = f"({ASSUMED})"
    adjacency = statement.adversary.adjacency(statement.unit)
    epsilon = between(statement.least_epsilon, statement.epsilon, 3)
    added_delta = upper(statement.added_delta or 0.0, 2)
    say(
        f"  {when}: ε = {epsilon}{statement.at_owners} ({adjacency}),"
        f" {statement.against}; δ and {added_delta} more {why}",
    )


def _of_task(request: PlanRequest) -> Task:
    """Return the task in the request's file, with another σ where an ε is wanted.

    Raises Misconfiguration: an option is given that the task says already.
    """
    assert request.task is not None
    said_by_task = {field.name for field in fields(Wishes)} | {"dimension"}
    said_by_task -= {"epsilon", "hidden", "validation", "records"}
    refuse_given(request, sorted(said_by_task))
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
        owners_per_unit=mechanism.owners_per_unit,
    )
    values["privacy"]["noise_multiplier"] = sigma
    return Task.parse_new(values)


def _of_words(request: PlanRequest, asked: "PlannedRobustness") -> Task:
    """Return the task as `precad task new` would write it.

    Without records it is made from all its numbers. Raises Misconfiguration: a number
    is missing, or an option contradicts another.
    """
    if request.records is None:
        require_given(request, _NUMBERS)
        if request.client_clip is None and request.malicious is None:
            raise Misconfiguration(
                "client_clip", None, "give --client-clip, or --malicious"
            )
        # Owners of one record stand for owners whose records aren't known.
        records = "1" if request.owners is None else f"{request.owners}x1"
        request = replace(request, records=records, owners=None)
    if request.dimension is not None:
        checks.count("dimension", request.dimension, 1)
        refuse_given(
            request,
            ("architecture", "model", "weights"),
            why="it is in place of a model",
            by="--dimension",
        )
    task, _, _ = planned(
        request,
        name="plan",
        dimension=request.dimension,
        clip_ratio=None if request.malicious is None else asked.clip_ratio,
    )
    return task


@frozen_kw_only_dataclass
class PlannedRobustness:
    """What K malicious owners may cause at most; PRECAD Theorem 2.

    Raises Misconfiguration: K ≥ 1 and 0 < L < tolerated loss < B don't hold.
    """

    malicious: int
    """K."""
    loss: float
    """L, the expected loss on one record without attackers."""
    tolerated_loss: float
    """The loss that attackers may cause at most."""
    loss_bound: float
    """B, the largest loss on one record."""
    change: Change
    """What the K owners do."""

    def __post_init__(self) -> None:
        checks.count("malicious", self.malicious, 1)
        # Checks the losses.
        self.largest_mu()

    def largest_mu(self) -> float:
        """Return μ of one owner up to which the loss bound stays tolerated."""
        group = gdp.tolerated_group_mu(self.loss, self.tolerated_loss, self.loss_bound)
        return group / (self.malicious * _SHIFTS[self.change])

    def worst_loss(self, mu: float, change: Change) -> float:
        """Return the loss that owners cause at most; ``mu`` is that of all of them."""
        worst_share = gdp.shifted(self.loss / self.loss_bound, mu * _SHIFTS[change])
        return self.loss_bound * float(worst_share)

    def clip_ratio(self, client_rate: float, rounds: int) -> float:
        """Return the largest C/(σ·R) that tolerates the K owners."""
        return gdp.largest_clip_ratio(self.largest_mu(), client_rate, rounds)


def group_mu(task: Task, owners: int, claims: Collection[Claim] = ()) -> float:
    """Return μ of added owners over the run, by the central limit theorem.

    PRECAD Lemma 8 of each: of the largest of ``claims``, or with C where none is known.
    """
    event = Run.of(task, claims=claims).event(Adversary.CLIENT_LEVEL)
    bounds = event.group_bounds[:owners] or (1.0,) * owners
    return math.fsum(
        gdp.clt_mu(event.rate, event.noise_multiplier / bound, event.count)
        for bound in bounds
    )


def loss_with_share(
    task: Task,
    asked: PlannedRobustness,
    claims: Collection[Claim],
    share: float,
) -> dict[str, float]:
    """Return what owners with a share of the records cause at most, if they turn bad.

    It is a bound, by the exact accountant. ``owners`` is how many they are at most.

    Raises Misconfiguration: as ``of_worst_owners``.
    """
    event = of_worst_owners(
        Run.of(task).event(Adversary.CLIENT_LEVEL),
        task.mechanism.owner_bounds(claims),
        [claim.records for claim in claims],
        share,
    )
    owners = len(event.group_bounds)
    bounds = attack_bounds(
        asked.loss,
        asked.loss_bound,
        Replacements(_checked(task, event)),
        owners,
    )
    return {"share": share, "owners": owners, "loss": float(bounds.upper)}


def _checked(task: Task, event: SampledGaussian) -> Guarantee:
    """Return the exact guarantee of an event, less what may pass the check of norms."""
    attempts = task.mechanism.releases * task.mechanism.attempts
    points = None if task.proof is None else task.proof.points
    return ValidationAllowance(ExactGroups(event), attempts, task.projections, points)


def certified(
    task: Task, robustness: PlannedRobustness, claims: Collection[Claim] = ()
) -> dict[str, int]:
    """Return how many attackers at most keep the loss tolerated.

    It is exact, as `precad certify`, and counts owners that are replaced or added, and
    records that are added or deleted. Those replaced are of the sizes that ``claims``
    say; who joins may claim any.
    """

    def most(guarantee: Guarantee, directions: tuple[Direction, ...]) -> int:
        """Return the largest number of attackers with a tolerated worst loss."""

        def holds(attackers: int) -> bool:
            bounds = attack_bounds(
                robustness.loss,
                robustness.loss_bound,
                guarantee,
                attackers,
                directions,
            )
            return float(bounds.upper) <= robustness.tolerated_loss

        return largest_count(holds, MOST_SEARCHED)

    run = Run.of(task)
    clients = run.event(Adversary.CLIENT_LEVEL)
    enrolled = Run.of(task, claims=claims).event(Adversary.CLIENT_LEVEL)
    records = Run.of(task, participations=run.rounds).event(Adversary.CLIENTS_ONLY)
    replaced = Replacements(_checked(task, enrolled))
    additions = (Direction.ADDITIONS,)
    return {
        "clients_replaced": most(replaced, additions),
        "clients_added": most(_checked(task, clients), additions),
        "records": most(ExactGroups(records), BOTH),
    }
