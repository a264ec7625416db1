"""The owner's own account: what its records have spent, whatever the servers say.

It is one task's part in the data set's account (``data_set_account``), which is over
all tasks that the records ever took part in.
"""

from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

from precad.accounting import (
    Adversary,
    RenyiLimit,
    Run,
    SampledGaussian,
    Steps,
    exact_epsilon,
    order_for,
    planned_participations,
)
from precad.client.account_file import (
    AccountCharge,
    Covered,
    Limit,
    RaisedLimit,
    RaisedWholeLimit,
    WholeLimit,
)
from precad.client.account_plan import PlanLimit
from precad.client.data_set_account import Account
from precad.common import BudgetExceeded, ClientId, Misconfiguration, Task, checks

_MOST_HUNDREDTHS = 2**20
"""No limit that ``OwnAccount.ample`` tries has more hundredths of ε."""


class OwnAccount:
    """One task's part in the data set's account, and the owner's limit over all tasks.

    Args:
        task: gives σ, δ and T.
        record_rate: p_i, the rate at which units are sampled.
        epsilon_limit: limit of a unit's ε with one server corrupted, for the sum
            over all tasks; None for the account's own, if it has one.
        path: the account's file; None counts in memory.
        client: the owner's name in this task; may be left out where these records
            never have another name.
        raise_limit: whether a limit above the account's takes its place, with the next
            charge.
        plan: the file of a plan that the account opens with, before anything is
            charged; None for the account's own, if it has one.

    Raises Misconfiguration, as do all methods that ask for a charge: these records take
    part in this task under another name. Raises it too where the limit doesn't allow a
    single round, or isn't the account's own, or the file can't be read; or where the
    account's tasks protect another unit.
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
        plan: Path | None = None,
    ) -> None:
        """Read the account, and the limit or the plan that it opens with."""
        self._task = task
        self._record_rate = record_rate
        self._client = "" if client is None else client.name
        self._account = Account(path)
        self._read()
        self.limit = self._limit(
            epsilon_limit,
            raise_limit=raise_limit,
            plan=None if plan is None else PlanLimit.load(plan),
        )
        """What holds over all tasks; written into the account with its first charge."""

    def _read(self) -> None:
        """Read what was appended since; refuse a second name in this task."""
        self._account.catch_up()
        unit = self._task.mechanism.unit
        earlier = self._account.unit
        if earlier is not None and earlier != unit:
            raise Misconfiguration(
                "account",
                f"of tasks that protect {earlier.one}",
                f"this task protects {unit.one}, and their ε don't add up: these records"
                " take part in tasks of one unit alone",
            )
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
        """Return how many versions of this task this owner has shared an update for."""
        return sum(map(self._is_own, self._account.charges.values()))

    def took_part(self, digest: str) -> bool:
        """Return whether these records took part in the task of this digest."""
        return digest in map(str, self._account.names)

    def _is_own(self, entry: AccountCharge | Covered) -> bool:
        """Return whether an entry is of this task, under this owner's name in it."""
        return entry.task == self._task.digest and entry.client == self._client

    def charged(self, version: int, re_releases: int = 0) -> bool:
        """Return whether this version's update is counted, and may have left.

        It is counted with m = ``re_releases`` or more.
        """
        self._read()
        return self._account.holds(self._charge(version, re_releases))

    def allows(self, version: int, re_releases: int = 0) -> bool:
        """Return whether ``charge`` would count this version's update."""
        self._read()
        charge = self._charge(version, re_releases)
        if not self._own_limit_admits(charge):
            return False
        opens = self.limit is not None and self._account.takes(self.limit)
        return opens or self._account.admits(charge)

    def rounds_left(self, most: int) -> int:
        """Return how many further versions of this task the limit has room for.

        At most ``most``, which is also the answer where there is no limit.
        """
        if self.limit is None:
            return most
        self._account.catch_up()
        return self._rounds_under(self.limit, most)

    def is_used_up(self) -> bool:
        """Return whether the limit has ended this task before its last round."""
        return not self.rounds_left(1) and self.participations < self.planned()

    def charge(self, version: int, re_releases: int = 0) -> None:
        """Count this version's update, durably; what is counted already costs nothing.

        ``re_releases`` is m, the largest that a server signs for this attempt. What was
        counted with a smaller one is counted with this one from now on.

        Raises BudgetExceeded: the limit would be passed; nothing changed. Raises
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
        """Write, durably, that zeros are sent for this version, nothing of the records.

        Servers may charge such a version.

        Raises StorageFailure: the account can't be written.
        """
        self._account.cover(Covered(self._task.digest, self._client, version))

    def lacks(self, counts: Sequence[int]) -> bool:
        """Return whether a server charged more than this account.

        ``counts[m]`` is the number of versions that the server charged with m further
        releases or more.
        """
        known = self._known().values()
        return any(
            sum(own_m >= m for own_m in known) < count for m, count in enumerate(counts)
        )

    def adopt(self, counts: Sequence[int], versions: int) -> None:
        """Charge, durably, what both servers signed and this account lacks.

        The account is an older copy then, or there is another one. ``counts`` are as in
        ``lacks``, over the first ``versions`` versions, which are released. Which of
        them were charged isn't said, nor does it matter: those that aren't charged are
        over, and nothing is shared for them any more.

        Raises Misconfiguration: the account's limit has no room for them. Raises
        StorageFailure: the account can't be written.
        """
        known = self._known()
        # From the largest m down: a version that is charged with it counts for every
        # smaller m, too.
        for m in reversed(range(len(counts))):
            lower = [
                version for version in range(versions) if known.get(version, -1) < m
            ]
            # Those charged with the largest m first: least is added to them.
            lower.sort(key=lambda version: -known.get(version, -1))
            lacking = counts[m] - sum(own_m >= m for own_m in known.values())
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
        """Return m of each version of this task that a server may have charged."""
        self._account.catch_up()
        return self._account.known[self._task.digest, self._client].copy()

    def epsilon(self) -> float:
        """Return a unit's exact ε so far over all tasks, at this task's δ.

        One server is curious; see ``Account.epsilon``.
        """
        self._account.catch_up()
        return self._account.epsilon(self._task.privacy.delta)

    def spent(self) -> Steps:
        """Return how often each step was charged over all tasks.

        As far as this process has read the account.
        """
        return self._account.events()

    def _own_limit_admits(self, charge: AccountCharge) -> bool:
        """Return whether the limit that this process was started with admits a charge.

        It is asked only where it is stricter than the account's, which another process
        may have raised.
        """
        limit = self.limit
        if limit is None or self._account.holds(charge):
            return True
        of_account = self._account.limit
        if (
            of_account is not None
            and of_account.epsilon <= limit.epsilon
            and not self._account.takes(limit)
        ):
            return True
        return self._account.fits(charge, limit)

    def _charge(self, version: int = 0, re_releases: int = 0) -> AccountCharge:
        """Return what one version costs, as the task's mechanism says it.

        Unless given, it is any one version, released once.
        """
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
            unit=run.unit,
            owners=step.owners,
        )

    @property
    def _step(self) -> SampledGaussian:
        """Return the event of any one version of this task, released once."""
        return self._charge().event

    def _limit(
        self,
        epsilon_limit: float | None,
        *,
        raise_limit: bool,
        plan: PlanLimit | None,
    ) -> Limit | None:
        """Return the account's limit, or the one that it opens with or is raised to.

        None where there is none. The arguments are those of the class.

        Raises Misconfiguration: the limit isn't the account's, or leaves no room for
        this task.
        """
        opened = self._account.limit
        if plan not in (None, opened) and (opened is not None or self._account.charges):
            raise Misconfiguration(
                "plan",
                "another" if isinstance(opened, PlanLimit) else "new",
                "isn't this account's: a plan is fixed when an account opens, before"
                " anything is charged; leave it out, or give records that have an"
                " account of their own",
            )
        plan = plan or (opened if isinstance(opened, PlanLimit) else None)
        if plan is not None:
            kept = epsilon_limit is None or epsilon_limit >= plan.epsilon
            if raise_limit or not kept:
                raise Misconfiguration(
                    "epsilon_limit",
                    epsilon_limit,
                    f"this account's plan is one of ε = {plan.epsilon:g}, fixed when it"
                    " opened: give that or more, or none, and no --raise-limit",
                )
            step = self._step
            if not plan.holds(Steps([step])):
                raise Misconfiguration(
                    "plan",
                    f"purse {plan.plan.purse:g}, {len(plan.plan.training)} trainings",
                    f"has no round with σ = {step.noise_multiplier:g}, p ="
                    f" {step.rate:g}: take a task with more noise or a smaller p, or"
                    " records that have an account of their own",
                )
            return plan
        if opened is None:
            if epsilon_limit is None:
                return None
            return self._new_limit(epsilon_limit, self._task.privacy.delta)
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
            if not opened.covers(self._charge()):
                raise Misconfiguration(
                    "epsilon_limit",
                    opened.epsilon,
                    f"all of it went to task {str(opened.task)[:8]}…, which these"
                    f" records joined as {opened.client or 'its client'} at a rate of"
                    f" {opened.record_rate:g}: they take part in nothing else; give"
                    " records that have an account of their own, and open an account"
                    " with a plan to do several things",
                )
        elif not opened.holds(Steps([self._step])):
            raise self._too_low(opened.epsilon, opened.delta)
        return opened

    def _new_limit(
        self,
        epsilon_limit: float,
        delta: float,
        opened: Limit | None = None,
    ) -> Limit:
        """Return a new limit: a filter's over all tasks, or this task's alone.

        It is this task's alone where a filter would end the task early and its exact ε
        has room for more rounds of it, if not for all. That is decided by parameters,
        before anything is sent under it. ``opened`` is the limit that this one
        replaces.

        Raises Misconfiguration: the limit leaves no room for a single round, or these
        records have spent it.
        """
        checks.positive(
            "epsilon_limit", epsilon_limit, "the limit of a data set's account"
        )
        charge = self._charge()
        limit = None
        with suppress(Misconfiguration):  # where a filter leaves nothing to spend
            limit = order_for(epsilon_limit, delta, charge.event)
            if isinstance(opened, RenyiLimit):
                # An order never changes: another one later would be a choice too.
                limit = replace(limit, order=opened.order)
        rounds = max(1, self.planned() - self.participations)
        by_filter = 0 if limit is None else self._rounds_under(limit, rounds)
        if by_filter < rounds:
            whole = WholeLimit(
                epsilon=epsilon_limit,
                delta=delta,
                task=charge.task,
                client=charge.client,
                noise_multiplier=charge.noise_multiplier,
                record_rate=charge.record_rate,
            )
            if self._rounds_under(whole, rounds) > by_filter:
                return whole
        if limit is None or not limit.holds(Steps([charge.event])):
            raise self._too_low(epsilon_limit, delta)
        if not self._account.has_room(limit, Steps()):
            spent = self._account.epsilon(delta)
            raise Misconfiguration(
                "epsilon_limit",
                epsilon_limit,
                f"these records have spent ε = {spent:.3f} at δ = {delta:g} in earlier"
                " tasks, and more by the filter that enforces a limit; raise it or"
                " don't take part",
            )
        return limit

    def planned(self) -> int:
        """Return how many rounds of this task a client is drawn for at most.

        That holds with a probability of .999 or more.
        """
        mechanism = self._task.mechanism
        if mechanism.owner_rate == 1:
            return mechanism.releases
        return planned_participations(mechanism.owner_rate, mechanism.releases)

    def _rounds_under(self, limit: Limit, most: int) -> int:
        """Return how many further rounds of this task a limit has room for.

        At most ``most``; 0 where what was charged passes the limit.
        """
        step = self._step
        return bisect_left(
            range(1, most + 1),
            x=True,
            key=lambda rounds: not self._account.has_room(limit, Steps({step: rounds})),
        )

    def _too_low(self, epsilon_limit: float, delta: float) -> Misconfiguration:
        """Return the error for a limit that doesn't allow a single round."""
        of_one_round = exact_epsilon(Steps([self._step]), delta)
        return Misconfiguration(
            "epsilon_limit",
            epsilon_limit,
            f"a single round of this task costs ε = {of_one_round:.3f} exactly, and"
            " more by the filter that enforces a limit over tasks; raise the limit"
            " above it, open an account with a plan or don't take part",
        )

    def to_go_on(self) -> str:
        """Say what lets this task go on where the limit ends it early."""
        if isinstance(self.limit, PlanLimit):
            return "its account's plan has no more: only other records can take part"
        return (
            "to go on, set a higher epsilon_limit and start again with --raise-limit; an"
            " account that opens with a plan has more room for several tasks"
        )

    def whole_task(self) -> bool:
        """Return whether the limit goes to this task alone, by its exact ε."""
        return isinstance(self.limit, WholeLimit)

    def ample(self) -> float:
        """Return the lowest limit of ε under whose filter this task lasts to its end.

        It has two digits after the point. Room for other tasks is left under it only as
        far as the filter then still admits them.
        """
        step = self._step
        delta = self._task.privacy.delta
        all_rounds = Steps({step: self.planned()})

        def enough(hundredths: int) -> bool:
            try:
                limit = order_for(hundredths / 100, delta, step)
            except Misconfiguration:
                return False
            return limit.holds(all_rounds)

        too_low = bisect_left(range(1, _MOST_HUNDREDTHS), x=True, key=enough)
        return (1 + too_low) / 100
