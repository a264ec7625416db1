"""The leader's training: enrol, then select, collect, settle, round after round."""

import logging
import time

from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.matching import describe
from precad.common.aggregator.round.messages import HeldList
from precad.common.aggregator.round.opening import propose, require_enough, say_over, select_cohort
from precad.common.aggregator.round.setup import propose_roster
from precad.common.aggregator.service.dealing import RemoteDealer
from precad.common.aggregator.service.feed import RoundOpened
from precad.common.aggregator.service.peer_transport import DialledTransport
from precad.common.aggregator.service.session import Phase, Session
from precad.common.aggregator.service.settings import ServerASettings
from precad.common.aggregator.service.training import (
    connect,
    holding,
    is_over,
    make_aggregator,
    persist,
    recover,
    settle,
)
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import ClientId, Role
from precad.common.identity import open_channel
from precad.common.link import PeerLink

log = logging.getLogger("precad")

_LOOK_S = 0.5
"""Between looks at whether server B is still there, while clients enrol or submit."""


def lead(session: Session) -> None:
    """Play a whole training as server A. Raises PrecadError when it can't go on."""
    enrolment_ends = time.monotonic() + session.task.deadlines.enrol
    try:
        persist(session, lambda: _train(session, enrolment_ends))
    except PeerUnavailable as error:
        if session.shelf.current.round < session.task.training.rounds:
            raise
        log.warning("server B didn't confirm the training's end: %s", error)


def _train(session: Session, enrolment_ends: float) -> None:
    """One link's worth of training; returns when B knows that it is over."""
    settings = session.settings
    if not isinstance(settings, ServerASettings):
        raise TypeError("server A needs ServerASettings")
    claim = (session.role, session.role.value)
    peer_channel = open_channel(settings.server_b, session.identity, Role.SERVER_B, claim=claim)
    dealer_channel = open_channel(settings.dealer, session.identity, Role.DEALER, claim=claim)
    dealer = RemoteDealer(dealer_channel, settings.dealer, session.task, session.role)
    transport: DialledTransport | None = None
    try:
        transport = DialledTransport(peer_channel, settings.server_b, session.task.deadlines.peer)
        link, recovery = connect(session, transport)
        if is_over(session, recovery):
            return
        _freeze_roster(session, link, enrolment_ends)
        propose_roster(link, session.register.roster())
        aggregator = make_aggregator(session, link, dealer)
        session.heard_from_peers()
        session.phase = Phase.TRAINING
        recover(session, aggregator, recovery)
        while session.shelf.current.round < session.task.training.rounds:
            before = link.bytes_sent, dealer.bytes_received
            _lead_round(session, aggregator)
            session.traffic.add("server-a to server-b", link.bytes_sent - before[0])
            session.traffic.add("dealer to server-a", dealer.bytes_received - before[1])
        say_over(aggregator, session.next_number, session.shelf.current.digest)
    finally:
        if transport is not None:
            transport.close()
        peer_channel.close()
        dealer_channel.close()


def _freeze_roster(session: Session, link: PeerLink, enrolment_ends: float) -> None:
    if not session.register.frozen:
        session.phase = Phase.ENROLLING
        clients = session.task.enrolment.clients
        while time.monotonic() < enrolment_ends and len(session.register.roster()) < clients:
            session.register.wait_full(min(enrolment_ends, time.monotonic() + _LOOK_S))
            link.require_alive()
        roster = session.register.roster()
        require_enough(roster, session.task.enrolment.min_clients)
        session.register.freeze(roster)
        log.info("roster is frozen with %d clients", len(roster))


def _lead_round(session: Session, aggregator: Aggregator) -> None:
    started = time.monotonic()
    current = session.shelf.current
    drawn = select_cohort(aggregator.roster, session.task.privacy.client_rate)
    # A client at its cap is still drawn, and then contributes zero: the denominator stays.
    cohort = aggregator.within_budget(drawn)
    if drawn and not cohort:
        # The rounds go on to T all the same: an early end would tell what no noise covers.
        log.warning("everybody drawn is at the privacy limit: this round releases noise alone")
    # B opens its inbox before A announces anything: no honest client can be early.
    opened = propose(aggregator, session.next_number, current.round, cohort, current.digest)
    session.next_number += 1
    session.inbox.open(opened.number, opened.cohort, opened.model)
    collect_s = session.task.deadlines.collect
    session.feed.publish(RoundOpened(opened, collect_s))
    link = aggregator.link

    def gone(client: ClientId) -> bool:
        # Without B this round comes to nothing: don't collect for it until the deadline.
        link.require_alive()
        return session.presence.gone(client)

    session.inbox.wait(opened.cohort, started + collect_s, gone)
    collected = session.inbox.close()
    with holding(collected):
        link.send("held", describe(collected).to_bytes())
        theirs = HeldList.from_bytes(
            link.receive("held", timeout_s=collect_s + session.task.deadlines.peer)
        )
        settle(session, aggregator, opened, collected, theirs, started)
