"""Server A as a process, and what it does as the leader: it proposes, and B checks.

It enrols clients, and then in every round draws a cohort and collects its submissions.
"""

from contextlib import closing
from functools import partial

from precad.aggregator import Opened, PeerLink, ServerASettings, peers_of, run_server
from precad.aggregator.collect import Closed, HeldList, describe, matching
from precad.aggregator.enrol import propose_roster
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import draw, propose, say_over
from precad.aggregator.rpc import dial
from precad.aggregator.training import (
    Peers,
    Phase,
    Session,
    persist,
    train,
)
from precad.aggregator.validate.validation import Take
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common import ClientId, PeerUnavailable, Rejection, Role, log

_LOOK_S = 0.5
"""Seconds between looks at whether server B is still there, while clients enrol."""


def lead(session: Session, peers: Peers) -> None:
    """Play a whole training as server A.

    Raises PrecadError: it can't go on.
    """
    try:
        persist(session, lambda: train(session, Leader(session), peers))
    except PeerUnavailable as error:
        if not session.finished:
            raise
        log.warning("server B didn't confirm the training's end: %s", error)


class Leader:
    """Server A's side of the steps in which the two servers differ."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def agree_roster(self, link: PeerLink) -> None:
        """Freeze the roster, of the clients that both servers hold alike.

        It waits until all clients have enrolled, or both servers' enrolment is over.

        Raises PeerUnavailable, PeerViolation: B is gone or refuses; Misconfiguration:
        too few clients have enrolled alike.
        """
        session = self._session
        roster = None
        while roster is None:
            least = self._wait_for_clients(link)
            roster = propose_roster(
                link,
                session.register,
                session.signatures,
                least,
            )
            if roster is None:
                session.clock.sleep(_LOOK_S)
                link.require_alive()
        log.info("roster is frozen with %d clients", len(roster))

    def _wait_for_clients(self, link: PeerLink) -> int:
        """Wait until as many clients have enrolled as are awaited; return that number.

        Raises PeerUnavailable: B is gone.
        """
        session = self._session
        while True:
            enrolled = len(session.register.roster())
            least = session.awaited()
            if enrolled >= least:
                return least
            session.progress.phase = Phase.ENROLLING
            session.register.wait_for(least, session.clock.now() + _LOOK_S)
            link.require_alive()

    def open(self, aggregator: Aggregator) -> Opened | None:
        """Agree with B on the cohort and open an attempt; return it.

        After the last round B is told that no attempt follows, and None is returned.

        Raises NeedsOperators: they must allow another attempt; PeerUnavailable,
        PeerViolation: B is gone or refuses.
        """
        session = self._session
        progress = session.progress
        current = session.model_store.current
        if session.finished:
            say_over(aggregator, progress.next_attempt, current.digest)
            return None
        drawn = draw(aggregator, current.version)
        # Owners may have shown later attempts since the servers met.
        progress.next_attempt = max(
            progress.next_attempt, session.store.attempts.next_number()
        )
        # B opens its inbox before A announces anything: no honest client can be early.
        opened = propose(
            aggregator,
            attempt=progress.next_attempt,
            version=current.version,
            drawn=drawn,
            model=current.digest,
        )
        # A client at its cap is still drawn, and then contributes zero: the denominator
        # stays.
        if drawn and not opened.counted:
            # The rounds go on to T all the same: an early end would tell something that
            # no noise covers.
            log.warning(
                "everybody drawn is at the privacy limit: this round releases noise"
                " alone"
            )
        progress.next_attempt += 1
        session.inbox.open(opened)
        return opened

    def collect(
        self,
        opened: Opened,
        link: PeerLink,
        closes: float,
        take: Take,
    ) -> Closed:
        """Collect the cohort's submissions until ``closes``, an instant of the clock.

        ``take`` is given those that B holds alike, meanwhile. Then the servers exchange
        lists of the rest.

        Raises PeerUnavailable, PeerViolation: B is gone or breaks the protocol.
        """
        session = self._session
        session.inbox.close_at(closes)

        def gone(client: ClientId) -> bool:
            # Without B this round comes to nothing: don't collect for it until the
            # deadline.
            link.require_alive()
            return session.connected_clients.gone(client)

        taken = matching.ask(
            opened,
            session.inbox,
            link,
            take,
            partial(session.inbox.over, opened.cohort, gone),
            gather=session.task.proof is not None,
        )
        collected = session.inbox.close()
        matching.say_over(link)
        link.send("held", describe(collected, taken).to_bytes())
        deadlines = session.task.deadlines
        patience_s = deadlines.collect + deadlines.peer
        if matching.names_rest(session.task):
            rest = {
                client: held
                for client, held in collected.items()
                if client not in taken and not isinstance(held, Rejection)
            }
            taken |= matching.hear_rest(opened, link, take, rest, patience_s)
        theirs = link.receive("held", timeout_s=patience_s)
        return Closed(collected, HeldList.from_bytes(theirs), taken)


SETTINGS = ServerASettings
"""The settings' class, by the name that every process has for it."""


async def serve(settings: ServerASettings) -> int:
    """Run server A from its settings until its training is over.

    Returns the exit status.
    """

    def training_loop(session: Session) -> None:
        with closing(
            ValidationWorkers(session, settings, settings.server_b)
        ) as workers:
            patience_s = session.task.deadlines.peer
            dial_server_b = partial(
                dial, settings.server_b, session.identity, patience_s
            )
            lead(session, peers_of(session, settings.dealer, dial_server_b, workers))

    return await run_server(Role.SERVER_A, settings, training_loop)
