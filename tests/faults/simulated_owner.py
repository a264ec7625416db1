"""An owner's calls in a simulated training, straight to the servers' sessions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING

import numpy as np
from tests.faults.simulated_links import SERVERS
from tests.faults.simulated_server import Server
from tests.faults.turns import Killed, Life
from tests.rig.keys import signer, verifier
from tests.rig.submissions import body_of, reconstructed

from precad.aggregator.collect.upload import Upload
from precad.aggregator.rpc.limits import Call
from precad.aggregator.rpc.notices import NOTICE_BYTES, notice_of, opening_of, statement_of
from precad.aggregator.training.reconcile import give_back, lost_model
from precad.client.connection import Receipt
from precad.client.participant import RoundView
from precad.client.pending_update import Pair
from precad.client.server_statements import fetched_model
from precad.common.errors import (
    PeerUnavailable,
    PrecadError,
    RejectedSubmission,
    Rejection,
    StorageFailure,
)
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.model import ModelVector
from precad.common.model import from_bytes as model_from_bytes
from precad.common.ring import RingVector
from precad.common.roster import Enrolment
from precad.common.share.proof_submission import AnySubmission, ForProof, ProofHeader
from precad.common.share.submission import SubmissionContext
from precad.common.wire.messages import Notice, header_from_wire, header_to_wire, read_notice
from precad.common.wire.serving import told
from precad.norm_check.norm_proof import share
from precad.protos import precad_pb2 as pb

if TYPE_CHECKING:
    from tests.faults.world import World


RECORDS = 10
"""That each client enrols."""


MADE_UP = ForProof((Digest.of(b"o_A"), Digest.of(b"o_B")), Role.SERVER_A)
"""What no server has stated: of owners who make it up."""


def stated_in(pair: Pair) -> ForProof | None:
    """What an owner's pair was made for; None where the task has no proofs."""
    header = pair[0].header
    return (
        ForProof(header.openings, header.seed_holder) if isinstance(header, ProofHeader) else None
    )


class Calls:
    """Stands in for `Servers`: a client's calls, straight to the sessions."""

    def __init__(self, world: "World", client: ClientId, life: Life) -> None:
        self.task = world.task
        self.client = client
        self.verifier = verifier()
        self.serves_first = Role.SERVER_A
        self.world = world
        self._world = world
        self._life = life
        self._last: Pair | None = None

    def enrol(self) -> None:
        """At B and then at A, waiting for each."""
        claim = Enrolment(self.client, RECORDS, self.task.privacy.record_rate)
        for role in reversed(SERVERS):
            self._until_answered(role, lambda server: server.session.register.enrol(claim))

    def watch(self) -> Iterator[Notice]:
        """As A's Watch: the newest event, then those that follow."""
        world = self._world
        with world.step("watch"):
            server = self._server(Role.SERVER_A)
        events = server.event_log.events
        at = max(0, len(events) - 1)
        caller = Principal.client(self.client.name)
        with server.calls.one_more(caller, Call.WATCH), self._present(server):
            while True:
                self._wait_for(server, at)
                if not server.life.alive:
                    raise PeerUnavailable("server A is gone")
                self.serves_first = server.session.register.serves_first(self.client)
                notice = notice_of(events[at], self.client, serves_first=self.serves_first)
                assert notice.ByteSize() == NOTICE_BYTES
                at += 1
                with world.step(f"notice {notice.WhichOneof('event')}"):
                    pass
                yield read_notice(notice)

    def fetch_model(self, version: int, announced: Digest, *, signed: bool = False) -> ModelVector:
        """θ_t from one server, its digest from the other, as `Servers` does."""
        theta = fetched_model(
            self.task,
            version,
            announced,
            self.serves_first,
            lambda role, _last: self._model_bytes(role, version),
            None if signed else lambda role: self._model_digest(role, version),
        )
        self._world.seen.given[version].add(announced)
        self._world.seen.fetched.add(version)
        return theta

    def _model_bytes(self, role: Role, version: int) -> bytes:
        """As the servers' FetchModel; anything may happen amid it."""
        with self._world.step("fetch"):
            server = self._server(role)
        with self._handled_by(server):
            first, *others = server.session.offered(version).pieces(1 << 4)
            with self._world.turns.acting(self._life), self._world.step("half a model"):
                pass
        if not server.life.alive:
            raise PeerUnavailable(f"{role.value} died amid the model")
        return b"".join([first, *others])

    def _model_digest(self, role: Role, version: int) -> Digest:
        """As the servers' ModelDigest."""
        with self._world.step("digest"):
            server = self._server(role)
        with self._handled_by(server):
            return server.session.offered(version).digest

    def opening(self, role: Role, attempt: int) -> bytes:
        """As the servers' Opening."""
        with self._world.step(f"opening {role.value}"):
            server = self._server(role)
        with self._handled_by(server):
            return opening_of(server.session, self.client, attempt).SerializeToString()

    def give_back(self, role: Role, shown: bytes, theta: bytes) -> None:
        """As the servers' GiveBack."""
        with self._world.step(f"give back to {role.value}"):
            server = self._server(role)
        with self._handled_by(server):
            model = model_from_bytes(theta, self.task.dimension)
            if (lost := lost_model(server.session, self.client, shown)) is not None:
                give_back(server.session, self.client, lost, model)

    def statement(self, role: Role, shown: bytes | None, opening: bytes | None) -> bytes:
        """As the servers' Statement."""
        with self._world.step(f"statement {role.value}"):
            server = self._server(role)
        with self._handled_by(server):
            first, last = (None if m is None else pb.Signed.FromString(m) for m in (shown, opening))
            signed = statement_of(server.session, self.client, first, last)
        body = pb.StatementBody.FromString(signed.body)
        self._world.seen.given[body.version].add(Digest(body.model_digest))
        return signed.SerializeToString()

    def _forged(self, view: RoundView) -> RingVector:
        """Vectors that a careless check takes: squares that wrap, far too long, just too long."""
        d, bound = self.task.dimension, self.task.bound
        random = Random(f"{self._world.seed} {self.client} {view.attempt} forged")
        vector = np.zeros(d, dtype=np.int64)
        vector[: random.randint(1, d)] = random.choice(
            [2**32, -(2**63), 3 * 2**33, bound + 1, 64 * bound, 2 * bound]
        )
        return vector

    def compute(self, view: RoundView) -> RingVector:
        """A fresh random update: another one each time, as a fresh sample of records is."""
        with self._world.step("compute"):
            times = self._world.times[f"{self.client}: compute"]
        if self.client in self._world.bad:
            return self._forged(view)
        name = self._world.clients.index(self.client)
        fresh = np.random.default_rng([self._world.seed, name, view.attempt, times])
        return fresh.integers(-(2**20), 2**20, self.task.dimension, dtype=np.int64)

    def prepare(
        self,
        version: int,
        round_number: int,
        model: Digest,
        x: RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        """As `Servers.prepare`."""
        return share(
            self.task,
            x,
            SubmissionContext(self.task.digest, version, round_number, self.client, model),
            signer(self.client),
            proof or MADE_UP,
        )

    def submit(self, pair: Pair, timeout_s: float) -> tuple[Receipt, Receipt]:
        """Both uploads in some order; sometimes one twice, sometimes an old one again."""
        context = pair[0].context
        seen, world = self._world.seen, self._world
        random = Random(f"{world.seed} {self.client} {context.attempt}")
        deadline = world.turns.now + timeout_s
        # Recorded before a byte leaves.
        seen.pairs[self.client, context.attempt].add(pair[0].header.whole_digest.value)
        seen.updates[self.client, context.attempt] = reconstructed(pair, self.task.dimension)
        uploads = random.sample(pair, 2)
        if random.random() < 0.2:
            uploads.insert(random.randrange(3), random.choice(pair))
        if self._last is not None and random.random() < 0.2:
            self._replay(random.choice(self._last))
        if self.client in world.bad:
            uploads = self._misdeed(random, pair, uploads)
        receipts = {each.role: self._send(each, deadline) for each in uploads}
        for each in pair:
            receipts.setdefault(each.role, Receipt(each.role, None, ""))
        self._last = pair
        return receipts[Role.SERVER_A], receipts[Role.SERVER_B]

    def _misdeed(
        self, random: Random, pair: Pair, uploads: list[AnySubmission]
    ) -> list[AnySubmission]:
        """Half a pair, halves of two pairs, the last attempt's, nothing at all; or as it is."""
        kind = random.randrange(6)
        if kind == 0:
            return [random.choice(pair)]
        if kind == 1:
            other = self.prepare(
                pair[0].context.version,
                pair[0].context.attempt,
                pair[0].context.model,
                np.ones(self.task.dimension, np.int64),
                stated_in(pair),
            )
            return [pair[0], other[1]]
        if kind == 2:
            return []
        if kind == 3 and self._last is not None:
            return [*self._last, *uploads]
        return uploads

    def _replay(self, old: AnySubmission) -> None:
        try:
            receipt = self._upload(old)
        except PeerUnavailable:
            return
        assert receipt.rejection is Rejection.WRONG_ATTEMPT, "a replay was taken"

    def _send(self, submission: AnySubmission, deadline: float) -> Receipt:
        """As `Servers._send`."""
        world = self._world
        while True:
            with world.step(f"submit {submission.role.value}"):
                pass
            if world.turns.now >= deadline:
                raise PeerUnavailable("no submission was taken before the deadline")
            try:
                return self._upload(submission)
            except PeerUnavailable:
                world.turns.sleep(0.5)

    def _upload(self, submission: AnySubmission) -> Receipt:
        """As the servers' Submit."""
        role = submission.role
        server = self._server(role)
        box = server.session.inbox
        body = body_of(submission)
        half = len(body) // 2
        with self._handled_by(server):
            upload: Upload | None = None
            try:
                upload = box.start(header_from_wire(header_to_wire(submission), role))
                upload.add(body[:half])
                with self._world.turns.acting(self._life), self._world.step("half an upload"):
                    pass
                upload.add(body[half:])
                upload.finish()
            except RejectedSubmission as rejected:
                return Receipt(role, rejected.reason, rejected.detail)
            finally:
                if upload is not None and not upload.complete:
                    upload.abandon()
                    if server.life.alive:
                        box.refuse(upload.context.attempt, self.client, Rejection.TRUNCATED)
        return Receipt(role, None, "")

    def _until_answered(self, role: Role, call: Callable[["Server"], object]) -> None:
        world = self._world
        while True:
            with world.step(f"call {role.value}"):
                pass
            world.turns.wait(lambda: world.serving(role))
            server = self._server(role)
            try:
                with self._handled_by(server):
                    call(server)
            except PeerUnavailable:
                continue
            return

    def _server(self, role: Role) -> Server:
        if not self._world.serving(role):
            raise PeerUnavailable(f"{role.value} isn't there")
        self._world.handshake(self._life.party, role.value)
        return self._world.servers[role]

    @contextmanager
    def _handled_by(self, server: Server) -> Iterator[None]:
        """The block is the server's handler; it dies with the server, the client doesn't."""
        try:
            with self._world.turns.acting(server.life), self._hearing():
                yield
        except StorageFailure as error:
            # As `Refusing` has it: the caller waits.
            raise PeerUnavailable(str(error)) from None
        except Killed:
            self._world.turns.check_alive()
            raise PeerUnavailable(f"{server.role.value} died during the call") from None

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        """What this client reads of an error in the block."""
        try:
            yield
        except PrecadError as error:
            self._world.seen.crossed.append((self.client, told(error)))
            raise

    def _wait_for(self, server: Server, number: int) -> None:
        events = server.event_log.events
        self._world.turns.wait(lambda: len(events) > number or not server.life.alive)

    @contextmanager
    def _present(self, server: Server) -> Iterator[None]:
        watch = server.session.connected_clients.watch(self.client)
        with self._world.turns.acting(server.life):
            watch.__enter__()
        try:
            yield
        finally:
            with self._world.turns.acting(server.life):
                watch.__exit__(None, None, None)
