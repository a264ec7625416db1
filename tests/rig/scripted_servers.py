"""Both servers as an owner's process meets them, in memory: they say what a script says.

For the client's own rules, where gRPC and the servers' real rounds would only be in the way: what
it keeps, counts, signs, sends, in which order and when. The servers' side outlives the client's
processes; every call is a step at which a process can be killed.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tests.rig.clock import LeapingClock
from tests.rig.keys import identity, signer, verifier
from tests.rig.submissions import body_of, reconstructed

from precad.client.connection import Receipt, Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import RoundView, take_part
from precad.client.participation import Observer, Participation
from precad.client.pending_update import Pair, Pending
from precad.client.server_statements import SERVERS, ServerStatements
from precad.common.errors import NotOnOffer
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner, ServerVerifier
from precad.common.model import model_digest
from precad.common.ring import RingVector
from precad.common.share.proof_submission import ForProof
from precad.common.share.submission import SubmissionContext
from precad.common.task import Task
from precad.common.wire.messages import (
    Notice,
    RoundOpen,
    RoundOver,
    TrainingOver,
    TrainingPaused,
    read_statement,
    sign_body,
)
from precad.norm_check.norm_proof import share
from precad.protos import precad_pb2 as pb

ME = ClientId("ward-1")


@cache
def _pen(role: Role) -> CertificateSigner:
    return CertificateSigner(identity(Principal.service(role)))


class Killed(BaseException):
    """The owner's process dies here, without a word."""


@dataclass(frozen=True, slots=True)
class Open:
    """An attempt opens."""

    attempt: int
    version: int
    selected: bool = True
    charges: tuple[int, int] = (0, 0)
    """m as A and as B sign it."""
    model: int = 0
    """Which of several models of this version it starts from."""
    takes_s: float = 0.0
    """How long the client's computation takes."""


@dataclass(frozen=True, slots=True)
class Over:
    """An attempt got done: its version is over."""

    attempt: int
    version: int
    counted: bool = True
    states: tuple[bool, bool] | None = None
    """What A's and B's statements say of it; as the notice unless given."""


@dataclass(frozen=True, slots=True)
class Paused:
    """A pauses: the client reconnects, and hears what comes next."""


Event = Open | Over | Paused


@dataclass(frozen=True, slots=True)
class Sent:
    """One upload of a pair."""

    version: int
    attempt: int
    pair: Pair
    x: RingVector
    at: float
    """Seconds since the attempt's notice."""


@dataclass(slots=True)
class Script:
    """The servers: a task, what happens, and what was sent to them."""

    task: Task
    events: list[Event]
    client: ClientId = ME
    words: bool = False
    """Whether A's notices hold what it signs."""
    charged: dict[Role, list[int]] = field(default_factory=lambda: {role: [0] for role in SERVERS})
    """What each server's statements count, by m."""
    stated: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 0))
    """t of each server's newest model."""
    said_counted: dict[Role, bool] = field(default_factory=lambda: dict.fromkeys(SERVERS, False))
    given: list[tuple[Role, int, bytes]] = field(default_factory=list)
    """Models that the client gave back."""
    takes_back: bool = True
    sent: list[Sent] = field(default_factory=list)
    shown: dict[Role, list[bytes | None]] = field(
        default_factory=lambda: {role: [] for role in SERVERS}
    )
    openings_shown: dict[Role, list[bytes | None]] = field(
        default_factory=lambda: {role: [] for role in Role}
    )
    calls: list[str] = field(default_factory=list)
    """What left the client's machine, in order, with sizes where they could differ."""
    clock: LeapingClock = field(default_factory=LeapingClock)
    change: Callable[[Role, Any], None] = lambda _role, _body: None
    """Lets a test change what a server is about to sign."""
    on_step: Callable[[str], None] = lambda _name: None
    knows_attempt: int = 2**40
    """The newest attempt, as their statements say."""
    _at: int = 0
    _opened: Open | None = None
    _opened_at: float = 0.0

    def model(self, version: int, which: int = 0) -> tuple[NDArray[np.float64], Digest]:
        """θ_version and its digest."""
        theta = np.full(self.task.dimension, float(version) + which / 8)
        return theta, model_digest(self.task.digest, version, self.task.model.parameters, theta)

    def steps(self, target: object, *names: str) -> None:
        """Let calls of these methods be steps too."""
        for name in names:
            setattr(target, name, self._named(name, getattr(target, name)))

    def _named(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            self.on_step(f"before {name}")
            result = method(*arguments)
            self.on_step(f"after {name}")
            return result

        return call


class ScriptedServers:
    """Stands in for `Servers`: one start of the client's process."""

    def __init__(self, script: Script) -> None:
        self.task = script.task
        self.client = script.client
        self.verifier = cast("ServerVerifier", verifier())
        self._script = script

    def _step(self, name: str) -> None:
        self._script.calls.append(name)
        self._script.on_step(name)

    def watch(self) -> Iterator[Notice]:
        """The newest event again, and those that follow; after the last one the training ends."""
        script = self._script
        self._step("watch")
        if script._at:
            script._at -= 1
        while script._at < len(script.events):
            event = script.events[script._at]
            script._at += 1
            if isinstance(event, Paused):
                # It is over when the client is back.
                script.events.pop(script._at - 1)
                script._at = max(0, script._at - 1)
                yield TrainingPaused()
            else:
                notice = self._notice(event)
                yield replace(notice, signed=self._word(event)) if script.words else notice
        version = max((e.version + 1 for e in script.events if isinstance(e, Over)), default=0)
        yield TrainingOver(version, script.model(version)[1])

    def _word(self, event: Open | Over) -> bytes:
        """What A signs at this event, unasked."""
        if isinstance(event, Open):
            return self._opening(Role.SERVER_A, event.attempt)
        return self._statement(Role.SERVER_A)

    def _notice(self, event: Open | Over) -> RoundOpen | RoundOver:
        script = self._script
        if isinstance(event, Open):
            script._opened, script._opened_at = event, script.clock.now()
            return RoundOpen(
                event.attempt,
                event.version,
                script.model(event.version, event.model)[1],
                event.selected,
                script.task.deadlines.collect,
            )
        states = event.states or (event.counted, event.counted)
        for role, counted in zip(SERVERS, states, strict=True):
            if script.stated[role] <= event.version:
                script.stated[role] = event.version + 1
                script.said_counted[role] = counted
                script.charged[role][0] += counted
        return RoundOver(event.attempt, event.version, event.counted)

    def fetch_model(
        self,
        version: int,
        announced: Digest,
        *,
        signed: bool = False,  # noqa: ARG002 -- who signed is the real one's affair
    ) -> NDArray[np.float64]:
        """The announced one."""
        self._step(f"fetch {version}")
        for which in range(8):
            theta, digest = self._script.model(version, which)
            if digest == announced:
                return theta
        raise AssertionError("no such model was announced")

    def opening(self, role: Role, attempt: int) -> bytes:
        """As the servers' Opening."""
        self._step(f"opening {role.value} {attempt}")
        script = self._script
        if script._opened is None or script._opened.attempt != attempt:
            raise NotOnOffer(f"attempt {attempt} isn't open")
        return self._opening(role, attempt)

    def _opening(self, role: Role, attempt: int) -> bytes:
        script = self._script
        assert script._opened is not None
        body = pb.OpeningBody(
            task_digest=self.task.digest.value,
            client=self.client.name,
            version=script._opened.version,
            attempt=attempt,
            charges=script._opened.charges[SERVERS.index(role)],
            model_digest=script.model(script._opened.version, script._opened.model)[1].value,
        )
        return self._signed(role, body)

    def statement(self, role: Role, shown: bytes | None, opening: bytes | None) -> bytes:
        """As the servers' Statement."""
        self._step(f"statement {role.value}")
        script = self._script
        script.shown[role].append(shown)
        script.openings_shown[role].append(opening)
        return self._statement(role)

    def _statement(self, role: Role) -> bytes:
        script = self._script
        version = script.stated[role]
        body = pb.StatementBody(
            task_digest=self.task.digest.value,
            client=self.client.name,
            version=version,
            model_digest=script.model(version)[1].value,
            attempt=script.knows_attempt,
            charged=script.charged[role],
            counted=script.said_counted[role],
        )
        return self._signed(role, body)

    def give_back(self, role: Role, shown: bytes, theta: bytes) -> None:
        """The server has its newest model again."""
        self._step(f"give back {role.value}")
        script = self._script
        version = read_statement(shown).version
        script.given.append((role, version, theta))
        if script.takes_back:
            script.stated[role] = version

    def _signed(self, role: Role, body: pb.OpeningBody | pb.StatementBody) -> bytes:
        self._script.change(role, body)
        return sign_body(_pen(role), role, body).SerializeToString()

    def prepare(
        self,
        version: int,
        attempt: int,
        model: Digest,
        x: RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        """As `Servers.prepare`."""
        self._script.on_step("prepare")
        return share(
            self.task,
            x,
            SubmissionContext(self.task.digest, version, attempt, self.client, model),
            signer(self.client),
            proof,
        )

    def submit(self, pair: Pair, timeout_s: float) -> tuple[Receipt, Receipt]:
        """Both servers take it."""
        assert timeout_s > 0
        script, context = self._script, pair[0].context
        sizes = [len(body_of(each)) for each in pair]
        self._step(f"submit {context.attempt} {sizes}")
        assert script._opened is not None
        script.sent.append(
            Sent(
                script._opened.version,
                context.attempt,
                pair,
                reconstructed(pair, self.task.dimension),
                script.clock.now() - script._opened_at,
            )
        )
        script.on_step("after submit")
        return Receipt(Role.SERVER_A, None, ""), Receipt(Role.SERVER_B, None, "")


@dataclass(slots=True)
class Owner:
    """An owner's process over a folder; each `run` is a new start of it."""

    script: Script
    folder: Path | None
    limit: float | None = None
    account: Path | None = None
    computed: list[RoundView] = field(default_factory=list)
    results: dict[int, list[RingVector]] = field(default_factory=lambda: defaultdict(list))
    """All updates that were computed on records, by version."""
    budget: OwnAccount | None = None
    observer: Observer | None = None
    wait_s: float | None = None
    raise_limit: bool = False

    def open_account(self) -> OwnAccount:
        """The account as its file has it now."""
        folder = self.account or self.folder
        path = None if folder is None else folder / "participations.log"
        task = self.script.task
        rate, client = task.privacy.record_rate, self.script.client
        return OwnAccount(task, rate, self.limit, path, client, raise_limit=self.raise_limit)

    def run(self) -> Participation:
        """Start the process, and let it take part until the training ends or it is killed."""
        script, folder = self.script, self.folder
        self.budget = self.open_account()
        kept = None if folder is None else folder / "pending.bin"
        pending = Pending(script.task, script.client, kept)
        statements = ServerStatements(script.task, script.client, folder)
        script.steps(self.budget, "charge")
        script.steps(pending, "keep", "drop")
        script.steps(statements, "saw")
        servers = cast("Servers", ScriptedServers(script))
        return take_part(
            servers,
            self.budget,
            pending,
            self.update,
            clock=script.clock,
            statements=statements,
            observer=self.observer,
            wait_s=self.wait_s,
        )

    def run_until_done(self) -> Participation:
        """Start again whenever it was killed."""
        while True:
            try:
                return self.run()
            except Killed:
                continue

    def update(self, view: RoundView) -> RingVector:
        """Another update each time, as a fresh sample of records is."""
        self.computed.append(replace(view, theta=view.theta.copy()))
        script = self.script
        if script._opened is not None:
            script.clock.time += script._opened.takes_s
        dimension = script.task.dimension
        if view.covering:
            return np.zeros(dimension, dtype=np.int64)
        fresh = np.random.default_rng([view.version, len(self.computed)])
        x = fresh.integers(1, 2**20, dimension, dtype=np.int64)
        self.results[view.version].append(x)
        return x
