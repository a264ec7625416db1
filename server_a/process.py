"""Server A as a process, and what the leader does: enrol, then select and collect, by rounds."""

import logging
from contextlib import closing
from functools import partial

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect import matching
from precad.aggregator.collect.matching import Closed, HeldList, describe
from precad.aggregator.enrol.agreement import propose_roster
from precad.aggregator.peer_link import PeerLink
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import draw, propose, say_over
from precad.aggregator.rpc.peer_transport import dial
from precad.aggregator.server_process import peers_of, run_server
from precad.aggregator.settings import ServerASettings
from precad.aggregator.training.session import Phase, RoundOpened, Session
from precad.aggregator.training.training_loop import Peers, persist, train
from precad.aggregator.validate.validation import Take
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role

log = logging.getLogger("precad")

_LOOK_S = 0.5
"""Between looks at whether server B is still there, while clients enrol."""


def lead(session: Session, peers: Peers) -> None:
    """Play a whole training as server A. Raises PrecadError when it can't go on."""
    try:
        persist(session, lambda: train(session, Leader(session), peers))
    except PeerUnavailable as error:
        if not session.finished:
            raise
        log.warning("server B didn't confirm the training's end: %s", error)


class Leader:
    """What server A does: it proposes, and B checks."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def agree_roster(self, link: PeerLink) -> None:
        """Wait for everybody or both servers' deadlines; freeze those whom B holds too."""
        session = self._session
        register = self._session.register
        roster = None
        while roster is None:
            while len(register.roster()) < (least := session.awaited()):
                session.progress.phase = Phase.ENROLLING
                register.wait_for(least, session.clock.now() + _LOOK_S)
                link.require_alive()
            roster = propose_roster(
                link,
                register,
                session.task,
                session.signatures,
                least,
            )
            if roster is None:
                session.clock.sleep(_LOOK_S)
                link.require_alive()
        log.info("roster is frozen with %d clients", len(roster))

    def open(self, aggregator: Aggregator) -> Opened | None:
        """Agree on who is drawn and open; after the last round tell B that there is no other."""
        session = self._session
        progress = self._session.progress
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
            # The rounds go on to T all the same: an early end would tell what no noise
            # covers.
            log.warning(
                "everybody drawn is at the privacy limit: this round releases noise"
                " alone"
            )
        progress.next_attempt += 1
        session.inbox.open(opened)
        session.event_log.publish(RoundOpened(opened, session.task.deadlines.collect))
        return opened

    def collect(
        self,
        opened: Opened,
        link: PeerLink,
        closes: float,
        take: Take,
    ) -> Closed:
        """Until the cohort has come, take what B holds alike; then say and hear of the rest."""
        session = self._session
        session.inbox.close_at(closes)

        def gone(client: ClientId) -> bool:
            # Without B this round comes to nothing: don't collect for it until the
            # deadline.
            link.require_alive()
            return session.connected_clients.gone(client)

        def over() -> bool:
            return (
                session.inbox.over(opened.cohort, gone) or session.clock.now() >= closes
            )

        gather = session.task.proof is not None
        taken = matching.ask(
            opened,
            session.inbox,
            link,
            take,
            over,
            gather=gather,
        )
        collected = session.inbox.close()
        matching.say_over(link)
        link.send("held", describe(collected, taken).to_bytes())
        deadlines = session.task.deadlines
        theirs = link.receive("held", timeout_s=deadlines.collect + deadlines.peer)
        return Closed(collected, HeldList.from_bytes(theirs), taken)


SETTINGS = ServerASettings


async def serve(settings: ServerASettings) -> int:
    """Run server A from its settings until its training is over.

    Returns the exit status.
    """

    def training_loop(session: Session) -> None:
        with closing(
            ValidationWorkers(session, settings, settings.server_b)
        ) as workers:
            patience_s = session.task.deadlines.peer
            other_server = partial(
                dial, settings.server_b, session.identity, patience_s
            )
            lead(session, peers_of(session, settings.dealer, other_server, workers))

    return await run_server(Role.SERVER_A, settings, training_loop)
