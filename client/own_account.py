"""The owner's own account: what its records have spent, whatever the servers say.

One account per data set, over all tasks that the records ever took part in. A version is counted
once, before its update is first shared, however many attempts it takes; further releases of the
same update, which a server signs when an attempt opens, turn its step from σ into σ/√(1+m).
"""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from precad.client.account_file import AccountFile, Charge, Limit
from precad.common import checks
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.identifiers import ClientId, Digest
from precad.common.task import Task

if TYPE_CHECKING:
    from precad.common.account.events import SampledGaussian
    from precad.common.account.filter import RenyiFilter, RenyiLimit


class Account:
    """A data set's account as its file has it, read as it grows.

    Lines count in the order in which they stand; one that passes the limit doesn't count, and
    whoever wrote it sends nothing. So two tasks that run at once can't overrun the limit together.

    Args:
        path: file that survives restarts; None keeps the account in memory.

    Raises:
        Misconfiguration: the file can't be read.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = AccountFile(path)
        self.charges: dict[tuple[Digest, str, int, float], Charge] = {}
        """By ``Charge.step``."""
        self.limit: Limit | None = None
        self.filter: RenyiFilter | None = None
        """Of the limit, with all charges."""
        self._events: Counter[SampledGaussian] = Counter()
        self._overdrawn = False
        self.catch_up()

    def catch_up(self) -> None:
        """Read what was appended since, by whomever."""
        for entry in self._file.new_entries():
            match entry:
                case Limit():
                    if self.limit is None:
                        self._open(entry)
                case Charge():
                    if self.admits(entry):
                        self._count(entry)

    def open(self, limit: "RenyiLimit") -> None:
        """Fix the account's limit, durably; the first one stands."""
        if self.limit is None:
            self._file.append(Limit(limit.epsilon, limit.delta, limit.order))
            self.catch_up()

    def admits(self, charge: Charge) -> bool:
        """Whether the limit leaves room for ``charge``, in place of an earlier one of its step."""
        earlier = self.charges.get(charge.step)
        if earlier is not None and earlier.further >= charge.further:
            return True
        if self._overdrawn:
            return False
        instead_of = None if earlier is None else earlier.event
        return self.filter is None or self.filter.allows(charge.event, instead_of=instead_of)

    def add(self, charge: Charge) -> None:
        """Count ``charge``, durably, before this returns.

        Raises:
            BudgetExceeded: it passes the limit, perhaps because of another task's at this moment.
        """
        if self.admits(charge) and not self.holds(charge):
            self._file.append(charge)
            self.catch_up()
        if not self.holds(charge):
            raise BudgetExceeded(
                f"version {charge.version} would pass the account's limit; nothing is sent"
            )

    def events(self) -> "Counter[SampledGaussian]":
        """How often each step was charged."""
        return +self._events

    def epsilon(self, delta: float) -> float:
        """Exact record-level ε at ``delta`` of all that was charged, one server corrupted.

        Against a malicious one where every charge's task checks norms by gates, else a curious one.

        Of a list that was fixed beforehand: where later tasks were chosen by earlier models, the
        filter's is the guarantee (docs/privacy-accounting.md).
        """
        return exact_epsilon(self.events(), delta)

    def holds(self, charge: Charge) -> bool:
        """Whether this is counted, or its step with a larger m."""
        held = self.charges.get(charge.step)
        return held is not None and held.further >= charge.further

    def _count(self, charge: Charge) -> None:
        earlier = self.charges.get(charge.step)
        if earlier is not None and earlier.further >= charge.further:
            return
        if self.filter is not None:
            self.filter.charge(charge.event, instead_of=None if earlier is None else earlier.event)
        if earlier is not None:
            self._events[earlier.event] -= 1
        self._events[charge.event] += 1
        self.charges[charge.step] = charge

    def under(self, limit: "RenyiLimit") -> "RenyiFilter":
        """A filter of ``limit`` with all charges. Raises BudgetExceeded: they pass it."""
        from precad.common.account.filter import RenyiFilter  # noqa: PLC0415

        found = RenyiFilter(limit)
        for event, count in self.events().items():
            found.charge(event.times(count))
        return found

    def _open(self, limit: Limit) -> None:
        # NumPy and SciPy load here: an owner without a limit, and without a question, does without.
        from precad.common.account.filter import RenyiLimit  # noqa: PLC0415

        self.limit = limit
        try:
            self.filter = self.under(RenyiLimit(limit.epsilon, limit.delta, limit.order))
        except BudgetExceeded:
            # Another task was charged while this limit was being written.
            self._overdrawn = True


class OwnAccount:
    """One task's part in the data set's account, and the owner's limit over all of them.

    Args:
        task: gives σ, δ and T.
        record_rate: p_i.
        epsilon_limit: the owner's limit of record-level ε with one server corrupted, for the sum
            over all tasks of the account; None for the account's own, if it has one.
        path: the account's file; None counts in memory.
        client: who takes part; may be left out where these records do so under one name.

    Raises:
        Misconfiguration: the limit doesn't allow a single round, or isn't the one that the
            account was opened with, or the file can't be read.
    """

    def __init__(
        self,
        task: Task,
        record_rate: float,
        epsilon_limit: float | None,
        path: Path | None,
        client: ClientId | None = None,
    ) -> None:
        self._task = task
        self._record_rate = record_rate
        self._client = "" if client is None else client.name
        self._account = Account(path)
        self.limit: RenyiLimit | None = None
        """What holds over all tasks; written into the account with its first charge."""
        if epsilon_limit is not None or self._account.limit is not None:
            self.limit = self._limit(epsilon_limit)

    @property
    def participations(self) -> int:
        """How many versions of this task this owner has shared an update for."""
        mine = (self._task.digest, self._client)
        return sum(step[:2] == mine for step in self._account.charges)

    @property
    def exhausted(self) -> bool:
        """Whether a further version of this task would pass the limit."""
        return not self.allows(-1)

    def charged(self, version: int, further: int = 0) -> bool:
        """Whether this version's update is counted, with this m or more, and may have left."""
        self._account.catch_up()
        return self._account.holds(self._charge(version, further))

    def allows(self, version: int, further: int = 0) -> bool:
        """Whether ``charge`` would count it."""
        self._account.catch_up()
        charge = self._charge(version, further)
        if self._account.limit is not None or self.limit is None:
            return self._own_limit_stands() and self._account.admits(charge)
        try:
            return self._account.under(self.limit).allows(charge.event)
        except BudgetExceeded:
            return False

    def rounds_left(self, most: int) -> int:
        """How many further versions of this task the limit leaves room for, up to ``most``."""
        if self.limit is None:
            return most
        self._account.catch_up()
        step, spent = self._charge(-1, 0).event, self._account.under(self.limit)
        low, high = 0, most + 1  # low fits, high doesn't
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if spent.allows(step.times(middle)) else (low, middle)
        return low

    def charge(self, version: int, further: int = 0) -> None:
        """Count this version's update, durably; what is counted already costs nothing.

        Args:
            version: t.
            further: m, the largest that a server signs for the attempt at hand. What was counted
                with a smaller one is counted with this one from now on.

        Raises:
            BudgetExceeded: the limit would be passed; nothing changed.
            StorageFailure: the account can't be written.
        """
        self._account.catch_up()
        if self._account.limit is None and self.limit is not None:
            self._account.open(self.limit)
        if not self._own_limit_stands():
            raise BudgetExceeded(
                "another task has opened this account with a higher limit since this process "
                "started; nothing is sent"
            )
        self._account.add(self._charge(version, further))

    def epsilon(self) -> float:
        """Exact record-level ε so far over all tasks, one server corrupted, at this task's δ."""
        self._account.catch_up()
        return self._account.epsilon(self._task.privacy.delta)

    def spent(self) -> "Counter[SampledGaussian]":
        """How often each step was charged over all tasks, as far as this process has read."""
        return self._account.events()

    def _own_limit_stands(self) -> bool:
        """Whether the account was opened with this owner's limit, or a stricter one."""
        own, opened = self.limit, self._account.limit
        return own is None or opened is None or opened.epsilon <= own.epsilon

    def _charge(self, version: int, further: int) -> Charge:
        privacy = self._task.privacy
        return Charge(
            task=self._task.digest,
            client=self._client,
            version=version,
            further=further,
            noise_multiplier=privacy.noise_multiplier,
            record_rate=self._record_rate,
            delta=privacy.delta,
            validation=self._task.validation,
        )

    def _limit(self, epsilon_limit: float | None) -> "RenyiLimit":
        """The account's limit, or the one that it will open with."""
        from precad.common.account.filter import RenyiFilter, RenyiLimit, order_for  # noqa: PLC0415

        opened, step = self._account.limit, self._charge(0, 0).event
        if opened is not None:
            if epsilon_limit not in (None, opened.epsilon):
                raise Misconfiguration(
                    "epsilon_limit",
                    epsilon_limit,
                    f"this account's limit was fixed at ε = {opened.epsilon:g}, δ = "
                    f"{opened.delta:g} when it opened, for all its tasks together; give that one, "
                    "or none",
                )
            limit = RenyiLimit(opened.epsilon, opened.delta, opened.order)
            if not RenyiFilter(limit).allows(step):
                raise self._too_low(limit.epsilon, limit.delta)
            return limit
        assert epsilon_limit is not None
        delta = self._task.privacy.delta
        checks.positive("epsilon_limit", epsilon_limit, "the limit of a data set's account")
        try:
            limit = order_for(epsilon_limit, delta, step)
        except Misconfiguration:
            raise self._too_low(epsilon_limit, delta) from None
        if not RenyiFilter(limit).allows(step):
            raise self._too_low(epsilon_limit, delta)
        try:
            self._account.under(limit)
        except BudgetExceeded:
            spent = self._account.epsilon(delta)
            raise Misconfiguration(
                "epsilon_limit",
                epsilon_limit,
                f"these records have spent ε = {spent:.3f} at δ = {delta:g} in earlier tasks, and "
                "more by the filter that enforces a limit; raise it or don't take part",
            ) from None
        return limit

    def _too_low(self, epsilon_limit: float, delta: float) -> Misconfiguration:
        one = exact_epsilon(Counter([self._charge(0, 0).event]), delta)
        return Misconfiguration(
            "epsilon_limit",
            epsilon_limit,
            f"a single round of this task costs ε = {one:.3f} exactly, and more by the filter that "
            "enforces a limit over tasks; raise the limit above it or don't take part",
        )


def exact_epsilon(events: "Counter[SampledGaussian]", delta: float) -> float:
    """Exact ε at ``delta`` of steps by how often each was taken."""
    from precad.common.account.exact import ExactAccountant  # noqa: PLC0415

    accountant = ExactAccountant()
    for event, count in events.items():
        accountant.compose(event.times(count))
    return accountant.epsilon(delta)
