"""What both servers have signed and served for a data owner, kept as evidence.

A server that lost its database meets its own signature here. Nothing in these files is
secret towards the servers; they say in which versions the owner was counted, so they
stay with the owner.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate, zip_longest
from pathlib import Path
from typing import TypeVar

from google.protobuf.message import DecodeError

from precad.client.both_servers import for_proof
from precad.client.connection import Servers
from precad.common import (
    SERVERS,
    ClientId,
    Digest,
    Misconfiguration,
    ModelVector,
    PeerUnavailable,
    PeerViolation,
    Role,
    Task,
    append_line,
    digest_of_model,
    frozen_dataclass,
    log,
    remove_drafts,
    write_files,
    writing,
)
from precad.common.model import from_bytes, to_bytes
from precad.common.wire import Opening, RoundOpen, Statement
from precad.norm_check import ForProof

STATEMENT = "statement-{}.bin"
"""Name of the file with a server's last statement, by the name of its role."""
_OPENING = "opening-{}.bin"
"""Name of the file with what a server signed last for an attempt."""
_MODEL = "model-{}.bin"
"""Name of the file with θ of a version, while it is one of the newest two."""
MODELS = "models.log"
"""Name of the file with the digests of all models, a line each."""
ModelDigests = dict[tuple[Digest, int], Digest]
"""The digests of models, by task and version."""
Body = TypeVar("Body", Opening, Statement)


class ServerStatements:
    """Checks and keeps statements, openings, digests and the newest models.

    Those of another task or client are refused. They are kept in ``folder``, or in
    memory without it.

    Raises Misconfiguration: what was kept in ``folder`` can't be read.
    """

    def __init__(
        self, task: Task, client: ClientId, folder: Path | None = None
    ) -> None:
        """Read what an earlier process of this task and client kept in ``folder``."""
        self._task = task
        self._client = client
        self._folder = folder
        self._statements: dict[Role, Statement] = {}
        """Each server's last one."""
        self._openings: dict[Role, Opening] = {}
        """Each server's last one."""
        self._models: dict[int, Digest] = {}
        """The digest of each version's model that both servers agreed on."""
        self._files: dict[str, bytes] = {}
        """By name: all of them without a folder, else what isn't written yet."""
        self._step_failed = False
        if folder is not None:
            models = folder / MODELS
            if models.exists():
                data = models.read_bytes()
                # A line that a crash cut short goes: the next would be written onto its
                # end.
                if not data.endswith(b"\n"):
                    os.truncate(models, data.rfind(b"\n") + 1)
            kept = read_kept_statements(folder)
            # A folder that served another task before says nothing of this one.
            self._statements = self._own(kept.statements)
            self._openings = self._own(_read_signed(folder, _OPENING, Opening))
            self._models = {
                version: digest
                for (kept_task, version), digest in kept.models.items()
                if kept_task == task.digest
            }

    def opening(self, servers: Servers, event: RoundOpen) -> "StatedOpening":
        """Check and keep what both servers sign for an open attempt.

        Nothing may be shared for the attempt before this returns.

        Raises PeerViolation: a signature or what it is over isn't right; nothing may be
        sent. PeerUnavailable: a server isn't there. NotOnOffer: the attempt is over.
        """
        bodies = []
        with self._written():
            for role in SERVERS:
                message = event.signed if role is Role.SERVER_A else None
                message = message or servers.opening(role, event.attempt)
                body = Opening.checked(servers.verifier, role, message)
                if (
                    not self._concerns(body)
                    or body.attempt != event.attempt
                    or body.version != event.version
                    or body.model_digest != event.model.value
                ):
                    raise PeerViolation(
                        f"{role.value} signed for attempt {body.attempt} of version"
                        f" {body.version} from model {body.model_digest.hex()}, and"
                        f" attempt {event.attempt} of version {event.version} from"
                        f" {event.model} is open; nothing is sent"
                    )
                self._openings[role] = body
                self._files[_OPENING.format(role.value)] = message
                bodies.append(body)
        opening_a, opening_b = bodies
        return StatedOpening(
            max(opening_a.charges, opening_b.charges),
            None if self._task.proof is None else for_proof(opening_a, opening_b),
        )

    def exchange(self, servers: Servers, signed: bytes | None = None) -> None:
        """Get each server's newest statement, and keep it.

        ``signed`` is server A's, where it came with a notice. That is enough while it
        doesn't say less than what this owner holds; else A is asked, as B always is. A
        server that is asked is shown its own last statement: so one that has forgotten
        meets its own signature.

        Raises PeerViolation: a signature isn't right, or a server counts less than it
        has signed. PeerUnavailable: a server isn't there.
        """
        with self._written():
            for role in SERVERS:
                if role is Role.SERVER_A and signed is not None:
                    body = self._checked_statement(servers, role, signed)
                    if self._says_all(role, body):
                        self._hold(role, body)
                        continue
                self._ask_for_statement(servers, role)

    def _says_all(self, role: Role, body: Statement) -> bool:
        """Return whether a statement says no less than what ``role`` signed before."""
        last = self._statements.get(role)
        if last is not None and (
            body.version < last.version or _counts_less(body, last)
        ):
            return False
        # Of an attempt that this server opened and doesn't know it must hear.
        opening = self._openings.get(role)
        return opening is None or body.attempt >= opening.attempt

    def _ask_for_statement(self, servers: Servers, role: Role) -> None:
        """Get the newest statement of ``role`` for its last one, and keep it.

        Where the server has lost a model that it signed, it gets the model back, and
        its last statement stays: it is still the proof of that model's release.
        """
        last = self._statements.get(role)
        opening = self._openings.get(role)
        message = servers.statement(
            role,
            None if last is None else last.signed,
            None if opening is None else opening.signed,
        )
        body = self._checked_statement(servers, role, message)
        if last is not None:
            if _counts_less(body, last):
                raise _forgotten(role, last, body)
            if body.version < last.version:
                self._give_back(servers, role, last)
                return
        self._hold(role, body)

    def _checked_statement(
        self, servers: Servers, role: Role, message: bytes
    ) -> Statement:
        """Return what a statement says.

        Raises PeerViolation: ``role`` didn't sign it, or not for this owner.
        """
        body = Statement.checked(servers.verifier, role, message)
        if not self._concerns(body):
            raise PeerViolation(
                f"{role.value} signed a statement for client {body.client!r} of task "
                f"{body.task_digest.hex()}, which isn't this one; nothing more is sent"
            )
        return body

    def _hold(self, role: Role, body: Statement) -> None:
        self._statements[role] = body
        self._files[STATEMENT.format(role.value)] = body.signed

    def _give_back(self, servers: Servers, role: Role, body: Statement) -> None:
        """Give a server the model that it has signed and lost, if this owner has it.

        ``body`` is the server's statement that names the model.
        """
        data = self._model_bytes(body.version)
        digest = self._models.get(body.version)
        if data is None or digest is None or digest.value != body.model_digest:
            log.warning(
                "%s has lost model %d, and so has this owner", role.value, body.version
            )
            return
        log.warning("%s has lost model %d; giving it back", role.value, body.version)
        servers.give_back(role, body.signed, data)

    def charged(self) -> tuple[int, dict[Role, list[int]]]:
        """Return how many versions both servers say are over, and what each charged.

        The latter are each server's ``re_release_counts``; zero and nothing where a
        server has stated nothing yet.
        """
        bodies = self._statements
        if len(bodies) < len(SERVERS):
            return 0, {}
        return min(body.version for body in bodies.values()), {
            role: re_release_counts(body) for role, body in bodies.items()
        }

    def released(self, version: int) -> bool:
        """Return whether a server has stated that this version is over."""
        return any(version < body.version for body in self._statements.values())

    def counted(self, version: int) -> bool:
        """Return whether this owner is in a version's counted set, as far as is stated.

        False only where a server's last statement, of just this version, denies it.
        """
        return all(
            body.counted
            for body in self._statements.values()
            if body.version == version + 1
        )

    def stated(self, version: int) -> Digest | None:
        """Return the digest of θ_version that both servers' last statements name.

        None where they don't both name one, or not the same.
        """
        return self._named_by_both(version, lambda body: body.model_digest)

    def next_model(
        self,
        servers: Servers,
        version: int,
        model: Digest,
        before: ModelVector | None,
    ) -> ModelVector:
        """Return θ_version, ``[d]``, of the digest ``model`` that both have stated.

        By the step from ``before``, θ_{version−1}, where there is one and both state
        one, or else as a whole; where a step fails that is said once.

        Raises PeerUnavailable, PeerViolation: as ``Servers.fetch_model``.
        """
        step = self._named_by_both(version, lambda body: body.step_digest)
        if step is not None and before is not None:
            try:
                return servers.next_model(
                    before, version=version, announced=model, step=step
                )
            except (PeerUnavailable, PeerViolation) as error:
                if not self._step_failed:
                    log.warning("%s; fetching whole models where steps fail", error)
                self._step_failed = True
        return servers.fetch_model(version, model, signed=True)

    def final_model(self, servers: Servers, version: int, model: Digest) -> ModelVector:
        """Return the last θ_version, ``[d]``: both servers hear that it is here.

        Raises as ``Servers.fetch_model``.
        """
        theta = self.model(version, model)
        if theta is None:
            return servers.fetch_model(version, model)
        servers.require_final(version, model)
        return theta

    def answered(self) -> Mapping[str, int]:
        """Return whose records both say an answer is about, and how many each has.

        Empty before there is one, and where the servers differ.
        """
        counted = [body.answered for body in self._statements.values()]
        agreed = len(counted) == len(SERVERS) and counted[0] == counted[1]
        return counted[0] if agreed else {}

    def _named_by_both(
        self, version: int, digest_in: Callable[[Statement], bytes]
    ) -> Digest | None:
        """Return a digest that both last statements have; None where they haven't."""
        digests = [
            digest_in(body)
            for body in self._statements.values()
            if body.version == version
        ]
        if len(digests) < len(SERVERS) or len(set(digests)) > 1 or not digests[0]:
            return None
        return Digest(digests[0])

    def model(self, version: int, model: Digest) -> ModelVector | None:
        """Return θ_version as it was served, ``[d]``, if it has the digest ``model``.

        None where it hasn't, or isn't one of the newest two any more.
        """
        if self._models.get(version) != model:
            return None
        data = self._model_bytes(version)
        if data is None:
            return None
        task = self._task
        theta = from_bytes(data, task.dimension)
        return theta if digest_of_model(task, version, theta) == model else None

    def _model_bytes(self, version: int) -> bytes | None:
        name = _MODEL.format(version)
        if self._folder is None:
            return self._files.get(name)
        path = self._folder / name
        return path.read_bytes() if path.exists() else None

    def changed(self, version: int, model: Digest) -> bool:
        """Return whether this version had another model before."""
        return self._models.get(version, model) != model

    def saw(self, version: int, model: Digest, theta: ModelVector) -> None:
        """Keep what both servers agree is θ_version; an older digest stands.

        The newest two models stay, for a server that loses one whose digest it has
        signed.
        """
        if version in self._models:
            return
        self._models[version] = model
        with self._written():
            self._files[_MODEL.format(version)] = to_bytes(theta)
        newest = {_MODEL.format(number) for number in sorted(self._models)[-2:]}
        if self._folder is None:
            self._files = {
                name: self._files[name] for name in newest & self._files.keys()
            }
            return
        with writing(self._folder / MODELS):
            append_line(self._folder / MODELS, f"{self._task.digest} {version} {model}")
        for old in self._folder.glob(_MODEL.format("*")):
            if old.name not in newest:
                old.unlink(missing_ok=True)

    def _own(self, signed: Mapping[Role, Body]) -> dict[Role, Body]:
        """Return those messages that are for this owner's task and name."""
        return {role: body for role, body in signed.items() if self._concerns(body)}

    def _concerns(self, body: Opening | Statement) -> bool:
        """Return whether a server signed this for this owner's task and name."""
        return (
            body.task_digest == self._task.digest.value
            and body.client == self._client.name
        )

    @contextmanager
    def _written(self) -> Iterator[None]:
        """Write what the block keeps to the disk after it, however it ends."""
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


@frozen_dataclass
class StatedOpening:
    """What both servers signed for an attempt."""

    re_releases: int
    """m: releases of this version's update that may have left already, by the server
    that says more."""
    proof: ForProof | None = None
    """What both state for the owner's proof; None where norms aren't proved."""


@frozen_dataclass
class KeptStatements:
    """What a state folder holds of the servers' signed statements, of any task."""

    folder: Path
    statements: dict[Role, Statement]
    """Each server's last one, if it has one."""
    models: ModelDigests
    """The digest of what both servers served, by task and version."""

    def served(self) -> ModelDigests:
        """Return ``models``, and the models that only the statements name."""
        named = {
            (Digest(body.task_digest), body.version): Digest(body.model_digest)
            for body in self.statements.values()
        }
        return named | self.models


def read_kept_statements(folder: Path) -> KeptStatements:
    """Return what ``ServerStatements`` keeps in ``folder``, unchecked.

    Raises Misconfiguration: it can't be read.
    """
    statements = _read_signed(folder, STATEMENT, Statement)
    return KeptStatements(folder, statements, read_models(folder / MODELS))


def _read_signed(folder: Path, name: str, form: type[Body]) -> dict[Role, Body]:
    """Return what each server signed last, of one ``form``, where there is a file.

    ``name`` is the file's with a place for the role.

    Raises Misconfiguration: a file holds something else.
    """
    signed = {}
    for role in SERVERS:
        path = folder / name.format(role.value)
        if path.exists():
            try:
                signed[role] = form.read(path.read_bytes())
            except DecodeError:
                raise Misconfiguration(
                    "state",
                    path,
                    "isn't a server's statement; restore it from a copy",
                ) from None
    return signed


def read_models(path: Path) -> ModelDigests:
    """Return the digests of models, by task and version.

    A line that a crash cut short is left out. Of two lines for one version the first
    counts.

    Raises Misconfiguration: the file holds something else.
    """
    data = path.read_bytes() if path.exists() else b""
    models: ModelDigests = {}
    for line in data[: data.rfind(b"\n") + 1].splitlines():
        try:
            task, version, model = line.decode("ascii").split(" ")
            key = Digest(bytes.fromhex(task)), int(version)
            models.setdefault(key, Digest(bytes.fromhex(model)))
        except (ValueError, Misconfiguration):
            raise Misconfiguration(
                "state",
                path,
                f"can't be read at {line[:100]!r}; restore it from a copy",
            ) from None
    return models


def re_release_counts(body: Statement) -> list[int]:
    """Return, for each m from 0, how many versions had m further releases or more.

    None of these ever falls: a repeated release moves a version from m to m + 1.
    """
    return list(accumulate(reversed(body.charged)))[::-1]


def _counts_less(new: Statement, last: Statement) -> bool:
    """Return whether ``new`` charges this owner for less than ``last``, at any m."""
    pairs = zip_longest(re_release_counts(new), re_release_counts(last), fillvalue=0)
    return any(count < last_count for count, last_count in pairs)


def _forgotten(role: Role, last: Statement, new: Statement) -> PeerViolation:
    """Return the error for a server whose ``new`` statement counts less."""
    return PeerViolation(
        f"{role.value} states that it charged this owner for {sum(new.charged)}"
        f" versions, by further releases {list(new.charged)}, after it was shown its"
        f" own signature under {sum(last.charged)}, {list(last.charged)}: its ledger"
        " has forgotten charges. Nothing more is sent. Keep this state folder, and ask"
        " both operators to compare their ledgers (`precad ledger verify --against`)"
        " before you start again"
    )
