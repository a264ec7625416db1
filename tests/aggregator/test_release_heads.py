"""Before a share leaves, and before a model is kept: the other server has signed just
the same."""

from dataclasses import is_dataclass, replace
from itertools import permutations
from types import SimpleNamespace
from typing import Any, cast, get_args, get_type_hints

import numpy as np
import pytest
from tests.rig.aggregators import aggregator, head_of, link_over, roster
from tests.rig.documents import Document
from tests.rig.keys import signatures, signer, verifier
from tests.rig.memory_link import memory_pair
from tests.rig.tasks import task_with

from precad.aggregator import attempt_states as states
from precad.aggregator import server_messages
from precad.aggregator.attempt_states import (
    Counted,
    Matched,
    Opened,
    Prepared,
    Sent,
    Summed,
)
from precad.aggregator.release import (
    add_noise,
    aggregate,
    countersign,
    prepare,
    reconstruct,
)
from precad.aggregator.store import Store
from precad.aggregator.store.ledger import Head, history_after, history_start
from precad.aggregator.validate.validation import Validator, Verdicts
from precad.common.errors import PeerViolation
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.identity.signatures import (
    SignedKind,
    server_signed_bytes,
)
from precad.common.model import model_digest
from precad.common.proof_shape import P
from precad.common.roster import Roster
from precad.common.submission import Submission, SubmissionContext, shard
from precad.common.task import Task
from precad.norm_check.prime_field import group_of

A, B = Role.SERVER_A, Role.SERVER_B
TASK = task_with({})
WARD = ClientId("ward-a")
MODEL, SET, OTHER = Digest(b"\1" * 32), Digest(b"\2" * 32), Digest(b"\3" * 32)
FACT = server_messages.Fact(version=3, attempt=7, voided=False, clients=(WARD.name,))


class Release:
    """Server A of a release, and a server B that says what a test lets it say,
    beforehand."""

    def __init__(self, task: Task = TASK, enrolled: Roster | None = None) -> None:
        self.task, self.written = task, list[str]()
        end, other = memory_pair()
        self.b = link_over(other, task)

        # What A's ledger says, and what it is asked to write.
        kept = SimpleNamespace(
            head=lambda: Head(5, OTHER),
            history={FACT.version: history_start(task.digest)}.__getitem__,
            facts={FACT.version: (FACT,)}.__getitem__,
            countersign=lambda *_: self.written.append("countersigned"),
            sent=lambda *_: self.written.append("sent"),
            keep_model_seal=lambda *_: self.written.append("model"),
        )
        enrolled = enrolled or roster((WARD.name, 1000, 0.1))
        store = SimpleNamespace(attempts=kept, versions=kept, ledger=kept)
        self.a = aggregator(task, A, end, roster=enrolled, store=store)
        counted = Counted(
            opened=Opened(
                attempt=7,
                version=3,
                cohort=(WARD,),
                model=MODEL,
                counted=frozenset({WARD}),
            ),
            valid=(WARD,),
            valid_set=SET,
            rejections={},
        )
        self.sum = np.arange(task.dimension, dtype=np.int64)
        self.share = self.a.shares.cut(self.sum)
        self.prepared, self.sent = (
            Prepared(counted, self.share),
            Sent(counted, self.share),
        )

    def head(self, **changed: object) -> server_messages.HeadBody:
        history = history_after(history_start(self.task.digest), [FACT])
        own: Document = {"version": 3, "attempt": 7, "valid_set": SET.value}
        own |= {"length": 5, "head": OTHER.value, "history": history.value}
        return head_of(self.task.digest, **own | changed)

    def says(self, step: str, kind: SignedKind, body: server_messages.Message) -> None:
        self.b.send(step, signatures(self.task.digest, B).sign(kind, body).to_bytes())


@pytest.fixture
def release() -> Release:
    return Release()


def test_two_ledgers_of_their_own_with_the_same_facts_are_countersigned(
    release: Release,
) -> None:
    release.says("head", SignedKind.HEAD, release.head(length=6, head=SET.value))
    release.says("countersignature", SignedKind.COUNTERSIGNATURE, release.head())
    assert countersign(release.a, release.prepared).noisy_share is release.share
    assert release.written == ["countersigned", "sent"]


def test_a_countersignature_leaves_once_it_is_durable_and_no_sooner(
    release: Release, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a server that dies in between has bound the other to what it forgets
    itself."""
    sends = release.a.link.send

    def send(step: str, payload: bytes) -> None:
        release.written.append(f"send {step}")
        sends(step, payload)

    monkeypatch.setattr(release.a.link, "send", send)
    release.says("head", SignedKind.HEAD, release.head())
    release.says("countersignature", SignedKind.COUNTERSIGNATURE, release.head())
    countersign(release.a, release.prepared)
    assert release.written == [
        "send head",
        "countersigned",
        "send countersignature",
        "sent",
    ]


@pytest.mark.parametrize(
    "other",
    [
        {"valid_set": OTHER.value},
        {"history": OTHER.value},
        {"attempt": 8},
        {"version": 4},
    ],
    ids=lambda other: next(iter(other)),
)
def test_a_head_of_another_set_history_or_attempt_is_not_countersigned(
    release: Release, other: Document
) -> None:
    release.says("head", SignedKind.HEAD, release.head(**other))
    with pytest.raises(PeerViolation, match="disagree on what they have prepared"):
        countersign(release.a, release.prepared)
    assert release.written == []


@pytest.mark.parametrize(
    "other", [{"length": 6}, {"head": SET.value}], ids=["length", "head"]
)
def test_a_countersignature_over_another_head_lets_no_share_leave(
    release: Release, other: Document
) -> None:
    """Of an earlier ledger, say: the other server would not be bound to this charge."""
    release.says("head", SignedKind.HEAD, release.head())
    release.says("countersignature", SignedKind.COUNTERSIGNATURE, release.head(**other))
    with pytest.raises(PeerViolation, match="another head"):
        countersign(release.a, release.prepared)
    assert release.written == ["countersigned"]


def test_a_step_divides_by_what_is_drawn_on_average() -> None:
    """By q·Σ p_i·|D_i|: with q left out a model would move by q times its step."""
    task = task_with({"privacy.client_rate": 0.25, "training.learning_rate": 2.0})
    enrolled = roster((WARD.name, 100, 0.1), ("ward-b", 60, 0.05))
    release = Release(task, enrolled)
    expected = 2.0 / (0.25 * 13) * release.sum * 2.0**-task.fractional_bits
    theta = expected.astype(np.float32)
    digest = model_digest(task.digest, 4, task.model.parameters, theta)
    body = replaced_body(MODEL_BODY, task=task.digest.value, digest=digest.value)
    release.b.send("noisy-share", bytes(8 * task.dimension))
    release.says("model", SignedKind.MODEL, body)
    start = np.zeros(task.dimension, np.float32)
    finished = reconstruct(release.a, release.sent, start)
    np.testing.assert_array_equal(finished.theta, theta)


def replaced_body(
    body: server_messages.ModelBody, **changed: bytes
) -> server_messages.ModelBody:
    return server_messages.ModelBody(**body.model_dump() | changed)


MODEL_BODY = server_messages.ModelBody(
    task=TASK.digest.value, version=4, digest=OTHER.value
)


def test_a_model_that_the_other_server_computed_otherwise_is_not_kept(
    release: Release,
) -> None:
    release.b.send("noisy-share", bytes(8 * TASK.dimension))
    release.says("model", SignedKind.MODEL, MODEL_BODY)
    with pytest.raises(PeerViolation, match="different models of version 4"):
        reconstruct(release.a, release.sent, np.zeros(TASK.dimension))
    assert release.written == []


@pytest.mark.parametrize("word", [P, P + 5, 2**64 - 1])
@pytest.mark.parametrize("at", [0, -1])
def test_a_noisy_share_with_words_of_no_field_breaks_the_link(
    word: int, at: int
) -> None:
    release = Release(task_with({"validation": "proof"}))
    words, theta = np.zeros(8, dtype="<u8"), np.zeros(8)
    words[at] = word
    release.b.send("noisy-share", words.tobytes())
    with pytest.raises(
        PeerViolation, match=f"word {at % 8} of the other server's noisy share"
    ):
        reconstruct(release.a, release.sent, theta)
    assert release.written == []
    assert not theta.any()


@pytest.mark.parametrize("check", ["crypten", "proof"])
def test_noise_below_zero_is_an_element_of_the_group_too(check: str) -> None:
    """In the field −1 is p − 1; its bytes as a machine's integer would be another
    number."""
    group = group_of(task_with({"validation": check}))
    noise = np.array([-1, -(2**40), 0, 5, 2**40], dtype=np.int64)
    counted = Release().prepared.counted
    summed = Summed(counted, group.encode(np.array([3, -7, 0, -5, 1], np.int64)))
    drawn = SimpleNamespace(draw=lambda dimension: noise[:dimension].copy())
    noised = add_noise(summed, drawn, group)
    assert group.first_foreign(noised.noisy_share) is None
    expected = [2, -(2**40) - 7, 0, 0, 2**40 + 1]
    assert group.decode(noised.noisy_share).tolist() == expected


def test_a_seal_of_one_kind_or_server_is_none_of_another() -> None:
    """A head that was signed is no countersignature, whatever bytes both have."""
    for kind in SignedKind:
        signed = server_signed_bytes(A, kind, b"{}")
        signature = signatures(MODEL, A).signer.sign(signed)
        verifier().check_server(signature, A, signed)
        for role, other in [
            (B, kind),
            *((A, each) for each in SignedKind if each is not kind),
        ]:
            with pytest.raises(PeerViolation):
                verifier().check_server(
                    signature, role, server_signed_bytes(role, other, b"{}")
                )


def test_other_submissions_of_the_same_clients_are_another_set() -> None:
    """Else the servers could sum shares of two updates that don't belong together.

    Nor those of another attempt: its agreement would pass for the next one's.
    """
    context = SubmissionContext(
        task=TASK.digest, version=3, attempt=7, client=WARD, model=MODEL
    )
    # It took everything, and found it valid.
    verdicts = Verdicts({}, np.zeros(TASK.dimension, np.int64))
    validator = cast(
        "Validator", SimpleNamespace(take=lambda _: None, decide=lambda: verdicts)
    )

    def digest(submission: Submission, attempt: int = 7) -> bytes:
        fresh = Release()
        opened = replace(fresh.prepared.counted.opened, attempt=attempt)
        matched = Matched(opened=opened, submissions={WARD: submission}, rejections={})
        fresh.b.send(
            "valid-set", server_messages.SetCheck(digest=bytes(32), count=1).to_bytes()
        )
        with pytest.raises(PeerViolation, match="'valid-set'"):
            aggregate(fresh.a, matched, validator)
        return server_messages.SetCheck.from_bytes(fresh.b.receive("valid-set")).digest

    vectors = (np.full(TASK.dimension, value, np.int64) for value in (1, 2))
    one, other = (shard(x, context, signer(WARD))[0] for x in vectors)
    assert digest(one) == digest(one) not in (digest(other), digest(one, 8))


def test_what_was_signed_as_json_before_wire_version_2_stands_where_it_is_kept() -> (
    None
):
    """And nowhere else: what is said now is of this version."""
    pen = signatures(MODEL, B).signer
    body = MODEL_BODY.to_json()
    signature = pen.sign(server_signed_bytes(B, SignedKind.MODEL, body))
    kept = server_messages.SignedMessage(
        body=body,
        signature=signature.value,
        certificates=signature.certificates,
    )
    again, own = (
        server_messages.SignedMessage.from_json(kept.to_json()),
        signatures(TASK.digest, A),
    )
    assert (
        own.check(B, SignedKind.MODEL, again, server_messages.ModelBody, kept=True)
        == MODEL_BODY
    )
    with pytest.raises(PeerViolation, match="unreadable ModelBody"):
        own.check(B, SignedKind.MODEL, again, server_messages.ModelBody)


# --- the sum's way in types: who skips a step is told by mypy, in `make lint`
# --------------------

STEPS = (aggregate, add_noise, prepare, countersign, reconstruct)
STATES = (
    Opened,
    Counted,
    Matched,
    states.Summed,
    states.Noised,
    Prepared,
    Sent,
    states.Finished,
)


def test_a_step_takes_what_the_last_one_made_and_no_state_passes_for_another() -> None:
    """Neither by inheritance nor by its shape."""
    for step, takes, makes in zip(STEPS, STATES[2:], STATES[3:], strict=False):
        # The release names the store for its checker alone: the store is built on
        # rounds.
        hints = get_type_hints(step, localns={"Store": Store})
        assert hints.pop("return") is makes
        given = [each for hint in hints.values() for each in (hint, *get_args(hint))]
        assert [each for each in given if each in (*STATES, Any, object)] == [takes]
    for one, other in permutations(STATES, 2):
        assert not issubclass(one, other)
    assert all(is_dataclass(each) and each.__mro__ == (each, object) for each in STATES)
