"""What each adversary sees of a run, as events: a plan before it, or what was counted after."""

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum

from precad.accounting.events import (
    ReleaseCounts,
    SampledGaussian,
    checked_counts,
    poisson_gaussian,
    require_rounds,
    steps_of,
)
from precad.common import checks
from precad.common.errors import Misconfiguration
from precad.common.task import Task, effective_record_clip

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
            "counted; holds if nothing but the servers' coin decided when it took part"
        )
        cap = "the cap; holds whatever decided when it took part, releases included"
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

    @property
    def adjacency(self) -> str:
        """What neighbours differ in: one record's gradient, or one client's update, is zero."""
        return (
            "zero-out-client" if self is Adversary.CLIENT_LEVEL else "zero-out-record"
        )


RECORD_LEVEL = (Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY)
"""Against whom a record is protected."""
MALICIOUS_SERVER = "one malicious server, with any other clients"
"""What ``Adversary.ONE_SERVER`` is where norms are proved, at the cap."""


def planned_participations(client_rate: float, rounds: int) -> int:
    """The 0.999 quantile of Bin(``rounds``, ``client_rate``): how often one client is drawn.

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
    """R'/C of a run without a task."""
    checks.positive("client_clip", client_clip, "the bound on a client's update")
    checks.positive("record_clip", record_clip, "the bound on a record's gradient")
    checks.count("dimension", dimension, 1)
    checks.count("fractional_bits", fractional_bits)
    return (
        effective_record_clip(
            record_clip=record_clip,
            client_clip=client_clip,
            dimension=dimension,
            fractional_bits=fractional_bits,
        )
        / client_clip
    )


def client_noise_multiplier(noise_multiplier: float, ratio: float) -> float:
    """√2·σ·R'/C: both servers' noise over one client's bound; PRECAD Lemma 8 with R' for R."""
    checks.noise_multiplier(noise_multiplier)
    checks.positive("sensitivity_ratio", ratio, "R'/C, record over client clip")
    return math.sqrt(2) * noise_multiplier * ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All of a run that decides what it costs in privacy, before it (a plan) or after.

    Record and client rate are p and q, in [0, 1]; σ is each server's noise over R',
    rounds are T.
    """

    record_rate: float
    client_rate: float
    noise_multiplier: float
    rounds: int
    participations: int | None = None
    """T_i, what the client's ledger counts; None before a run."""
    sensitivity_ratio: float | None = None
    """R'/C; only the client level needs it."""
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
    malicious_server: bool = False
    """Whether what one server can learn is independent of what it does (norms are
    proved)."""
    basis: Basis | None = None
    """What ``participations`` is; by itself planned or counted."""

    def __post_init__(self) -> None:
        checks.rate("record_rate", self.record_rate)
        checks.rate("client_rate", self.client_rate)
        checks.noise_multiplier(self.noise_multiplier)
        require_rounds("rounds", self.rounds)
        taken = self.participations
        if self.counts is not None:
            total = sum(versions for _, versions in checked_counts(self.counts))
            if taken not in (None, total):
                raise Misconfiguration(
                    "participations", taken, f"counts by m are of {total}"
                )
            taken = total
            object.__setattr__(self, "participations", total)
        if taken is not None and checks.count("participations", taken) > self.rounds:
            remedy = f"a client takes part at most {self.rounds} times"
            raise Misconfiguration("participations", taken, remedy)
        if self.basis is None:
            object.__setattr__(
                self, "basis", Basis.PLANNED if taken is None else Basis.COUNTED
            )

    @classmethod
    def of(
        cls,
        task: Task,
        *,
        rounds: int | None = None,
        participations: int | None = None,
        counts: ReleaseCounts | None = None,
    ) -> "Run":
        """A task's run, over its own T where no ``rounds`` are given."""
        total = task.training.rounds if rounds is None else rounds
        return cls(
            record_rate=task.privacy.record_rate,
            client_rate=task.privacy.client_rate,
            noise_multiplier=task.privacy.noise_multiplier,
            rounds=total,
            participations=participations,
            sensitivity_ratio=task.sensitivity_ratio,
            counts=counts,
            cover_uploads=task.privacy.cover_uploads,
            attempts=total * task.training.attempts,
            projections=task.projections,
            malicious_server=task.validation == "proof",
        )

    def covers_a_malicious_server(self, adversary: Adversary) -> bool:
        """Whether the statement against ``adversary`` holds for a server that cheats."""
        # Only at the cap: it decides in which rounds a client takes part.
        one = adversary is Adversary.ONE_SERVER
        return one and self.malicious_server and self.basis is Basis.CAP

    def at_cap(self, cap: int) -> "Run":
        """The same for a client that takes part ``cap`` times, the most that was fixed beforehand.

        Versions that were released more than once stay so. Who has taken part more
        often than the cap, at a rate of its own below the task's, isn't held by it:
        then only T was fixed.
        """
        again = sum(n for m, n in (self.counts or {}).items() if m)
        least = max(self.participations or 0, again)
        cap = min(cap, self.rounds) if least <= cap else self.rounds
        counts = self._counts_of(cap) if again else None
        return replace(
            self,
            participations=cap,
            counts=counts,
            basis=Basis.CAP,
        )

    def _counts_of(self, versions: int) -> ReleaseCounts:
        """So many versions, those among them that were released again as they were."""
        again = {m: n for m, n in (self.counts or {}).items() if m}
        return again | {0: versions - sum(again.values())}

    def events(self, adversary: Adversary) -> tuple[SampledGaussian, ...]:
        """What ``adversary`` sees of the run.

        1. one server: Poisson(p) steps with σ, once for each participation T_i. Before
           a run T_i is the 0.999 quantile of Bin(T, q). PRECAD Theorem 1, case 1.
        2. clients only: after a run, Poisson(p) steps with √2·σ over T_i; before it, T
           rounds that run such a step with probability q (an atom mixture, never rate
           q·p).
        3. client level: T rounds that run a step of all of the client with probability
           q, with √2·σ·R'/C: who uploads can be seen, so the coin is an atom and
           amplifies nothing. Only under ``cover_uploads`` they are Poisson(q) steps.
           PRECAD Lemma 8 takes the latter.

        A version that was released 1 + m times has σ/√(1+m).
        """
        one = self.event(adversary)
        if adversary is Adversary.CLIENT_LEVEL:
            if not self.cover_uploads:
                one = replace(one, rate=1.0, participation=one.rate)
            counts = self._counts_of(self.rounds)
        else:
            counts = {0: one.count} if self.counts is None else self.counts
        return steps_of(one, counts) or (one.times(0),)

    def event(self, adversary: Adversary) -> SampledGaussian:
        """The run as one event, as if every version had been released once.

        At the client level this is what bounds *robustness*: T Poisson(q) steps. For
        that the coin need only be beyond the attackers' influence, not unseen.
        """
        rate = self.record_rate
        noise = self.noise_multiplier
        share = 1.0
        taken = self.participations
        match adversary:
            case Adversary.ONE_SERVER:
                if taken is None:
                    taken = planned_participations(self.client_rate, self.rounds)
            case Adversary.CLIENTS_ONLY:
                noise *= math.sqrt(2)
                if taken is None:
                    taken = self.rounds
                    share = self.client_rate
            case Adversary.CLIENT_LEVEL:
                if self.sensitivity_ratio is None:
                    remedy = "the client level needs R'/C: give both clips"
                    raise Misconfiguration("sensitivity_ratio", None, remedy)
                rate = self.client_rate
                taken = self.rounds
                noise = client_noise_multiplier(noise, self.sensitivity_ratio)
        return poisson_gaussian(
            rate=rate,
            noise_multiplier=noise,
            count=taken,
            participation=share,
        )
