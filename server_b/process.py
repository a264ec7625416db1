"""Server B as a process, and what it does as the helper: it checks what A proposes.

It collects its half of the cohort's submissions, as A does.
"""

from contextlib import closing

import grpc

from precad.aggregator import (
    Opened,
    PeerLink,
    PeerService,
    ServerBSettings,
    peers_of,
    run_server,
)
from precad.aggregator.collect import Closed, HeldList, describe, matching, rest_of
from precad.aggregator.enrol import accept_roster
from precad.aggregator.rounds.aggregator import Aggregator
from precad.aggregator.rounds.start_attempt import answer, draw
from precad.aggregator.rpc import add_link_to_server
from precad.aggregator.training import (
    WAITS,
    Peers,
    Phase,
    Session,
    note_done,
    persist,
    train,
)
from precad.aggregator.validate.validation import Take
from precad.aggregator.workers.worker_pairs import ValidationWorkers
from precad.common import (
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Rejection,
    Role,
    StorageGone,
    log,
)


def follow(session: Session, peers: Peers) -> None:
    """Play a whole training as server B.

    With the final model kept, the training is over for this server, whether or not A
    has said so. A may still lack B's last noisy share: B answers A, in a thread of its
    own, for as long as the process lives.

    Raises PrecadError: it can't go on.
    """
    helper = Helper(session)

    def train_once() -> None:
        try:
            train(session, helper, peers)
        except PeerUnavailable as error:
            if not session.finished:
                raise
            log.warning("server A didn't say that the training is over: %s", error)

    def answer_after_end() -> None:
        while True:
            try:
                train(session, helper, peers)
            except (PeerUnavailable, StorageGone):
                # Without this wait it would be tried without pause where this machine's
                # clock is wrong: that is refused at once.
                session.clock.sleep(WAITS.first_s)
            except PrecadError:
                log.exception("server A came back after the training, and differs")
                return

    note_done(session)
    if not session.finished:
        session.progress.phase = Phase.ENROLLING
        persist(session, train_once)
    session.clock.start_thread("after-training", answer_after_end)


class Helper:
    """Server B's side of the steps in which the two servers differ."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def agree_roster(self, link: PeerLink) -> None:
        """Freeze the roster, of A's clients that B holds too when the proposal comes.

        Raises PeerUnavailable, PeerViolation: A is gone or breaks the protocol;
        Misconfiguration: too few clients have enrolled alike.
        """
        session = self._session
        deadlines = session.task.deadlines
        agreed = False
        while not agreed:
            left = session.started + session.enrolling.seconds - session.clock.now()
            agreed = accept_roster(
                link,
                session.register,
                session.signatures,
                timeout_s=max(deadlines.enrol, left) + deadlines.peer,
                least=session.awaited(),
            )

    def open(self, aggregator: Aggregator) -> Opened | None:
        """Check A's proposal and open the attempt; return it, None after the last one.

        Raises NeedsOperators: they must allow another attempt; PeerViolation: A's
        proposal is wrong, or A ends the training early; PeerUnavailable: A is gone.
        """
        session = self._session
        current = session.model_store.current
        drawn = () if session.finished else draw(aggregator, current.version)
        opened = answer(
            aggregator,
            current.version,
            drawn,
            current.digest,
            before_agreeing=session.inbox.open,
        )
        if opened is None and not session.finished:
            raise PeerViolation(
                f"server A ended the training after {current.version} rounds"
            )
        return opened

    def collect(
        self,
        opened: Opened,
        link: PeerLink,
        closes: float,
        take: Take,
    ) -> Closed:
        """Collect the cohort's submissions until A closes the collection.

        ``take`` is given those that A holds alike, meanwhile. Then the servers exchange
        lists of the rest; B waits before, at most until ``closes``, an instant of the
        clock, for its halves of what A holds.

        Raises PeerUnavailable, PeerViolation: A is gone or breaks the protocol.
        """
        session = self._session
        deadlines = session.task.deadlines
        session.inbox.close_at(closes)
        patience_s = deadlines.collect + deadlines.peer
        taken = matching.offer(
            opened,
            session.inbox,
            link,
            take,
            patience_s,
        )
        theirs = HeldList.from_bytes(link.receive("held"))
        # A's share is 32 bytes and B's may be long: wait for those that A holds
        # already.
        outcomes_at_a = theirs.of(rest_of(opened, taken))
        held_by_a = {
            client: outcome
            for client, outcome in outcomes_at_a.items()
            if not isinstance(outcome, Rejection)
        }
        taken |= matching.name_rest(
            opened,
            session.inbox,
            link,
            take,
            held_by_a,
            names=matching.names_rest(session.task),
        )
        theirs = HeldList.listing(
            [outcomes_at_a[client] for client in rest_of(opened, taken)]
        )
        collected = session.inbox.close()
        link.send("held", describe(collected, taken).to_bytes())
        return Closed(collected, theirs, taken)


SETTINGS = ServerBSettings
"""The settings' class, by the name that every process has for it."""


async def serve(settings: ServerBSettings) -> int:
    """Run server B from its settings until its training is over.

    Returns the exit status.
    """
    services = []

    def add_peer_service(server: grpc.aio.Server, session: Session) -> None:
        services.append(PeerService(session))
        add_link_to_server(services[0].link, server)

    def training_loop(session: Session) -> None:
        with closing(ValidationWorkers(session, settings)) as workers:
            # The service was added before the training begins.
            reach_server_a = services[0].reach
            follow(session, peers_of(session, settings.dealer, reach_server_a, workers))

    return await run_server(Role.SERVER_B, settings, training_loop, add_peer_service)
