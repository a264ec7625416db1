"""A server's conversation with one of its workers about one attempt."""

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import grpc
import numpy as np

from precad.aggregator.collect.spool import SpooledBody
from precad.aggregator.validate.validation import Verdicts
from precad.common.errors import (
    BodyUnreadable,
    Misconfiguration,
    PeerUnavailable,
    PeerViolation,
    PrecadError,
    Rejection,
)
from precad.common.identifiers import ClientId, Role
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.ring import WORD_BYTES, from_bytes
from precad.common.secret import Secret
from precad.common.share.submission import Submission
from precad.common.task import Task
from precad.common.wire.calls import error_of
from precad.common.wire.submission_messages import PIECE_BYTES, header_from_wire, header_to_wire
from precad.common.wire.version import check_version, greeted_version
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import WorkingStub

Taken = tuple[Submission, bool, int]
"""With whether it is counted, and its batch."""


class WorkerLink:
    """One worker's part of one attempt.

    Args:
        address: where the worker listens, as its server reaches it.
        task: the task.
        role: the server's.
        identity: the server's own; its worker has the same.
        begin: the first order.
        same_disk: whether the worker can open this server's files.
    """

    def __init__(
        self,
        address: str,
        task: Task,
        role: Role,
        identity: Identity,
        begin: pb.WorkBegin,
        *,
        same_disk: bool,
    ) -> None:
        self._address = address
        self._dimension = task.dimension
        self._same_disk = same_disk
        self._orders: queue.SimpleQueue[Taken | pb.WorkOrder | None] = queue.SimpleQueue()
        self._orders.put(pb.WorkOrder(begin=begin))
        self._changed = threading.Condition()
        self._greeted = self._linked = False
        self._ended: PrecadError | None = None
        self._rejections: dict[ClientId, Rejection] = {}
        self._sum = bytearray()
        self._done: pb.WorkDone | None = None
        self._channel = open_channel(address, identity, role)
        self._call = WorkingStub(self._channel).Validate(self._messages())
        self._reader = threading.Thread(target=self._read, name="worker-reports", daemon=True)
        self._reader.start()

    @property
    def ready(self) -> bool:
        """Whether it is linked with the other server's worker, as far as is known."""
        with self._changed:
            return self._linked and self._ended is None

    @property
    def error(self) -> PrecadError | None:
        """Why it can't go on."""
        with self._changed:
            return None if self._done is not None else self._ended

    def take(self, submission: Submission, *, counted: bool, batch: int) -> None:
        """Hand one over; doesn't wait."""
        self._orders.put((submission, counted, batch))

    def decide(self) -> None:
        """Nothing more is taken; ``verdicts`` come."""
        self._orders.put(pb.WorkOrder(decide=pb.WorkDecide()))

    def wait(self, seconds: float) -> tuple[Verdicts, int] | None:
        """The worker's verdicts and the bytes that it sent, if they come in time.

        Raises:
            PeerUnavailable: the worker, or one whom it needs, is gone.
            PeerViolation: somebody departed from the protocol.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._ended, seconds)
            if self._done is None:
                if self._ended is not None:
                    raise self._ended
                return None
            if len(self._sum) != self._dimension * WORD_BYTES:
                raise PeerViolation(f"a worker's sum has {len(self._sum)} bytes")
            share_sum = np.array(from_bytes(self._sum))
            return Verdicts(self._rejections, share_sum), self._done.bytes_sent

    def close(self) -> None:
        """Break it off; the worker forgets what it had."""
        self._orders.put(None)
        self._call.cancel()
        self._channel.close()
        self._reader.join(timeout=1)

    def _messages(self) -> Iterator[pb.WorkOrder]:
        # Read as the worker takes it: bodies aren't in memory before.
        while (order := self._orders.get()) is not None:
            if isinstance(order, pb.WorkOrder):
                yield order
                continue
            submission, counted, batch = order
            orders = take_orders(
                submission, counted=counted, batch=batch, same_disk=self._same_disk
            )
            try:
                with closing(orders):
                    yield from orders
            except BodyUnreadable as error:
                self._end(PeerUnavailable(f"a body for a worker can't be read: {error}"))
                return
            del order, submission

    def _read(self) -> None:
        try:
            for report in self._call:
                if not self._greeted:
                    said = greeted_version(self._call.initial_metadata())
                    check_version(f"the worker at {self._address}", said)
                    self._greeted = True
                self._note(report)
            self._end(PeerUnavailable(f"the worker at {self._address} ended its part"))
        except grpc.RpcError as error:
            self._end(error_of("a worker", self._address, error))
        except PrecadError as error:
            self._end(error)

    def _note(self, report: pb.WorkReport) -> None:
        with self._changed:
            match report.WhichOneof("report"):
                case "linked":
                    self._linked = True
                case "rejection":
                    client, reason = self._rejection(report.rejection)
                    self._rejections[client] = reason
                case "share_sum":
                    self._sum += report.share_sum
                    if len(self._sum) > self._dimension * WORD_BYTES:
                        raise PeerViolation("a worker's sum is too long")
                case "done":
                    self._done = report.done
                case "failure":
                    kind = PeerViolation if report.failure.violation else PeerUnavailable
                    raise kind(f"the worker at {self._address}: {report.failure.text}")
                case _:
                    raise PeerViolation("a worker's report holds nothing")
            self._changed.notify_all()

    def _rejection(self, said: pb.WorkRejection) -> tuple[ClientId, Rejection]:
        try:
            return ClientId(said.client), Rejection(said.reason)
        except (Misconfiguration, ValueError) as error:
            raise PeerViolation(f"the worker at {self._address} reports: {error}") from error

    def _end(self, error: PrecadError) -> None:
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()


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
