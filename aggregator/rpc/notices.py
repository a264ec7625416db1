"""Notices: what a server tells a client of an event, and what it signs for it.

A client learns just this of an event, whatever happened to others. It doesn't learn who
was drawn, how many counted, or why a server stopped (docs/protocol.md, "What each party
sees"). With a notice goes a signed message that the client would ask for next: at an
attempt's opening what this server signs for it, at the attempt's end what this server
signs of its account. The field of a notice for it is called ``word``.

All notices of a server have one size: on the wire none differs from another.
"""

import asyncio
import hashlib

from precad.aggregator.training import hear_of, remember
from precad.aggregator.training import session as training
from precad.common import ClientId, NotOnOffer, PrecadError, Role
from precad.common.wire import Body, sign_body
from precad.protos import precad_pb2 as pb

NOTICE_BYTES = 512
"""Size of a notice without the room for a signed message."""
_PADDING_HEADER = 3
"""Bytes of the padding's tag and length.

Correct for a padding of 128 bytes or more, and of less than 16 KiB.
"""
_BLOCK = 2048
"""Bytes; the room for a signed message is a multiple of it."""
_MOST_BLOCKS = 6
"""The largest room; a longer signed message is asked for by itself."""
_BODY_BYTES = 1024
"""The most bytes that a signed message has besides its certificates."""


def word_room(certificates: bytes) -> int:
    """Return how many bytes a server's notices keep free for a signed message.

    ``certificates`` are the server's own, which go with each signature.
    """
    needed_bytes = len(certificates) + _BODY_BYTES
    blocks = -(-needed_bytes // _BLOCK)  # rounded up
    return min(_MOST_BLOCKS, blocks) * _BLOCK


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
    notice = _event_notice(event, client)
    notice.serves_first = serves_first.value
    if word is not None and word.ByteSize() <= room:
        notice.word.CopyFrom(word)
    notice.padding = bytes(NOTICE_BYTES + room - notice.ByteSize() - _PADDING_HEADER)
    return notice


async def word_of(
    session: training.Session, event: training.Event, client: ClientId
) -> pb.Signed | None:
    """Return the signed message that ``client`` would ask for next, told of ``event``.

    None where no signed message belongs to the event, or where the client had better
    ask for it.
    """
    covered = session.task.mechanism.hides_coin
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
        # The attempt is over by now, or the disk fails: a client that asks hears which.
        pass
    return None


def _event_notice(event: training.Event, client: ClientId) -> pb.Notice:
    """Return what ``client`` may know of ``event``, before the notice is padded.

    Of the cohort and the counted set it holds only whether this client is in them.
    """
    match event:
        case training.RoundOpened(opened=opened, collect_s=collect_s):
            round_open = pb.RoundOpen(
                attempt=opened.attempt,
                version=opened.version,
                model_digest=opened.model.value,
                collect_seconds=collect_s,
                selected=client in opened.counted,
            )
            return pb.Notice(open=round_open)
        case training.RoundDone(opened=opened):
            round_over = pb.RoundOver(attempt=opened.attempt, version=opened.version)
            round_over.counted = client in event.valid
            rejection = event.rejections.get(client)
            if rejection is not None:
                round_over.rejection = rejection.value
            return pb.Notice(over=round_over)
        case training.TrainingDone(version, model):
            return pb.Notice(
                finished=pb.TrainingOver(version=version, model_digest=model.value)
            )
        case training.TrainingStopped():
            return pb.Notice(paused=pb.TrainingPaused())


def opening_of(session: training.Session, client: ClientId, attempt: int) -> pb.Signed:
    """Sign for ``client`` what the open attempt has cost it so far.

    Raises NotOnOffer: the attempt isn't open here.
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
    # The training goes on meanwhile. Once the attempt is closed, its own charge may be
    # among those that were just counted.
    if session.inbox.opened is not opened:
        raise NotOnOffer(f"attempt {attempt} isn't open any more")
    proof_opening = session.inbox.proof_opening(attempt, client)
    if proof_opening is not None:
        body.proof_opening = proof_opening[0].value
        body.seed_holder = proof_opening[1].value
    return _sign_for_client(session, client, body)


def statement_of(
    session: training.Session,
    client: ClientId,
    *,
    shown: pb.Signed | None,
    opening: pb.Signed | None = None,
) -> pb.Signed:
    """Sign the newest statement of ``client``'s account.

    ``shown`` is this server's last statement to the client: what it says counts, also
    where this server has forgotten it. ``opening`` is what this server last signed for
    the client at an attempt's opening: that attempt was opened, also where this server
    has forgotten it.

    Raises PeerViolation: one of the two wasn't signed by this server.
    """
    store = session.store
    last_signed = session.last_signed
    last_statement = last_signed.get((client, pb.StatementBody))
    if shown is not None and _hash(shown) != last_statement:
        remember(session, client, _bytes(shown))
    last_opening = last_signed.get((client, pb.OpeningBody))
    if opening is not None and _hash(opening) != last_opening:
        hear_of(session, client, _bytes(opening))
    # Before the version: the training goes on while this function reads. A statement
    # that counts a version more than it names would count it twice when it is shown.
    promised = store.statements.promised_version()
    # Not what this server alone holds: what is stated must not be lost by one of the
    # two servers.
    version_on_both = min(session.version, store.versions.confirmed())
    model = session.model_store.get(version_on_both)
    account = store.statements.account_of(client, model.version, promised)
    body = pb.StatementBody(
        task_digest=session.task.digest.value,
        client=client.name,
        version=model.version,
        model_digest=model.digest.value,
        attempt=store.attempts.next_number() - 1,
        charged=account.charged,
        opened=account.opened,
        counted=account.counted,
        step_digest=b"" if model.step is None else model.step.digest.value,
    )
    if session.task.query is not None:
        # No coin hides who counts here, and an answer is about their records.
        roster = session.register.roster()
        for counted in store.ledger.charges_in(model.version - 1):
            body.answered[counted.name] = roster[counted].records
    return _sign_for_client(session, client, body)


def _sign_for_client(
    session: training.Session, client: ClientId, body: Body
) -> pb.Signed:
    """Sign ``body``, and note that ``client`` gets it as the newest of its kind."""
    message = sign_body(session.signer, session.role, body)
    session.last_signed[client, type(body)] = _hash(message)
    return message


def _bytes(message: pb.Signed) -> bytes:
    """Return the message as it is on the wire, the same bytes every time."""
    return message.SerializeToString(deterministic=True)


def _hash(message: pb.Signed) -> bytes:
    """Return the SHA-256 of a message's bytes, which stands for it in memory."""
    return hashlib.sha256(_bytes(message)).digest()
