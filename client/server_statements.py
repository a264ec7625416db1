"""What a data owner has seen both servers sign and serve, kept so that they can be held to it.

A server that lost its database meets its own signature here. Nothing in these files is
secret towards the servers; they say in which versions the owner was counted, so they
stay with the owner.
"""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError

from precad.client.both_servers import SERVERS, for_proof
from precad.client.connection import Servers
from precad.common.errors import Misconfiguration, PeerViolation
from precad.common.files import append_line, remove_drafts, write_files, writing
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.model import ModelVector, from_bytes, model_digest, to_bytes
from precad.common.task import Task
from precad.common.wire import messages as wire
from precad.norm_check.proof_submission import ForProof

log = logging.getLogger("precad")

STATEMENT = "statement-{}.bin"
"""The last statement of a server, by the name of its role."""
_OPENING = "opening-{}.bin"
"""What a server signed last for an attempt."""
_MODEL = "model-{}.bin"
"""θ of a version as it was served, while it is one of the newest two."""
_MODELS = "models.log"
Body = TypeVar("Body", wire.Opening, wire.Statement)


class ServerStatements:
    """Checks and keeps statements, openings, digests and the newest models.

    Those of another task or client are refused; without a folder all is in memory.

    Raises Misconfiguration: what was kept can't be read.
    """

    def __init__(
        self, task: Task, client: ClientId, folder: Path | None = None
    ) -> None:
        self._task = task
        self._client = client
        self._folder = folder
        self._statements: dict[Role, tuple[bytes, wire.Statement]] = {}
        self._openings: dict[Role, tuple[bytes, wire.Opening]] = {}
        self._models: dict[int, Digest] = {}
        self._files: dict[str, bytes] = {}
        """By name: all of them without a folder, else what isn't written yet."""
        if folder is not None:
            models = folder / _MODELS
            if models.exists():
                data = models.read_bytes()
                # A line that a crash cut short goes: the next would be written onto its
                # end.
                if not data.endswith(b"\n"):
                    os.truncate(models, data.rfind(b"\n") + 1)
            kept = read_kept_statements(folder)
            # A folder that served another task before says nothing of this one.
            self._statements = {
                r: s for r, s in kept.statements.items() if self._concerns(s[1])
            }
            openings = _read_signed(folder, _OPENING, wire.read_opening)
            self._openings = {r: o for r, o in openings.items() if self._concerns(o[1])}
            self._models = {
                v: m for (of, v), m in kept.models.items() if of == task.digest
            }

    def opening(self, servers: Servers, event: wire.RoundOpen) -> "StatedOpening":
        """Check what both servers sign for the open attempt, before anything is shared for it.

        Raises PeerViolation: a signature or what it is over isn't right; nothing may be
        sent. PeerUnavailable: a server isn't there. NotOnOffer: the attempt is over.
        """
        came = {Role.SERVER_A: event.signed}
        bodies = []
        with self._kept():
            for role in SERVERS:
                message = came.get(role) or servers.opening(role, event.attempt)
                bodies.append(self._opening(role, message, servers, event))
        charges = max(body.charges for body in bodies)
        return StatedOpening(
            charges, None if self._task.proof is None else for_proof(*bodies)
        )

    def _opening(
        self,
        role: Role,
        message: bytes,
        servers: Servers,
        event: wire.RoundOpen,
    ) -> wire.Opening:
        body = wire.check_opening(servers.verifier, role, message)
        said = (body.attempt, body.version, body.model_digest)
        if not self._concerns(body) or said != (
            event.attempt,
            event.version,
            event.model.value,
        ):
            raise PeerViolation(
                f"{role.value} signed for attempt {body.attempt} of version"
                f" {body.version} from model {body.model_digest.hex()}, and attempt"
                f" {event.attempt} of version {event.version} from {event.model} is"
                " open; nothing is sent"
            )
        self._openings[role] = message, body
        self._files[_OPENING.format(role.value)] = message
        return body

    def exchange(self, servers: Servers, signed: bytes | None = None) -> None:
        """Keep each server's newest statement.

        It is shown its last one where it may need that.

        A's may have come with a notice (``signed``): that is enough while it doesn't
        say less than what this owner holds. A server that has forgotten is shown its
        own signature.

        Raises PeerViolation: a signature isn't right, or a server counts less than it
        has signed. PeerUnavailable: a server isn't there.
        """
        with self._kept():
            for role in SERVERS:
                if role is Role.SERVER_A and signed is not None:
                    body = self._statement(servers, role, signed)
                    if self._says_all(role, body):
                        self._hold(role, signed, body)
                        continue
                self._exchange(servers, role)

    def _says_all(self, role: Role, body: wire.Statement) -> bool:
        last = self._statements.get(role)
        opening = self._openings.get(role)
        if last is not None and (
            body.version < last[1].version or _less(last[1], body)
        ):
            return False
        # Of an attempt that this server opened and doesn't know it must hear.
        return opening is None or body.attempt >= opening[1].attempt

    def _exchange(self, servers: Servers, role: Role) -> None:
        last = self._statements.get(role)
        shown = None if last is None else last[0]
        opening = self._openings.get(role)
        message = servers.statement(
            role, shown, None if opening is None else opening[0]
        )
        body = self._statement(servers, role, message)
        if last is not None:
            if _less(last[1], body):
                raise _forgotten(role, last[1], body)
            if body.version < last[1].version:
                # A lost model: what it signed before is still the proof of its release.
                self._give_back(servers, role, *last)
                return
        self._hold(role, message, body)

    def _statement(
        self, servers: Servers, role: Role, message: bytes
    ) -> wire.Statement:
        """What it says.

        Raises PeerViolation: ``role`` didn't sign it, or not for this owner.
        """
        body = wire.check_statement(servers.verifier, role, message)
        if not self._concerns(body):
            raise PeerViolation(
                f"{role.value} signed a statement for client {body.client!r} of task "
                f"{body.task_digest.hex()}, which isn't this one; nothing more is sent"
            )
        return body

    def _hold(self, role: Role, message: bytes, body: wire.Statement) -> None:
        self._statements[role] = message, body
        self._files[STATEMENT.format(role.value)] = message

    def _give_back(
        self,
        servers: Servers,
        role: Role,
        shown: bytes,
        body: wire.Statement,
    ) -> None:
        """The model that a server has signed and lost, if this owner still has it."""
        data = self._model_bytes(body.version)
        digest = self._models.get(body.version)
        if data is None or digest is None or digest.value != body.model_digest:
            log.warning(
                "%s has lost model %d, and so has this owner", role.value, body.version
            )
            return
        log.warning("%s has lost model %d; giving it back", role.value, body.version)
        servers.give_back(role, shown, data)

    def charged(self) -> tuple[int, dict[Role, list[int]]]:
        """How many versions both say are over; and each server's ``re_release_counts``.

        Nothing where a server has stated nothing yet.
        """
        bodies = {role: body for role, (_, body) in self._statements.items()}
        if len(bodies) < len(SERVERS):
            return 0, {}
        versions = min(body.version for body in bodies.values())
        return versions, {
            role: re_release_counts(body) for role, body in bodies.items()
        }

    def released(self, version: int) -> bool:
        """Whether a server has stated that this version is over."""
        return any(version < body.version for _, body in self._statements.values())

    def counted(self, version: int) -> bool:
        """Whether no server states that this owner isn't in the counted set of this version."""
        bodies = (body for _, body in self._statements.values())
        return all(body.counted for body in bodies if body.version == version + 1)

    def stated(self, version: int) -> Digest | None:
        """The digest of θ_version, where both servers' last statements name the same."""
        bodies = [
            body for _, body in self._statements.values() if body.version == version
        ]
        digests = {body.model_digest for body in bodies}
        one = len(bodies) == len(SERVERS) and len(digests) == 1
        return Digest(digests.pop()) if one else None

    def model(self, version: int, model: Digest) -> ModelVector | None:
        """θ_version as it was served, ``[d]``, while it is one of the newest two."""
        data = (
            self._model_bytes(version) if self._models.get(version) == model else None
        )
        if data is None:
            return None
        theta = from_bytes(data, self._task.dimension)
        own = model_digest(
            self._task.digest, version, self._task.model.parameters, theta
        )
        return theta if own == model else None

    def _model_bytes(self, version: int) -> bytes | None:
        name = _MODEL.format(version)
        if self._folder is None:
            return self._files.get(name)
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def changed(self, version: int, model: Digest) -> bool:
        """Whether this version had another model before."""
        return self._models.get(version, model) != model

    def saw(self, version: int, model: Digest, theta: ModelVector) -> None:
        """Keep what both servers agree is θ_version; an older digest stands.

        The newest two models stay, for a server that loses one whose digest it has
        signed.
        """
        if version in self._models:
            return
        self._models[version] = model
        with self._kept():
            self._files[_MODEL.format(version)] = to_bytes(theta)
        newest = {_MODEL.format(each) for each in sorted(self._models)[-2:]}
        if self._folder is None:
            self._files = {
                name: self._files[name] for name in newest & self._files.keys()
            }
            return
        with writing(self._folder / _MODELS):
            append_line(
                self._folder / _MODELS, f"{self._task.digest} {version} {model}"
            )
        for old in self._folder.glob(_MODEL.format("*")):
            if old.name not in newest:
                old.unlink(missing_ok=True)

    def _concerns(self, body: wire.Opening | wire.Statement) -> bool:
        mine = (self._task.digest.value, self._client.name)
        return (body.task_digest, body.client) == mine

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """What the block keeps is on the disk after it, however it ends."""
        try:
            yield
        finally:
            if self._folder is not None and self._files:
                files = self._files
                self._files = {}
                with writing(self._folder / next(iter(files))):
                    for name in files:
                        remove_drafts(self._folder / name)
                    write_files(self._folder, files)


@dataclass(frozen=True, slots=True)
class StatedOpening:
    """What both servers signed for an attempt."""

    re_releases: int
    """m: the larger of what the two say has left of this version's update already."""
    proof: ForProof | None = None
    """Where norms are proved."""


@dataclass(frozen=True, slots=True)
class KeptStatements:
    """What a state folder holds of servers' signed statements, of whatever task."""

    folder: Path
    statements: dict[Role, tuple[bytes, wire.Statement]]
    """The last one of each server that has one."""
    models: dict[tuple[Digest, int], Digest]
    """By task and version: what both servers served."""

    def served(self) -> dict[tuple[Digest, int], Digest]:
        """The same, and what the statements name beside it."""
        bodies = [body for _, body in self.statements.values()]
        named = {
            (Digest(b.task_digest), b.version): Digest(b.model_digest) for b in bodies
        }
        return named | self.models


def read_kept_statements(folder: Path) -> KeptStatements:
    """Return what ``ServerStatements`` keeps in ``folder``. Raises Misconfiguration."""
    statements = _read_signed(folder, STATEMENT, wire.read_statement)
    return KeptStatements(folder, statements, read_models(folder / _MODELS))


def _read_signed(
    folder: Path, name: str, read: Callable[[bytes], Body]
) -> dict[Role, tuple[bytes, Body]]:
    """What each server signed last, of one kind, where there is a file.

    Raises Misconfiguration.
    """
    found = {}
    for role in SERVERS:
        path = folder / name.format(role.value)
        if path.exists():
            message = path.read_bytes()
            try:
                found[role] = message, read(message)
            except DecodeError:
                raise Misconfiguration(
                    "state",
                    str(path),
                    "isn't a server's statement; restore it from a copy",
                ) from None
    return found


def read_models(path: Path) -> dict[tuple[Digest, int], Digest]:
    """The digests of models by task and version; a line that a crash cut short is no line.

    Raises Misconfiguration: the file holds something else.
    """
    data = path.read_bytes() if path.exists() else b""
    models: dict[tuple[Digest, int], Digest] = {}
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            task, version, model = line.decode("ascii").split(" ")
            of = Digest(bytes.fromhex(task)), int(version)
            models.setdefault(of, Digest(bytes.fromhex(model)))
        except (ValueError, Misconfiguration):
            raise Misconfiguration(
                "state",
                str(path),
                f"can't be read at {line[:100]!r}; restore it from a copy",
            ) from None
    return models


def re_release_counts(body: wire.Statement) -> list[int]:
    """For each m from 0: how many versions had m further releases or more.

    None of these ever falls: a repeated release moves a version from m to m + 1.
    """
    return list(accumulate(reversed(body.charged)))[::-1]


def _less(last: wire.Statement, new: wire.Statement) -> bool:
    both = zip_longest(re_release_counts(last), re_release_counts(new), fillvalue=0)
    return any(before > now for before, now in both)


def _forgotten(role: Role, last: wire.Statement, new: wire.Statement) -> PeerViolation:
    return PeerViolation(
        f"{role.value} states that it charged this owner for {sum(new.charged)}"
        f" versions, by further releases {list(new.charged)}, after it was shown its"
        f" own signature under {sum(last.charged)}, {list(last.charged)}: its ledger"
        " has forgotten charges. Nothing more is sent. Keep this state folder, and ask"
        " both operators to compare their ledgers (`precad ledger verify --against`)"
        " before you start again"
    )
