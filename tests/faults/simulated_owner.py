"""An owner's calls in a simulated training, and a stranger's, straight to sessions."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import count
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from tests.faults.simulated_server import SERVERS, Server
from tests.faults.turns import Killed, Life
from tests.rig.keys import signer, verifier
from tests.rig.submissions import body_of, reconstructed

from precad.aggregator.rpc.notices import (
    NOTICE_BYTES,
    notice_of,
    opening_of,
    statement_of,
)
from precad.aggregator.training.reconcile import give_back, lost_model
from precad.client.both_servers import fetched_model, stepped_model
from precad.client.connection import Receipt
from precad.client.participation import RoundView
from precad.client.pending_update import Pair
from precad.common import errors
from precad.common.errors import (
    NotOnOffer,
    PeerUnavailable,
    RejectedSubmission,
    Rejection,
    TooManyCalls,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.model import ModelVector
from precad.common.model import from_bytes as model_from_bytes
from precad.common.ring import RingVector
from precad.common.roster import Enrolment
from precad.common.submission import SubmissionContext
from precad.common.wire.guarded_port import MOST_OPEN, Call
from precad.common.wire.messages import Notice, read_notice
from precad.common.wire.serving import _CODES, NOT_NOW
from precad.norm_check.proof_submission import AnySubmission, ForProof, ProofHeader
from precad.norm_check.share_update import share
from precad.norm_check.submission_messages import header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb

if TYPE_CHECKING:
    from tests.faults.world import World


RECORDS = 10  # That each client enrols
MADE_UP = ForProof(
    (Digest.of(b"o_A"), Digest.of(b"o_B")), Role.SERVER_A
)  # No server stated it
Uploads = list[AnySubmission]


def stated_in(pair: Pair) -> ForProof | None:
    of = pair[0].header
    return (
        ForProof(of.openings, of.seed_holder) if isinstance(of, ProofHeader) else None
    )


def told(error: errors.PrecadError) -> str:
    """What a caller reads of an error, as `refusing` sends it."""
    return str(error) if type(error) in _CODES else NOT_NOW


class Calls:
    """Stands in for `Servers`: a client's calls, straight to the sessions."""

    def __init__(self, world: "World", client: ClientId, life: Life) -> None:
        self.world, self.task, self.client, self._life = world, world.task, client, life
        self.verifier, self.serves_first = verifier(), Role.SERVER_A
        self._last: Pair | None = None

    def enrol(self) -> None:
        for role in reversed(SERVERS):
            self.enrol_at(role)

    def claim(self, records: int = RECORDS) -> Enrolment:
        return Enrolment(self.client, records, self.task.privacy.record_rate)

    def enrol_at(self, role: Role, records: int = RECORDS) -> None:
        while True:
            with self.world.step(f"call {role.value}"):
                pass
            self.world.turns.wait(lambda: self.world.serving(role))
            server = self._server(role)
            with suppress(PeerUnavailable), self._handled_by(server):
                server.session.register.enrol(self.claim(records))
                return

    def watch(self) -> Iterator[Notice]:
        world = self.world
        with world.step("watch"):
            server = self._server(Role.SERVER_A)
        events = server.events
        caller = Principal.client(self.client.name)
        with server.calls.one_more(caller, Call.WATCH), self._present(server):
            for at in count(max(0, len(events) - 1)):

                def is_told(at: int = at) -> bool:
                    return len(events) > at or not server.life.alive

                world.turns.wait(is_told)
                if not server.life.alive:
                    raise PeerUnavailable("server A is gone")
                self.serves_first = server.session.register.serves_first(self.client)
                notice = notice_of(
                    events[at], self.client, serves_first=self.serves_first
                )
                assert notice.ByteSize() == NOTICE_BYTES
                with world.step(f"notice {notice.WhichOneof('event')}"):
                    pass
                yield read_notice(notice)

    def fetch_model(
        self, version: int, announced: Digest, *, signed: bool = False
    ) -> ModelVector:
        def fetch(role: Role, _last: object) -> bytes:
            """As the servers' FetchModel; anything may happen amid it."""
            with self._call("fetch", role) as server:
                first, *others = server.session.offered(version).pieces(1 << 4)
                with (
                    self.world.turns.acting(self._life),
                    self.world.step("half a model"),
                ):
                    pass
            if not server.life.alive:
                raise PeerUnavailable(f"{role.value} died amid the model")
            return b"".join([first, *others])

        def digest(role: Role) -> Digest:
            with self._call("digest", role) as server:
                return server.session.offered(version).digest

        other = None if signed else digest
        theta = fetched_model(
            self.task, version, announced, self.serves_first, fetch, other
        )
        self.world.seen.given[version].add(announced)
        self.world.seen.fetched.add(version)
        return theta

    def next_model(
        self,
        before: ModelVector,
        *,
        version: int,
        announced: Digest,
        step: Digest,
    ) -> ModelVector:
        """As `Servers.next_model`; the server may die before."""
        with self._call("step", self.serves_first) as server:
            offered = server.session.offered(version).step
        if offered is None:
            raise NotOnOffer("it restarted")
        theta = stepped_model(
            before,
            offered.stored.read(0, offered.stored.length),
            task=self.task,
            version=version,
            announced=announced,
            step=step,
        )
        self.world.seen.given[version].add(announced)
        self.world.seen.fetched.add(version)
        self.world.seen.stepped.add(version)
        return theta

    def require_final(self, version: int, announced: Digest) -> None:
        for role in SERVERS:
            with self._call("digest", role) as server:
                assert server.session.offered(version).digest == announced
        self.world.seen.given[version].add(announced)
        self.world.seen.fetched.add(version)

    @contextmanager
    def _call(self, step: str, role: Role) -> Iterator[Server]:
        """The block is the handler of a call; anything may happen before it."""
        with self.world.step(step):
            server = self._server(role)
        with self._handled_by(server):
            yield server

    def opening(self, role: Role, attempt: int) -> bytes:
        with self._call(f"opening {role.value}", role) as server:
            return opening_of(server.session, self.client, attempt).SerializeToString()

    def give_back(self, role: Role, shown: bytes, theta: bytes) -> None:
        with self._call(f"give back to {role.value}", role) as server:
            model = model_from_bytes(theta, self.task.dimension)
            if (lost := lost_model(server.session, self.client, shown)) is not None:
                give_back(server.session, self.client, lost, model)

    def statement(
        self, role: Role, shown: bytes | None, opening: bytes | None
    ) -> bytes:
        first, last = (
            None if m is None else pb.Signed.FromString(m) for m in (shown, opening)
        )
        with self._call(f"statement {role.value}", role) as server:
            signed = statement_of(
                server.session, self.client, shown=first, opening=last
            )
        body = pb.StatementBody.FromString(signed.body)
        self.world.seen.given[body.version].add(Digest(body.model_digest))
        return signed.SerializeToString()

    def compute(self, view: RoundView) -> RingVector:
        with self.world.step("compute"):
            times = self.world.times[f"{self.client}: compute"]
        if self.client in self.world.bad:
            # Vectors that a careless check takes: squares that wrap, far too long, just
            # too long.
            d, bound = self.task.dimension, self.task.mechanism.bound
            random = Random(f"{self.world.seed} {self.client} {view.attempt} forged")
            vector, words = np.zeros(d, dtype=np.int64), random.randint(1, d)
            wrong = [2**32, -(2**63), 3 * 2**33, bound + 1, 64 * bound, 2 * bound]
            vector[:words] = random.choice(wrong)
            return vector
        name = self.world.clients.index(self.client)
        fresh = np.random.default_rng([self.world.seed, name, view.attempt, times])
        return fresh.integers(-(2**20), 2**20, self.task.dimension, dtype=np.int64)

    def prepare(
        self,
        *,
        version: int,
        attempt: int,
        model: Digest,
        x: RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        context = SubmissionContext(
            task=self.task.digest,
            version=version,
            attempt=attempt,
            client=self.client,
            model=model,
        )
        return share(self.task, x, context, signer(self.client), proof or MADE_UP)

    def submit(self, pair: Pair, timeout_s: float) -> tuple[Receipt, Receipt]:
        """Both uploads in some order; sometimes one twice, or an old one again."""
        context = pair[0].context
        world = self.world
        random = Random(f"{world.seed} {self.client} {context.attempt}")
        deadline = world.turns.now + timeout_s
        self.record(pair)
        uploads = random.sample(pair, 2)
        if random.random() < 0.2:
            uploads.insert(random.randrange(3), random.choice(pair))
        if self._last is not None and random.random() < 0.2:
            with suppress(PeerUnavailable):
                old = self._upload(random.choice(self._last))
                assert old.rejection is Rejection.WRONG_ATTEMPT, "a replay was taken"
        if self.client in world.bad:
            uploads = self._misdeed(random, pair, uploads)
        receipts = {each.role: self._send(each, deadline) for each in uploads}
        for each in pair:
            receipts.setdefault(each.role, Receipt(each.role, None, ""))
        self._last = pair
        return receipts[Role.SERVER_A], receipts[Role.SERVER_B]

    def record(self, pair: Pair) -> None:
        """Before a byte leaves."""
        seen, of = self.world.seen, (self.client, pair[0].context.attempt)
        seen.pairs[of].add(pair[0].header.whole_digest.value)
        seen.updates[of] = reconstructed(pair, self.task.dimension)

    def _misdeed(self, random: Random, pair: Pair, uploads: Uploads) -> Uploads:
        """Half a pair, halves of two, the last attempt's, nothing; or as it is."""
        kind = random.randrange(6)
        if kind == 0:
            return [random.choice(pair)]
        if kind == 1:
            of = pair[0].context
            other = self.prepare(
                version=of.version,
                attempt=of.attempt,
                model=of.model,
                x=np.ones(self.task.dimension, np.int64),
                proof=stated_in(pair),
            )
            return [pair[0], other[1]]
        if kind == 2:
            return []
        if kind == 3 and self._last is not None:
            return [*self._last, *uploads]
        return uploads

    def _send(self, submission: AnySubmission, deadline: float) -> Receipt:
        world = self.world
        while True:
            with world.step(f"submit {submission.role.value}"):
                pass
            if world.turns.now >= deadline:
                raise PeerUnavailable("no submission was taken before the deadline")
            try:
                return self._upload(submission)
            except PeerUnavailable:
                world.turns.sleep(0.5)

    def _upload(self, submission: AnySubmission, *, whole: bool = True) -> Receipt:
        """As the servers' Submit; or half of it, and the connection is gone."""
        role, body = submission.role, body_of(submission)
        server, half = self._server(role), len(body) // 2
        box, upload = server.session.inbox, None
        with self._handled_by(server):
            try:
                upload = box.start(header_from_wire(header_to_wire(submission), role))
                upload.add(body[:half])
                with (
                    self.world.turns.acting(self._life),
                    self.world.step("half an upload"),
                ):
                    pass
                if whole:
                    upload.add(body[half:])
                    upload.finish()
            except RejectedSubmission as rejected:
                return Receipt(role, rejected.reason, rejected.detail)
            finally:
                if upload is not None and not upload.complete:
                    upload.abandon()
                    if server.life.alive:
                        box.refuse(
                            upload.context.attempt, self.client, Rejection.TRUNCATED
                        )
        return Receipt(role, None, "")

    def _server(self, role: Role) -> Server:
        if not self.world.serving(role):
            raise PeerUnavailable(f"{role.value} isn't there")
        self.world.handshake(self._life.party, role.value)
        return self.world.servers[role]

    @contextmanager
    def _handled_by(self, server: Server) -> Iterator[None]:
        """The block is the server's handler; it dies with it, the client doesn't."""
        try:
            with self.world.turns.acting(server.life):
                yield
        except errors.PrecadError as error:
            self.world.seen.crossed.append((self.client, told(error)))
            if isinstance(error, errors.StorageFailure):
                # As `refusing` has it: the caller waits.
                raise PeerUnavailable(str(error)) from None
            raise
        except Killed:
            self.world.turns.check_alive()
            raise PeerUnavailable(f"{server.role.value} died during the call") from None

    @contextmanager
    def _present(self, server: Server) -> Iterator[None]:
        watch = server.session.connected_clients.watch(self.client)
        with self.world.turns.acting(server.life):
            watch.__enter__()
        try:
            yield
        finally:
            with self.world.turns.acting(server.life):
                watch.__exit__(None, None, None)


BAD_CLAIMS = (
    (0, -1, 2**31, 10**18),
    (1e-15, 0.0, -0.5, 2.0, 0.11, float("nan"), float("inf")),
)
FLOOD = 1000
REFUSED = (
    errors.Misconfiguration,
    errors.PeerViolation,
    RejectedSubmission,
    TooManyCalls,
)


class Stranger(Calls):
    """Enrols at one server only, or differently at both, and misbehaves for ever."""

    def haunt(self, random: Random) -> None:
        self._random = random
        self._claim(Role.SERVER_A, RECORDS)
        if random.random() < 0.5:
            self._claim(Role.SERVER_B, RECORDS + 1)
        deeds = {
            "claim": self._absurd_claim,
            "upload": self._uninvited,
            "frame": self._frame,
        }
        while True:
            self.world.turns.sleep(random.uniform(0.1, 15.0))
            role, kind = random.choice(SERVERS), random.choice([*deeds, "flood"])
            if not self.world.serving(role):
                continue
            server = self.world.servers[role]
            try:
                with self._handled_by(server):
                    (self._flood if kind == "flood" else deeds[kind])(server)
            except REFUSED:
                self.world.seen.misdeeds[kind] += 1
            except PeerUnavailable:
                pass
            else:
                assert kind == "flood", f"{role.value} took a bad {kind}"

    def _claim(self, role: Role, records: int) -> None:
        # After a restart of its own it may find the roster frozen.
        self.world.turns.wait(lambda: self.world.serving(role))
        server = self.world.servers[role]
        with (
            suppress(PeerUnavailable, errors.Misconfiguration),
            self._handled_by(server),
        ):
            server.session.register.enrol(self.claim(records))

    def _absurd_claim(self, server: Server) -> None:
        claim = self.claim()
        if self._random.random() < 0.5:
            claim = replace(claim, records=self._random.choice(BAD_CLAIMS[0]))
        else:
            claim = replace(claim, record_rate=self._random.choice(BAD_CLAIMS[1]))
        server.session.register.enrol(claim)

    def _uninvited(self, server: Server) -> None:
        current, opened = (
            server.session.model_store.current,
            server.session.inbox.opened,
        )
        attempt = 0 if opened is None else max(opened.attempt, 0)
        x = np.ones(self.task.dimension, dtype=np.int64)
        pair = self.prepare(
            version=current.version, attempt=attempt, model=current.digest, x=x
        )
        own = pair[SERVERS.index(server.role)]
        upload = server.session.inbox.start(
            header_from_wire(header_to_wire(own), server.role)
        )
        upload.add(body_of(own))
        upload.finish()

    def _frame(self, server: Server) -> None:
        body = pb.StatementBody(
            version=2**40, attempt=2**40, charged=[10**6]
        ).SerializeToString()
        forged = pb.Signed(body=body, signature=b"x", certificates=[b"y"])
        shown, opening = (
            (forged, None) if self._random.random() < 0.5 else (None, forged)
        )
        statement_of(server.session, self.client, shown=shown, opening=opening)

    def _flood(self, server: Server) -> None:
        """A thousand watches that it never reads; it lets go of them a while later."""
        caller, got = Principal.client(self.client.name), 0
        with ExitStack() as held:
            for _ in range(FLOOD):
                try:
                    held.enter_context(server.calls.one_more(caller, Call.WATCH))
                    got += 1
                except TooManyCalls as error:
                    refused = error
            assert got == MOST_OPEN[Call.WATCH], f"{got} watches of one certificate"
            self.world.seen.crossed.append((self.client, told(refused)))
            self.world.seen.misdeeds["flood"] += 1
            self.world.turns.sleep(self._random.uniform(1.0, 30.0))
