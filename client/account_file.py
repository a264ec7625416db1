"""The file of a data set's account: what its records took part in, over all tasks.

The file has one line for each entry. Lines are appended and never changed. Each line
says all that its privacy cost depends on, so that the file can be added up without any
task. Several processes may append at once, on one machine's disk: whoever reads a line
knows all that stood before it, so everybody comes to the same verdict on which lines
were within the limit.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from precad.accounting import (
    RenyiLimit,
    SampledGaussian,
    Steps,
    exact_epsilon,
    poisson_gaussian,
    steps_as_chosen,
)
from precad.client.account_plan import Plan, PlanLimit
from precad.common import (
    Digest,
    Misconfiguration,
    Unit,
    append_line,
    frozen_dataclass,
    frozen_kw_only_dataclass,
    writing,
)

ACCOUNT_FILE = "participations.log"
"""Name of the file in the account's folder."""
_CUT = "~"
"""Ends a line that a crash may have cut short, so that the next one stands on its
own."""
_NO_VALUE = "-"
"""Stands for an empty text: the words of a line are separated by single spaces."""
_MALICIOUS = ("proof", "fss")
"""Norm checks whose cost holds against a server that departs from the protocol. Tasks
of older versions name the second."""
_CHECKS = ("crypten", *_MALICIOUS, "")
"""Norm checks that a charge may name."""
_OLD_CHARGE = "charge2"
"""First word of a charge's line of earlier versions."""
_UNIT_CHARGE = "charge4"
"""First word of a charge's line that names the task's own unit, and at how many owners
it may be; earlier versions refuse it."""


@frozen_kw_only_dataclass
class AccountCharge:
    """The charge for one version of one task.

    It is written before the version's update is first shared, and again when the
    version costs more than was charged for it.
    """

    task: Digest
    client: str
    """The owner's name in this task; empty where the account has a single name."""
    version: int
    re_releases: int
    """m: releases of the same update that may have left besides the one that is
    charged."""
    noise_multiplier: float
    """σ of one server."""
    record_rate: float
    """p_i: the probability with which each unit is sampled."""
    delta: float
    """δ of this task's own statements."""
    validation: str = ""
    """The task's check of norms, which says against which server the cost holds. Empty
    in lines that don't name it: then the weaker check is meant."""
    unit: str = Unit.RECORD
    """What the task protects."""
    owners: int = 1
    """m: at how many owners the task says that a unit may be. Where it is several,
    ``record_rate`` is the task's p: the other owners' may be as large."""

    @property
    def malicious_server(self) -> bool:
        """Whether the cost holds against one server that departs from the protocol."""
        return self.validation in _MALICIOUS

    @property
    def step(self) -> tuple[Digest, str, int, float]:
        """What is charged: task, client, version and record rate.

        A later charge for the same step, with a larger m, replaces this one.
        """
        return self.task, self.client, self.version, self.record_rate

    @property
    def event(self) -> SampledGaussian:
        """The privacy event: a sampled Gaussian step with σ/√(1+m).

        That is what it costs to see the same update 1 + m times under independent
        noise, where m was nobody's choice.
        """
        return poisson_gaussian(
            rate=self.record_rate,
            noise_multiplier=self.noise_multiplier / math.sqrt(1 + self.re_releases),
            owners=self.owners,
        )


_ALIKE = attrgetter("task", "client", "noise_multiplier", "record_rate")
"""What all charges of one task at one record rate have in common."""


class OldCharge(AccountCharge):
    """A charge that an earlier version wrote, by a verdict of its own.

    It found two names in one sum, and further releases, cheaper than they are, and sent
    what this version finds too much. So all its lines count.
    """


def in_one_sum(charges: Iterable[AccountCharge]) -> SampledGaussian:
    """Return a privacy event that a version with all these charges costs at most.

    Each of k charges is of a sample of its own, as of k names of one data set: one sum
    moves by up to k contribution bounds, wherever any of them drew the record, which
    has a probability of 1 − Π(1 − p_i). δ(ε) is convex in the pair, so no mixture of
    smaller moves costs more than the largest one at that rate: a step with σ/k. One
    charge alone costs its own event.
    """
    rate = 0.0
    noise = math.inf
    participations = 0
    owners = 1
    for charge in charges:
        rate += (1 - rate) * charge.record_rate
        noise = min(noise, charge.event.noise_multiplier)
        participations += 1
        owners = max(owners, charge.owners)
    return poisson_gaussian(
        rate=rate,
        noise_multiplier=noise / participations,
        owners=owners,
    )


def as_chosen(charges: Iterable[AccountCharge]) -> Steps:
    """Return what a version costs at most, whoever chose its further releases."""
    counted = list(charges)
    if not counted:
        return Steps()
    first = in_one_sum(replace(charge, re_releases=0) for charge in counted)
    further = sum(charge.re_releases for charge in counted)
    chosen = Steps()
    for step in steps_as_chosen(first, versions=1, further=further):
        # Where all records are in each round, both are the same step.
        chosen[step.times(1)] += step.count
    return chosen


@frozen_dataclass
class Covered:
    """A version for which this owner was drawn and sent zeros: it costs nothing here.

    The servers charge it, because they can't tell zeros from an update. What they
    charged for such a version must not be taken for a charge that is missing here.
    """

    task: Digest
    client: str
    version: int


@frozen_kw_only_dataclass
class WholeLimit:
    """A limit that goes to one task as a whole, whose exact ε is counted.

    Its list of steps was fixed beforehand, and may end early.
    """

    # Why the exact ε of a prefix is a guarantee. Parameters alone fix pairs of
    # distributions (P_1, Q_1), (P_2, Q_2), … before a record is touched, and with them
    # k, the longest prefix whose product is within (ε, δ). Step t may depend on all
    # that came before, y_<t; but whatever y_<t is, (P_t, Q_t) dominates it, so it is a
    # random map, chosen by y_<t, of one sample: of P_t with the record, of Q_t without
    # (Blackwell). The whole transcript is then one such map of k samples drawn
    # beforehand, which looks at sample t when it comes to step t: post-processing of
    # the product, whoever stops, and wherever, up to k (Zhu, Dong and Wang 2022,
    # Theorem 10, for adaptive composition of dominating pairs). The argument ends where
    # a pair itself depends on y_<t: a further task, or a further release of a version,
    # is chosen by whoever has seen models. ``covers`` admits neither.

    epsilon: float
    delta: float
    task: Digest
    client: str
    noise_multiplier: float
    record_rate: float

    def covers(self, charge: AccountCharge) -> bool:
        """Return whether ``charge`` is one of the equal steps that this limit is for.

        They are the steps of its task, at the rate that it was opened with. A further
        release is none of them: whoever cuts a link chooses where there is one, by what
        it has seen, and the exact number holds for a list of steps that was fixed
        beforehand.
        """
        return _ALIKE(charge) == _ALIKE(self) and charge.re_releases == 0

    def epsilon_of(self, charged: Steps) -> float:
        """Return the exact ε of steps, at the limit's δ."""
        return exact_epsilon(charged, self.delta)

    def holds(self, charged: Steps) -> bool:
        """Return whether steps may be charged that were fixed beforehand."""
        return self.epsilon_of(charged) <= self.epsilon


class RaisedLimit(RenyiLimit):
    """A higher limit that the owner put in the place of a lower one.

    All that was charged under the lower one counts under this one.
    """


class RaisedWholeLimit(WholeLimit):
    """A higher limit for one task as a whole; see ``RaisedLimit``."""


Limit = RenyiLimit | WholeLimit | PlanLimit
Entry = AccountCharge | Covered | Limit
"""What one line of the file holds."""
_FORM_OF_KIND: dict[str, type[Entry]] = {
    _UNIT_CHARGE: AccountCharge,
    "charge3": AccountCharge,
    _OLD_CHARGE: OldCharge,
    "covered": Covered,
    "limit": RenyiLimit,
    "whole": WholeLimit,
    "plan": PlanLimit,
    "raised-limit": RaisedLimit,
    "raised-whole": RaisedWholeLimit,
}
"""The class of an entry, by the first word of its line."""
_KIND_OF_FORM = {form: kind for kind, form in _FORM_OF_KIND.items()}
_READERS: dict[object, Callable[[str], object]] = {
    Digest: lambda word: Digest(bytes.fromhex(word)),
    str: lambda word: "" if word == _NO_VALUE else word,
    int: int,
    float: float,
    Plan: Plan.model_validate_json,
}
"""What makes a field's value from its word, by the field's type."""


class AccountFile:
    """An account's file, read as it grows.

    Without a path the entries are kept in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._read_to = 0
        """Bytes of the file that have been read, all of them whole lines."""
        self._unread: list[Entry] = []
        """Entries that weren't handed out yet; used without a path alone."""

    def append(self, entry: Entry) -> None:
        """Append ``entry``; it is durable when this returns.

        Raises StorageFailure: the file can't be written.
        """
        if self.path is None:
            self._unread.append(entry)
            return
        unread = self._unread_bytes()
        kind = _KIND_OF_FORM[type(entry)]
        words = [
            str(getattr(entry, field.name)) or _NO_VALUE for field in fields(entry)
        ]
        if isinstance(entry, AccountCharge):
            if (entry.unit, entry.owners) == (Unit.RECORD, 1):
                words = words[:-2]
            else:
                kind = _UNIT_CHARGE
        text = " ".join([kind, *words])
        line = f"{text} {_checksum(text)}"
        if unread and not unread.endswith(b"\n"):
            line = f"{_CUT}\n{line}"
        with writing(self.path):
            append_line(self.path, line)

    def new_entries(self) -> list[Entry]:
        """Return the entries that any process appended since the last call.

        Raises Misconfiguration: a line can't be read. It is refused rather than
        forgotten.
        """
        if self.path is None:
            entries_in_memory = self._unread
            self._unread = []
            return entries_in_memory
        unread = self._unread_bytes()
        whole_lines = unread[: unread.rfind(b"\n") + 1]
        self._read_to += len(whole_lines)
        entries = [_from_line(line, self.path) for line in whole_lines.splitlines()]
        return [entry for entry in entries if entry is not None]

    def _unread_bytes(self) -> bytes:
        """Return all that stands in the file behind the lines that have been read."""
        assert self.path is not None
        try:
            with self.path.open("rb") as file:
                file.seek(self._read_to)
                return file.read()
        except FileNotFoundError:
            return b""


def _from_line(line: bytes, path: Path) -> Entry | None:
    """Return the entry that a line of the account's file at ``path`` holds.

    A line is the entry's kind, its fields in their order, and a checksum of both. None
    is returned for a line that a crash cut short: nothing was sent for it.

    Raises Misconfiguration: the line can't be read.
    """
    remedy = "restore this owner's account from a copy that is not older"
    try:
        text = line.decode("ascii")
        cut_short = text.endswith(_CUT)
        text, _, checksum = text.removesuffix(_CUT).rpartition(" ")
        if checksum != _checksum(text):
            if cut_short:
                return None
            raise ValueError(checksum)
        kind, *words = text.split(" ")
        # A field without a value is a dash, so no word is empty.
        if not all(words):
            raise ValueError(words)
        if kind == "charge":  # of still earlier ones: without the check of norms
            kind = _OLD_CHARGE
            words = [*words, _NO_VALUE]
        if kind not in _FORM_OF_KIND:
            remedy = "a newer precad wrote it: install that version, or the newest"
        form = _FORM_OF_KIND[kind]
        if issubclass(form, AccountCharge) and kind != _UNIT_CHARGE:
            words = [*words, Unit.RECORD, "1"]
        values: dict[str, Any] = {}
        for field, word in zip(fields(form), words, strict=True):
            values[field.name] = _READERS[field.type](word)
        entry = form(**values)
        if isinstance(entry, AccountCharge) and (
            min(entry.re_releases, entry.owners - 1) < 0
            or entry.validation not in _CHECKS
        ):
            raise ValueError(entry)
    except (KeyError, ValueError, Misconfiguration):
        raise Misconfiguration(
            "account",
            path,
            f"can't be read at {line[:100]!r}; {remedy}",
        ) from None
    return entry


def _checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
