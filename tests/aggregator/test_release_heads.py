"""Before a share leaves, and before a model is kept: the other server has signed just the same."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.rig.aggregators import aggregator, head_of, link_over
from tests.rig.keys import signatures, signer, verifier

from precad.aggregator.peer_link import memory_pair
from precad.aggregator.release import aggregate, countersign, reconstruct
from precad.aggregator.rounds.states import Counted, Matched, Opened, Prepared, Sent
from precad.aggregator.server_messages import (
    Fact,
    HeadBody,
    Message,
    ModelBody,
    SetCheck,
    SignedMessage,
)
from precad.aggregator.store.ledger import Head, history_after, history_start
from precad.aggregator.validate.validation import Verdicts
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.signatures import SignedKind, check_server_signed, sign_as_server
from precad.common.proof_shape import P
from precad.common.ring import RingVector
from precad.common.share.submission import Submission, SubmissionContext, shard
from precad.common.task import Task

A, B = Role.SERVER_A, Role.SERVER_B
WARD = ClientId("ward-a")
MODEL, SET, OTHER = Digest(b"\1" * 32), Digest(b"\2" * 32), Digest(b"\3" * 32)
FACT = Fact(version=3, attempt=7, voided=False, clients=(WARD.name,))


class Written:
    """What A's ledger says, and what it was asked to write."""

    def __init__(self, task: Task) -> None:
        self._start = history_start(task.digest)
        self.written: list[str] = []

    def head(self) -> Head:
        return Head(5, OTHER)

    def history(self, version: int) -> Digest:
        assert version == FACT.version
        return self._start

    def facts(self, version: int) -> tuple[Fact, ...]:
        assert version == FACT.version
        return (FACT,)

    def countersign(self, *_: object) -> None:
        self.written.append("countersigned")

    def sent(self, *_: object) -> None:
        self.written.append("sent")

    def keep_model_seal(self, *_: object) -> None:
        self.written.append("model")


class Release:
    """Server A of a release, and a server B that says what a test lets it say, beforehand."""

    def __init__(self, task: Task) -> None:
        self.task, self.written = task, Written(task)
        end, other = memory_pair()
        self.b = link_over(other, task)
        roster = SimpleNamespace(denominator=lambda _: 100.0)
        store = dict.fromkeys(("attempts", "versions", "ledger"), self.written)
        self.a = aggregator(task, A, end, roster=roster, store=SimpleNamespace(**store))
        counted = Counted(Opened(7, 3, (WARD,), MODEL, frozenset({WARD})), (WARD,), SET, {})
        self.share = np.arange(task.dimension, dtype=np.int64)
        self.prepared = Prepared(counted, self.share)
        self.sent = Sent(counted, self.share)

    def head(self, **changed: Any) -> HeadBody:
        """A's own, or with other fields."""
        history = history_after(history_start(self.task.digest), [FACT])
        own = {"valid_set": str(SET), "length": 5, "head": str(OTHER), "history": str(history)}
        head = head_of(self.task.digest, 3, 7, **own)
        return head.model_copy(update=changed)

    def says(self, step: str, kind: SignedKind, body: Message) -> None:
        """B, to A's next message."""
        self.b.send(step, signatures(self.task.digest, B).sign(kind, body).to_bytes())


@pytest.fixture
def release(make_task: Callable[..., Task]) -> Release:
    return Release(make_task())


def test_two_ledgers_of_their_own_with_the_same_facts_are_countersigned(release: Release) -> None:
    release.says("head", SignedKind.HEAD, release.head(length=6, head=str(SET)))
    release.says("countersignature", SignedKind.COUNTERSIGNATURE, release.head())
    assert countersign(release.a, release.prepared).noisy_share is release.share
    assert release.written.written == ["countersigned", "sent"]


@pytest.mark.parametrize(
    "other",
    [{"valid_set": str(OTHER)}, {"history": str(OTHER)}, {"attempt": 8}, {"version": 4}],
    ids=lambda other: next(iter(other)),
)
def test_a_head_of_another_set_history_or_attempt_is_not_countersigned(
    release: Release, other: dict[str, Any]
) -> None:
    release.says("head", SignedKind.HEAD, release.head(**other))
    with pytest.raises(PeerViolation, match="disagree on what they have prepared"):
        countersign(release.a, release.prepared)
    assert release.written.written == []


@pytest.mark.parametrize("other", [{"length": 6}, {"head": str(SET)}], ids=["length", "head"])
def test_a_countersignature_over_another_head_lets_no_share_leave(
    release: Release, other: dict[str, Any]
) -> None:
    """Of an earlier ledger, say: the other server would not be bound to this charge."""
    release.says("head", SignedKind.HEAD, release.head())
    release.says("countersignature", SignedKind.COUNTERSIGNATURE, release.head(**other))
    with pytest.raises(PeerViolation, match="another head"):
        countersign(release.a, release.prepared)
    assert release.written.written == ["countersigned"]


def test_a_model_that_the_other_server_computed_otherwise_is_not_kept(release: Release) -> None:
    theta = np.zeros(release.task.dimension)
    release.b.send("noisy-share", bytes(8 * release.task.dimension))
    body = ModelBody(task=str(release.task.digest), version=4, digest=str(OTHER))
    release.says("model", SignedKind.MODEL, body)
    with pytest.raises(PeerViolation, match="different models of version 4"):
        reconstruct(release.a, release.sent, theta)
    assert release.written.written == []


@pytest.mark.parametrize("word", [P, P + 5, 2**64 - 1])
@pytest.mark.parametrize("at", [0, -1])
def test_a_noisy_share_with_words_that_are_none_of_the_field_breaks_the_link(
    make_task: Callable[..., Task], word: int, at: int
) -> None:
    release = Release(make_task(8, {"validation": "proof"}))
    words, theta = np.zeros(release.task.dimension, dtype="<u8"), np.zeros(release.task.dimension)
    words[at] = word
    release.b.send("noisy-share", words.tobytes())
    with pytest.raises(PeerViolation, match=f"word {at % 8} of the other server's noisy share"):
        reconstruct(release.a, release.sent, theta)
    assert release.written.written == []
    assert not theta.any()


def test_a_seal_of_one_kind_or_server_is_none_of_another() -> None:
    """A head that was signed is no countersignature, whatever bytes both have."""
    for kind in SignedKind:
        signed = sign_as_server(signatures(MODEL, A).signer, A, kind, b"{}")
        assert check_server_signed(verifier(), A, kind, signed) == b"{}"
        for role, other in [(B, kind), *((A, each) for each in SignedKind if each is not kind)]:
            with pytest.raises(PeerViolation):
                check_server_signed(verifier(), role, other, signed)


class Decided:
    """A validator that took everything, and found it valid."""

    def __init__(self, dimension: int) -> None:
        self._sum: RingVector = np.zeros(dimension, np.int64)

    def take(self, submissions: object) -> None:
        """Nothing is left to do."""

    def decide(self) -> Verdicts:
        return Verdicts({}, self._sum)


def test_other_submissions_of_the_same_clients_are_another_set(release: Release) -> None:
    """Else the servers could sum shares of two updates that don't belong together."""

    def submitted(release: Release, value: int) -> Submission:
        x = np.full(release.task.dimension, value, np.int64)
        context = SubmissionContext(release.task.digest, 3, 7, WARD, MODEL)
        return shard(x, context, signer(WARD))[0]

    def digest(submission: Submission) -> str:
        fresh = Release(release.task)
        matched = Matched(fresh.prepared.counted.opened, {WARD: submission}, {})
        fresh.b.send("valid-set", SetCheck(digest="00" * 32, count=1).to_bytes())
        with pytest.raises(PeerViolation, match="'valid-set'"):
            aggregate(fresh.a, matched, Decided(fresh.task.dimension))  # type: ignore[arg-type]
        return SetCheck.from_bytes(fresh.b.receive("valid-set")).digest

    one, other = submitted(release, 1), submitted(release, 2)
    assert digest(one) == digest(one) != digest(other)


def test_what_was_signed_as_json_before_wire_version_2_stands_where_it_is_kept(
    release: Release,
) -> None:
    """And nowhere else: what is said now is of this version."""
    body = ModelBody(task=str(release.task.digest), version=4, digest=str(OTHER))
    made = sign_as_server(signatures(MODEL, B).signer, B, SignedKind.MODEL, body.to_json())
    kept = SignedMessage(
        body=made.body.hex(),
        signature=made.signature.value.hex(),
        certificates=tuple(each.hex() for each in made.signature.certificates),
    )
    again = SignedMessage.from_json(kept.to_json())
    own = signatures(release.task.digest, A)
    assert own.check(B, SignedKind.MODEL, again, ModelBody, kept=True) == body
    with pytest.raises(PeerViolation, match="unreadable ModelBody"):
        own.check(B, SignedKind.MODEL, again, ModelBody)
