"""Take enrolments, until the roster is frozen before version 0."""

import contextlib

from precad.aggregator.enrol import Admission
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.store import Store
from precad.common import (
    CLOCK,
    AccessDenied,
    ClientId,
    Clock,
    Enrolment,
    Misconfiguration,
    Role,
    Roster,
    Task,
    log,
)


class Register:
    """Hold the enrolled clients and their claims; take more until the roster is frozen.

    All methods may be called from any thread. An enrolment is durable before it counts.
    """

    def __init__(
        self,
        task: Task,
        store: Store,
        admission: Admission | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        self.task = task
        self.kept = store.enrolment
        """What the database keeps of enrolments."""
        self._clock = clock
        self._admission = admission or Admission()
        self._changed = clock.condition()
        self.cap = PrivacyCap(task)
        frozen_roster = self.kept.roster()
        self.frozen = frozen_roster is not None
        """Whether the roster is frozen, so that version 0 may begin."""
        enrolments = frozen_roster or self.kept.claims()
        self._enrolments: dict[ClientId, Enrolment] = dict(enrolments)
        self._serve_first: dict[ClientId, Role] = {}

    def enrol(self, enrolment: Enrolment, token: str = "") -> int:
        """Add a client, or confirm the same claim again; return how many are enrolled.

        It takes seconds where a rate is the first of its kind: its account is computed,
        and rounds find it ready.

        Raises AccessDenied: the client isn't on the operator's roster, or brings no
        good token; Misconfiguration: the claim passes a cap, the rate has no account,
        the claim differs from the first one, the task is full, or enrolment is over;
        StorageFailure: the database fails.
        """
        if self.admits(enrolment, token):
            self.cap.precompute(enrolment.record_rate)
        with self._changed:
            # Asked again: others may have come meanwhile.
            if self.admits(enrolment, token):
                # Only now: a token isn't spent on a claim that is refused for something
                # else.
                self._admission.redeem(token, enrolment.client)
                kept = self.kept.claim(enrolment)
                self._enrolments[kept.client] = kept
                self._changed.notify_all()
                # Refuses this claim where another one is kept: the database's answer
                # to an earlier claim was lost.
                self.admits(enrolment, token)
            return len(self._enrolments)

    def admits(self, enrolment: Enrolment, token: str) -> bool:
        """Return whether a claim would be added, apart from its account.

        False where this claim was taken already. It is asked before an account is
        computed: that takes seconds, and who has no token gets none. Raises as
        ``enrol``.
        """
        enrolment.check(self.task)
        known = self._enrolments.get(enrolment.client)
        if known == enrolment:
            return False
        name = enrolment.client.name
        most_clients = self.task.enrolment.clients
        if known is not None:
            units = self.task.mechanism.claimed.plural
            raise Misconfiguration(
                "enrolment",
                f"{enrolment.records} {units} at rate {enrolment.record_rate}",
                f"client {name} is enrolled with {known.records} {units} at rate"
                f" {known.record_rate}; claims are frozen",
            )
        if self.frozen:
            raise Misconfiguration(
                "client", name, "enrolment ended before round 0; too late"
            )
        if len(self._enrolments) >= most_clients:
            raise Misconfiguration(
                "client", name, f"the task is full: enrolment.clients = {most_clients}"
            )
        self._admission.foresee(enrolment.client, token, enrolment)
        return True

    def prepare_accounts(self) -> None:
        """Compute what rounds will ask of those enrolled; it takes seconds.

        It is called before the first round. An account that can't be computed is
        logged, and its client doesn't count.
        """
        claimed_rates = {claim.record_rate for claim in self.roster().values()}
        rates = claimed_rates | {self.task.mechanism.unit_rate}
        for rate in sorted(rates, reverse=True):
            with contextlib.suppress(Misconfiguration):
                self.cap.precompute(rate)

    def wait_for(self, enough: int, deadline: float) -> None:
        """Wait until ``enough`` clients are enrolled, or until ``deadline``."""
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._enrolments) >= enough,
                max(0.0, deadline - self._clock.now()),
            )

    def missing(self) -> list[ClientId]:
        """Return whom the operator let in by name and who isn't enrolled yet."""
        if self.frozen:
            return []
        return [
            client
            for client in self._admission.invited()
            if client not in self._enrolments
        ]

    def unused_tokens(self) -> int:
        """Return how many clients may still come whom the operator has no name of."""
        return 0 if self.frozen else self._admission.unused_tokens()

    def roster(self) -> Roster:
        """Return everybody enrolled so far."""
        with self._changed:
            return Roster(self._enrolments)

    def off_plan(self) -> str:
        """Return in words how far the frozen roster is from what the task plans for.

        Empty where it is near, and until it is frozen.
        """
        enrolled = self.roster().values()
        return self.task.mechanism.off_plan(enrolled) if self.frozen else ""

    def serves_first(self, client: ClientId) -> Role:
        """Return which server a client fetches models from first; for strangers A."""
        # Without the lock, and computed once: every notice says it.
        if self.frozen and not self._serve_first:
            self._serve_first = Roster(self._enrolments).seed_holders(self.task.digest)
        return self._serve_first.get(client, Role.SERVER_A)

    def foresee(self, client: ClientId, token: str) -> str:
        """Return why any claim of this client would be refused now.

        Empty where a claim may be taken.
        """
        # Without the lock: it is a forecast, and enrolling asks again.
        if client in self._enrolments or self.frozen:
            return ""
        try:
            self._admission.foresee(client, token)
        except AccessDenied as error:
            return error.detail
        return ""

    def has(self, client: ClientId) -> bool:
        """Return whether a client is enrolled.

        It takes no lock: the lock is held while the disk writes.
        """
        return client in self._enrolments

    def freeze(self, roster: Roster, *, taken_back: bool = False) -> None:
        """End enrolment, durably, with ``roster`` as the final one.

        ``taken_back``: this server had lost it, and may have lost claims of it too.

        Raises StorageFailure: the database fails.
        """
        with self._changed:
            known = self.frozen
            self.kept.freeze(roster, taken_back=taken_back)
            self._enrolments = dict(roster)
            self.frozen = True
        off_plan = self.off_plan()
        # Each link to the other server freezes the same roster.
        if off_plan and not known:
            log.warning("%s", off_plan)
        if taken_back:
            # An older process computed the accounts of claims that were lost here.
            self.prepare_accounts()
