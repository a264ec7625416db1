"""Uploads to real servers: what is signed counts; a server in trouble tells nobody."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.integration.service.conftest import DEADLINE_S, ONE, A, B, Deployed, reasons
from tests.rig.submissions import masked, signed_anew

from precad.common.errors import BudgetExceeded, PeerViolation, Rejection, StorageFailure
from precad.common.identity.credentials import Identity
from precad.common.identity.deployment_keys import Deployment
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.share.submission import Submission
from precad.common.wire.messages import upload_pieces
from precad.common.wire.serving import NOT_NOW
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import AggregationStub


def test_the_key_that_signed_must_be_the_connections(
    deployed: Deployed, keys: Path, tmp_path: Path
) -> None:
    deployed.open_round()
    # Another good certificate of the same client, as a stolen one would be.
    Deployment.open(keys).issue(Principal.client(ONE.name), out=tmp_path / "second")
    second = CertificateSigner(Identity.load(tmp_path / "second"))
    with deployed.connect(ONE) as servers:
        a, b = map(masked, deployed.pair(servers))
        header = signed_anew(a.header, second)
        pair = (replace(a, header=header), replace(b, header=header))
        receipts = servers.submit(pair)
    assert reasons(receipts) == [Rejection.BAD_SIGNATURE] * 2
    assert "another key" in receipts[0].detail
    assert deployed.outcome()[ONE] is Rejection.BAD_SIGNATURE


def test_no_place_on_the_disk_costs_an_upload_and_the_sdk_sends_it_again(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptor left is the same: the spool's file can't be opened."""
    deployed.open_round()
    spool = deployed.folder / B.value / "spool"
    away = spool.with_name("elsewhere")
    spool.rename(away)
    inbox, tries = deployed.sessions[B].inbox, []
    start = inbox.start

    def place_at_the_third_try(submission: Submission) -> Any:
        tries.append(submission)
        if len(tries) > 2:
            away.rename(spool)
        return start(submission)

    monkeypatch.setattr(inbox, "start", place_at_the_third_try)
    with deployed.connect(ONE) as one:
        pair = deployed.pair(one)
        with deployed.channel(B) as channel:
            pieces = upload_pieces(pair[1])
            receipt = AggregationStub(channel).Submit(pieces, timeout=DEADLINE_S)
        assert receipt.rejection == Rejection.TRUNCATED.value
        assert str(deployed.folder) not in receipt.detail
        assert reasons(one.submit(pair)) == [None, None]
    assert (len(tries), deployed.outcome()[ONE]) == (3, "counted")


SECRET = "client ward-2 is at its limit; /var/lib/precad/state.db"
FAILURES = [
    StorageFailure(SECRET),
    BudgetExceeded(SECRET),
    PeerViolation(SECRET),
    OSError(24, SECRET),
    KeyError(SECRET),
]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_no_text_of_a_failure_reaches_a_client(
    deployed: Deployed, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """It may be about somebody else: one told a stranger who was drawn, and who at its limit."""
    deployed.open_round()

    def fail(*_arguments: Any, **_named: Any) -> Any:
        raise failure

    for session in deployed.sessions.values():
        monkeypatch.setattr(session.register, "enrol", fail)
        monkeypatch.setattr(session.inbox, "start", fail)
        monkeypatch.setattr(session.model_store, "get", fail)
        monkeypatch.setattr(session.event_log, "follow", fail)
    digest = deployed.task.digest.value
    with deployed.connect(ONE) as servers, deployed.channel(A) as channel:
        stub = AggregationStub(channel)
        claim = pb.EnrolRequest(task_digest=digest, client=ONE.name, records=1, record_rate=0.2)
        model = pb.ModelRequest(task_digest=digest, version=0)
        watch = pb.WatchRequest(task_digest=digest, client=ONE.name)
        pieces = list(upload_pieces(deployed.pair(servers)[0]))
        calls: list[Callable[[], Any]] = [
            lambda: stub.Enrol(claim, timeout=DEADLINE_S),
            lambda: stub.ModelDigest(model, timeout=DEADLINE_S),
            lambda: list(stub.FetchModel(model, timeout=DEADLINE_S)),
            lambda: list(stub.Watch(watch, timeout=DEADLINE_S)),
            lambda: stub.Submit(iter(pieces), timeout=DEADLINE_S),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as refused:
                call()
            assert (refused.value.code(), refused.value.details()) == (
                grpc.StatusCode.UNAVAILABLE,
                NOT_NOW,
            )
            said = str(refused.value) + str(refused.value.trailing_metadata())
            assert "ward-2" not in said
            assert "/var" not in said
