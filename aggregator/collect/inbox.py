"""Hold the submissions of the current attempt on one server.

Uploads come from many threads or tasks; the training's thread opens the inbox, waits
and closes it. One client's bad upload is its own affair: it is counted with a reason,
and nobody else notices.
"""

import math
import secrets
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from precad.aggregator import Opened
from precad.aggregator.collect import SUFFIX, Spool, SpooledBody, Upload
from precad.common import (
    CLOCK,
    DIGEST_BYTES,
    SERVERS,
    ClientId,
    Clock,
    Digest,
    RejectedSubmission,
    Rejection,
    Role,
    Task,
    Verifier,
    frozen_dataclass,
)
from precad.norm_check import AnySubmission, ProofHeader, ProofSubmission


@frozen_dataclass
class Backlog:
    """Say how much lay on this server at once in one attempt, at most."""

    submissions: int = 0
    """Submissions that were whole, and that nobody had asked for yet."""
    spooled: int = 0
    """Bytes of bodies; all of them stay until the attempt's sum is made."""


@dataclass(slots=True, kw_only=True)
class _OpenAttempt:
    """What the inbox knows of one attempt while its collection is open."""

    opened: Opened
    cohort: frozenset[ClientId]
    asleep: set[ClientId]
    """Of whom nothing has come since they fell asleep: not even a header."""
    spool: Spool
    opening: Digest
    """o_j of this server: fresh random bytes, in memory alone."""
    first: dict[ClientId, Digest] = field(default_factory=dict)
    """The whole digest of each client's first good header.

    That header alone may come, and it may come again.
    """
    held: dict[ClientId, AnySubmission] = field(default_factory=dict)
    refused: dict[ClientId, Rejection] = field(default_factory=dict)
    awaited: set[ClientId] | None = None
    """Whom ``over`` still expects, once it was asked.

    It is kept up to date, so that no arrival has to look at everybody.
    """
    arrived: deque[AnySubmission] = field(default_factory=deque)
    """Submissions that are held, and that ``arrivals`` hasn't given yet."""
    most_arrived: int = 0
    """The most submissions that were in ``arrived`` at once."""
    closes: float = math.inf
    """When nothing more is taken, by the clock."""
    began: float
    """When the attempt was opened, by the clock."""
    expected: int
    """How many clients of the cohort were worth waiting for when it was opened."""
    missing: set[ClientId]
    """Those of them who aren't settled."""
    grace_ends: float = math.inf
    """Until when the missing are waited for at nobody's cost, by the clock.

    It is ``GRACE`` times what more than half of the expected took to settle.
    """
    waiting_since: float | None = None
    """When the wait beyond the grace began, by the clock."""
    gave_up: bool = False
    """Whether the wait ended although somebody might still have come."""

    def settled(self, client: ClientId) -> bool:
        """Return whether nothing more is expected of ``client`` in this attempt.

        A client that sent something wrong is settled. One whose upload was TRUNCATED
        isn't: a link broke, and the same bytes are on their way again.
        """
        reason = self.refused.get(client)
        return client in self.held or reason not in (None, Rejection.TRUNCATED)


SPARE = 3.0
"""How many attempts may last to their end for clients that are missing."""
EARNED = 0.25
"""How much of an attempt is earned back by one that waits for nobody beyond its grace.
"""
GRACE = 3.0
"""How many times as long as most clients took the others may take at nobody's cost."""


class Patience:
    """Decide how long a server waits for all clients together.

    Nobody waits for a client that sleeps (``Opened.asleep``), until it uploads again,
    be it late: an owner that came back and is slower than the others would come too
    late for ever. But clients could take turns, so that none misses two versions in a
    row. Hence no attempt lasts beyond ``GRACE`` times what most took
    (``_OpenAttempt.grace_ends``), unless what is left for all clients together pays for
    a whole wait. With s, the part of
    ``deadlines.collect`` that an attempt lasts beyond that, ``SPARE`` falls by s and
    rises by ``EARNED``·(1 − s). So of T attempts the sum of all s is at most
    (``SPARE`` + ``EARNED``·T) / (1 + ``EARNED``) = 2.4 + T/5, whatever K clients do, as
    long as they are fewer than half of those who are expected; and an owner that is
    slower than that is still waited for in one attempt of five.

    No record has a part in it, and no coin: a cohort under ``cover_uploads`` is
    everybody (docs/protocol.md, "Waiting").
    """

    def __init__(self) -> None:
        self._left_for_all = SPARE
        """How many attempts may still last to their end."""

    @property
    def pays(self) -> bool:
        """Whether an attempt may last to its end for clients that are missing."""
        return self._left_for_all >= 1

    def waited(self, share: float) -> None:
        """Note that an attempt lasted ``share`` of its time, 0 to 1, beyond its grace.

        It may have been in vain or not: a client that comes at the last moment costs
        the others as much as one that doesn't come.
        """
        earned = EARNED * (1 - share)
        self._left_for_all = min(SPARE, self._left_for_all + earned - share)


class Inbox:
    """Collect one server's submissions, attempt after attempt.

    Bodies lie in the folder ``spool``. All methods may be called from any thread.
    """

    def __init__(
        self,
        role: Role,
        task: Task,
        verifier: Verifier,
        spool: Path,
        clock: Clock = CLOCK,
    ) -> None:
        """Begin without an open attempt; remove what an earlier process has spooled."""
        self.verifier = verifier
        """Checks clients' signatures."""
        self._role = role
        self._task = task
        self._spool = spool
        self._clock = clock
        self._changed = clock.condition()
        self._open_attempt: _OpenAttempt | None = None
        self._closed: _OpenAttempt | None = None
        self._patience = Patience()
        self._awake: set[ClientId] = set()
        """Who has sent a header since the last attempt was opened, be it too late."""
        self.backlog = Backlog()
        """What lay here in the attempt whose collection closed last."""
        spool.mkdir(parents=True, exist_ok=True)
        for left_over in spool.glob(f"*{SUFFIX}"):
            left_over.unlink()

    @property
    def opened(self) -> Opened | None:
        """The attempt that is open."""
        with self._changed:
            current = self._open_attempt
            return None if current is None else current.opened

    def open(self, opened: Opened) -> None:
        """Take submissions for an attempt that both servers opened."""
        cohort = frozenset(opened.cohort)
        opening = Digest(secrets.token_bytes(DIGEST_BYTES))
        with self._changed:
            asleep = set(opened.asleep - self._awake)
            self._awake.clear()
            missing = set(cohort - asleep)
            self._open_attempt = _OpenAttempt(
                opened=opened,
                cohort=cohort,
                asleep=asleep,
                spool=Spool(self._spool),
                opening=opening,
                began=self._clock.now(),
                expected=len(missing),
                missing=missing,
            )
            self._changed.notify_all()

    def proof_opening(
        self, attempt: int, client: ClientId
    ) -> tuple[Digest, Role] | None:
        """Return this server's o_j, and which server gets this client's seed.

        None where that attempt isn't open, or has no proofs.
        """
        with self._changed:
            current = self._open_attempt
            if current is None or current.opened.attempt != attempt:
                return None
            holder = current.opened.seed_holders.get(client)
            return None if holder is None else (current.opening, holder)

    def start(self, submission: AnySubmission) -> Upload:
        """Check all that stands in a header, and return what takes the body after it.

        The header fixes the submission, so the first good one is the client's only one,
        also while its body is on the way. The same header again is a retry, and
        welcome.

        Raises RejectedSubmission: it is counted for the client where that client is in
        the cohort.
        """
        context = submission.context
        attempt = context.attempt
        client = context.client
        if context.task != self._task.digest:
            # Counted nowhere: it isn't about this task.
            raise RejectedSubmission(
                Rejection.WRONG_TASK,
                f"submission is for task {context.task}, this server runs"
                f" {self._task.digest}",
            )
        with self._changed:
            self._awake.add(client)
            current = self._current(attempt, client)
            current.asleep.discard(client)
        try:
            self._check(submission, current)
            with self._changed:
                first = self._current(attempt, client).first
                digest = submission.header.whole_digest
                if first.setdefault(client, digest) != digest:
                    raise RejectedSubmission(
                        Rejection.DUPLICATE,
                        f"client {client} already sent another submission in"
                        f" attempt {attempt}; the first one counts",
                    )
            return Upload(submission, self._task, current.spool, self._accept)
        except RejectedSubmission as rejected:
            self.refuse(attempt, client, rejected.reason)
            raise

    def refuse(self, attempt: int, client: ClientId, reason: Rejection) -> None:
        """Count a rejection of a client, if it is in the open attempt's cohort.

        It may have been found outside: an upload that broke off, an unreadable header.
        """
        with self._changed:
            current = self._open_attempt
            if (
                current is None
                or current.opened.attempt != attempt
                or client not in current.cohort
            ):
                return
            # A second submission doesn't count, and costs the first one nothing: the
            # first one's body may be on the way.
            if reason is not Rejection.DUPLICATE:
                current.refused.setdefault(client, reason)
                self._settle(current, client)

    def over(
        self, clients: Collection[ClientId], gone: Callable[[ClientId], bool]
    ) -> bool:
        """Return whether each of ``clients`` is held, refused or ``gone``.

        It is over at ``close_at``'s deadline too. The clients are the same ones in
        every call for an attempt. One that was refused may still mend its upload while
        the attempt is open, but nobody waits for it: else one bad client would hold up
        every round. Nor does anybody wait for a client that sleeps, or longer than for
        most where others were waited for before (``Patience``), unless nobody came at
        all: then all are waited for. ``gone`` is asked about somebody unless everybody
        is settled: in it a server looks for a dead link.
        """
        with self._changed:
            current = self._require_open()
            if current.awaited is None:
                current.awaited = {
                    client for client in clients if not current.settled(client)
                }
            nobody_awaited = all(
                gone(client) or (current.held and client in current.asleep)
                for client in current.awaited
            )
            return nobody_awaited or self._gives_up(current)

    def close_at(self, deadline: float) -> None:
        """Take nothing more from ``deadline`` on, also while the training is busy."""
        with self._changed:
            self._require_open().closes = deadline

    def wait_arrival(self, seconds: float) -> None:
        """Wait for something that ``arrivals`` hasn't given yet, so long at most.

        Nor any longer once ``over`` awaits nobody: a bad upload may be the last.
        """
        with self._changed:
            current = self._require_open()
            self._changed.wait_for(
                lambda: current.arrived or current.awaited == set(), seconds
            )

    def arrivals(self, most: int | None = None) -> list[AnySubmission]:
        """Return what has come to be held since the last call, in order.

        With ``most``, so many at most; the others wait for the next call.
        """
        with self._changed:
            arrived = self._require_open().arrived
            count = len(arrived)
            if most is not None:
                count = min(most, count)
            return [arrived.popleft() for _ in range(count)]

    def close(self) -> Mapping[ClientId, AnySubmission | Rejection]:
        """End the attempt's collection.

        Return for each client of the cohort what is held, or why nothing is.
        """
        with self._changed:
            current = self._require_open()
            self._open_attempt = None
            self._closed = current
            # Where nothing came of anybody, an outage kept them away: then it is at
            # nobody's cost.
            if current.held:
                since = current.waiting_since
                waited_s = 0.0 if since is None else self._clock.now() - since
                self._patience.waited(min(1.0, waited_s / self._task.deadlines.collect))
            bodies = [submission.body for submission in current.held.values()]
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
        """Drop what the open attempt holds, and the attempt that was closed last."""
        with self._changed:
            for attempt in (self._open_attempt, self._closed):
                if attempt is not None:
                    for submission in attempt.held.values():
                        submission.discard()
            self._open_attempt = None
            self._closed = None
            self._changed.notify_all()

    def _accept(self, submission: AnySubmission) -> None:
        """Hold a submission that is whole; an upload calls it.

        Raises RejectedSubmission: it comes too late.
        """
        client = submission.context.client
        with self._changed:
            current = self._current(submission.context.attempt, client)
            if client in current.held:
                # The same bytes again: a retry, which was counted already.
                submission.discard()
                return
            current.held[client] = submission
            current.arrived.append(submission)
            current.most_arrived = max(current.most_arrived, len(current.arrived))
            self._changed.notify_all()
            self._settle(current, client)

    def _check(self, submission: AnySubmission, current: _OpenAttempt) -> None:
        """Check a header against the open attempt, the task and its signature.

        For ``start``. Raises RejectedSubmission: with the reason that is counted.
        """
        header = submission.header
        context = submission.context
        opened = current.opened
        if context.version != opened.version:
            raise RejectedSubmission(
                Rejection.WRONG_ATTEMPT,
                f"submission is for version {context.version}, attempt"
                f" {opened.attempt} is of version {opened.version}",
            )
        if context.model != opened.model:
            raise RejectedSubmission(
                Rejection.WRONG_MODEL,
                f"trained on model {context.model}, attempt {opened.attempt} has"
                f" {opened.model}; fetch the model again",
            )
        if isinstance(submission, ProofSubmission) != (self._task.proof is not None):
            raise RejectedSubmission(
                Rejection.MALFORMED,
                "the header is of another check: this task has validation ="
                f" {self._task.validation!r}",
            )
        if isinstance(header, ProofHeader):
            if header.openings[SERVERS.index(self._role)] != current.opening:
                raise RejectedSubmission(
                    Rejection.WRONG_ATTEMPT,
                    "the header is of another opening of this attempt",
                )
            if header.seed_holder is not opened.seed_holders.get(context.client):
                raise RejectedSubmission(
                    Rejection.MALFORMED,
                    "the seed came to the server that gets this client's body",
                )
        self.verifier.admit(header.signature, context.client)
        self.verifier.check(header.signature, header.signed)
        if not submission.opens:
            raise RejectedSubmission(
                Rejection.MALFORMED,
                f"seed and salt don't open the commitment to {self._role.value}'s seed",
            )

    def _settle(self, current: _OpenAttempt, client: ClientId) -> None:
        """Note that a client may have settled."""
        if not current.settled(client):
            return
        current.missing.discard(client)
        if current.grace_ends == math.inf and (
            2 * len(current.missing) < current.expected
        ):
            most_s = self._clock.now() - current.began
            current.grace_ends = current.began + GRACE * most_s
            self._changed.notify_all()
        if current.awaited is not None:
            current.awaited.discard(client)
            if not current.awaited:
                self._changed.notify_all()

    def _gives_up(self, current: _OpenAttempt) -> bool:
        """Return whether the wait for those who are awaited now is too long.

        Beyond the grace it is at the cost of ``Patience``.
        """
        now = self._clock.now()
        if now >= current.closes:
            return True
        if now < current.grace_ends:
            return False
        if current.waiting_since is None:
            current.waiting_since = now
            current.gave_up = not self._patience.pays
        return current.gave_up

    def _current(self, attempt: int, client: ClientId) -> _OpenAttempt:
        """Return the open attempt, if it is this one and still takes this client's.

        Raises RejectedSubmission: another attempt is open, or none, or this one is
        closed, or the client isn't in its cohort.
        """
        current = self._open_attempt
        if current is None or current.opened.attempt != attempt:
            state = "no attempt"
            if current is not None:
                state = f"attempt {current.opened.attempt}"
            raise RejectedSubmission(
                Rejection.WRONG_ATTEMPT,
                f"submission is for attempt {attempt}, {state} is open",
            )
        if self._clock.now() >= current.closes:
            raise RejectedSubmission(
                Rejection.WRONG_ATTEMPT,
                f"attempt {attempt} takes no submissions any more",
            )
        if client not in current.cohort:
            raise RejectedSubmission(
                Rejection.NOT_SELECTED,
                f"client {client} isn't in attempt {attempt}'s cohort",
            )
        return current

    def _require_open(self) -> _OpenAttempt:
        if self._open_attempt is None:
            raise AssertionError("no attempt is open")
        return self._open_attempt
