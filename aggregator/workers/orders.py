"""What a server tells its worker, as messages; see ``WorkOrder`` in protos/precad.proto."""

from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

from precad.aggregator.collect.spool import SpooledBody
from precad.common.identifiers import Role
from precad.common.secret import Secret
from precad.common.share.submission import Submission
from precad.common.wire.submission import PIECE_BYTES, header_from_wire, header_to_wire
from precad.protos import precad_pb2 as pb


def take_orders(
    submission: Submission, *, counted: bool, batch: int, same_disk: bool
) -> Generator[pb.WorkOrder]:
    """One submission: where its body lies if the worker can read it there, else all of it.

    Raises:
        BodyUnreadable: a body that has to be sent was kept in a file that is gone or was changed.
    """
    take = pb.WorkTake(submission=header_to_wire(submission), counted=counted, batch=batch)
    body = submission.body
    if same_disk and isinstance(body, SpooledBody):
        take.spooled.CopyFrom(
            pb.SpooledFile(
                path=str(body.path),
                key=body.key.reveal(),
                number=body.number,
                length=body.length,
                salt=body.salt.reveal(),
            )
        )
        body = None
    yield pb.WorkOrder(take=take)
    if body is None:
        return
    yield pb.WorkOrder(body=body.salt.reveal())
    for words in body.pieces():
        view = memoryview(words)
        for start in range(0, len(view), PIECE_BYTES):
            yield pb.WorkOrder(body=bytes(view[start : start + PIECE_BYTES]))


def taken(take: pb.WorkTake, role: Role) -> Submission:
    """The submission, with its body where that is in a file. Raises RejectedSubmission."""
    submission = header_from_wire(take.submission, role)
    if not take.HasField("spooled"):
        return submission
    file = take.spooled
    path, key, salt = Path(file.path), Secret(file.key), Secret(file.salt)
    return replace(submission, body=SpooledBody(path, key, file.number, file.length, salt))
