"""What one release of a task is: what owners add, what is protected, what follows.

A *mechanism* is made from the task and from nothing else, once. Whoever needs a number
that decides privacy asks it: noise, headroom, caps, ledgers, accounts, certificates,
the report and `precad task show`. So no two of them can drift apart. It has three
parts:

- the **contribution**, a function of θ and an owner's frozen records. It states the
  largest norm by which one unit moves it (its *sensitivity* R'): noise is relative to
  that, and a test searches for an input that moves it further;
- the **unit**, which is sampled, clipped, zeroed out and protected together;
- the **server step**, what both servers do with the decoded sum.

A kind of contribution is one class here, its section of the task file, and its tests;
collection, validation, noise, release, ledger and store don't know which one it is.
"""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar, Protocol

from precad.common import Parameter, frozen_kw_only_dataclass

RATE_OCTAVES = 6
"""Claimed sampling rates reach from the task's p down to p/2^6."""
RATE_EIGHTHS = (8, 7, 6, 5)
CLIP_ROUNDING = 2.0**-18
"""Of C: what a margin between a clipped client's sum and β may add to what one record
moves; float64 needs 2^−30."""


MAX_BOUND = 2**25
"""Largest β for which whatever passes the range test has X·X < 2^62."""
NOISE_DEVIATIONS = 10.0
"""Standard deviations of noise that a sum has room for: more have a chance below
2^−75."""
STEP_FRACTION = 8
"""A compact release is rounded to at most one part in so many of one server's noise."""
MOST_OFF_PLAN = 2.0
"""Enrolled units beyond so many times what was planned are warned of, or below."""


def assumed_of_claims(planned_units: int | None) -> str:
    """Return what a certificate assumes of claims, as the end of a sentence.

    Empty where the task plans for ``planned_units``: then no claim moves the
    denominator.
    """
    if planned_units is not None:
        return ""
    return (
        ", assuming the same claims of sizes with and without them, since claims make"
        " the denominator (not where a task has enrolment.planned_units)"
    )


NOT_PRESENCE = (
    "Protected is what an owner's records say, not that it takes part nor how many it"
    " has."
)
"""What isn't hidden where an owner is the unit."""


class Unit(str):
    """What is sampled, clipped, zeroed out and protected together, by its name.

    ``Unit.RECORD`` is one record of one owner and ``Unit.OWNER`` all of them. Any other
    name is the task's own, such as patient: all records of one owner that have the same
    identifier.
    """

    __slots__ = ()
    RECORD: ClassVar["Unit"]
    OWNER: ClassVar["Unit"]

    @property
    def plural(self) -> str:
        """Return the name of several."""
        return f"{self}s"

    @property
    def one(self) -> str:
        """Return the name with its article."""
        return f"an {self}" if self[0] in "aeiou" else f"a {self}"


Unit.RECORD = Unit("record")
Unit.OWNER = Unit("owner")


class Claim(Protocol):
    """What an owner states about its data when it enrols (``Enrolment``)."""

    @property
    def records(self) -> int:
        """|D_i|: how many units it has."""

    @property
    def record_rate(self) -> float:
        """p_i, at which it samples its units."""


@frozen_kw_only_dataclass
class SampledGradients:
    """−Σ of a Poisson sample of units' clipped gradients; PRECAD Algorithm 2.

    A unit's gradient is its record's, or the mean over at most L of its records.
    """

    unit_clip: float
    """R."""
    unit_rate: float
    """p."""
    unit: Unit = Unit.RECORD
    """A record, or what the task says."""
    most_records_per_unit: int | None = None
    """L; None where the unit is a record."""

    def sensitivity(
        self,
        *,
        owner_clip: float,
        dimension: int,
        fractional_bits: int,
    ) -> float:
        """R' = R + √d·2^−f + C·2^−18.

        A unit's clipped and encoded gradient moves the sum by R, the client clip's
        truncation by one unit of the last place in each coordinate. Clipping to a margin
        below β, which a neighbour of just β escapes, moves it by β·2^−f·2^−30; 2^−18 is
        allowed (docs/soundness.md, "Honest updates keep the bound").
        """
        truncation = math.ldexp(math.sqrt(dimension), -fractional_bits)
        return self.unit_clip + truncation + owner_clip * CLIP_ROUNDING

    def expected_units(self, claim: Claim) -> float:
        """p_i·|D_i|: the units that it samples on average."""
        return claim.record_rate * claim.records


@frozen_kw_only_dataclass
class _OneVectorAUnit:
    """A contribution in which a unit is one vector, whose norm is held in integers."""

    unit_clip: float
    """R; C where an owner is the unit."""
    unit_rate: float = 1.0
    """Every unit of an owner that is drawn takes part."""
    most_records_per_unit: int | None = None
    """None: a unit's part is no mean of its records."""

    def sensitivity(
        self,
        *,
        owner_clip: float,  # noqa: ARG002 -- no other clip acts
        dimension: int,  # noqa: ARG002 -- encoding after the clip never lengthens it
        fractional_bits: int,
    ) -> float:
        """R' = floor(R·2^f)·2^−f ≤ R: a unit's integer vector is no longer."""
        units = owner_bound(self.unit_clip, fractional_bits)
        return math.ldexp(units, -fractional_bits)


@frozen_kw_only_dataclass
class LocalTraining(_OneVectorAUnit):
    """θ_E − θ after E epochs of an owner's own training, clipped to C as a whole.

    All of an owner's records move it together, so an owner is the unit: R = C, p = 1.
    """

    epochs: int
    """E."""
    learning_rate: float
    """Of the owner's own steps."""
    batch_size: int | None
    """Records a step; all at once if None."""
    unit: Unit = Unit.OWNER
    """An owner."""

    def expected_units(self, claim: Claim) -> float:  # noqa: ARG002 -- all weigh alike
        """1."""
        return 1.0


@frozen_kw_only_dataclass
class Answers(_OneVectorAUnit):
    """The sum of all records' answers to a task's queries, each of norm R at most.

    No sample and no θ: an owner makes it before it enrols. No client's clip acts, as C
    is R for each record of the largest owner, and more records aren't enrolled.
    """

    unit: Unit = Unit.RECORD
    """A record, or what the task says: then its first record answers for it."""

    def expected_units(self, claim: Claim) -> float:
        """|D_i|."""
        return float(claim.records)


Contribution = SampledGradients | LocalTraining | Answers
"""What an owner adds to a release's sum. Every kind states:

- ``unit``: what one unit is;
- ``unit_rate``, p: the largest Poisson rate at which an owner samples its units;
- ``unit_clip``, R: largest L2 norm of one unit's part before it is encoded;
- ``most_records_per_unit``, L: most records whose mean a unit's part is; None where it
  is no mean;
- ``sensitivity``, R': the largest L2 norm by which one unit moves the encoded
  contribution;
- ``expected_units``: how much an owner with a claim adds to the denominator, once it is
  drawn.
"""


def owner_bound(owner_clip: float, fractional_bits: int) -> int:
    """β = floor(C·2^f): an owner's bound in units of the last place.

    Exact in integers: no float could overflow, and all platforms find the same.
    """
    numerator, denominator = owner_clip.as_integer_ratio()
    return (numerator << fractional_bits) // denominator


@frozen_kw_only_dataclass
class ModelStep:
    """θ_{t+1} = θ_t + η/denominator · the decoded sum."""

    learning_rate: float
    """η."""


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """One release of a task, and how often there is one.

    Lengths are L2 norms: real where nothing else is said, else in units of the last
    place, 2^−f.
    """

    contribution: Contribution
    step: ModelStep | None
    """None where the decoded sum is the answer."""
    parameters: tuple[Parameter, ...]
    """Names and shapes of the released vector's parts, in their order."""
    owner_clip: float
    """C: largest norm of one owner's contribution, whatever its size."""
    clip_per_unit: float | None
    """c: an owner's contribution has at most c times the norm R for each unit that it
    samples on average; None where C alone bounds it."""
    owner_rate: float
    """q: Poisson rate at which the servers' coin draws owners."""
    hides_coin: bool
    """Whether owners that aren't drawn upload too, so that nobody sees the coin."""
    noise_multiplier: float
    """σ: each server's noise standard deviation over R'."""
    planned_units: int | None
    """N: units that are planned for in all; None where owners' claims decide."""
    owners_per_unit: int
    """m: at how many owners one unit is at most, as the task declares."""
    releases: int
    """T: versions that are released, each once unless a release is lost."""
    attempts: int
    """Most tries for one version, and so most repeats of its release."""
    fractional_bits: int
    """f."""
    compact_release: bool = False
    """Whether a released sum is rounded far below its noise, and travels in the bits
    that it needs."""

    @cached_property
    def dimension(self) -> int:
        """d: length of the released vector."""
        return sum(parameter.size for parameter in self.parameters)

    @property
    def unit(self) -> Unit:
        """What is protected together."""
        return self.contribution.unit

    @property
    def unit_rate(self) -> float:
        """p: the largest rate at which an owner samples its units."""
        return self.contribution.unit_rate

    @property
    def unit_clip(self) -> float:
        """R."""
        return self.contribution.unit_clip

    @property
    def claimed(self) -> Unit:
        """What |D_i| counts: records where a whole owner is the unit."""
        return Unit.RECORD if self.unit == Unit.OWNER else self.unit

    @property
    def at_owners(self) -> str:
        """At how many owners a unit may be, after its noun; empty where it is one."""
        several = self.owners_per_unit > 1
        return f" at up to {self.owners_per_unit} owners" if several else ""

    @property
    def most_records_per_unit(self) -> int | None:
        """L; None where a unit is a record or an owner."""
        return self.contribution.most_records_per_unit

    def padded_records(self, units: int) -> int:
        """Return how many records the work of so many sampled units is padded to.

        Where owners train by themselves: how many one of their steps has.
        """
        if isinstance(self.contribution, LocalTraining):
            return min(units, self.contribution.batch_size or units)
        return units * (self.most_records_per_unit or 1)

    @cached_property
    def unit_rates(self) -> tuple[float, ...]:
        """The rates that an owner may claim, the task's p first.

        For a sample: p·k/8 for k = 8 … 5, each halved 0 to 5 times, and p/64. Public,
        because it depends on the task alone, and short: an account takes seconds, and
        an owner that could choose its rate freely could make the servers compute for as
        long as it likes. Where the unit is an owner, or nothing is trained: 1 alone.
        """
        p = self.unit_rate
        if self.unit == Unit.OWNER or self.step is None:
            return (p,)
        # One rounding at most (p·k), then powers of two: the same floats everywhere.
        rates = [
            math.ldexp(p * eighths, -3 - halved)
            for halved in range(RATE_OCTAVES)
            for eighths in RATE_EIGHTHS
        ]
        return (*rates, math.ldexp(p, -RATE_OCTAVES))

    @cached_property
    def bound(self) -> int:
        """β: every owner's bound in units."""
        return owner_bound(self.owner_clip, self.fractional_bits)

    def bound_of(self, claim: Claim) -> int:
        """β_i: the bound of an owner with this claim in units, at most β.

        floor(c·max(1, p_i·|D_i|)·R·2^f), in integers: owner and servers compute it from
        the frozen roster, and it is the same number on every platform. One unit always
        fits, so that no clip of an owner cuts one unit below R.
        """
        if self.clip_per_unit is None:
            return self.bound
        units = max(Fraction(1), Fraction(claim.record_rate) * claim.records)
        clip = Fraction(self.clip_per_unit) * units * Fraction(self.unit_clip)
        scaled: Fraction = clip * 2**self.fractional_bits
        return min(self.bound, math.floor(scaled))

    def owner_bounds(self, claims: Iterable[Claim]) -> tuple[float, ...]:
        """Return C_i/C of owners with these claims, in their order."""
        return tuple(self.bound_of(claim) / self.bound for claim in claims)

    @property
    def least_owner_bound(self) -> float:
        """The least C_i/C of any owner: of one that samples one unit or fewer."""
        if self.clip_per_unit is None:
            return 1.0
        return min(1.0, self.clip_per_unit * self.unit_clip / self.owner_clip)

    @property
    def owner_clip_in_words(self) -> str:
        """What bounds an owner's contribution."""
        if self.clip_per_unit is None:
            return f"{self.owner_clip:g}"
        return (
            f"{self.clip_per_unit * self.unit_clip:g} for each {self.unit} that it"
            f" samples on average, for one at least, and never over {self.owner_clip:g}"
        )

    @cached_property
    def sensitivity(self) -> float:
        """R': the most that one unit moves the encoded sum."""
        return self.contribution.sensitivity(
            owner_clip=self.owner_clip,
            dimension=self.dimension,
            fractional_bits=self.fractional_bits,
        )

    @property
    def sensitivity_units(self) -> float:
        """R'·2^f."""
        return math.ldexp(self.sensitivity, self.fractional_bits)

    @property
    def sensitivity_ratio(self) -> float:
        """R'/C: a unit's sensitivity over an owner's."""
        return self.sensitivity / self.owner_clip

    @cached_property
    def noise_units(self) -> float:
        """σ·R'·2^f: standard deviation of one server's noise in units."""
        return self.noise_multiplier * self.sensitivity_units

    def most_sum(self, claims: Iterable[Claim]) -> int:
        """M: no released sum leaves ±M, in units, with owners of these claims.

        The sum of all owners' bounds, and ``NOISE_DEVIATIONS`` of both servers' noise.
        """
        both = math.sqrt(2) * self.noise_units
        return sum(map(self.bound_of, claims)) + math.ceil(NOISE_DEVIATIONS * both)

    @cached_property
    def step_shift(self) -> int:
        """k: a released sum is rounded to multiples of 2^k, at most σ·R'·2^f/8."""
        if not self.compact_release:
            return 0
        return max(0, int(self.noise_units // STEP_FRACTION).bit_length() - 1)

    @property
    def assumed_of_claims(self) -> str:
        """What certificates assume of owners' claims, as the end of a sentence."""
        return assumed_of_claims(self.planned_units)

    def expected_units(self, claims: Iterable[Claim]) -> float:
        """Return q·Σ expected units of all enrolled: what a sum holds on average."""
        expected = math.fsum(map(self.contribution.expected_units, claims))
        return self.owner_rate * expected

    def denominator(self, claims: Iterable[Claim]) -> float:
        """Return the sum's fixed, public divisor.

        It is q·p·N of the task, whatever the claims are, or without N what is expected
        of those enrolled. It is in place of PRECAD eq. (2)'s sum over who took part:
        one that depends on them breaks Lemma 8 (docs/decisions/fixed-denominator.md).
        """
        if self.planned_units is None:
            return self.expected_units(claims)
        return self.owner_rate * (self.unit_rate * self.planned_units)

    @property
    def divided_by(self) -> str:
        """What a round's sum is divided by, in words."""
        if self.planned_units is None:
            return "what enrolled owners claim: a claim that grows shortens every step"
        return f"{self.denominator(()):g}, as planned, whatever owners claim"

    def off_plan(self, claims: Collection[Claim]) -> str:
        """Say that over twice as much as planned is enrolled, or under half.

        Empty where neither is so. It is never a reason to refuse: an owner alone could
        bring it about.
        """
        expected = self.expected_units(claims)
        planned = self.denominator(claims)
        if planned / MOST_OFF_PLAN <= expected <= planned * MOST_OFF_PLAN:
            return ""
        return (
            f"enrolment.planned_units = {self.planned_units} is {planned:.3g}"
            f" {self.unit.plural} a round, and {expected:.3g} are enrolled: steps are as"
            " much longer or shorter than planned; give the next task the right number"
        )
