"""The roster: who takes part, with how many records at what rate; frozen at first."""

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from itertools import cycle
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError

from precad.common import (
    ROOM_IN_SIZES,
    SERVERS,
    ClientId,
    Digest,
    Misconfiguration,
    Role,
    Section,
    Task,
    Unit,
    digest_of,
    frozen_dataclass,
    read_toml,
    refusal,
)

MAX_RECORDS = 2**31 - 1
"""What a database's integer column and every digest can hold."""
_HEAVY = 2.0
"""Beyond it a bad owner's weight is warned of: what C has at least where one record is
sampled."""
_UNLIKE_PLAN = 1.5
"""More, or fewer, than was planned for by this factor is said."""


def on_grid(task: Task, record_rate: float | None) -> float:
    """Return the highest rate that the task lets an owner claim, up to ``record_rate``.

    It is the task's own where none is given. A client samples, claims and accounts with
    it. Raises Misconfiguration: below the least of ``Mechanism.unit_rates``, or above
    the task's p.
    """
    rates = task.mechanism.unit_rates
    highest = rates[0]
    lowest = rates[-1]
    if record_rate is None:
        return highest
    if not 0 < record_rate <= highest:
        raise Misconfiguration(
            "record_rate",
            record_rate,
            f"must be above 0 and at most the task's {highest}",
        )
    if record_rate < lowest:
        share = round(highest / lowest)
        raise Misconfiguration(
            "record_rate",
            record_rate,
            f"must be at least {lowest!r}, 1/{share} of the task's rate: claim that, or"
            " hold fewer records",
        )
    # What a person writes, 0.1 for 0.3/3, may miss its own float by a rounding.
    return next(rate for rate in rates if rate <= record_rate * (1 + 1e-9))


@frozen_dataclass
class Enrolment:
    """One client's frozen claim: it holds |D_i| records and samples them at p_i."""

    client: ClientId
    records: int
    record_rate: float

    def check(self, task: Task) -> None:
        """Refuse a claim that the task doesn't allow.

        Raises Misconfiguration: too few or too many records, a rate off the grid, or
        p_i·|D_i| above the task's cap.
        """
        if not 1 <= self.records <= MAX_RECORDS:
            raise Misconfiguration(
                "records", self.records, f"must be from 1 to {MAX_RECORDS}"
            )
        nearest = on_grid(task, self.record_rate)
        if nearest != self.record_rate:
            raise Misconfiguration(
                "record_rate",
                self.record_rate,
                f"isn't on the task's grid of rates; claim and sample with {nearest!r}",
            )
        expected = self.records * self.record_rate
        largest = task.enrolment.max_expected_records
        if expected > largest:
            remedy = "lower the rate or ask for a task with a higher cap"
            if task.query is not None:
                remedy = (
                    "take part under two names, each with records of its own, and with"
                    " an account of its own; or ask for a task with a higher cap"
                )
            raise Misconfiguration(
                "records",
                self.records,
                f"records·record_rate = {expected:g} passes the task's "
                f"enrolment.max_expected_records = {largest:g}; {remedy}",
            )


class Roster(Mapping[ClientId, Enrolment]):
    """All enrolled clients in the order of their names; immutable."""

    def __init__(self, enrolments: Mapping[ClientId, Enrolment]) -> None:
        self._by_client = {client: enrolments[client] for client in sorted(enrolments)}

    @classmethod
    def load(cls, path: Path, task: Task) -> Self:
        """Read the operator's roster from a TOML file: one `[[clients]]` table each.

        ```
        [[clients]]
        client = "ward-3"
        records = 120
        record_rate = 0.2
        ```

        Raises Misconfiguration: the file can't be read, a key is unknown or missing, a
        client is listed twice, or the task doesn't allow an entry. Names the file and
        the entry.
        """
        source = f"roster {path}"
        try:
            entries = _RosterFile.model_validate(read_toml("roster", path)).clients
        except ValidationError as error:
            refused = refusal(error, {})
            raise Misconfiguration(
                f"{source}: {refused.field}", refused.value, refused.remedy
            ) from None
        enrolments = {}
        for entry in entries:
            claim = Enrolment(ClientId(entry.client), entry.records, entry.record_rate)
            claim.check(task)
            if claim.client in enrolments:
                raise Misconfiguration(
                    source, entry.client, "is listed twice; remove one entry"
                )
            enrolments[claim.client] = claim
        fewest = task.enrolment.min_clients
        most = task.enrolment.clients
        if not fewest <= len(enrolments) <= most:
            raise Misconfiguration(
                source,
                f"{len(enrolments)} clients",
                f"the task takes {fewest} to {most}",
            )
        return cls(enrolments)

    def __getitem__(self, client: ClientId) -> Enrolment:
        return self._by_client[client]

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self._by_client)

    def __len__(self) -> int:
        return len(self._by_client)

    def seed_holders(self, task: Digest) -> dict[ClientId, Role]:
        """Say which server gets each client's seed where norms are proved.

        The other one gets the body.

        The same one serves it models first, whatever the validation. They alternate, so
        that both servers' links carry half, in the order of H(task, client), which no
        client chooses.
        """

        def place_of(client: ClientId) -> bytes:
            return digest_of("seed-holder", task.value, client.encoded()).value

        ordered = sorted(self._by_client, key=place_of)
        return dict(zip(ordered, cycle(SERVERS), strict=False))

    def digest(self) -> Digest:
        """SHA-256 over names, records and rates."""
        parts: list[bytes | int] = []
        for client, enrolment in self._by_client.items():
            parts += [
                client.encoded(),
                enrolment.records,
                enrolment.record_rate.hex().encode(),
            ]
        return digest_of("roster", *parts)


class _RosterEntry(Section):
    """One `[[clients]]` table."""

    client: str
    records: int
    record_rate: Annotated[float, Field(allow_inf_nan=False)]


class _RosterFile(Section):
    """The whole file."""

    clients: list[_RosterEntry]


def unlike_plan(task: Task, records: int, record_rate: float) -> str | None:
    """Say that an owner samples far more than the largest one in the task's plan.

    Or far fewer than the smallest. `precad task new` leaves ``ROOM_IN_SIZES`` above
    the largest; the smallest has at least what is left of N where all others are as
    large. None where the numbers fit, or where no numbers of records are planned.
    """
    mechanism = task.mechanism
    planned = mechanism.planned_units
    if planned is None or mechanism.unit == Unit.OWNER:
        return None
    owners = task.enrolment.clients
    rate = mechanism.unit_rate
    largest = max(
        task.enrolment.max_expected_records / rate / ROOM_IN_SIZES, planned / owners
    )
    smallest = planned - (owners - 1) * largest
    # Of an owner that claims a lower rate fewer count.
    counting = records * record_rate / rate
    if counting > largest * _UNLIKE_PLAN:
        meaning = (
            "an update is cut to the same privacy.client_clip, so that each counts"
            f" for less: let record_rate be {rate * largest / records:.2g} in"
            " the owner's settings, or"
        )
    elif counting * _UNLIKE_PLAN < smallest:
        meaning = "they only make steps shorter, beneath the same noise:"
    else:
        return None
    return (
        f"{records:,} {mechanism.unit.plural}, where {planned / owners:,.0f} an"
        f" owner were planned (enrolment.planned_units = {planned:,} at {owners:,})."
        f" ε stays, but {meaning} have the task made anew by precad task new with"
        " the owners' sizes as --records"
    )


def excess_of_clip(task: Task, records: int | None) -> str | None:
    """Say what is wrong with a C that bad owners reach far more often than honest ones.

    A bad owner sends C in every round. An honest one's update is as long as its sample
    at most, and empty in all rounds in which it samples nothing. ``records``: how many
    the largest owner holds; what the task admits unless given. None where nothing is
    wrong.
    """
    mechanism = task.mechanism
    if mechanism.unit == Unit.OWNER:
        # All owners weigh alike: what each adds is clipped to C, and to nothing less.
        return None
    rate = mechanism.unit_rate
    if records is None:
        records = math.floor(task.enrolment.max_expected_records / rate * (1 + 1e-9))
    records = max(1, records)
    largest_sample = most_records(records, rate)
    longest_update = mechanism.unit_clip * largest_sample
    usual_update = mechanism.unit_clip * (rate * records)
    clip = mechanism.owner_clip
    if mechanism.clip_per_unit is not None:
        samples = max(1.0, rate * records)
        clip = min(clip, mechanism.clip_per_unit * mechanism.unit_clip * samples)
    unit = mechanism.unit
    owner = f"an owner of {records:,} {unit if records == 1 else unit.plural}"
    weight = f"one bad owner weighs as much as {clip / usual_update:.3g} honest ones"
    if clip > longest_update:
        return (
            f"privacy.client_clip = {clip:g} arms attackers alone: {owner} can sample"
            f" {largest_sample:,} at most, and no honest update is longer than"
            f" {longest_update:g}. So {weight}; make it {longest_update:g} or less"
        )
    if clip <= _HEAVY * usual_update * (1 + 1e-9):
        return None
    remedy = f"make it {_HEAVY * usual_update:g} or less"
    if usual_update < mechanism.unit_clip:
        remedy = (
            f"raise record_rate towards {1 / records:.2g}, with the noise that keeps ε"
        )
    return (
        f"privacy.client_clip = {clip:g} lets bad owners weigh more: they send it in"
        f" every round, and {owner} samples {rate * records:.3g} on average. So"
        f" {weight}; {remedy}"
    )


def most_records(count: int, rate: float) -> int:
    """Return M, the sample size that an attempt's work is padded to.

    It is public, because its arguments are.

    The least M that a Poisson sample of |D_i| = ``count`` records at p_i = ``rate``
    passes with a probability below 2^−40. A sample that does is replaced by the empty
    one: that keeps the account exact, because a neighbouring data set has the same
    sizes of samples (one gradient in it is zero).

    Raises Misconfiguration: the rate lies outside (0, 1].
    """
    from scipy.special import bdtrc  # noqa: PLC0415 -- a third of a second

    if not 0 < rate <= 1:
        raise Misconfiguration("record_rate", rate, "must lie in (0, 1]")
    # The tail is a regularised incomplete beta function; its relative error is below
    # 1e-9.
    rare = 2.0**-40 * (1 - 1e-9)
    return bisect_left(
        range(count), x=True, key=lambda most: bool(bdtrc(most, count, rate) < rare)
    )
