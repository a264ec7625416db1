"""What a server signs for an owner: before an attempt's sharing, and of its account."""

from precad.common.aggregator.training.owners import remember
from precad.common.aggregator.training.session import Session
from precad.common.errors import NotOnOffer
from precad.common.identifiers import ClientId
from precad.common.wire.statement import sign_body
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
    return sign_body(session.signer, session.role, body)


def statement_of(session: Session, client: ClientId, shown: pb.Signed | None) -> pb.Signed:
    """The newest statement of ``client``'s account.

    Args:
        session: this server.
        client: who asks.
        shown: this server's last statement to it; what it says counts, forgotten or not.

    Raises:
        PeerViolation: what is shown isn't this server's.
    """
    if shown is not None:
        remember(session, client, shown)
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
    return sign_body(session.signer, session.role, body)
