"""Submissions with proofs at one server's door: nothing that isn't right for it gets
in."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np
import pytest
from tests.rig import norm_check as rig
from tests.rig.documents import Document
from tests.rig.keys import signer, verifier
from tests.rig.norm_check import SEGMENTS, Pair, other, segments
from tests.rig.submissions import ONE, body_of, flipped, pair_of, upload, words_of
from tests.rig.tasks import task_with

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.matching import describe
from precad.aggregator.collect.upload import SpooledBody
from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import SERVERS, ClientId, Digest, Role, Secret
from precad.common.proof_shape import P
from precad.common.ring import commit
from precad.common.submission import HeldBody, SubmissionContext
from precad.norm_check import proof_submission as proofs
from precad.norm_check.proof_submission import AnySubmission, ForProof
from precad.norm_check.share_update import share

D = 8
TASK = task_with({"validation": "proof"}, D)
assert TASK.proof is not None
SHAPE = TASK.proof
TWO = ClientId("ward-2")
MODEL, OTHER = Digest(b"\2" * 32), Digest(b"o" * 32)


def opening_of(
    inbox: Inbox, client: ClientId = ONE, attempt: int = 3
) -> tuple[Digest, Role]:
    stated = inbox.proof_opening(attempt, client)
    assert stated is not None
    return stated


@dataclass(frozen=True)
class Doors:
    """Both servers' inboxes, open for attempt 3; one of them holds ONE's seed."""

    folder: Path
    holder: Role
    inboxes: dict[Role, Inbox] = field(default_factory=dict)

    def start(self, role: Role) -> None:
        self.inboxes[role] = Inbox(role, TASK, verifier(), self.folder / role.value)
        self.open(role)

    def open(self, role: Role, attempt: int = 3) -> None:
        holders = {ONE: self.holder, TWO: other(self.holder)}
        opened = Opened(
            attempt=attempt,
            version=2,
            cohort=(ONE, TWO),
            model=MODEL,
            counted=frozenset(),
            seed_holders=holders,
        )
        self.inboxes[role].open(opened)

    def stated(self) -> ForProof:
        of_a, of_b = (opening_of(self.inboxes[role]) for role in SERVERS)
        assert of_a[1] is of_b[1]
        return ForProof((of_a[0], of_b[0]), of_a[1])

    def pair(self, stated: ForProof | None = None) -> Pair:
        """An owner's: what the seed's holder gets, and what the body's."""
        context = SubmissionContext(
            task=TASK.digest, version=2, attempt=3, client=ONE, model=MODEL
        )
        x = np.arange(D, dtype=np.int64)
        parts = share(TASK, x, context, signer(ONE), stated or self.stated())
        first, second = cast("Pair", parts)
        seed, body = (first, second) if first.seed is not None else (second, first)
        return seed, body

    def send(self, part: AnySubmission) -> None:
        upload(self.inboxes[part.role], part, (1, 64, 65, 500))

    def refuses(
        self, part: AnySubmission, reason: Rejection, says: str | None = None
    ) -> None:
        with pytest.raises(RejectedSubmission, match=says) as rejected:
            self.send(part)
        assert (rejected.value.reason, self.spooled()) == (reason, [])

    def spooled(self) -> list[Path]:
        return [
            each for role in SERVERS for each in (self.folder / role.value).iterdir()
        ]


@pytest.fixture(params=SERVERS, ids=["seed at a", "seed at b"])
def doors(request: pytest.FixtureRequest, tmp_path: Path) -> Doors:
    made = Doors(tmp_path, request.param)
    for role in SERVERS:
        made.start(role)
    return made


class Changes(TypedDict, total=False):
    commitment: Digest
    openings: tuple[Digest, Digest]
    context: SubmissionContext


def signed(
    header: proofs.ProofHeader, **changes: Unpack[Changes]
) -> proofs.ProofHeader:
    return rig.resigned(replace(header, **changes), signer(ONE))


def test_each_server_holds_what_it_gets_and_the_disk_has_noise_alone(
    doors: Doors,
) -> None:
    seed, body = doors.pair()
    for part in (seed, body, seed, body):
        doors.send(part)
    (kept,) = doors.spooled()
    words = words_of(body)
    assert len(kept.read_bytes()) == len(words) + 16 == 8 * SHAPE.body_words + 16
    assert words[:64] not in kept.read_bytes()
    held: list[Any] = [doors.inboxes[part.role].close()[ONE] for part in (seed, body)]
    assert (held[0], type(held[1].body)) == (seed, SpooledBody)
    assert (held[1].header, body_of(held[1])) == (body.header, body_of(body))
    assert describe({ONE: held[0]}) == describe({ONE: held[1]})


def test_a_header_is_refused_by_the_server_whose_opening_it_lacks(doors: Doors) -> None:
    for part in doors.pair():
        of_a, of_b = part.header.openings
        openings = (OTHER, of_b) if part.role is Role.SERVER_A else (of_a, OTHER)
        lacking = replace(part, header=signed(part.header, openings=openings))
        doors.refuses(
            lacking, Rejection.WRONG_ATTEMPT, "another opening of this attempt"
        )


@pytest.mark.parametrize("restarted", SERVERS)
def test_a_kept_upload_is_worth_nothing_after_a_server_was_put_back(
    doors: Doors, restarted: Role
) -> None:
    """The same attempt again, from a restored database: what it stated was in memory
    alone."""
    pair, before = doors.pair(), doors.stated()
    for part in pair:
        doors.send(part)
    doors.start(restarted)
    both = zip(before.openings, doors.stated().openings, strict=True)
    assert [one != two for one, two in both] == [role is restarted for role in SERVERS]
    (part,) = (each for each in pair if each.role is restarted)
    with pytest.raises(RejectedSubmission, match="another opening of this attempt"):
        doors.send(part)
    assert doors.inboxes[restarted].close()[ONE] is Rejection.WRONG_ATTEMPT


def test_an_opening_is_stated_for_the_open_attempt_and_its_cohort_alone(
    doors: Doors,
) -> None:
    inbox = doors.inboxes[Role.SERVER_A]
    assert inbox.proof_opening(2, ONE) is None
    assert inbox.proof_opening(3, ClientId("stranger")) is None
    first, second = opening_of(inbox), opening_of(inbox, TWO)
    assert (first[0], {first[1], second[1]}) == (second[0], set(SERVERS))
    doors.open(Role.SERVER_A, attempt=4)
    assert opening_of(inbox, attempt=4)[0] != first[0]
    inbox.close()
    assert inbox.proof_opening(4, ONE) is None


def test_a_seed_at_the_wrong_server_or_under_another_commitment_is_refused(
    doors: Doors,
) -> None:
    # Both parts exchanged, each whole for the other server's task.
    swapped = ForProof(doors.stated().openings, other(doors.holder))
    for part in doors.pair(swapped):
        says = "the server that gets this client's body"
        doors.refuses(part, Rejection.MALFORMED, says)
    seed = doors.pair()[0]
    assert seed.salt is not None
    assert seed.seed is not None
    foreign = commit(
        other(doors.holder), seed.header.ctx, salt=seed.salt, seed=seed.seed
    )
    for commitment in (foreign, OTHER):
        sent = replace(seed, header=signed(seed.header, commitment=commitment))
        doors.refuses(sent, Rejection.MALFORMED, "don't open the commitment")
    # Nor is one of another length, or a salt.
    for name, length in product(("seed", "salt"), (0, 31, 33)):
        odd: Document = {name: Secret(bytes(length))}
        doors.refuses(replace(seed, **odd), Rejection.MALFORMED)
        assert not replace(seed, **odd | {name: None}).opens


def test_headers_of_another_check_are_none_of_this_ones(
    doors: Doors, tmp_path: Path
) -> None:
    """What is signed names its purpose: no header is two things."""
    dealt = pair_of(TASK, ONE)
    for each in dealt:
        doors.refuses(each, Rejection.MALFORMED, "validation = 'proof'")
    seed, _ = pair = doors.pair()
    for part in pair:
        foreign = replace(part.header, signature=dealt[0].header.signature)
        for header in (foreign, rig.resigned(part.header, signer(TWO))):
            doors.refuses(replace(part, header=header), Rejection.BAD_SIGNATURE)
    # And a proof at a task that has a dealer.
    task = task_with({}, D)
    inbox = Inbox(Role.SERVER_A, task, verifier(), tmp_path / "dealt")
    inbox.open(
        Opened(attempt=3, version=2, cohort=(ONE,), model=MODEL, counted=frozenset())
    )
    header = signed(seed.header, context=replace(seed.context, task=task.digest))
    with pytest.raises(RejectedSubmission, match="validation = 'crypten'"):
        inbox.start(replace(seed, header=header))


def mixed(
    tales: tuple[Pair, Pair], place: int, whose: Mapping[str, int]
) -> proofs.ProofSubmission:
    """What one holder gets when each of its parts is taken from one of two good
    submissions."""
    parts = {name: tales[number][place] for name, number in whose.items()}
    header = replace(
        parts["header"].header, signature=parts["signature"].header.signature
    )
    if "seed" in whose:
        seed, salt = parts["seed"].seed, parts["salt"].salt
        return replace(parts["header"], header=header, seed=seed, salt=salt)
    prefixed = replace(parts["header"], header=header, body=parts["prefix"].body)
    words = {name: segments(SHAPE, parts[name])[name] for name in SEGMENTS}
    return rig.with_segments(prefixed, words)


PARTS = (
    ("header", "signature", "seed", "salt"),
    ("header", "signature", "prefix", *SEGMENTS),
)
"""Of what the seed's holder gets, and the body's."""


@pytest.mark.parametrize("place", [0, 1], ids=["seed", "body"])
def test_parts_of_two_submissions_make_none(doors: Doors, place: int) -> None:
    """All 16 and all 64 ways; what is whole is taken."""
    tales = doors.pair(), doors.pair()
    for numbers in product((0, 1), repeat=len(PARTS[place])):
        whose = dict(zip(PARTS[place], numbers, strict=True))
        sent = mixed(tales, place, whose)
        inbox = doors.inboxes[sent.role]
        doors.open(sent.role)
        assert inbox._open_attempt is not None
        inbox._open_attempt.opening = sent.header.openings[SERVERS.index(sent.role)]
        if len(set(numbers)) == 1:
            doors.send(sent)
            assert isinstance(inbox.close()[ONE], proofs.ProofSubmission)
            inbox.cancel()
            continue
        forged = whose["signature"] != whose["header"]
        doors.refuses(sent, Rejection.BAD_SIGNATURE if forged else Rejection.MALFORMED)


@pytest.mark.parametrize("at", [0, 31, 32, -1])
@pytest.mark.parametrize("name", ["prefix", *SEGMENTS])
def test_a_body_that_was_not_signed_is_malformed_and_leaves_nothing(
    doors: Doors, name: str, at: int
) -> None:
    """Neither half of its prefix, and no word."""
    _, body = doors.pair()
    assert body.body is not None
    if name == "prefix":
        prefix = Secret(flipped(body.body.prefix.reveal(), at))
        unsigned = replace(body, body=HeldBody(prefix, words_of(body)))
    else:
        parts = segments(SHAPE, body)
        parts[name] = rig.changed(parts[name], at % parts[name].size)
        unsigned = rig.with_segments(body, parts)
    doors.refuses(unsigned, Rejection.MALFORMED)
    assert doors.inboxes[body.role].close()[ONE] is Rejection.ABSENT


@pytest.mark.parametrize("name", SEGMENTS)
@pytest.mark.parametrize("word", [P - 1, P, P + 5, 2**64 - 1])
@pytest.mark.parametrize("at", [0, -1])
def test_words_that_are_none_of_the_field_are_refused_though_signed(
    doors: Doors, name: str, word: int, at: int
) -> None:
    """p − 1 is the largest one of the field."""
    pair = doors.pair()
    parts = segments(SHAPE, pair[1])
    parts[name][at] = word
    seed, body = rig.signed_again(pair, parts, signer(ONE))
    doors.send(seed)
    if word >= P:
        doors.refuses(body, Rejection.MALFORMED, f"a word of the {name} is p")
    else:
        doors.send(body)
