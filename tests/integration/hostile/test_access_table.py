"""Every RPC × every identity: what each gets. docs/access.md is this table and can't
drift.

``PRECAD_WRITE_ACCESS_TABLE=1 python -m pytest
tests/integration/hostile/test_access_table.py`` writes the document's tables anew; the
words before them are the document's own.
"""

import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import grpc
import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import Int32Value, StringValue
from tests.conftest import small_task
from tests.integration.hostile.conftest import MakeSite, Site
from tests.rig.keys import forged, unchecked

from precad.aggregator.attempt_states import Opened
from precad.aggregator.rpc.dealer_client import request_to_wire
from precad.aggregator.training.session import TrainingDone
from precad.aggregator.validate.validation import deal_request
from precad.common.identifiers import ClientId, Role
from precad.common.identity import deployment_keys, mutual_tls
from precad.common.identity.authority import Authority
from precad.common.identity.credentials import Identity
from precad.common.identity.party_certificate import Principal
from precad.common.identity.signatures import CertificateSigner
from precad.common.model import initial_vector, to_bytes
from precad.common.submission import Submission, SubmissionContext, shard
from precad.norm_check.submission_messages import upload_pieces
from precad.protos import precad_pb2 as pb
from precad.protos import precad_pb2_grpc

DOCUMENT = Path(__file__).parents[3] / "docs" / "access.md"
DEADLINE_S = 240.0
PLACES = (Role.SERVER_A, Role.SERVER_B, Role.DEALER)
RIGHT_PARTY = {
    "Aggregation": Principal.client("ward-1"),
    "Operation": Principal.service(Role.OPERATOR),
    "Peer": Principal.service(Role.SERVER_A),
    "Dealing": Principal.service(Role.SERVER_A),
    "Health": Principal.service(Role.OPERATOR),
}
"""Whose name the bad certificates carry: nothing but their fault keeps them out."""
OURS = pb.DESCRIPTOR.services_by_name
RPCS = (
    *(
        f"{of}.{each.name}"
        for of in RIGHT_PARTY
        if of in OURS
        for each in OURS[of].methods
    ),
    "Health.Check",
)
OFFERED = {
    Role.SERVER_A: (*RPCS[:12], RPCS[-1]),
    Role.SERVER_B: (*RPCS[:13], RPCS[-1]),
    Role.DEALER: RPCS[13:],
}
NO_CONNECTION = (
    *("no TLS", "no certificate"),
    *("self-signed", "another root's", "expired", "not yet valid"),
)
FAULTY = (*NO_CONNECTION, "revoked", "two names of ours")
NAMED = {
    "client ward-1": "ward-1",
    "client ward-2, as ward-1": "ward-2",
    **{name: name for name in ("operator", "dealer")},
    "server A": "server-a",
    **dict.fromkeys(("server B", "server B, as server A"), "server-b"),
}  # And whose keys each has
THEMSELVES = {
    Role.SERVER_A: ("server A",),
    Role.SERVER_B: ("server B", "server B, as server A"),
    Role.DEALER: ("dealer",),
}  # A part looks at itself: its container's health check has its own folder


@dataclass(frozen=True, slots=True)
class Caller:
    identity: Identity | None  # None: no certificate
    server: str = "server-a"
    tls: bool = True


# By place, caller and RPC: the code, and what is said.
Outcomes = dict[tuple[Role, str, str], tuple[grpc.StatusCode, str]]


class Forged(TypedDict, total=False):
    starts_days: int
    ends_days: int
    self_signed: bool


def callers(keys: Path, service: str) -> dict[str, Caller]:
    base, deployment = (
        Identity.load(keys / "ward-1"),
        deployment_keys.Deployment.open(keys),
    )
    party, authority = RIGHT_PARTY[service], deployment._authority

    def bad(*more: str, of: Authority = authority, **how: Unpack[Forged]) -> Caller:
        return Caller(forged(base, of, party.dns_name, *more, **how))

    # A second certificate of the right party, revoked since; its first one stays good.
    before = {each.serial_number for each in deployment.issued()}
    folder = deployment.issue(party, out=keys / f"revoked-{service}")
    deployment.revoke({each.serial_number for each in deployment.issued()} - before)
    return {who: Caller(Identity.load(keys / name)) for who, name in NAMED.items()} | {
        "server B": Caller(Identity.load(keys / "server-b"), server="server-b"),
        "no TLS": Caller(None, tls=False),
        "no certificate": Caller(None),
        "self-signed": bad(self_signed=True),
        "another root's": bad(of=Authority.create()),
        "expired": bad(starts_days=-3, ends_days=-1),
        "not yet valid": bad(starts_days=1, ends_days=3),
        "two names of ours": bad("ward-9.client.precad"),
        "revoked": Caller(unchecked(folder, base)),
    }


def channel_of(caller: Caller, address: str, place: Role, ca: bytes) -> grpc.Channel:
    if not caller.tls:
        return grpc.insecure_channel(address)
    own = () if (who := caller.identity) is None else (who.key.reveal(), who.cert)
    options = (
        ("grpc.ssl_target_name_override", Principal.service(place).dns_name),
        ("grpc.use_local_subchannel_pool", 1),
        mutual_tls.USER_AGENT,
    )
    return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, *own), options)


class OfClient(TypedDict):
    task_digest: bytes
    client: str


class OfServer(TypedDict):
    task_digest: bytes
    role: str


@dataclass(frozen=True, slots=True)
class Bench:
    site: Site
    submissions: Mapping[Role, Submission]
    epoch: bytes  # Of the dealer's start, as server A learns it

    def call(
        self, rpc: str, channel: grpc.Channel, caller: Caller, place: Role
    ) -> object:
        """One well-formed call; returns the answer, or raises grpc.RpcError."""
        task, (service, _, method) = self.site.task, rpc.partition(".")
        if service == "Health":
            check = channel.unary_unary(
                "/grpc.health.v1.Health/Check",
                request_serializer=StringValue.SerializeToString,
                response_deserializer=Int32Value.FromString,
            )
            return check(StringValue(), timeout=DEADLINE_S)
        stub, digest = (
            getattr(precad_pb2_grpc, f"{service}Stub")(channel),
            task.digest.value,
        )
        named: OfClient = {"task_digest": digest, "client": "ward-1"}
        own: OfServer = {"task_digest": digest, "role": caller.server}
        upload = self.submissions.get(place, self.submissions[Role.SERVER_A])

        def given_back() -> Iterator[pb.GivenPiece]:
            signed = pb.Signed()
            with suppress(grpc.RpcError):
                signed = stub.Statement(
                    pb.StatementRequest(**named), timeout=DEADLINE_S
                )
            data = to_bytes(initial_vector(task.model))
            yield pb.GivenPiece(**named, statement=signed, data=data)

        wanted = deal_request(task, attempt=0, batch=0, clients=1, nonces=bytes(64))
        requests: dict[str, object] = {
            "Describe": pb.DescribeRequest(),
            "Enrol": pb.EnrolRequest(**named, records=50, record_rate=0.2),
            "Watch": pb.WatchRequest(**named),
            **dict.fromkeys(
                ("ModelDigest", "FetchModel"), pb.ModelRequest(task_digest=digest)
            ),
            "Submit": upload_pieces(upload),
            "Opening": pb.OpeningRequest(**named, attempt=0),
            "Statement": pb.StatementRequest(**named),
            "GiveBack": given_back(),
            **dict.fromkeys(("Status", "Reports"), pb.StatusRequest()),
            "Allow": pb.AllowRequest(task_digest=digest, word="attempts", version=0),
            **dict.fromkeys(("Link", "Square"), iter(())),
            "Join": pb.JoinRequest(**own),
            "Deal": request_to_wire(wanted, caller.server, self.epoch),
            "Leave": pb.LeaveRequest(**own),
        }
        answer = getattr(stub, method)(requests[method], timeout=DEADLINE_S)
        if isinstance(answer, pb.Receipt):
            assert answer == pb.Receipt(), answer
        return list(answer) if isinstance(answer, Iterator) else answer


@pytest.fixture(scope="module")
def outcomes(make_site: MakeSite) -> Outcomes:
    site = make_site(small_task(8), "ward-1", "ward-2")
    running = {place: site.start(place) for place in PLACES}
    model, ward = (
        running[Role.SERVER_A].session.model_store.current.digest,
        ClientId("ward-1"),
    )
    context = SubmissionContext(
        task=site.task.digest, version=0, attempt=0, client=ward, model=model
    )
    submissions = shard(
        np.arange(8), context, CertificateSigner(site.identity("ward-1"))
    )
    for place in (Role.SERVER_A, Role.SERVER_B):
        session = running[place].session
        session.inbox.open(
            Opened(
                attempt=0, version=0, cohort=(ward,), model=model, counted=frozenset()
            )
        )
        # Streams end after the training's end: a call of the table needn't be cut off.
        session.event_log.publish(TrainingDone(0, model))
    address, server_a = running[Role.DEALER].address, site.identity("server-a")
    with mutual_tls.open_channel(address, server_a, Role.DEALER) as channel:
        request = pb.JoinRequest(task_digest=site.task.digest.value, role="server-a")
        joined = precad_pb2_grpc.DealingStub(channel).Join(request, timeout=DEADLINE_S)
    bench = Bench(site, dict(zip(PLACES, submissions, strict=False)), joined.epoch)
    found, ca = Outcomes(), server_a.ca
    for service in RIGHT_PARTY:
        known = callers(site.folder / "keys", service)
        for place, (who, caller) in itertools.product(PLACES, known.items()):
            with channel_of(caller, running[place].address, place, ca) as channel:
                for rpc in (each for each in RPCS if each.startswith(service)):
                    found[place, who, rpc] = (grpc.StatusCode.OK, "")
                    try:
                        bench.call(rpc, channel, caller, place)
                    except grpc.RpcError as error:
                        found[place, who, rpc] = (error.code(), str(error.details()))
    return found


def expected_code(place: Role, who: str, rpc: str) -> grpc.StatusCode:
    """The rules in short; the document has what really came."""
    if who in NO_CONNECTION:
        return grpc.StatusCode.UNAVAILABLE
    if rpc not in OFFERED[place]:
        return grpc.StatusCode.UNIMPLEMENTED
    if who in FAULTY:
        return grpc.StatusCode.UNAUTHENTICATED
    service, _, method = rpc.partition(".")
    allowed: dict[str, tuple[str, ...]] = {
        "Aggregation": ("client ward-1",),
        "Operation": ("operator",),
        "Peer": ("server A",),
        "Dealing": ("server A", "server B"),
        "Health": ("operator", *THEMSELVES[place]),
    }
    named_by_nobody = {
        **dict.fromkeys(("Describe", "ModelDigest", "FetchModel"), tuple(NAMED)[1:3]),
        # Whose half is squared, the certificate alone says.
        "Square": ("server B, as server A",),
    }
    if who in (*allowed[service], *named_by_nobody.get(method, ())):
        return grpc.StatusCode.OK
    return grpc.StatusCode.PERMISSION_DENIED


def test_every_rpc_gives_every_identity_what_the_rules_say(outcomes: Outcomes) -> None:
    every = itertools.product(PLACES, (*FAULTY, *NAMED), RPCS)
    wanted = {
        (place, who, rpc): expected_code(place, who, rpc) for place, who, rpc in every
    }
    assert {key: code for key, (code, _) in outcomes.items()} == wanted
    # And refusals say why, and name no secret.
    for key, (code, text) in outcomes.items():
        if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
            assert text.partition(":")[0] in (
                "revoked",
                "malformed-name",
                "not-allowed",
            ), key
            assert len(text) < 200


def test_the_document_is_this_table(outcomes: Outcomes) -> None:
    before = DOCUMENT.read_text(encoding="utf-8")
    cells = {grpc.StatusCode.OK: "yes", grpc.StatusCode.PERMISSION_DENIED: "–"}
    lines = [before.partition("\n\n## ")[0]]
    for place, title in zip(
        PLACES, ("Server A", "Server B", "The dealer"), strict=True
    ):
        lines += ["", f"## {title}", f"| RPC | {' | '.join(NAMED)} |"]
        lines.append(f"| --- |{' --- |' * len(NAMED)}")
        for rpc in OFFERED[place]:
            row = [
                rpc.partition(".")[2],
                *(cells[outcomes[place, who, rpc][0]] for who in NAMED),
            ]
            lines.append(f"| {' | '.join(row)} |")
    text = "\n".join(lines) + "\n"
    if os.environ.get("PRECAD_WRITE_ACCESS_TABLE"):
        DOCUMENT.write_text(text, encoding="utf-8")
    assert before == text
