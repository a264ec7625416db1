"""What owners bring back to a server that has lost its memory: its own statements, and models.

A statement is this server's own signature, so nobody can make one up. A version that one of them
says is over is never released again: its model comes back from an owner, or from the operators'
backup.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

from precad.aggregator.training.session import Session
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import ClientId
from precad.common.model import ModelVector, model_digest
from precad.common.wire.owner_messages import Opening, Statement, check_opening, check_statement

log = logging.getLogger("precad")

Body = TypeVar("Body", Opening, Statement)


def _own(
    session: Session, client: ClientId, shown: bytes, check: Callable[..., Body]
) -> Body | None:
    """Return what this server once signed for ``client``.

    None where the certificate that signed it was revoked since: whoever has that key can sign
    anything, and its owner must still get on.
    """
    try:
        body = check(session.verifier, session.role, shown, kept=True)
    except PeerUnavailable as error:
        log.warning("%s shows a signature that isn't believed: %s", client, error)
        return None
    if (body.task_digest, body.client) != (session.task.digest.value, client.name):
        raise PeerViolation("what was shown is another client's or task's")
    return body


def remember(session: Session, client: ClientId, shown: bytes) -> Statement | None:
    """Keep a statement that this server may have forgotten; durable before it returns.

    Returns:
        What it says; None where it isn't believed.

    Raises:
        PeerViolation: this server hasn't signed it, or not for this client and task.
    """
    body = _own(session, client, shown, check_statement)
    if body is not None and session.store.statements.keep(body):
        log.warning(
            "%s shows a statement of this server on version %d that its ledger doesn't hold: its "
            "database was put back from an old copy. What it states counts again",
            client,
            body.version,
        )
    return body


def hear_of(session: Session, client: ClientId, opening: bytes) -> None:
    """Keep that this server has opened an attempt for ``client``. Raises as ``remember`` does."""
    if (body := _own(session, client, opening, check_opening)) is not None:
        session.store.attempts.hear(body.attempt)


def lost_model(session: Session, client: ClientId, shown: bytes) -> Statement | None:
    """Return the statement where this server has signed its model and lost it; None otherwise.

    Raises PeerViolation: as ``remember``, or its certificate was revoked.
    """
    body = remember(session, client, shown)
    if body is None:
        raise PeerViolation(f"the statement that {client} brings is of a revoked certificate")
    given = session.progress.given_back
    has = max(session.model_store.current.version, -1 if given is None else given[0])
    return body if body.version > has else None


def give_back(session: Session, client: ClientId, lost: Statement, theta: ModelVector) -> None:
    """Take a model that this server has signed and lost; the training goes on from it.

    Raises PeerViolation: the model isn't the one that the statement names.
    """
    task = session.task
    found = model_digest(task.digest, lost.version, task.model.parameters, theta)
    if found.value != lost.model_digest:
        raise PeerViolation(f"the model that {client} gives back isn't the one that was signed")
    log.warning("%s gives model %d back", client, lost.version)
    session.progress.given_back = (lost.version, theta)


def take_back(session: Session) -> None:
    """At a link's beginning: go on from a model that an owner has given back."""
    given, session.progress.given_back = session.progress.given_back, None
    if given is not None and given[0] > session.model_store.current.version:
        session.model_store.put(*given)


def require_nothing_lost(session: Session) -> None:
    """Before an attempt opens, and before it is prepared.

    Raises:
        PeerUnavailable: a version that owners may have heard of would be released again; or its
            model has just come back.
    """
    version, promised = (
        session.model_store.current.version,
        session.store.statements.promised_version(),
    )
    if session.progress.given_back is not None:
        raise PeerUnavailable("a lost model has come back; going on from it")
    if promised > version:
        raise PeerUnavailable(
            f"owners may have heard from this server that version {promised - 1} is over, and it "
            f"has model {version}: it was put back from an old copy. It waits for an owner to give "
            f"model {promised} back, or for you to put this server's newest model file in place. "
            "Where no owner has fetched that model and no copy of the file is left, nothing brings "
            "it back: start a new task"
        )
