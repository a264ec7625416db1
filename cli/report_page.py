"""What a report of a training holds, and sentences about it."""

import math
from collections import Counter

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)

from precad.client.results import WEIGHED, Answered, Results
from precad.common import NOT_PRESENCE, Mechanism, P, Task, Unit, between, upper

FORMAT = 3
"""Version of the form of the JSON document."""
_EVERYBODY = 99.5
"""From so many found of 100 on, an attacker may as well find everybody."""


class _ReportPart(
    BaseModel, frozen=True, extra="forbid", use_attribute_docstrings=True
):
    """A part of a report: can't be changed, and has the declared fields alone."""


class Training(_ReportPart):
    """Who trained what."""

    task: str
    """Name of the task."""
    task_digest: str
    """SHA-256 of the task, hex: what everybody agreed to."""
    architecture: str
    parameters: int
    """d: weights of the model."""
    owners: list[str]
    """Whoever was enrolled, by name."""
    records: int | None
    """What the owners said that they hold together."""
    rounds: int
    """T: planned."""
    released: int
    """Rounds whose model was released."""
    attempts: int | None
    """Attempts of all rounds, broken ones included."""
    model_digest: str | None
    """SHA-256 of the newest model, hex."""
    data: str | None
    """The data set, where the run names one."""


class ReportedGuarantee(_ReportPart):
    """One exact statement of differential privacy."""

    protects: str
    """The task's unit, such as record; or owner."""
    when: str
    """Of which moment it speaks, in words."""
    against: str
    """Who looks, in words."""
    epsilon: float | None
    """ε; null where there is no bound."""
    least_epsilon: float | None = None
    """ε of the owner with the least bound, where sizes decide it."""
    at_owners: str = ""
    """At how many owners the unit may be for it, with ε at one, in words; empty where
    it is at one."""
    delta: float
    """δ of the statement."""
    added_delta: float | None
    """What honest rejection and, where it is meant, broken cryptography add to δ."""
    participations: int
    """Rounds that it is composed over."""
    basis: str
    """Where that number comes from, in words."""
    limit: float | None
    """The ε at which both servers stop counting an owner."""
    found_of_100: float
    """Of 100 that took part, how many an attacker can name at most who wrongly names 5
    of 100 that didn't; exact."""


class ReportedRound(_ReportPart):
    """One released round."""

    round: int
    """From 1."""
    accuracy: float | None
    """On public held-out records, 0 to 1."""
    counted: int
    """Submissions in the sum."""
    rejected: dict[str, int] | None
    """Submissions that weren't, by reason; null where every database given has
    forgotten them."""
    epsilon_server: float | None
    """Exact ε of a unit against one server so far, for whoever took part most; null
    where a round wasn't computed."""
    epsilon_models: float | None
    """The same against other owners only."""


class Bound(_ReportPart):
    """What a number of attackers can do to an expected share of wrong answers."""

    attackers: int
    """K."""
    lower: float
    upper: float


class ReportedRobustness(_ReportPart):
    """Bounds for one kind of attacker."""

    unit: str
    """The task's units, such as records; or owners."""
    error: float
    """The share of wrong answers that the bounds start from."""
    bounds: list[Bound]
    silent_from: int | None
    """The least K tried from which nothing is excluded."""
    assumed: str
    """What is taken for true of owners' claims, as the end of a sentence; empty where
    nothing is."""


class ChangedInputs(_ReportPart):
    """What was certified of a model where noise is added to inputs when it is used."""

    sigma: PositiveFloat
    """Of the noise, in the inputs' units."""
    copies: PositiveInt
    """n: noisy copies that an answer is voted on by."""
    confidence: float = Field(gt=0, lt=1)
    """Of each input's certificate."""
    points: PositiveInt
    """Held-out inputs."""
    abstained: NonNegativeInt
    """Those without an answer that is sure enough."""
    average_certified_radius: NonNegativeFloat
    """ℓ2; wrong and abstained are 0."""
    certified_accuracy: dict[str, float]
    """The share of inputs that are right and certified, by ℓ2 radius."""


class ReportedLedger(_ReportPart):
    """One server's ledger, recomputed."""

    server: str
    entries: int
    head: str
    findings: list[str]
    """What is wrong with it; empty where it is sound."""


class Rule(_ReportPart):
    """Something that the system enforced."""

    what: str
    value: str


class Report(_ReportPart):
    """All of a report."""

    format: int = FORMAT
    """Version of this document's form."""
    precad: str
    """The version that wrote it."""
    training: Training
    guarantees: list[ReportedGuarantee]
    rounds: list[ReportedRound]
    robustness: list[ReportedRobustness]
    inputs: ChangedInputs | None
    """Null where the run certified none."""
    results: Results | Answered | None = None
    """What was measured of the final model on held-out records, which is not
    differentially private; of a question the answers; null where nobody gave it."""
    enforced: list[Rule]
    ledgers: list[ReportedLedger]
    differences: list[str] | None
    """What the two ledgers don't hold alike; null where only one was given."""
    taken: list[str]
    """Where the databases don't agree: which was taken, in words."""
    not_guaranteed: list[str]

    @property
    def unit(self) -> Unit:
        """Return what is protected, by the first guarantee."""
        return Unit(self.guarantees[0].protects)

    @property
    def rejected(self) -> dict[str, int]:
        """Count the rejected submissions of all rounds, by reason."""
        total = sum(
            (Counter(row.rejected or {}) for row in self.rounds), Counter[str]()
        )
        return dict(sorted(total.items()))

    @property
    def accuracy(self) -> float | None:
        """Return the newest accuracy that was measured; None where none was."""
        measured = [row.accuracy for row in self.rounds if row.accuracy is not None]
        return measured[-1] if measured else None


def longer_update_passes(task: Task) -> str:
    """Return how probable it is at most that an update above the bound passes.

    In words, which say too whether that is of one submission or of all.
    """
    if task.proof is None:
        return f"2^−{task.projections} a submission"
    from precad.certify import HASHES, chance_to_pass  # noqa: PLC0415

    points = task.proof.points
    by_rows = chance_to_pass(0, task.projections, points)
    # What one submission adds is lost beside it in a sum of floats.
    by_query = 2 * points / (P - 2 * points)
    return (
        f"{upper(by_rows, 2)} in all, for attackers who compute 2^{math.log2(HASHES):g}"
        f" hashes, and {upper(by_query, 2)} a submission of theirs"
    )


def enforced(task: Task) -> list[Rule]:
    """Return the rules that the system enforced; of whole owners no inner clip or p."""
    mechanism = task.mechanism
    unit = mechanism.unit
    limit = task.privacy.epsilon_limit
    drawn_is_seen = "no, everybody uploads" if mechanism.hides_coin else "yes"
    stop = "no limit was set" if limit is None else f"{limit:g}"
    checked_by = {
        "crypten": (
            "Beaver triples and comparisons (holds against a server that follows the "
            "protocol)"
        ),
        "fss": "function secret sharing, in an older version of precad",
        "proof": (
            f"the owners' own proofs, without a third party ({unit.one}'s privacy holds"
            " against a server that doesn't follow the protocol, too)"
        ),
    }
    rules = {
        f"{unit.one}'s gradient{_mean_of(mechanism)} has a norm of at most (R)": (
            f"{mechanism.unit_clip:g}"
        ),
        "an owner's update has a norm of at most (C)": mechanism.owner_clip_in_words,
        "a longer update passes with a probability of at most": longer_update_passes(
            task
        ),
        f"noise of each server, over {unit.one}'s share (σ)": (
            f"{mechanism.noise_multiplier:g}"
        ),
        "an owner is drawn in a round with probability (q)": (
            f"{mechanism.owner_rate:g}"
        ),
        f"{unit.one} is then drawn with at most (p)": f"{mechanism.unit_rate:g}",
        "ε at which both servers stop counting an owner": stop,
        "a round's sum is divided by": mechanism.divided_by,
        "norms were checked by": checked_by[task.validation],
        "who is drawn could be seen from traffic": drawn_is_seen,
    }
    return [
        Rule(what=what, value=value)
        for what, value in rules.items()
        if unit != Unit.OWNER or not what.endswith(("(R)", "(p)"))
    ]


def _mean_of(mechanism: Mechanism) -> str:
    """Return that a unit's gradient is a mean, where it is."""
    most = mechanism.most_records_per_unit
    return "" if most is None else f" (the mean of up to {most} records)"


_CHEATING = {
    "fss": (
        "A server that departs from the protocol can reject submissions or leave noise"
        " out. Nothing is claimed against it: this check of norms is no more."
    ),
    "crypten": (
        "A server that departs from the protocol can reject submissions or leave noise"
        " out; under this task's check of norms it could also learn one bit of its"
        " choice about an update in each attempt. Nothing is claimed against it."
    ),
    "proof": (
        "A server that departs from the protocol can still reject whom it likes and"
        " leave its noise out: who is counted, a whole owner's presence and robustness"
        " aren't claimed against it."
    ),
}
"""What isn't guaranteed against a cheating server, by the task's check of norms."""
_NOT_GUARANTEED = """\
Two servers that work together{together} every update. They must be run by \
organisations that don't.
{cheating}
The bounds on attackers hold for the expected error of a training like this one, with \
{all} honest; one run is one draw from it.
What is measured on held-out records carries no guarantee of its own, and says nothing \
about other data, sites or years.
How many {units} an owner has is what it says; a wrong number {claims}, and costs \
nobody's privacy.{at_one_owner}
This is one training. What the same records gave in others adds to it; each owner's \
own account has the sum (precad ledger mine).
Whether a model is fair, useful or safe to act on isn't looked at here."""
"""One statement a line; the names in braces depend on the task."""


def not_guaranteed(task: Task) -> list[str]:
    """Return statements on what is not promised, for whoever judges a training.

    They follow SECURITY.md, "What isn't".
    """
    claims = "decides how often its own are sampled, and nothing else"
    if task.local is not None:
        claims = "decides nothing"
    elif task.mechanism.planned_units is None:
        claims = "makes everybody's steps too short or too long, whatever is certified"
    unit = task.mechanism.unit
    at_one_owner = f"\n{NOT_PRESENCE}" if unit == Unit.OWNER else ""
    if task.mechanism.most_records_per_unit is not None:
        at_one_owner = (
            f"\nWho is one {unit} is what each owner says, by an identifier of its own:"
            f" a {unit} with records at more than {task.mechanism.owners_per_unit}"
            " owners, or under two identifiers, is protected less than is said here."
        )
    together = " see"
    everybody = "both servers"
    if task.has_dealer:
        together = ", or a dealer with one of them, see"
        everybody = "both servers and the dealer"
    weighed = [WEIGHED] if task.training.class_weights else []
    return (
        weighed
        + _NOT_GUARANTEED.format(
            together=together,
            cheating=_CHEATING[task.validation],
            all=everybody,
            claims=claims,
            units=task.mechanism.claimed.plural,
            at_one_owner=at_one_owner,
        ).splitlines()
    )


def guarantee_sentence(guarantee: ReportedGuarantee) -> str:
    """Say one guarantee to a person without mathematics."""
    whom = "a whole organisation"
    if guarantee.protects != Unit.OWNER:
        whom = f"one {guarantee.protects}"
    moment = f"{guarantee.when}, against {guarantee.against}".capitalize()
    if guarantee.epsilon is None:
        return f"{moment}, nothing is promised for {whom}."
    epsilon = between(guarantee.least_epsilon, guarantee.epsilon, 3)
    epsilon += guarantee.at_owners
    numbers = f"ε = {epsilon} at δ = {guarantee.delta:g}"
    if guarantee.found_of_100 >= _EVERYBODY:
        return (
            f"{moment}, {whom} is not protected ({numbers}): an"
            " attacker may be able to tell whether it was used."
        )
    return (
        f"{moment}: with or without {whom}, any result is nearly as"
        f" likely ({numbers}). Say an attacker tries to tell whether {whom} was used,"
        " and wrongly says yes for 5 of 100 that were not: then it rightly says yes"
        f" for at most {math.ceil(guarantee.found_of_100)} of 100 that were."
    )


def summary(report: Report) -> list[str]:
    """Return what a person wants to know first, a line each."""
    training = report.training
    lines = [f"{training.released} of {training.rounds} rounds are trained"]
    newest = report.rounds[-1]
    if newest.accuracy is not None:
        lines.append(f"accuracy {newest.accuracy:.1%}")
    lines += [guarantee_sentence(guarantee) for guarantee in report.guarantees]
    return lines + report.taken


def least(share: float) -> str:
    """Return a lower bound in per cent, rounded down: never more than it is."""
    return f"{math.floor(1000 * share) / 10:.1f}%"


def most(share: float) -> str:
    """Return an upper bound in per cent, rounded up: never less than it is."""
    return f"{math.ceil(1000 * share) / 10:.1f}%"
