"""What a server signs for an owner: before an attempt's sharing, and of its account."""

from precad.aggregator.training.owners import hear_of, remember
from precad.aggregator.training.said import Kind
from precad.aggregator.training.session import Session
from precad.common.errors import NotOnOffer
from precad.common.identifiers import ClientId
from precad.common.wire.statement import Body, sign_body
from precad.protos import precad_pb2 as pb


def opening_of(session: Session, client: ClientId, attempt: int) -> pb.Signed:
    """What the attempt that is open now has cost ``client`` so far.

    Raises:
        NotOnOffer: the attempt isn't open here.
    """
    if session.inbox.attempt != attempt:
        raise NotOnOffer(f"attempt {attempt} isn't open")
    model = session.shelf.current
    body = pb.OpeningBody(
        task_digest=session.task.digest.value,
        client=client.name,
        version=model.version,
        attempt=attempt,
        charges=session.store.charges_of(client, model.version),
        opened=session.store.opened(model.version),
        model_digest=model.digest.value,
    )
    return _say(session, client, "opening", body)


def statement_of(
    session: Session, client: ClientId, shown: pb.Signed | None, opening: pb.Signed | None = None
) -> pb.Signed:
    """The newest statement of ``client``'s account.

    Args:
        session: this server.
        client: who asks.
        shown: this server's last statement to it; what it says counts, forgotten or not.
        opening: what it last signed for an attempt of this client's: that attempt was.

    Raises:
        PeerViolation: what is shown isn't this server's.
    """
    said = session.said
    if shown is not None and not said.knows(client, "statement", shown):
        remember(session, client, shown)
    if opening is not None and not said.knows(client, "opening", opening):
        hear_of(session, client, opening)
    # Not what this server alone holds: what is stated must not be lost by one of them.
    model = session.shelf.get(min(session.shelf.current.version, session.store.confirmed()))
    account = session.store.account_of(client, model.version)
    body = pb.StatementBody(
        task_digest=session.task.digest.value,
        client=client.name,
        version=model.version,
        model_digest=model.digest.value,
        attempt=session.store.next_attempt() - 1,
        charged=account.charged,
        opened=account.opened,
        counted=account.counted,
    )
    return _say(session, client, "statement", body)


def _say(session: Session, client: ClientId, kind: Kind, body: Body) -> pb.Signed:
    message = sign_body(session.signer, session.role, body)
    session.said.note(client, kind, message)
    return message
