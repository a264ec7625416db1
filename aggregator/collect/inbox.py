"""The submissions of the current attempt on one server.

Uploads come from many threads or tasks; the round's thread opens, waits and closes. One
client's bad upload is its own affair: it is counted with a reason and nobody else
notices.
"""

import math
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.upload import SUFFIX, Spool, SpooledBody, Upload
from precad.common.clock import CLOCK, Clock
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import DIGEST_BYTES, ClientId, Digest, Role
from precad.common.submission import Verifier
from precad.common.task import Task
from precad.norm_check.proof_submission import (
    SERVERS,
    AnySubmission,
    ProofHeader,
    ProofSubmission,
)


@dataclass(frozen=True, slots=True)
class Backlog:
    """How much lay here at once in one attempt, at most."""

    submissions: int = 0
    """That were whole, and that nobody had asked for."""
    spooled: int = 0
    """Bytes of bodies, all of which stay until the attempt's sum is made."""


@dataclass(slots=True, kw_only=True)
class _OpenAttempt:
    opened: Opened
    cohort: frozenset[ClientId]
    spool: Spool
    opening: Digest
    """o of this server: fresh, and in memory alone."""
    first: dict[ClientId, Digest] = field(default_factory=dict)
    """The whole digest of each client's first good header: it alone may come, and come
    again."""
    held: dict[ClientId, AnySubmission] = field(default_factory=dict)
    refused: dict[ClientId, Rejection] = field(default_factory=dict)
    awaited: set[ClientId] | None = None
    """Whom ``wait`` and ``over`` still expect, once they were asked; kept up to date,
    so that no arrival looks at everybody."""
    arrived: deque[AnySubmission] = field(default_factory=deque)
    """Held, and not asked for by ``arrivals`` yet."""
    most_arrived: int = 0
    closes: float = math.inf
    """An instant of the clock."""

    def settled(self, client: ClientId) -> bool:
        """Whether nothing more is expected of ``client`` in this round."""
        # TRUNCATED: a link broke, and the same bytes are on their way again. Whoever
        # sent something wrong is done.
        return client in self.held or self.refused.get(client) not in (
            None,
            Rejection.TRUNCATED,
        )

    def expect(self, clients: Collection[ClientId]) -> set[ClientId]:
        """Those of them who aren't settled: from now on they are awaited."""
        self.awaited = {client for client in clients if not self.settled(client)}
        return self.awaited


SPARE = 3.0
"""Attempts that a client may miss; then nobody waits for it."""
EARNED = 0.25
"""What each attempt that it sends for gives back."""
_LATE = 2
"""Attempts for which who sends is heard: the newest, and the one before, too late."""


class Patience:
    """Whom a server waits for: who is missing again and again isn't, and counts when it comes.

    Whoever stays away costs the others one round in five at most. An owner that came
    back and is slower than the others comes too late until it is waited for again: what
    it sends then counts here. No record has a part in it (docs/protocol.md, "Waiting").
    """

    def __init__(self) -> None:
        self._left: dict[ClientId, float] = {}
        self._cohorts: dict[int, set[ClientId]] = {}
        """Of the newest attempts, who hasn't sent for them."""

    def open(self, attempt: int, cohort: Collection[ClientId]) -> None:
        """These are expected to send."""
        self._cohorts[attempt] = set(cohort)
        for old in sorted(self._cohorts)[:-_LATE]:
            del self._cohorts[old]

    def sends(self, client: ClientId, attempt: int) -> None:
        """Note a header, whatever becomes of it."""
        if client in (cohort := self._cohorts.get(attempt, set())):
            cohort.discard(client)
            self._left[client] = min(SPARE, self._left.get(client, SPARE) + EARNED)

    def missed(self, client: ClientId) -> None:
        """Note that nothing whole came in time; of who wasn't waited for that says nothing."""
        if self.waits_for(client):
            self._left[client] = self._left.get(client, SPARE) - 1

    def waits_for(self, client: ClientId) -> bool:
        """Return whether this client is worth waiting for."""
        return self._left.get(client, SPARE) >= 1


class Inbox:
    """Collects one server's submissions, round after round; bodies lie in the folder ``spool``."""

    def __init__(
        self,
        role: Role,
        task: Task,
        verifier: Verifier,
        spool: Path,
        clock: Clock = CLOCK,
    ) -> None:
        self.verifier = verifier
        self._role = role
        self._task = task
        self._spool = spool
        self._clock = clock
        self._changed = clock.condition()
        self._round: _OpenAttempt | None = None
        self._closed: _OpenAttempt | None = None
        self._patience = Patience()
        self.backlog = Backlog()
        """Of the attempt whose collection closed last."""
        spool.mkdir(parents=True, exist_ok=True)
        for left_over in spool.glob(f"*{SUFFIX}"):
            left_over.unlink()

    @property
    def opened(self) -> Opened | None:
        """The attempt that is open."""
        with self._changed:
            return None if self._round is None else self._round.opened

    def open(self, opened: Opened) -> None:
        """Take submissions for an attempt that both servers opened."""
        cohort = frozenset(opened.cohort)
        opening = Digest(secrets.token_bytes(DIGEST_BYTES))
        with self._changed:
            self._round = _OpenAttempt(
                opened=opened,
                cohort=cohort,
                spool=Spool(self._spool),
                opening=opening,
            )
            self._patience.open(opened.attempt, opened.cohort)
            self._changed.notify_all()

    def proof_opening(
        self, attempt: int, client: ClientId
    ) -> tuple[Digest, Role] | None:
        """This server's o and who gets this client's seed; None: not open, or without proofs."""
        with self._changed:
            current = self._round
            if current is None or current.opened.attempt != attempt:
                return None
            holder = current.opened.seed_holders.get(client)
            return None if holder is None else (current.opening, holder)

    def start(self, submission: AnySubmission) -> Upload:
        """Check all that stands in a header and take the body that follows it.

        The header fixes the submission, so the first good one is the client's only one,
        also while its body is on the way. The same again is a retry, and welcome.

        Raises RejectedSubmission: counted for the client where it is in the cohort.
        """
        context = submission.context
        at = context.attempt, context.client
        if context.task != self._task.digest:
            # Counted nowhere: it isn't about this task.
            why = (
                f"submission is for task {context.task}, this server runs"
                f" {self._task.digest}"
            )
            raise RejectedSubmission(Rejection.WRONG_TASK, why)
        with self._changed:
            self._patience.sends(context.client, context.attempt)
            current = self._current(*at)
        try:
            self._check(submission, current)
            with self._changed:
                first = self._current(*at).first
                own = submission.header.whole_digest
                if first.setdefault(context.client, own) != own:
                    raise RejectedSubmission(
                        Rejection.DUPLICATE,
                        f"client {context.client} already sent another submission in"
                        f" attempt {context.attempt}; the first one counts",
                    )
            return Upload(submission, self._task, current.spool, self._accept)
        except RejectedSubmission as rejected:
            self.refuse(*at, rejected.reason)
            raise

    def refuse(self, attempt: int, client: ClientId, reason: Rejection) -> None:
        """Count a rejection found outside (an upload that broke off, an unreadable header)."""
        with self._changed:
            current = self._round
            if (
                not current
                or current.opened.attempt != attempt
                or client not in current.cohort
            ):
                return
            # A second one doesn't count, and costs the first nothing: its body may be
            # on the way.
            if reason is not Rejection.DUPLICATE:
                current.refused.setdefault(client, reason)
                self._no_longer_awaited(current, client)

    def wait(self, clients: Collection[ClientId], deadline: float) -> None:
        """Wait for those for whom ``over`` waits to be held or refused, or for that instant."""
        with self._changed:
            current = self._require_open()
            awaited = current.expect(
                [each for each in clients if self._waits_for(current, each)]
            )
            while awaited and (remaining := deadline - self._clock.now()) > 0:
                self._changed.wait(remaining)

    def over(
        self, clients: Collection[ClientId], gone: Callable[[ClientId], bool]
    ) -> bool:
        """Whether every one of ``clients``, the same in every call, is held, refused or ``gone``.

        One that was refused may still mend its upload while the attempt is open, but
        nobody waits for it: else one bad client would hold up every round. Nor for who
        is missing again and again (``Patience``), unless nobody came at all: then all
        are waited for. ``gone`` is asked about somebody unless everybody is settled: a
        server looks for a dead link in it.
        """
        with self._changed:
            current = self._require_open()
            awaited = (
                current.expect(clients) if current.awaited is None else current.awaited
            )
            return all(
                gone(client) or not self._waits_for(current, client)
                for client in awaited
            )

    def close_at(self, deadline: float) -> None:
        """Take nothing more from that instant on, whatever the round's thread is busy with."""
        with self._changed:
            self._require_open().closes = deadline

    def wait_arrival(self, seconds: float) -> None:
        """Wait so long for something that ``arrivals`` hasn't given yet."""
        deadline = self._clock.now() + seconds
        with self._changed:
            current = self._require_open()
            while (
                not current.arrived and (remaining := deadline - self._clock.now()) > 0
            ):
                self._changed.wait(remaining)

    def arrivals(self, most: int | None = None) -> list[AnySubmission]:
        """What has come to be held since the last call, in order; the rest waits for the next."""
        with self._changed:
            arrived = self._require_open().arrived
            count = len(arrived) if most is None else min(most, len(arrived))
            return [arrived.popleft() for _ in range(count)]

    def close(self) -> Mapping[ClientId, AnySubmission | Rejection]:
        """End the attempt's collection: for each client of the cohort what is held, or why not."""
        with self._changed:
            current = self._require_open()
            self._round = None
            self._closed = current
            # Where nobody's came, an outage kept them away: nobody is less waited for
            # after it.
            for client in current.cohort if current.held else ():
                if not current.settled(client):
                    self._patience.missed(client)
            bodies = (each.body for each in current.held.values())
            spooled = sum(
                body.length for body in bodies if isinstance(body, SpooledBody)
            )
            self.backlog = Backlog(current.most_arrived, spooled)
            return {
                client: (
                    current.held.get(client)
                    or current.refused.get(client, Rejection.ABSENT)
                )
                for client in sorted(current.cohort)
            }

    def cancel(self) -> None:
        """Drop what the open attempt holds, and the one that was closed last."""
        with self._changed:
            for each in (self._round, self._closed):
                for held in () if each is None else each.held.values():
                    held.discard()
            self._round = self._closed = None
            self._changed.notify_all()

    def _waits_for(self, current: _OpenAttempt, client: ClientId) -> bool:
        return not current.held or self._patience.waits_for(client)

    def _accept(self, held: AnySubmission) -> None:
        client = held.context.client
        with self._changed:
            current = self._current(held.context.attempt, client)
            if client in current.held:
                # The same bytes again: a retry, already counted.
                held.discard()
                return
            current.held[client] = held
            current.arrived.append(held)
            current.most_arrived = max(current.most_arrived, len(current.arrived))
            self._changed.notify_all()
            self._no_longer_awaited(current, client)

    def _check(self, submission: AnySubmission, current: _OpenAttempt) -> None:
        header = submission.header
        context = submission.context
        opened = current.opened
        if context.version != opened.version:
            there = f"attempt {opened.attempt} is of version {opened.version}"
            why = f"submission is for version {context.version}, {there}"
            raise RejectedSubmission(Rejection.WRONG_ATTEMPT, why)
        if context.model != opened.model:
            there = (
                f"attempt {opened.attempt} has {opened.model}; fetch the model again"
            )
            why = f"trained on model {context.model}, {there}"
            raise RejectedSubmission(Rejection.WRONG_MODEL, why)
        if isinstance(submission, ProofSubmission) != (self._task.proof is not None):
            check = self._task.validation
            why = (
                f"the header is of another check: this task has validation = {check!r}"
            )
            raise RejectedSubmission(Rejection.MALFORMED, why)
        if isinstance(header, ProofHeader):
            if header.openings[SERVERS.index(self._role)] != current.opening:
                why = "the header is of another opening of this attempt"
                raise RejectedSubmission(Rejection.WRONG_ATTEMPT, why)
            if header.seed_holder is not opened.seed_holders.get(context.client):
                why = "the seed came to the server that gets this client's body"
                raise RejectedSubmission(Rejection.MALFORMED, why)
        self.verifier.admit(header.signature, context.client)
        self.verifier.check(header.signature, header.signed)
        if not submission.opens:
            why = (
                f"seed and salt don't open the commitment to {self._role.value}'s seed"
            )
            raise RejectedSubmission(Rejection.MALFORMED, why)

    def _no_longer_awaited(self, current: _OpenAttempt, client: ClientId) -> None:
        if current.awaited is not None and current.settled(client):
            current.awaited.discard(client)
            if not current.awaited:
                self._changed.notify_all()

    def _current(self, attempt: int, client: ClientId) -> _OpenAttempt:
        current = self._round
        if current is None or current.opened.attempt != attempt:
            state = (
                "no attempt" if current is None else f"attempt {current.opened.attempt}"
            )
            why = f"submission is for attempt {attempt}, {state} is open"
            raise RejectedSubmission(Rejection.WRONG_ATTEMPT, why)
        if self._clock.now() >= current.closes:
            why = f"attempt {attempt} takes no submissions any more"
            raise RejectedSubmission(Rejection.WRONG_ATTEMPT, why)
        if client not in current.cohort:
            why = f"client {client} isn't in attempt {attempt}'s cohort"
            raise RejectedSubmission(Rejection.NOT_SELECTED, why)
        return current

    def _require_open(self) -> _OpenAttempt:
        if self._round is None:
            raise AssertionError("no attempt is open")
        return self._round
