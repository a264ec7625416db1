"""What a server has signed counts after its certificate has expired and been renewed.

Else a server whose database was put back after a renewal would believe none of its own signatures,
and its forgotten charges would stay forgotten.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import TaskMaker
from tests.rig.keys import earlier_identity, identity, revoke, signatures, verifier
from tests.rig.meeting import ANN, BEN, SERVERS, A, B, Servers

from precad.aggregator.rpc.notices import statement_of
from precad.aggregator.server_messages import HeadBody, ModelBody, ServerSignatures, SignedMessage
from precad.aggregator.store.schema import AttemptState
from precad.aggregator.training.reconcile import hear_of, remember
from precad.aggregator.training.recovery import Remedy
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner, CertificateVerifier, SignedKind
from precad.common.wire.messages import sign_body
from precad.protos import precad_pb2 as pb


@pytest.fixture
def servers(make_task: TaskMaker, tmp_path: Path) -> Iterator[Servers]:
    made = Servers(make_task(8), tmp_path)
    yield made
    made.close()


def earlier_pen(role: Role) -> CertificateSigner:
    """This role's pen before its certificate was renewed."""
    return CertificateSigner(earlier_identity(Principal.service(role)))


def as_signed_earlier(servers: Servers, loser: Role) -> None:
    """What the other server keeps of ``loser`` was signed before its certificate was renewed."""
    holder = B if loser is A else A
    old = ServerSignatures(servers.task.digest, loser, earlier_pen(loser), verifier())
    now = signatures(servers.task.digest, holder)

    def again(kept: bytes, kind: SignedKind, body: Any) -> bytes:
        return old.sign(kind, now.check(loser, kind, SignedMessage.from_json(kept), body)).to_json()

    path = servers.folder / holder.value / "state.db"
    servers.sessions[holder].store.close()
    with closing(sqlite3.connect(path)) as database, database:
        for table, key, column, kind, body in (
            ("attempt", "attempt", "their_head", SignedKind.HEAD, HeadBody),
            ("version", "version", "model_seal", SignedKind.MODEL, ModelBody),
        ):
            query = f"SELECT {key}, {column} FROM {table} WHERE {column} IS NOT NULL"
            for number, kept in database.execute(query).fetchall():
                database.execute(
                    f"UPDATE {table} SET {column} = ? WHERE {key} = ?",
                    (again(kept, kind, body), number),
                )
    seal = servers.folder / holder.value / "model.seal"
    if seal.exists():
        seal.write_bytes(again(seal.read_bytes(), SignedKind.MODEL, ModelBody))
    servers.open(holder)


@pytest.mark.parametrize("loser", SERVERS, ids=lambda role: role.value)
def test_a_restored_server_learns_from_what_it_signed_before_its_certificate_was_renewed(
    servers: Servers, loser: Role
) -> None:
    servers.attempt(0)
    backup = servers.copy(loser)
    for number in (1, 2, 3):
        servers.attempt(number)
    as_signed_earlier(servers, loser)
    servers.put_back(loser, backup, journal=True)
    assert servers.charged()[SERVERS.index(loser)] == {ANN: 1, BEN: 1}
    assert servers.mend() == [Remedy.NOTHING] * 2
    assert servers.charged() == [{ANN: 4, BEN: 4}] * 2
    assert servers.versions() == (4, 4)
    assert set(servers.states(1)) == {AttemptState.DONE, AttemptState.LEARNED}
    servers.agree()


def test_a_signature_of_now_needs_a_certificate_of_now(servers: Servers) -> None:
    old = ServerSignatures(servers.task.digest, B, earlier_pen(B), verifier())
    body = ModelBody(task=str(servers.task.digest), version=1, digest="00" * 32)
    signed = old.sign(SignedKind.MODEL, body)
    with pytest.raises(PeerUnavailable, match="expired"):
        signatures(servers.task.digest, A).check(B, SignedKind.MODEL, signed, ModelBody)
    for reader, how in ((A, {"kept": True}), (B, {})):
        eye = signatures(servers.task.digest, reader)
        assert eye.check(B, SignedKind.MODEL, signed, ModelBody, **how) == body


def shown_by_ann(servers: Servers, pen: CertificateSigner) -> tuple[pb.Signed, pb.Signed]:
    """A statement and an opening of server A from before it lost everything."""
    common: Any = {"task_digest": servers.task.digest.value, "client": ANN.name, "version": 0}
    statement = pb.StatementBody(
        **common,
        model_digest=servers.sessions[A].model_store.current.digest.value,
        attempt=5,
        charged=[2],
    )
    opening = pb.OpeningBody(**common, attempt=6)
    return sign_body(pen, A, statement), sign_body(pen, A, opening)


def test_an_owners_old_statement_and_opening_count(servers: Servers) -> None:
    session = servers.sessions[A]
    statement, opening = shown_by_ann(servers, earlier_pen(A))
    body = remember(session, ANN, statement.SerializeToString())
    assert body is not None
    assert session.store.attempts.next_number() == body.attempt + 1 == 6
    hear_of(session, ANN, opening.SerializeToString())
    assert session.store.attempts.next_number() == 7
    assert session.store.ledger.participations() == {ANN: 2}


def test_a_revoked_certificates_statements_are_not_believed_and_keep_nobody_out(
    servers: Servers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever stole the key can sign anything; its honest owners must still get on."""
    stolen, current = earlier_identity(Principal.service(A)), identity(Principal.service(A))
    eye = CertificateVerifier(replace(current, revocations=revoke(stolen, folder=tmp_path)))
    session = replace(servers.sessions[A], verifier=eye)
    statement, opening = shown_by_ann(servers, CertificateSigner(stolen))
    said = pb.StatementBody.FromString(statement_of(session, ANN, statement, opening).body)
    assert list(said.charged) == []
    assert session.store.attempts.next_number() == 0
    assert "isn't believed" in caplog.text
