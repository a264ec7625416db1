"""The owner's own account: what its records have spent, whatever the servers say.

One account per data set, over all tasks that the records ever took part in. A version
is counted once, before its update is first shared, however many attempts it takes;
further releases of the same update, which a server signs when an attempt opens, turn
its step from σ into σ/√(1+m). The limit counts each of them as a step that samples
nothing: whoever cut a link chose it, with every model in view.

A data set has one name in a task. Two names' updates would stand in one sum, which
moves by both: that costs more than two steps do.
"""

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import lru_cache
from pathlib import Path

from precad.accounting.adversaries import Adversary, Run, planned_participations
from precad.accounting.events import SampledGaussian
from precad.accounting.filter import ExactFilter, RenyiFilter, RenyiLimit, order_for
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
from precad.common import checks
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.identifiers import ClientId, Digest
from precad.common.task import Task

Filter = RenyiFilter | ExactFilter


class Account:
    """A data set's account as its file has it, read as it grows; in memory without a path.

    Lines count in the order in which they stand; one that passes the limit doesn't
    count, and whoever wrote it sends nothing. So two tasks that run at once can't
    overrun the limit together.

    Raises Misconfiguration: the file can't be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = AccountFile(path)
        self.charges: dict[tuple[Digest, str, int, float], AccountCharge] = {}
        """By ``AccountCharge.step``."""
        self.covered: set[Covered] = set()
        self.limit: Limit | None = None
        self.filter: Filter | None = None
        """Of the limit, with all charges; None where they pass it, too."""
        self.names: dict[Digest, str] = {}
        """By task, the name that these records first took part under."""
        self._in_version: dict[tuple[Digest, int], dict[object, AccountCharge]] = {}
        """By task and version, what was charged for it by ``AccountCharge.step``."""
        self._events: Counter[SampledGaussian] = Counter()
        self._chosen: Counter[SampledGaussian] = Counter()
        """The same, whoever chose further releases: what the limit is held to."""
        self.catch_up()

    def catch_up(self) -> None:
        """Read what was appended since, by whomever."""
        for entry in self._file.new_entries():
            match entry:
                case RenyiLimit() | WholeLimit():
                    if self.takes(entry):
                        self.limit = entry
                        self._renew_filter()
                case Covered():
                    self.covered.add(entry)
                case AccountCharge():
                    if isinstance(entry, OldCharge) or self.admits(entry):
                        self._count(entry)

    def _renew_filter(self) -> None:
        self.filter = None
        if self.limit is not None:
            # Another task may have been charged while the limit was being written.
            with suppress(BudgetExceeded):
                self.filter = self.under(self.limit)

    def cover(self, covered: Covered) -> None:
        """Keep that this version got zeros, durably."""
        if covered not in self.covered:
            self._file.append(covered)
            self.catch_up()

    def open(self, limit: Limit) -> None:
        """Fix the account's limit, durably; the first one stands until its owner raises it."""
        if self.takes(limit):
            self._file.append(limit)
            self.catch_up()

    def takes(self, limit: Limit) -> bool:
        """Whether ``open`` would change the account's limit."""
        raised = isinstance(limit, RaisedLimit | RaisedWholeLimit)
        return self.limit is None or (raised and limit.epsilon > self.limit.epsilon)

    def admits(self, charge: AccountCharge) -> bool:
        """Whether it may be counted: by its name, and within the limit if any.

        It takes the place of an earlier charge of its step.
        """
        if self.names.get(charge.task, charge.client) != charge.client:
            return False
        return self.holds(charge) or self.limit is None or self.fits(charge, self.limit)

    def fits(self, charge: AccountCharge, limit: Limit) -> bool:
        """Whether ``limit`` leaves room for ``charge`` beside all that was counted."""
        try:
            self._filter_of(limit, self._with(charge), charge)
        except BudgetExceeded:
            return False
        return True

    def event_of(self, charge: AccountCharge) -> SampledGaussian:
        """What a counted charge's version costs, with all that is charged for it."""
        return in_one_sum(self._in_version[charge.task, charge.version].values())

    def _with(self, charge: AccountCharge) -> Counter[SampledGaussian]:
        """Return what is held to the limit once ``charge`` is counted."""
        counted = self._in_version.get((charge.task, charge.version), {})
        chosen = self._chosen.copy()
        chosen.subtract(as_chosen(counted.values()))
        chosen.update(as_chosen((counted | {charge.step: charge}).values()))
        return chosen

    def add(self, charge: AccountCharge) -> None:
        """Count ``charge``, durably, before this returns.

        Raises BudgetExceeded: it passes the limit, perhaps because of another task's
        just now.
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

    def events(self) -> Counter[SampledGaussian]:
        """How often each step was charged."""
        return +self._events

    def epsilon(self, delta: float) -> float:
        """Exact record-level ε at ``delta`` of all that was charged, one server corrupted.

        Against a malicious one where every charge's task has proofs, else a curious
        one; and of a list that was fixed beforehand: where later tasks were chosen by
        earlier models, the filter's is the guarantee (docs/privacy-accounting.md).
        """
        return exact_epsilon(self.events(), delta)

    def holds(self, charge: AccountCharge) -> bool:
        """Whether this is counted, or its step with a larger m."""
        held = self.charges.get(charge.step)
        return held is not None and held.re_releases >= charge.re_releases

    def _count(self, charge: AccountCharge) -> None:
        if self.holds(charge):
            return
        self._chosen = self._with(charge)
        version = self._in_version.setdefault((charge.task, charge.version), {})
        if version:
            self._events[in_one_sum(version.values())] -= 1
        version[charge.step] = charge
        self._events[in_one_sum(version.values())] += 1
        self.charges[charge.step] = charge
        self.names.setdefault(charge.task, charge.client)
        self._renew_filter()

    def under(self, limit: Limit) -> Filter:
        """A filter of ``limit`` with all charges.

        Raises BudgetExceeded: they pass it.
        """
        return self._filter_of(limit, self._chosen)

    def _filter_of(
        self, limit: Limit, chosen: Counter[SampledGaussian], *further: AccountCharge
    ) -> Filter:
        """Return a filter with ``chosen``, of all charges and ``further`` ones."""
        found: Filter
        if isinstance(limit, RenyiLimit):
            found = RenyiFilter(limit)
        else:
            charges = (*self.charges.values(), *further)
            if not all(map(limit.covers, charges)):
                raise BudgetExceeded("these records have taken part in other tasks")
            found = ExactFilter(limit.epsilon, limit.delta)
        found.charge(*(event.times(count) for event, count in chosen.items()))
        return found


class OwnAccount:
    """One task's part in the data set's account, and the owner's limit over all of them.

    ``task`` gives σ, δ and T; p_i is ``record_rate``. ``epsilon_limit`` is of
    record-level ε with one server corrupted, for the sum over all tasks; None for the
    account's own, if it has one. With ``raise_limit`` one above the account's takes its
    place, with the next charge. ``path`` is the account's file; None counts in memory.
    ``client`` may be left out where these records never have another name.

    Raises Misconfiguration, as do all methods that ask for a charge: these records take
    part in this task under another name. Raises it too where the limit doesn't allow a
    single round, or isn't the account's own, or the file can't be read.
    """

    def __init__(
        self,
        task: Task,
        record_rate: float,
        epsilon_limit: float | None,
        path: Path | None,
        client: ClientId | None = None,
        *,
        raise_limit: bool = False,
    ) -> None:
        self._task = task
        self._record_rate = record_rate
        self._client = "" if client is None else client.name
        self._account = Account(path)
        self._read()
        self.limit = self._limit(epsilon_limit, raise_limit=raise_limit)
        """What holds over all tasks; written into the account with its first charge."""

    def _read(self) -> None:
        """Read what was appended since; refuse a second name in this task."""
        self._account.catch_up()
        name = self._account.names.get(self._task.digest, self._client)
        if name != self._client:
            raise Misconfiguration(
                "client",
                self._client,
                f"these records take part in this task as {name or 'another client'}:"
                " under a second name they would stand twice in one sum, and cost more"
                f" than two steps. Go on as {name or 'that one'}, or give this client"
                " records that aren't among them, with an account of their own",
            )

    @property
    def participations(self) -> int:
        """How many versions of this task this owner has shared an update for."""
        mine = (self._task.digest, self._client)
        return sum(step[:2] == mine for step in self._account.charges)

    def charged(self, version: int, re_releases: int = 0) -> bool:
        """Whether this version's update is counted, with this m or more, and may have left."""
        self._read()
        return self._account.holds(self._charge(version, re_releases))

    def allows(self, version: int, re_releases: int = 0) -> bool:
        """Whether ``charge`` would count it."""
        self._read()
        charge = self._charge(version, re_releases)
        own = self.limit
        opens = own is not None and self._account.takes(own)
        return self._own_limit_admits(charge) and (
            opens or self._account.admits(charge)
        )

    def rounds_left(self, most: int) -> int:
        """How many further versions of this task the limit leaves room for, up to ``most``."""
        if self.limit is None:
            return most
        self._account.catch_up()
        step = self._charge(-1, 0).event
        spent = self._account.under(self.limit)
        further = range(1, most + 1)
        return bisect_left(
            further, x=True, key=lambda n: not spent.allows(step.times(n))
        )

    def charge(self, version: int, re_releases: int = 0) -> None:
        """Count this version's update, durably; what is counted already costs nothing.

        ``re_releases`` is m, the largest that a server signs for this attempt. What was
        counted with a smaller one is counted with this one from now on.

        Raises BudgetExceeded: the limit would be passed; nothing changed.
        StorageFailure: the account can't be written.
        """
        self._read()
        if self.limit is not None:
            self._account.open(self.limit)
        charge = self._charge(version, re_releases)
        if not self._own_limit_admits(charge):
            raise BudgetExceeded(
                "this account has a higher limit by now than this process was started"
                " with, whose own would be passed; nothing is sent"
            )
        try:
            self._account.add(charge)
        finally:
            # Two names of one data set that charge at once: the first line's goes on.
            self._read()

    def cover(self, version: int) -> None:
        """Keep, durably, that servers may charge this version, which has nothing of the records.

        Raises StorageFailure.
        """
        self._account.cover(Covered(self._task.digest, self._client, version))

    def lacks(self, counts: Sequence[int]) -> bool:
        """Whether a server charged more: ``counts[m]`` versions with m further releases or more."""
        own = sorted(self._known().values())
        return any(len(own) - bisect_left(own, m) < n for m, n in enumerate(counts))

    def adopt(self, counts: Sequence[int], versions: int) -> None:
        """Charge, durably, what both servers signed of released versions and this account lacks.

        It is an older copy then, or there is another one. Which versions they were
        isn't said, nor does it matter: those that aren't charged are over, and nothing
        is shared for them any more.

        Raises Misconfiguration: the account's limit has no room for them.
        StorageFailure: the account can't be written.
        """
        known = self._known()
        for m in reversed(range(len(counts))):
            lower = [
                version for version in range(versions) if known.get(version, -1) < m
            ]
            lower.sort(key=lambda version: -known.get(version, -1))
            lacking = counts[m] - sum(own >= m for own in known.values())
            for version in lower[: max(0, lacking)]:
                known[version] = m
                try:
                    self.charge(version, m)
                except BudgetExceeded:
                    raise Misconfiguration(
                        "account",
                        f"{self.participations} versions of this task",
                        "is an older copy, or there is another one: both servers have"
                        f" signed that they charged {counts[0]} versions, and its limit"
                        " has no room for that. Put the newest copy in its place, or"
                        " stay away from this training",
                    ) from None

    def _known(self) -> dict[int, float]:
        """By version of this task: m, and ∞ where zeros were sent, which may be charged too."""
        self._account.catch_up()
        mine = self._task.digest, self._client
        known: dict[int, float] = {}
        for (task, client, version, _), charge in self._account.charges.items():
            if (task, client) == mine:
                known[version] = max(known.get(version, 0), charge.re_releases)
        zeros = (
            each for each in self._account.covered if (each.task, each.client) == mine
        )
        return known | {each.version: math.inf for each in zeros}

    def epsilon(self) -> float:
        """Exact record-level ε so far over all tasks, one server corrupted, at this task's δ."""
        self._account.catch_up()
        return self._account.epsilon(self._task.privacy.delta)

    def spent(self) -> Counter[SampledGaussian]:
        """How often each step was charged over all tasks, as far as this process has read."""
        return self._account.events()

    def _own_limit_admits(self, charge: AccountCharge) -> bool:
        """Whether the limit that this process was started with does, where it is the stricter."""
        own = self.limit
        opened = self._account.limit
        if own is None or self._account.holds(charge):
            return True
        if (
            opened is not None
            and opened.epsilon <= own.epsilon
            and not self._account.takes(own)
        ):
            return True
        return self._account.fits(charge, own)

    def _charge(self, version: int, re_releases: int) -> AccountCharge:
        """Return what one version costs, as the task's mechanism says it."""
        run = Run.of(self._task, unit_rate=self._record_rate)
        step = run.step(Adversary.ONE_SERVER)
        return AccountCharge(
            task=self._task.digest,
            client=self._client,
            version=version,
            re_releases=re_releases,
            noise_multiplier=step.noise_multiplier,
            record_rate=step.rate,
            delta=self._task.privacy.delta,
            validation=self._task.validation,
        )

    def _limit(self, epsilon_limit: float | None, *, raise_limit: bool) -> Limit | None:
        """The account's limit, or the one that it will open with, or be raised to."""
        opened = self._account.limit
        if opened is None:
            delta = self._task.privacy.delta
            return (
                None if epsilon_limit is None else self._new_limit(epsilon_limit, delta)
            )
        if epsilon_limit is not None and epsilon_limit > opened.epsilon and raise_limit:
            higher = self._new_limit(epsilon_limit, opened.delta, opened)
            form = RaisedLimit if isinstance(higher, RenyiLimit) else RaisedWholeLimit
            return form(
                **{field.name: getattr(higher, field.name) for field in fields(higher)}
            )
        if epsilon_limit not in (None, opened.epsilon):
            raise Misconfiguration(
                "epsilon_limit",
                epsilon_limit,
                f"this account's limit is ε = {opened.epsilon:g}, δ = {opened.delta:g},"
                " for all its tasks together: give that one, or none; you can raise"
                " it, never lower it, with precad join --raise-limit (in Python"
                " raise_limit=True)",
            )
        if isinstance(opened, WholeLimit):
            if not opened.covers(self._charge(0, 0)):
                raise Misconfiguration(
                    "epsilon_limit",
                    opened.epsilon,
                    f"all of it went to task {str(opened.task)[:8]}…, which these"
                    f" records joined as {opened.client or 'its client'} at a rate of"
                    f" {opened.record_rate:g}: they take part in nothing else; give"
                    " records that have an account of their own",
                )
        elif not Account(None).under(opened).allows(self._charge(0, 0).event):
            raise self._too_low(opened.epsilon, opened.delta)
        return opened

    def _new_limit(
        self, epsilon_limit: float, delta: float, opened: Limit | None = None
    ) -> Limit:
        """A filter's; or this task's alone, where a filter would end it early and that wouldn't.

        Decided by parameters, before anything is sent under it.
        """
        checks.positive(
            "epsilon_limit", epsilon_limit, "the limit of a data set's account"
        )
        step = self._charge(0, 0)
        limit: RenyiLimit | None = None
        with suppress(Misconfiguration):  # where a filter leaves nothing to spend
            limit = order_for(epsilon_limit, delta, step.event)
            if isinstance(opened, RenyiLimit):
                # An order never changes: another one later would be a choice too.
                limit = replace(limit, order=opened.order)
        planned = self.planned() - self.participations
        if limit is None or not self._lasts(limit, planned):
            whole = WholeLimit(
                epsilon=epsilon_limit,
                delta=delta,
                task=step.task,
                client=step.client,
                noise_multiplier=step.noise_multiplier,
                record_rate=step.record_rate,
            )
            if self._lasts(whole, planned):
                return whole
        if limit is None or not Account(None).under(limit).allows(step.event):
            raise self._too_low(epsilon_limit, delta)
        try:
            self._account.under(limit)
        except BudgetExceeded:
            spent = self._account.epsilon(delta)
            raise Misconfiguration(
                "epsilon_limit",
                epsilon_limit,
                f"these records have spent ε = {spent:.3f} at δ = {delta:g} in earlier"
                " tasks, and more by the filter that enforces a limit; raise it or"
                " don't take part",
            ) from None
        return limit

    def planned(self) -> int:
        """How many rounds of this task a client is drawn for at most, with .999 of certainty."""
        mechanism = self._task.mechanism
        if mechanism.owner_rate == 1:
            return mechanism.releases
        return planned_participations(mechanism.owner_rate, mechanism.releases)

    def _lasts(self, limit: Limit, rounds: int) -> bool:
        try:
            room = self._account.under(limit)
        except BudgetExceeded:
            return False
        return rounds <= 0 or room.allows(self._charge(-1, 0).event.times(rounds))

    def _too_low(self, epsilon_limit: float, delta: float) -> Misconfiguration:
        one = exact_epsilon(Counter([self._charge(0, 0).event]), delta)
        return Misconfiguration(
            "epsilon_limit",
            epsilon_limit,
            f"a single round of this task costs ε = {one:.3f} exactly, and more by the"
            " filter that enforces a limit over tasks; raise the limit above it or"
            " don't take part",
        )

    def whole_task(self) -> bool:
        """Whether the limit goes to this task alone, whose exact ε is counted."""
        return isinstance(self.limit, WholeLimit)

    def ample(self) -> float:
        """The least limit, ε to two digits, under whose filter this task lasts to its end.

        Room is left under it only for what other tasks the filter then still admits.
        """
        step = self._charge(0, 0).event
        delta = self._task.privacy.delta
        all_rounds = step.times(self.planned())

        def enough(hundredths: int) -> bool:
            try:
                limit = order_for(hundredths / 100, delta, step)
            except Misconfiguration:
                return False
            return Account(None).under(limit).allows(all_rounds)

        return (1 + bisect_left(range(1, 2**20), x=True, key=enough)) / 100


def exact_epsilon(events: Counter[SampledGaussian], delta: float) -> float:
    """Exact ε at ``delta`` of steps by how often each was taken."""
    return _added_up(tuple(events.items()), delta)


@lru_cache(maxsize=1024)
def _added_up(counts: tuple[tuple[SampledGaussian, int], ...], delta: float) -> float:
    from precad.accounting.exact import ExactAccountant  # noqa: PLC0415

    accountant = ExactAccountant()
    for event, count in counts:
        accountant.compose(event.times(count))
    return accountant.epsilon(delta)
