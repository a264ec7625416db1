"""What each adversary sees of a run, as events: planned before it, or counted after."""

import math
from collections.abc import Collection
from dataclasses import field, replace
from enum import StrEnum

from precad.accounting import (
    ReleaseCounts,
    SampledGaussian,
    checked_counts,
    poisson_gaussian,
    require_rounds,
    steps_as_chosen,
    steps_of,
)
from precad.common import (
    Claim,
    Misconfiguration,
    SampledGradients,
    Task,
    Unit,
    checks,
    frozen_kw_only_dataclass,
)

PLANNING_QUANTILE = 0.999
"""Before a run, a client's participations are taken as this quantile of Bin(T, q)."""


class Basis(StrEnum):
    """What the number of participations is, and so when the statement holds."""

    PLANNED = "planned"
    """A quantile, or a coin for every round: before the run."""
    COUNTED = "counted"
    """What the ledger counted: holds where nothing but the coin set it."""
    CAP = "cap"
    """The limit that was fixed beforehand: holds whatever the participations depended
    on."""

    @property
    def description(self) -> str:
        """When it holds, for people."""
        counted = (
            "counted; holds if nothing but the servers' coin decided when it took part,"
            " and no model when it ends"
        )
        cap = (
            "the cap; holds whatever decided when it took part, if no more releases are"
            " repeated than were counted"
        )
        return {
            Basis.PLANNED: "planned",
            Basis.COUNTED: counted,
            Basis.CAP: cap,
        }[self]


class Adversary(StrEnum):
    """Against whom a guarantee holds."""

    ONE_SERVER = "one-server"
    """One curious server, with any clients except the victim: it sees who takes part,
    and knows its own noise. Where norms are proved, and at the cap, a malicious one
    too."""
    CLIENTS_ONLY = "clients-only"
    """Any clients except the victim: they see the models only, noised by both servers.
    """
    CLIENT_LEVEL = "client-level"
    """Whoever sees the models, both servers honest: hides that an owner is there at
    all."""

    @property
    def description(self) -> str:
        """Who looks, for people."""
        return {
            Adversary.ONE_SERVER: "one curious server, with any other clients",
            Adversary.CLIENTS_ONLY: "other clients only, both servers honest",
            Adversary.CLIENT_LEVEL: "anyone who sees the models, both servers honest",
        }[self]

    def adjacency(self, unit: Unit) -> str:
        """Say what is zero on one side: one unit's part, or a whole client's update."""
        whole_client = self is Adversary.CLIENT_LEVEL or unit == Unit.OWNER
        return "zero-out-client" if whole_client else f"zero-out-{unit}"


RECORD_LEVEL = (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
"""Against whom a unit, in most tasks a record, is protected."""
MALICIOUS_SERVER = "one malicious server, with any other clients"
"""What ``Adversary.ONE_SERVER`` is where norms are proved, at the cap."""


def planned_participations(client_rate: float, rounds: int) -> int:
    """Return how often one client is drawn: the 0.999 quantile of Bin(rounds, rate).

    Its mean qT, which the paper uses, is exceeded by almost half of all clients.
    """
    checks.rate("client_rate", client_rate)
    require_rounds("rounds", rounds)
    # scipy.stats takes a second to import; only plans need it.
    from scipy.stats import binom  # noqa: PLC0415

    return int(binom.ppf(PLANNING_QUANTILE, rounds, client_rate))


def sensitivity_ratio(
    *,
    record_clip: float,
    client_clip: float,
    dimension: int,
    fractional_bits: int,
) -> float:
    """Return R'/C of a run without a task, whose owners add a sample's gradients.

    Raises Misconfiguration: a clip that isn't above 0, a dimension below 1, or fewer
    than 0 fractional bits.
    """
    checks.positive("client_clip", client_clip, "the bound on a client's update")
    checks.positive("record_clip", record_clip, "the bound on a record's gradient")
    checks.count("dimension", dimension, 1)
    checks.count("fractional_bits", fractional_bits)
    gradients = SampledGradients(unit_clip=record_clip, unit_rate=1.0)
    sensitivity = gradients.sensitivity(
        owner_clip=client_clip,
        dimension=dimension,
        fractional_bits=fractional_bits,
    )
    return sensitivity / client_clip


def client_noise_multiplier(noise_multiplier: float, ratio: float) -> float:
    """Return √2·σ·R'/C: both servers' noise over C; PRECAD Lemma 8 with R' for R."""
    return math.sqrt(2) * noise_multiplier * ratio


@frozen_kw_only_dataclass
class Run:
    """All of a run that decides its cost in privacy: of a plan, or of what happened."""

    unit: Unit = Unit.RECORD
    """What is protected at the record level: a record, unless the task says another."""
    record_rate: float
    """p, in [0, 1]: the rate at which units are sampled."""
    client_rate: float
    """q, in [0, 1]."""
    noise_multiplier: float
    """σ: each server's noise over R'."""
    owners_per_unit: int = 1
    """m: at how many owners a unit is, each of which is drawn and samples by itself."""
    rounds: int
    """T."""
    participations: int | None = None
    """T_i, what the client's ledger counts; None before a run."""
    sensitivity_ratio: float | None = None
    """R'/C; only the client level needs it."""
    owner_bounds: tuple[float, ...] = ()
    """C_i/C of the owners; empty where each has C, or nobody knows."""
    least_owner_bound: float = 1.0
    """C_i/C of the owner with the least bound."""
    counts: ReleaseCounts | None = field(default=None, hash=False)
    """The same participations by m, where releases were lost and made again; its
    versions are ``participations``, which may then be left out."""
    cover_uploads: bool = False
    """Whether undrawn clients upload too, so that nobody sees the coin."""
    attempts: int | None = None
    """How often the range test was made of this client's updates, at most; None if
    unknown."""
    projections: int | None = None
    """k of the range test."""
    dimension: int = 0
    """d, at most: how long streams are; it counts against a malicious server."""
    malicious_server: bool = False
    """Whether what one server can learn is independent of what it does (norms are
    proved)."""
    basis: Basis | None = None
    """What ``participations`` is; by itself planned or counted."""

    def __post_init__(self) -> None:
        """Check all fields, and fill in what others decide. Raises Misconfiguration."""
        checks.rate("record_rate", self.record_rate)
        checks.rate("client_rate", self.client_rate)
        checks.noise_multiplier(self.noise_multiplier)
        require_rounds("rounds", self.rounds)
        participations = self.participations
        if self.counts is not None:
            counted = sum(versions for _, versions in checked_counts(self.counts))
            if participations not in (None, counted):
                raise Misconfiguration(
                    "participations", participations, f"counts by m are of {counted}"
                )
            participations = counted
            object.__setattr__(self, "participations", counted)
        if participations is not None:
            checks.count("participations", participations)
            if participations > self.rounds:
                raise Misconfiguration(
                    "participations",
                    participations,
                    f"a client takes part at most {self.rounds} times",
                )
        if self.basis is None:
            basis = Basis.PLANNED if participations is None else Basis.COUNTED
            object.__setattr__(self, "basis", basis)

    @classmethod
    def of(
        cls,
        task: Task,
        *,
        unit_rate: float | None = None,
        rounds: int | None = None,
        participations: int | None = None,
        counts: ReleaseCounts | None = None,
        claims: Collection[Claim] = (),
    ) -> "Run":
        """Return a task's run as its mechanism says it: the one way into an accountant.

        ``unit_rate`` is p_i of one owner, the task's p unless given; ``rounds`` the
        task's T unless given. Where a unit may be at several owners p stands for all of
        theirs: the others' may be larger. ``claims`` are those of all owners, where
        bounds follow them and they are known.
        """
        mechanism = task.mechanism
        bounds = mechanism.owner_bounds(claims)
        if mechanism.owners_per_unit > 1:
            unit_rate = None
        releases = mechanism.releases if rounds is None else rounds
        return cls(
            unit=mechanism.unit,
            record_rate=mechanism.unit_rate if unit_rate is None else unit_rate,
            client_rate=mechanism.owner_rate,
            noise_multiplier=mechanism.noise_multiplier,
            owners_per_unit=mechanism.owners_per_unit,
            rounds=releases,
            participations=participations,
            sensitivity_ratio=mechanism.sensitivity_ratio,
            owner_bounds=bounds,
            least_owner_bound=min(bounds, default=mechanism.least_owner_bound),
            counts=counts,
            cover_uploads=mechanism.hides_coin,
            attempts=releases * mechanism.attempts,
            projections=task.projections,
            dimension=mechanism.dimension,
            malicious_server=task.validation == "proof",
        )

    def covers_a_malicious_server(self, adversary: Adversary) -> bool:
        """Return whether what is said of ``adversary`` holds for a cheating server."""
        # Only at the cap: it decides in which rounds a client takes part.
        at_cap = self.malicious_server and self.basis is Basis.CAP
        return at_cap and adversary is Adversary.ONE_SERVER

    def at_cap(self, cap: int) -> "Run":
        """Return the run of a client that takes part ``cap`` times, fixed beforehand.

        As many further releases are counted, of any versions. Who has taken part more
        often than the cap, at a rate of its own below the task's, isn't held by it:
        then only T was fixed.
        """
        released_again = sum(n for m, n in (self.counts or {}).items() if m)
        already = max(self.participations or 0, released_again)
        held = min(cap, self.rounds) if already <= cap else self.rounds
        return replace(
            self,
            participations=held,
            counts=self._counts_of(held) if released_again else None,
            basis=Basis.CAP,
        )

    def _counts_of(self, versions: int) -> ReleaseCounts:
        """Return so many versions by m: those released again, and the rest at m = 0."""
        released_again = {m: n for m, n in (self.counts or {}).items() if m}
        return released_again | {0: versions - sum(released_again.values())}

    def events(self, adversary: Adversary) -> tuple[SampledGaussian, ...]:
        """Return what ``adversary`` sees of the run.

        1. one server: Poisson(p) steps with σ, once for each participation T_i. Before
           a run T_i is the 0.999 quantile of Bin(T, q). PRECAD Theorem 1, case 1.
        2. clients only: after a run, Poisson(p) steps with √2·σ over T_i; before it, T
           rounds that run such a step with probability q (an atom mixture, never rate
           q·p).
        3. client level: T rounds that run a step of all of the client with probability
           q, with √2·σ·R'/C: who uploads can be seen, so the coin is an atom and
           amplifies nothing. Only under ``cover_uploads`` they are Poisson(q) steps.
           PRECAD Lemma 8 takes the latter.

        A version that was released 1 + m times has σ/√(1+m). At the cap that may be
        any version, by whoever saw what came before (``steps_as_chosen``).
        """
        step = self.event(adversary)
        if adversary is Adversary.CLIENT_LEVEL:
            if not self.cover_uploads:
                step = replace(step, rate=1.0, participation=step.rate)
            counts = self._counts_of(self.rounds)
        else:
            counts = {0: step.count} if self.counts is None else self.counts
        if self.basis is Basis.CAP:
            versions = sum(counts.values())
            further = sum(m * count for m, count in counts.items())
            return steps_as_chosen(step, versions=versions, further=further)
        return steps_of(step, counts) or (step.times(0),)

    def step(self, adversary: Adversary) -> SampledGaussian:
        """Return what one release shows ``adversary`` of an owner that it counts."""
        noise = self.noise_multiplier
        match adversary:
            case Adversary.ONE_SERVER | Adversary.CLIENTS_ONLY:
                both = adversary is Adversary.CLIENTS_ONLY
                return poisson_gaussian(
                    rate=self.record_rate,
                    noise_multiplier=math.sqrt(2) * noise if both else noise,
                    owners=self.owners_per_unit,
                )
            case Adversary.CLIENT_LEVEL:
                if self.sensitivity_ratio is None:
                    raise Misconfiguration(
                        "sensitivity_ratio",
                        None,
                        "the client level needs R'/C: give both clips",
                    )
                largest = max(self.owner_bounds, default=1.0)
                step = poisson_gaussian(
                    rate=self.client_rate,
                    noise_multiplier=client_noise_multiplier(
                        noise, self.sensitivity_ratio / largest
                    ),
                )
                bounds = sorted(self.owner_bounds, reverse=True)
                parts = tuple(bound / largest for bound in bounds)
                return replace(step, group_bounds=parts)

    def event(self, adversary: Adversary) -> SampledGaussian:
        """Return the run as one event, as if every version had been released once.

        At the client level this is what bounds *robustness*: T Poisson(q) steps. For
        that the coin need only be beyond the attackers' influence, not unseen.
        """
        step = self.step(adversary)
        if adversary is Adversary.CLIENT_LEVEL:
            return step.times(self.rounds)
        if self.participations is not None:
            return step.times(self.participations)
        if adversary is Adversary.ONE_SERVER:
            return step.times(planned_participations(self.client_rate, self.rounds))
        return replace(step, count=self.rounds, participation=self.client_rate)
