"""A caller with a good certificate that does at the servers' doors what no client should."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from tests.rig.submissions import body_of

from precad.aggregator.rpc.limits import Call
from precad.common.errors import (
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    RejectedSubmission,
    StorageFailure,
    TooManyCalls,
)
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.roster import Enrolment
from precad.common.wire.messages import header_from_wire, header_to_wire
from precad.common.wire.serving import told
from precad.protos import precad_pb2 as pb

if TYPE_CHECKING:
    from tests.faults.simulated_owner import Calls
    from tests.faults.simulated_server import Server

RECORDS = (0, -1, 2**31, 10**18)
RATES = (1e-15, 0.0, -0.5, 2.0, 0.11, float("nan"), float("inf"))
FLOOD = 1000
REFUSED = (Misconfiguration, PeerViolation, RejectedSubmission, TooManyCalls)


class Stranger:
    """Enrols at one server only, or differently at the other, and then does something bad forever.

    Args:
        calls: its way to the servers.
        good: a claim that both would take.
        random: decides what it does when.
    """

    def __init__(self, calls: "Calls", good: Enrolment, random: Random) -> None:
        self._calls = calls
        self._good = good
        self._random = random

    def haunt(self) -> None:
        """Until the world ends."""
        self._claim(Role.SERVER_A, self._good)
        if self._random.random() < 0.5:
            self._claim(
                Role.SERVER_B,
                Enrolment(self._good.client, self._good.records + 1, self._good.record_rate),
            )
        deeds = (self._absurd_claim, self._upload, self._frame, self._flood)
        turns = self._calls.world.turns
        while True:
            turns.sleep(self._random.uniform(0.1, 15.0))
            role = self._random.choice((Role.SERVER_A, Role.SERVER_B))
            deed = self._random.choice(deeds)
            with self._at(role) as server:
                if server is not None:
                    deed(server)

    def _claim(self, role: Role, claim: Enrolment) -> None:
        # After a restart of its own it may find the roster frozen.
        calls = self._calls
        calls.world.turns.wait(lambda: calls.world.serving(role))
        with self._at(role) as server:
            if server is not None:
                try:
                    server.session.register.enrol(claim)
                except Misconfiguration as error:
                    self._hear(error)

    def _absurd_claim(self, server: "Server") -> None:
        claim, random = self._good, self._random
        records, rate = claim.records, claim.record_rate
        if random.random() < 0.5:
            records = random.choice(RECORDS)
        else:
            rate = random.choice(RATES)
        self._refused(
            server,
            "claim",
            lambda: server.session.register.enrol(Enrolment(claim.client, records, rate)),
        )

    def _upload(self, server: "Server") -> None:
        """A submission for the open attempt, by somebody who isn't in it."""
        calls, current = self._calls, server.session.model_store.current
        opened = server.session.inbox.opened
        attempt = 0 if opened is None else max(opened.attempt, 0)
        x = np.ones(calls.task.dimension, dtype=np.int64)
        pair = calls.prepare(current.version, attempt, current.digest, x)
        own = next(each for each in pair if each.role is server.role)

        def send() -> None:
            upload = server.session.inbox.start(header_from_wire(header_to_wire(own), server.role))
            upload.add(body_of(own))
            upload.finish()

        self._refused(server, "upload", send)

    def _frame(self, server: "Server") -> None:
        """What no server signed, as one's own statement or opening."""
        from precad.aggregator.rpc.notices import statement_of  # noqa: PLC0415

        body = pb.StatementBody(version=2**40, attempt=2**40, charged=[10**6]).SerializeToString()
        forged = pb.Signed(body=body, signature=b"x", certificates=[b"y"])
        shown, opening = (forged, None) if self._random.random() < 0.5 else (None, forged)
        client = self._good.client
        self._refused(server, "frame", lambda: statement_of(server.session, client, shown, opening))

    def _flood(self, server: "Server") -> None:
        """A thousand watches that it never reads; a while later it lets go of what it got."""
        calls, caller = self._calls, Principal.client(self._good.client.name)
        with ExitStack() as held:
            got = 0
            for _ in range(FLOOD):
                try:
                    held.enter_context(server.calls.one_more(caller, Call.WATCH))
                    got += 1
                except TooManyCalls as error:
                    refused = error
            assert got == server.calls.limits.watches, f"{got} watches of one certificate"
            self._hear(refused)
            calls.world.seen.misdeeds["flood"] += 1
            calls.world.turns.sleep(self._random.uniform(1.0, 30.0))

    def _refused(self, server: "Server", kind: str, deed: Callable[[], object]) -> None:
        try:
            deed()
        except REFUSED as error:
            self._hear(error)
            self._calls.world.seen.misdeeds[kind] += 1
            return
        except (StorageFailure, PeerUnavailable) as error:
            self._hear(error)
            return
        raise AssertionError(f"{server.role.value} took a bad {kind}")

    def _hear(self, error: PrecadError) -> None:
        self._calls.world.seen.crossed.append((self._good.client, told(error)))

    @contextmanager
    def _at(self, role: Role) -> "Iterator[Server | None]":
        """The block is the server's handler, while it is there; it dies with the server."""
        world = self._calls.world
        if not world.serving(role):
            yield None
            return
        server = world.servers[role]
        try:
            with world.turns.acting(server.life):
                yield server
        except BaseException as error:
            if type(error).__name__ != "Killed":
                raise
            world.turns.check_alive()
