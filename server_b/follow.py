"""The helper's training: check what A proposes, collect, settle."""

import asyncio
import logging
import queue
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from precad.common.errors import AccessDenied, PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import ClientId, Role
from precad.common.identity import open_channel, require
from precad.common.round.aggregator import Aggregator
from precad.common.round.matching import describe
from precad.common.round.messages import HeldList
from precad.common.round.opening import answer
from precad.common.round.setup import accept_roster
from precad.common.serve.aggregation import refuse
from precad.common.serve.feed import RoundOpened
from precad.common.serve.session import Phase, Session
from precad.common.serve.settings import ServerBSettings
from precad.common.serve.training import connect, make_aggregator, settle
from precad.common.wire.dealing import RemoteDealer
from precad.common.wire.peer_transport import ServedTransport
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import PeerServicer

log = logging.getLogger("precad")


class PeerService(PeerServicer):
    """Takes server A's link: one at a time, from server A alone."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._links: queue.SimpleQueue[ServedTransport] = queue.SimpleQueue()
        self._taken = False

    async def Link(  # noqa: N802 -- gRPC's name
        self,
        request_iterator: AsyncIterator[pb.LinkFrame],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.LinkFrame]:
        """The servers' link."""
        try:
            require(context, self._session.identity, Role.SERVER_A)
            if self._taken:
                raise AccessDenied("server A has a link already")
        except PrecadError as error:
            await refuse(context, error)
        self._taken = True
        transport = ServedTransport(asyncio.get_running_loop())
        self._links.put(transport)
        try:
            async for message in transport.serve(request_iterator):
                yield message
        finally:
            self._taken = False

    def wait_for_link(self, timeout_s: float) -> ServedTransport:
        """The link, once A has dialled. Raises PeerUnavailable."""
        try:
            return self._links.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerUnavailable(
                f"server A didn't connect within {timeout_s:g} s; check that it runs and that "
                "its server_b address is this server's"
            ) from None


def follow(session: Session, peers: PeerService) -> None:
    """Play a whole training as server B. Raises PrecadError when it can't go on."""
    settings = session.settings
    if not isinstance(settings, ServerBSettings):
        raise TypeError("server B needs ServerBSettings")
    deadlines = session.task.deadlines
    session.phase = Phase.ENROLLING
    transport = peers.wait_for_link(deadlines.enrol)
    claim = (session.role, session.role.value)
    dealer_channel = open_channel(settings.dealer, session.identity, Role.DEALER, claim=claim)
    dealer = RemoteDealer(dealer_channel, settings.dealer, session.task, session.role)
    try:
        link, row_secret = connect(session, transport)
        patience = deadlines.enrol + deadlines.peer
        roster = accept_roster(link, session.register.roster, session.task, patience)
        session.register.freeze(roster)
        session.store.freeze(roster)
        aggregator = make_aggregator(session, link, row_secret, dealer)
        session.phase = Phase.TRAINING
        while _follow_round(session, aggregator):
            session.traffic.by_link["server-b to server-a"] = link.bytes_sent
            session.traffic.by_link["dealer to server-b"] = dealer.bytes_received
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
    session.inbox.wait(
        [client for client in held_by_a if client in opened.cohort], started + deadlines.collect
    )
    collected = session.inbox.close()
    aggregator.link.send("held", describe(collected).to_bytes())
    settle(session, aggregator, opened, collected, theirs, started)
    return True
