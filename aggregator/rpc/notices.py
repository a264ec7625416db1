"""What a client may learn: of an event just this, whatever happened to others.

Not who was drawn, not how many counted, not why a server stopped (docs/protocol.md,
"What each party sees"). With it goes what the client would ask for next: what this
server signs for it at an attempt's opening, and of its account at the end. All notices
of a server have one size: on the wire none differs from another.
"""

import asyncio

from precad.aggregator.training import session as training
from precad.aggregator.training.reconcile import hear_of, remember
from precad.common.errors import NotOnOffer, PrecadError
from precad.common.identifiers import ClientId, Role
from precad.common.wire.messages import Body, sign_body
from precad.protos import precad_pb2 as pb

NOTICE_BYTES = 512
"""Without the room for a signed word."""
_PADDING_HEADER = 3
"""Tag and length of 128 bytes or more, and less than 16 KiB."""
_BLOCK = 2048
_BODY_BYTES = 1024
"""At most, of a signed word without its certificates."""


def word_room(certificates: bytes) -> int:
    """Bytes that a server's notices have for a signed word."""
    return min(6 * _BLOCK, -(-(len(certificates) + _BODY_BYTES) // _BLOCK) * _BLOCK)


def notice_of(
    event: training.Event,
    client: ClientId,
    word: pb.Signed | None = None,
    room: int = 0,
    *,
    serves_first: Role = Role.SERVER_A,
) -> pb.Notice:
    """Return what ``client`` may know of ``event``, in ``NOTICE_BYTES + room`` bytes.

    The ``word`` that this server signs for it is left out where the room is too small;
    ``serves_first`` is the server that it fetches models from
    (``Roster.seed_holders``).
    """
    notice = _notice(event, client)
    notice.serves_first = serves_first.value
    if word is not None and word.ByteSize() <= room:
        notice.word.CopyFrom(word)
    notice.padding = bytes(NOTICE_BYTES + room - notice.ByteSize() - _PADDING_HEADER)
    return notice


async def word_of(
    session: training.Session, event: training.Event, client: ClientId
) -> pb.Signed | None:
    """What ``client`` would ask for, told of ``event``; None where it had better ask."""
    covered = session.task.privacy.cover_uploads
    try:
        match event:
            case training.RoundOpened(opened=opened) if (
                covered or client in opened.counted
            ):
                return await asyncio.to_thread(
                    opening_of, session, client, opened.attempt
                )
            case training.RoundDone():
                return await asyncio.to_thread(
                    statement_of, session, client, shown=None
                )
    except PrecadError:
        # Over by now, or a disk that fails: whoever asks hears which.
        pass
    return None


def _notice(event: training.Event, client: ClientId) -> pb.Notice:
    match event:
        case training.RoundOpened(opened=opened, collect_s=collect_s):
            begun = pb.RoundOpen(
                attempt=opened.attempt,
                version=opened.version,
                model_digest=opened.model.value,
                collect_seconds=collect_s,
                selected=client in opened.counted,
            )
            return pb.Notice(open=begun)
        case training.RoundDone(opened=opened):
            over = pb.RoundOver(attempt=opened.attempt, version=opened.version)
            over.counted = client in event.valid
            rejection = event.rejections.get(client)
            if rejection is not None:
                over.rejection = rejection.value
            return pb.Notice(over=over)
        case training.TrainingDone(version, model):
            return pb.Notice(
                finished=pb.TrainingOver(version=version, model_digest=model.value)
            )
        case training.TrainingStopped():
            return pb.Notice(paused=pb.TrainingPaused())


def opening_of(session: training.Session, client: ClientId, attempt: int) -> pb.Signed:
    """What the open attempt has cost ``client`` so far.

    Raises NotOnOffer: it isn't open here.
    """
    opened = session.inbox.opened
    if opened is None or opened.attempt != attempt:
        raise NotOnOffer(f"attempt {attempt} isn't open")
    body = pb.OpeningBody(
        task_digest=session.task.digest.value,
        client=client.name,
        version=opened.version,
        attempt=attempt,
        charges=session.store.ledger.charges_in(opened.version).get(client, 0),
        opened=session.store.versions.opened(opened.version),
        model_digest=opened.model.value,
    )
    # It goes on meanwhile: once it is closed its own charge may be among them.
    if session.inbox.opened is not opened:
        raise NotOnOffer(f"attempt {attempt} isn't open any more")
    stated = session.inbox.proof_opening(attempt, client)
    if stated is not None:
        body.proof_opening = stated[0].value
        body.seed_holder = stated[1].value
    return _say(session, client, "opening", body)


def statement_of(
    session: training.Session,
    client: ClientId,
    *,
    shown: pb.Signed | None,
    opening: pb.Signed | None = None,
) -> pb.Signed:
    """Return the newest statement of ``client``'s account.

    What this server's last statement to it, ``shown``, says counts, forgotten or not;
    and the attempt of its last ``opening`` was. Raises PeerViolation: one isn't this
    server's.
    """
    said = session.last_signed
    if shown is not None and not said.knows(client, "statement", _bytes(shown)):
        remember(session, client, _bytes(shown))
    if opening is not None and not said.knows(client, "opening", _bytes(opening)):
        hear_of(session, client, _bytes(opening))
    # Before the version: while this looks, the training goes on, and a statement that
    # counted a version more than it names would count twice when it is shown.
    promised = session.store.statements.promised_version()
    # Not what this server alone holds: what is stated must not be lost by one of them.
    held = min(session.version, session.store.versions.confirmed())
    model = session.model_store.get(held)
    account = session.store.statements.account_of(client, model.version, promised)
    body = pb.StatementBody(
        task_digest=session.task.digest.value,
        client=client.name,
        version=model.version,
        model_digest=model.digest.value,
        attempt=session.store.attempts.next_number() - 1,
        charged=account.charged,
        opened=account.opened,
        counted=account.counted,
    )
    return _say(session, client, "statement", body)


def _say(
    session: training.Session,
    client: ClientId,
    kind: training.SignedKind,
    body: Body,
) -> pb.Signed:
    message = sign_body(session.signer, session.role, body)
    session.last_signed.note(client, kind, _bytes(message))
    return message


def _bytes(message: pb.Signed) -> bytes:
    return message.SerializeToString(deterministic=True)
