"""What a server makes of its worker's reports."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from precad.common.aggregator.work import lane
from precad.common.aggregator.work.lane import Lane
from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.task import Task
from precad.protos import precad_pb2 as pb

SOON_S = 10.0


class _Call:
    """A worker that says so much, and then nothing for as long as it likes."""

    def __init__(self, *reports: pb.WorkReport) -> None:
        self._reports = reports

    def __iter__(self) -> Iterator[pb.WorkReport]:
        return iter(self._reports)

    def cancel(self) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(
    "rejection",
    [
        pb.WorkRejection(client="ward-1", reason="never heard of"),
        pb.WorkRejection(client="Ward/1", reason="norm-exceeded"),
    ],
    ids=["unknown reason", "no name"],
)
def test_a_worker_that_reports_nonsense_ends_the_attempt_and_leaves_nobody_waiting(
    rejection: pb.WorkRejection, make_task: Callable[..., Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    call = _Call(pb.WorkReport(rejection=rejection))
    stub = type("Stub", (), {"Validate": lambda _self, _orders: call})
    monkeypatch.setattr(lane, "open_channel", lambda *_given: call)
    monkeypatch.setattr(lane, "WorkingStub", lambda _channel: stub())
    nobody: Any = None
    made = Lane("127.0.0.1:1", make_task(), Role.SERVER_A, nobody, pb.WorkBegin(), same_disk=True)
    try:
        with pytest.raises(PeerViolation, match="reports"):
            made.wait(SOON_S)
    finally:
        made.close()
