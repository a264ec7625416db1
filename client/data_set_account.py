"""A data set's account over all tasks: its charges, and the limit that they keep.

A version is counted once, before its update is first shared, however many attempts it
takes. Further releases of the same update, which a server signs when an attempt opens,
turn its step from σ into σ/√(1+m). The limit counts each of them as a step that samples
nothing: whoever cut a link chose it, with every model in view.

A data set has one name in a task. Two names' updates would stand in one sum, which
moves by both: that costs more than two steps do.
"""

import math
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from precad.accounting import RenyiLimit, SampledGaussian, Steps, exact_epsilon
from precad.client.account_file import (
    AccountCharge,
    AccountFile,
    Covered,
    Limit,
    OldCharge,
    RaisedLimit,
    RaisedWholeLimit,
    WholeLimit,
    as_chosen,
    in_one_sum,
)
from precad.client.account_plan import PlanLimit
from precad.common import BudgetExceeded, Digest, Unit


class Account:
    """A data set's account as its file has it, read as it grows.

    Lines count in the order in which they stand. One that passes the limit doesn't
    count, and whoever wrote it sends nothing. So two tasks that run at once can't
    overrun the limit together.

    Without a path the account is kept in memory.

    Raises Misconfiguration: the file can't be read.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the account's file: see the class."""
        self._file = AccountFile(path)
        self.charges: dict[tuple[Digest, str, int, float], AccountCharge] = {}
        """Each charge that counts, by its ``step``."""
        self.unit: Unit | None = None
        """What its tasks protect; None before the first charge."""
        self.limit: Limit | None = None
        """The limit over all tasks; None until an owner sets one."""
        self.names: dict[Digest, str] = {}
        """By task, the name that these records first took part under."""
        self.known: dict[tuple[Digest, str], dict[int, float]] = defaultdict(dict)
        """By task and client, m of each version that a server may have charged: ∞ where
        zeros were sent, as such a version may be charged with any m."""
        self._in_version: dict[tuple[Digest, int], dict[object, AccountCharge]] = {}
        """By task and version, what was charged for it by ``AccountCharge.step``."""
        self._events: Steps = Counter()
        self._chosen: Steps = Counter()
        """The same, whoever chose further releases: what the limit is held to."""
        self.catch_up()

    def catch_up(self) -> None:
        """Read what any process has appended since the last call."""
        for entry in self._file.new_entries():
            match entry:
                case RenyiLimit() | WholeLimit() | PlanLimit():
                    if self.takes(entry):
                        self.limit = entry
                case Covered():
                    self._note(entry, math.inf)
                case AccountCharge():
                    if isinstance(entry, OldCharge) or self.admits(entry):
                        self._count(entry)

    def limited_epsilon(self) -> float | None:
        """Return ε as the limit counts it; None where it is passed, or there is none.

        Another task may have been charged while the limit was being written.
        """
        limit = self.limit
        if limit is None or not self._keeps(limit, self._chosen):
            return None
        return limit.epsilon_of(self._chosen)

    def cover(self, covered: Covered) -> None:
        """Write, durably, that zeros were sent for a version.

        Raises StorageFailure, as ``open`` and ``add`` do: the file can't be written.
        """
        if self.known[covered.task, covered.client].get(covered.version) != math.inf:
            self._file.append(covered)
            self.catch_up()

    def open(self, limit: Limit) -> None:
        """Set the account's limit, durably, if it ``takes`` this one.

        The first limit stands until its owner raises it.
        """
        if self.takes(limit):
            self._file.append(limit)
            self.catch_up()

    def takes(self, limit: Limit) -> bool:
        """Return whether ``open`` would change the account's limit.

        A plan is fixed before anything is charged.
        """
        if isinstance(limit, PlanLimit) and self.charges:
            return False
        raised = isinstance(limit, RaisedLimit | RaisedWholeLimit)
        return self.limit is None or (raised and limit.epsilon > self.limit.epsilon)

    def admits(self, charge: AccountCharge) -> bool:
        """Return whether a charge may be counted: by name, unit, and within any limit.

        It takes the place of an earlier charge of its step.
        """
        if self.names.get(charge.task, charge.client) != charge.client:
            return False
        if self.unit not in (None, charge.unit):
            return False
        version = self._in_version.get((charge.task, charge.version))
        if isinstance(self.limit, PlanLimit) and version and charge.step not in version:
            # Both would count as one other step, which may be of another pool.
            return False
        return self.holds(charge) or self.limit is None or self.fits(charge, self.limit)

    def fits(self, charge: AccountCharge, limit: Limit) -> bool:
        """Return whether ``limit`` has room for ``charge`` beside what was counted."""
        return self._keeps(limit, self._with(charge), charge)

    def event_of(self, charge: AccountCharge) -> SampledGaussian:
        """Return a counted charge's version's cost, with all that is charged for it."""
        return in_one_sum(self._in_version[charge.task, charge.version].values())

    def _with(self, charge: AccountCharge) -> Steps:
        """Return what is held to the limit once ``charge`` is counted."""
        counted = self._in_version.get((charge.task, charge.version), {})
        chosen = self._chosen.copy()
        chosen.subtract(as_chosen(counted.values()))
        chosen.update(as_chosen((counted | {charge.step: charge}).values()))
        return +chosen

    def add(self, charge: AccountCharge) -> None:
        """Count a charge, durably, before this returns.

        Raises BudgetExceeded: it passes the limit, perhaps because another task was
        charged in the meantime.
        """
        if self.holds(charge):
            return
        if self.admits(charge):
            self._file.append(charge)
            self.catch_up()
        if not self.holds(charge):
            raise BudgetExceeded(
                f"version {charge.version} would pass the account's limit; nothing is"
                " sent"
            )

    def events(self) -> Steps:
        """Return how often each step was charged."""
        return +self._events

    def held_to_limit(self) -> Steps:
        """Return the steps that the limit is held to, whoever chose further releases."""
        return +self._chosen

    def epsilon(self, delta: float) -> float:
        """Return a unit's exact ε at ``delta`` of all that was charged.

        One server is curious. The number is that of a list that was fixed beforehand:
        where later tasks were chosen by earlier models, the filter's is the guarantee
        (docs/privacy-accounting.md).
        """
        return exact_epsilon(self.events(), delta)

    def holds(self, charge: AccountCharge) -> bool:
        """Return whether a charge's step is counted, with its m or a larger one."""
        held = self.charges.get(charge.step)
        return held is not None and held.re_releases >= charge.re_releases

    def _count(self, charge: AccountCharge) -> None:
        """Count a charge that the limit admits, in place of its step's earlier one."""
        if self.holds(charge):
            return
        self._chosen = self._with(charge)
        version = self._in_version.setdefault((charge.task, charge.version), {})
        if version:
            self._events[in_one_sum(version.values())] -= 1
        version[charge.step] = charge
        self._events[in_one_sum(version.values())] += 1
        self.charges[charge.step] = charge
        self.unit = Unit(charge.unit)
        self._note(charge, charge.re_releases)
        self.names.setdefault(charge.task, charge.client)

    def _note(self, entry: AccountCharge | Covered, re_releases: float) -> None:
        """Keep ``known`` up to date."""
        known = self.known[entry.task, entry.client]
        known[entry.version] = max(re_releases, known.get(entry.version, 0))

    def has_room(self, limit: Limit, further: Steps) -> bool:
        """Return whether ``limit`` holds of all charges and ``further`` steps."""
        return self._keeps(limit, self._chosen + further)

    def _keeps(self, limit: Limit, chosen: Steps, *further: AccountCharge) -> bool:
        """Return whether a limit holds of ``chosen``: all charges and ``further``."""
        charges = (*self.charges.values(), *further)
        if isinstance(limit, WholeLimit) and not all(map(limit.covers, charges)):
            return False
        return limit.holds(chosen)


def at_owners_of(events: Steps, delta: float) -> str:
    """Say after ``exact_epsilon`` at how many owners a unit may be; ε at one."""
    # SciPy loads here.
    from precad.accounting import at_owners  # noqa: PLC0415

    at_one = Steps()
    for event, count in events.items():
        at_one[replace(event, owners=1)] += count
    owners = max((event.owners for event in events), default=1)
    return at_owners(owners, exact_epsilon(at_one, delta))
