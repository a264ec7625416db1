"""Enrolments before round 0."""

import contextlib

from precad.aggregator.enrol.admission import Admission
from precad.aggregator.rounds.privacy_cap import PrivacyCap
from precad.aggregator.store import Store
from precad.common.clock import CLOCK, Clock
from precad.common.errors import AccessDenied, Misconfiguration
from precad.common.identifiers import ClientId, Role
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task


class Register:
    """Takes enrolments until the roster is frozen."""

    def __init__(
        self,
        task: Task,
        store: Store,
        admission: Admission | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        self._task = task
        self.kept = store.enrolment
        self._clock = clock
        self._admission = admission or Admission()
        self._changed = clock.condition()
        self.cap = PrivacyCap(task, clock)
        frozen = self.kept.roster()
        self.frozen = frozen is not None
        """Whether round 0 may begin."""
        self._enrolments: dict[ClientId, Enrolment] = dict(frozen or self.kept.claims())
        self._serve_first: dict[ClientId, Role] = {}

    def enrol(self, enrolment: Enrolment, token: str = "") -> int:
        """Add a client; the same claim again is confirmed.

        Returns how many are enrolled.

        Takes seconds where a rate is the first of its kind: rounds find its account
        ready. Raises AccessDenied: not on the operator's roster, or without a good
        token; Misconfiguration: a cap is passed, the rate has no account, the claim
        differs from the first, the task is full, or enrolment is over.
        """
        if self.admits(enrolment, token):
            self.cap.precompute(enrolment.record_rate)
        with self._changed:
            # Again: others may have come meanwhile.
            if self.admits(enrolment, token):
                # A token isn't spent on a claim that is refused for something else.
                self._admission.redeem(token, enrolment.client)
                kept = self.kept.claim(enrolment)
                self._enrolments[kept.client] = kept
                self._changed.notify_all()
                # Another one where the database's answer to an earlier claim was lost.
                self.admits(enrolment, token)
            return len(self._enrolments)

    def admits(self, enrolment: Enrolment, token: str) -> bool:
        """Return whether the claim would be taken, but for its account; raises as ``enrol``.

        False where it was taken. Asked before an account of it is computed: that takes
        seconds, and who has no token gets none.
        """
        enrolment.check(self._task)
        known = self._enrolments.get(enrolment.client)
        if known == enrolment:
            return False
        name = enrolment.client.name
        most = self._task.enrolment.clients
        if known is not None:
            said = f"{enrolment.records} records at rate {enrolment.record_rate}"
            kept = (
                f"{known.records} records at rate {known.record_rate}; claims are"
                " frozen"
            )
            raise Misconfiguration(
                "enrolment", said, f"client {name} is enrolled with {kept}"
            )
        if self.frozen:
            raise Misconfiguration(
                "client", name, "enrolment ended before round 0; too late"
            )
        if len(self._enrolments) >= most:
            raise Misconfiguration(
                "client", name, f"the task is full: enrolment.clients = {most}"
            )
        self._admission.foresee(enrolment.client, token, enrolment)
        return True

    def prepare_accounts(self) -> None:
        """Compute what rounds will ask of those enrolled, before the first; seconds.

        An account that can't be computed is logged, and that client doesn't count.
        """
        rates = {claim.record_rate for claim in self.roster().values()}
        for rate in sorted({self._task.privacy.record_rate} | rates, reverse=True):
            with contextlib.suppress(Misconfiguration):
                self.cap.precompute(rate)

    def wait_for(self, enough: int, deadline: float) -> None:
        """Wait until ``enough`` clients are enrolled, or until ``deadline``."""
        with self._changed:
            while (
                len(self._enrolments) < enough
                and (left := deadline - self._clock.now()) > 0
            ):
                self._changed.wait(left)

    def missing(self) -> list[ClientId]:
        """Who isn't enrolled of those that the operator let in by name."""
        if self.frozen:
            return []
        return [
            each for each in self._admission.invited() if each not in self._enrolments
        ]

    def unused_tokens(self) -> int:
        """How many may still come of whom the operator has no name."""
        return 0 if self.frozen else self._admission.unused_tokens()

    def roster(self) -> Roster:
        """Everybody enrolled so far."""
        with self._changed:
            return Roster(self._enrolments)

    def serves_first(self, client: ClientId) -> Role:
        """Which server a client fetches models from first; for strangers it is A."""
        # Without the lock, and looked up once: every notice says it.
        if self.frozen and not self._serve_first:
            self._serve_first = Roster(self._enrolments).seed_holders(self._task.digest)
        return self._serve_first.get(client, Role.SERVER_A)

    def foresee(self, client: ClientId, token: str) -> str:
        """Why a claim of this client would be refused now, whatever it says; empty otherwise."""
        # Without the lock: it is a forecast, and enrolling asks again.
        if client in self._enrolments or self.frozen:
            return ""
        try:
            self._admission.foresee(client, token)
        except AccessDenied as error:
            return error.detail
        return ""

    def has(self, client: ClientId) -> bool:
        """Whether it is enrolled.

        Without the lock, which is held while a disk writes.
        """
        return client in self._enrolments

    def freeze(self, roster: Roster, *, taken_back: bool = False) -> None:
        """No further enrolment; ``roster`` is final. Taken back: claims of it may be lost here."""
        with self._changed:
            self.kept.freeze(roster, taken_back=taken_back)
            self._enrolments = dict(roster)
            self.frozen = True
        if taken_back:
            # Claims that were lost had their accounts computed by an older process.
            self.prepare_accounts()
