"""The helper's training: check what A proposes, collect, settle."""

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from precad.common.aggregator.round.aggregator import Aggregator
from precad.common.aggregator.round.matching import describe
from precad.common.aggregator.round.messages import HeldList
from precad.common.aggregator.round.opening import answer
from precad.common.aggregator.round.setup import accept_roster
from precad.common.aggregator.service.dealing import RemoteDealer
from precad.common.aggregator.service.feed import RoundOpened
from precad.common.aggregator.service.peer_transport import ServedTransport
from precad.common.aggregator.service.session import Phase, Session
from precad.common.aggregator.service.settings import ServerBSettings
from precad.common.aggregator.service.training import (
    connect,
    holding,
    is_over,
    make_aggregator,
    note_done,
    persist,
    recover,
    settle,
)
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import ClientId, Role
from precad.common.identity import open_channel, require
from precad.common.wire.serving import refuse
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import PeerServicer

log = logging.getLogger("precad")


class PeerService(PeerServicer):
    """Takes server A's link, from server A alone.

    A new link takes an older one's place: after a network cut this side may not have noticed
    that the old one is dead.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._links: queue.SimpleQueue[ServedTransport] = queue.SimpleQueue()
        self._current: ServedTransport | None = None

    async def Link(  # noqa: N802 -- gRPC's name
        self,
        request_iterator: AsyncIterator[pb.LinkFrame],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.LinkFrame]:
        """The servers' link."""
        try:
            require(context, self._session.identity, Role.SERVER_A)
        except PrecadError as error:
            await refuse(context, error)
        if self._current is not None:
            self._current.close()
        transport = self._current = ServedTransport(asyncio.get_running_loop())
        self._links.put(transport)
        async for message in transport.serve(request_iterator):
            yield message

    def wait_for_link(self, timeout_s: float) -> ServedTransport:
        """The newest link, once A has dialled. Raises PeerUnavailable."""
        try:
            link = self._links.get(timeout=timeout_s)
            while not self._links.empty():
                link = self._links.get_nowait()
        except queue.Empty:
            raise PeerUnavailable(
                f"server A didn't connect within {timeout_s:g} s; check that it runs and that "
                "its server_b address is this server's"
            ) from None
        return link


def follow(session: Session, peers: PeerService) -> None:
    """Play a whole training as server B. Raises PrecadError when it can't go on.

    With the final model kept, the training is over for this server, whether or not A has said
    so. A may still lack B's last noisy share: it is answered for as long as the process lives.
    """

    def attempt() -> None:
        try:
            _train(session, peers)
        except PeerUnavailable as error:
            if not _done(session):
                raise
            log.warning("server A didn't say that the training is over: %s", error)

    note_done(session)
    if not _done(session):
        session.phase = Phase.ENROLLING
        persist(session, attempt)
    threading.Thread(
        target=_answer_on, args=(session, peers), name="after-training", daemon=True
    ).start()


def _answer_on(session: Session, peers: PeerService) -> None:
    while True:
        try:
            _train(session, peers)
        except PeerUnavailable:
            continue
        except PrecadError:
            log.exception("server A came back after the training, and differs")
            return


def _done(session: Session) -> bool:
    return session.shelf.current.round >= session.task.training.rounds


def _train(session: Session, peers: PeerService) -> None:
    """One link's worth of training; returns when A says that it is over."""
    settings = session.settings
    if not isinstance(settings, ServerBSettings):
        raise TypeError("server B needs ServerBSettings")
    deadlines = session.task.deadlines
    transport = peers.wait_for_link(deadlines.peer)
    claim = (session.role, session.role.value)
    dealer_channel = open_channel(settings.dealer, session.identity, Role.DEALER, claim=claim)
    dealer = RemoteDealer(dealer_channel, settings.dealer, session.task, session.role)
    try:
        link, recovery = connect(session, transport)
        if is_over(session, recovery):
            return
        patience = deadlines.enrol + deadlines.peer
        roster = accept_roster(link, session.register.roster, session.task, patience)
        session.register.freeze(roster)
        aggregator = make_aggregator(session, link, dealer)
        session.heard_from_peers()
        if not _done(session):
            session.phase = Phase.TRAINING
        recover(session, aggregator, recovery)
        playing = True
        while playing:
            before = link.bytes_sent, dealer.bytes_received
            playing = _follow_round(session, aggregator)
            session.traffic.add("server-b to server-a", link.bytes_sent - before[0])
            session.traffic.add("dealer to server-b", dealer.bytes_received - before[1])
    finally:
        transport.close()
        dealer_channel.close()


def _follow_round(session: Session, aggregator: Aggregator) -> bool:
    """One round; False when A says that training is over."""
    current = session.shelf.current
    opened = answer(aggregator, current.round, current.digest, before_agreeing=session.inbox.open)
    if opened is None:
        if current.round < session.task.training.rounds:
            raise PeerViolation(f"server A ended the training after {current.round} rounds")
        return False
    started = time.monotonic()
    deadlines = session.task.deadlines
    session.feed.publish(RoundOpened(opened, deadlines.collect))
    theirs = HeldList.from_bytes(
        aggregator.link.receive("held", timeout_s=deadlines.collect + deadlines.peer)
    )
    # A's share is 32 bytes and B's may be long: wait for those that A holds already.
    held_by_a = [ClientId(entry.client) for entry in theirs.entries if entry.own is not None]
    cohort = frozenset(opened.cohort)
    session.inbox.wait(
        [client for client in held_by_a if client in cohort], started + deadlines.collect
    )
    collected = session.inbox.close()
    with holding(collected):
        aggregator.link.send("held", describe(collected).to_bytes())
        settle(session, aggregator, opened, collected, theirs, started)
    return True
