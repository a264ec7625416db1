"""Both servers as an owner's process meets them, in memory, as a script says."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray
from tests.rig.clock import LeapingClock
from tests.rig.documents import Arguments
from tests.rig.keys import identity, signer, verifier
from tests.rig.submissions import body_of, reconstructed

from precad.client.connection import Receipt, Servers
from precad.client.own_account import OwnAccount
from precad.client.participant import Participant
from precad.client.participation import Observer, Participation, RoundView
from precad.client.pending_update import Pair, Pending
from precad.client.server_statements import ServerStatements
from precad.common import errors, ring
from precad.common.identifiers import SERVERS, ClientId, Digest, Role
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier
from precad.common.model import model_digest
from precad.common.submission import SubmissionContext
from precad.common.task import Task
from precad.common.wire import messages as wire
from precad.common.wire.messages import Notice, RoundOpen, RoundOver, sign_body
from precad.norm_check.proof_submission import ForProof
from precad.norm_check.share_update import share
from precad.protos import precad_pb2 as pb

ME = ClientId("ward-1")
Body: TypeAlias = pb.OpeningBody | pb.StatementBody


class Killed(BaseException):
    """The owner's process dies here, without a word."""


class Open(NamedTuple):
    attempt: int
    version: int
    selected: bool = True
    charges: tuple[int, int] = (0, 0)  # m as A and as B sign it
    model: int = 0  # Which of several models of this version it starts from
    takes_s: float = 0.0  # How long the client's computation takes


class Over(NamedTuple):
    attempt: int
    version: int
    counted: bool = True
    states: tuple[bool, bool] | None = None  # A's and B's, if not as the notice
    rejection: str = ""


@dataclass(frozen=True, slots=True)
class Paused:
    """A pauses: the client reconnects, and hears what comes next."""


Event = Open | Over | Paused


class Sent(NamedTuple):
    version: int
    attempt: int
    pair: Pair
    x: ring.RingVector
    at: float  # Seconds since the attempt's notice


@dataclass(slots=True)
class Script:
    """In place of `Servers`: it outlives the client's processes, and remembers."""

    task: Task
    events: list[Event]
    client: ClientId = ME
    words: bool = False  # Whether A's notices hold what it signs
    # What each server's statements count, by m, and t of its newest model.
    charged: dict[Role, list[int]] = field(
        default_factory=lambda: {role: [0] for role in SERVERS}
    )
    stated: dict[Role, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 0))
    said_counted: dict[Role, bool] = field(
        default_factory=lambda: dict.fromkeys(SERVERS, False)
    )
    given: list[tuple[Role, int, bytes]] = field(
        default_factory=list
    )  # Back, by the client
    takes_back: bool = True
    fetch_takes_s: float = 0.0  # How long a model is held back
    opening_takes_s: float = 0.0
    sent: list[Sent] = field(default_factory=list)
    shown: dict[Role, list[bytes | None]] = field(
        default_factory=lambda: {role: [] for role in SERVERS}
    )
    openings_shown: dict[Role, list[bytes | None]] = field(
        default_factory=lambda: defaultdict(list)
    )
    calls: list[str] = field(default_factory=list)  # What left the client's machine
    clock: LeapingClock = field(default_factory=LeapingClock)
    change: Callable[[Role, Body], None] = lambda _role, _body: (
        None
    )  # What is about to be signed
    on_step: Callable[[str], None] = lambda _name: None
    verifier: CertificateVerifier = field(default_factory=verifier)
    _at: int = 0
    _opened: Open | None = None
    _opened_at: float = 0.0

    def model(self, version: int, which: int = 0) -> tuple[NDArray[np.float64], Digest]:
        theta = np.full(self.task.dimension, float(version) + which / 8)
        return theta, model_digest(
            self.task.digest, version, self.task.model.parameters, theta
        )

    @contextmanager
    def _named(self, name: str) -> Iterator[None]:
        self.on_step(f"before {name}")
        yield
        self.on_step(f"after {name}")

    def steps(self, target: object, *names: str) -> None:
        for name in names:
            setattr(target, name, self._named(name)(getattr(target, name)))

    def _step(self, name: str) -> None:
        self.calls.append(name)
        self.on_step(name)

    def watch(self) -> Iterator[Notice]:
        self._step("watch")
        if self._at:
            self._at -= 1
        while self._at < len(self.events):
            event = self.events[self._at]
            self._at += 1
            if isinstance(event, Paused):
                # It is over when the client is back.
                self.events.pop(self._at - 1)
                self._at = max(0, self._at - 1)
                yield wire.TrainingPaused()
            else:
                notice = self._notice(event)
                if self.words:
                    opens, a = isinstance(event, Open), Role.SERVER_A
                    word = (
                        self._opening(a, event.attempt) if opens else self._statement(a)
                    )
                    notice = replace(notice, signed=word)
                yield notice
        version = max(
            (e.version + 1 for e in self.events if isinstance(e, Over)), default=0
        )
        yield wire.TrainingOver(version, self.model(version)[1])

    def _notice(self, event: Open | Over) -> RoundOpen | RoundOver:
        if isinstance(event, Open):
            self._opened, self._opened_at = event, self.clock.now()
            model = self.model(event.version, event.model)[1]
            lasts_s = self.task.deadlines.collect
            return RoundOpen(
                attempt=event.attempt,
                version=event.version,
                model=model,
                selected=event.selected,
                collect_seconds=lasts_s,
            )
        states = event.states or (event.counted, event.counted)
        for role, counted in zip(SERVERS, states, strict=True):
            if self.stated[role] <= event.version:
                self.stated[role] = event.version + 1
                self.said_counted[role] = counted
                self.charged[role][0] += counted
        return RoundOver(
            attempt=event.attempt,
            version=event.version,
            counted=event.counted,
            rejection=event.rejection,
        )

    def fetch_model(
        self, version: int, announced: Digest, **_: object
    ) -> NDArray[np.float64]:
        self._step(f"fetch {version}")
        self.clock.time += self.fetch_takes_s
        models = (self.model(version, which) for which in range(8))
        return next(theta for theta, digest in models if digest == announced)

    def require_final(self, version: int, _announced: Digest) -> None:
        self._step(f"final {version}")

    def opening(self, role: Role, attempt: int) -> bytes:
        self._step(f"opening {role.value} {attempt}")
        self.clock.time += self.opening_takes_s
        if self._opened is None or self._opened.attempt != attempt:
            raise errors.NotOnOffer(f"attempt {attempt} isn't open")
        return self._opening(role, attempt)

    def _opening(self, role: Role, attempt: int) -> bytes:
        assert self._opened is not None
        version, which = self._opened.version, self._opened.model
        charges = self._opened.charges[SERVERS.index(role)]
        return self._signed(
            role, pb.OpeningBody, version, which, attempt=attempt, charges=charges
        )

    def statement(
        self, role: Role, shown: bytes | None, opening: bytes | None
    ) -> bytes:
        self._step(f"statement {role.value}")
        self.shown[role].append(shown)
        self.openings_shown[role].append(opening)
        return self._statement(role)

    def _statement(self, role: Role) -> bytes:
        # The newest attempt that they know is one that never comes.
        says: Arguments = {
            "charged": self.charged[role],
            "counted": self.said_counted[role],
        }
        return self._signed(
            role, pb.StatementBody, self.stated[role], attempt=2**40, **says
        )

    def give_back(self, role: Role, shown: bytes, theta: bytes) -> None:
        self._step(f"give back {role.value}")
        version = wire.Statement.read(shown).version
        self.given.append((role, version, theta))
        if self.takes_back:
            self.stated[role] = version

    def _signed(
        self,
        role: Role,
        kind: type[Body],
        version: int,
        which: int = 0,
        **given: object,
    ) -> bytes:
        says: Arguments = given | {
            "task_digest": self.task.digest.value,
            "client": self.client.name,
        }
        digest = self.model(version, which)[1].value
        body = kind(version=version, model_digest=digest, **says)
        self.change(role, body)
        pen = CertificateSigner(identity(Principal.service(role)))
        return sign_body(pen, role, body).SerializeToString()

    def prepare(
        self,
        version: int,
        attempt: int,
        model: Digest,
        x: ring.RingVector,
        proof: ForProof | None = None,
    ) -> Pair:
        self.on_step("prepare")
        context = SubmissionContext(
            task=self.task.digest,
            version=version,
            attempt=attempt,
            client=self.client,
            model=model,
        )
        return share(self.task, x, context, signer(self.client), proof)

    def submit(self, pair: Pair, timeout_s: float) -> tuple[Receipt, Receipt]:
        assert timeout_s > 0
        context = pair[0].context
        sizes = [len(body_of(each)) for each in pair]
        self._step(f"submit {context.attempt} {sizes}")
        assert self._opened is not None
        x, after_s = (
            reconstructed(pair, self.task.dimension),
            self.clock.now() - self._opened_at,
        )
        self.sent.append(Sent(self._opened.version, context.attempt, pair, x, after_s))
        self.on_step("after submit")
        return Receipt(Role.SERVER_A, None, ""), Receipt(Role.SERVER_B, None, "")


@dataclass(slots=True)
class Owner:
    """An owner's process over a folder; each `run` is a new start of it."""

    script: Script
    folder: Path
    limit: float | None = None
    computed: list[RoundView] = field(default_factory=list)
    observer: Observer | None = None
    wait_s: float | None = None
    raise_limit: bool = False

    def open_account(self) -> OwnAccount:
        task, client, again = self.script.task, self.script.client, self.raise_limit
        rate = task.privacy.record_rate
        path = self.folder / "participations.log"
        return OwnAccount(task, rate, self.limit, path, client, raise_limit=again)

    def run(self) -> Participation:
        script, folder, account = self.script, self.folder, self.open_account()
        pending = Pending(script.task, script.client, folder / "pending.bin")
        statements = ServerStatements(script.task, script.client, folder)
        script.steps(account, "charge")
        script.steps(pending, "keep", "drop")
        script.steps(statements, "saw")
        return Participant(
            servers=cast("Servers", script),
            budget=account,
            pending=pending,
            compute=self.update,
            statements=statements,
            clock=script.clock,
            observer=self.observer or Observer(),
            wait_s=self.wait_s,
        ).run()

    def run_until_done(self) -> Participation:
        while True:
            with suppress(Killed):
                return self.run()

    def update(self, view: RoundView) -> ring.RingVector:
        """Another update each time, as a fresh sample of records is."""
        self.computed.append(replace(view, theta=view.theta.copy()))
        script = self.script
        if script._opened is not None:
            script.clock.time += script._opened.takes_s
        if view.covering:
            return np.zeros(script.task.dimension, dtype=np.int64)
        fresh = np.random.default_rng([view.version, len(self.computed)])
        return fresh.integers(1, 2**20, script.task.dimension, dtype=np.int64)
