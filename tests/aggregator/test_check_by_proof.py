"""Two servers decide on proofs over their link: coins, words, verdicts, and the sum."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest

from precad.aggregator.peer_link import PeerLink, memory_pair
from precad.aggregator.validate.check_by_proof import ByProof
from precad.common.errors import BodyUnreadable, PeerViolation, Rejection
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.prime_field import P, arithmetic, of_signed, signed_of
from precad.common.ring import RingVector
from precad.common.share.header import Signature, SubmissionContext
from precad.norm_check import proof_submission
from precad.norm_check.norm_proof import ProofShape
from precad.norm_check.proof_submission import (
    BodyPart,
    SeedPart,
    Verified,
    seed_holders,
    share_with_proof,
    verified,
)

SHAPE = ProofShape(200, 1 << 14)
TASK = Digest(b"t" * 32)
NAMES = [ClientId(f"ward-{i}") for i in range(6)]
BAD = NAMES[3]
SERVERS = proof_submission.SERVERS
OPENINGS = Digest(b"a" * 32), Digest(b"b" * 32)
Parts = list[Verified]
Tamper = Callable[[Role, str, bytes], bytes]


class Pen:
    def sign(self, signed: bytes) -> Signature:
        return Signature(Digest.of(signed).value, (b"certificate",))


class Link(PeerLink):
    """Changes what this server sends."""

    tamper: Callable[[str, bytes], bytes] | None = None

    def send(self, step: str, payload: bytes | memoryview) -> None:
        changed = bytes(payload) if self.tamper is None else self.tamper(step, bytes(payload))
        super().send(step, changed)


@dataclass
class Server:
    role: Role
    link: Link


def servers() -> dict[Role, Server]:
    ends = zip(SERVERS, memory_pair(), strict=True)
    return {
        role: Server(role, Link(end, TASK, max_message_bytes=1 << 20, timeout_s=60))
        for role, end in ends
    }


def update(client: ClientId) -> RingVector:
    number = NAMES.index(client)
    v = np.random.default_rng(number).standard_normal(SHAPE.dimension)
    norm = SHAPE.bound * (3.0 if client == BAD else 0.99)
    return np.trunc(v / np.linalg.norm(v) * norm).astype(np.int64)


def submissions() -> dict[Role, Parts]:
    """What each server holds: seeds and bodies alternate."""
    held: dict[Role, Parts] = {role: [] for role in SERVERS}
    for client, holder in sorted(seed_holders(TASK, NAMES).items()):
        context = SubmissionContext(TASK, 3, 3, client, Digest(b"m" * 32), bytes(32))
        seed, body = share_with_proof(update(client), SHAPE, context, OPENINGS, holder, Pen())
        other = Role.SERVER_B if holder is Role.SERVER_A else Role.SERVER_A
        for part, role in ((seed, holder), (body, other)):
            opening = OPENINGS[SERVERS.index(role)]
            held[role].append(verified(part, SHAPE, role, opening))
    return held


def play(
    held: dict[Role, Parts],
    counted: Sequence[ClientId] = NAMES,
    batches: Sequence[slice] = (slice(None),),
    both: dict[Role, Server] | None = None,
) -> dict[Role, ByProof]:
    both = servers() if both is None else both

    def side(role: Role) -> ByProof:
        check = ByProof(both[role], SHAPE, 3, counted)
        try:
            for batch in batches:
                check.take(held[role][batch])
        except Exception:
            # So that the other one doesn't wait for what won't come.
            both[role].link.send("gone", b"")
            raise
        return check

    with ThreadPoolExecutor(2) as threads:
        running = {role: threads.submit(side, role) for role in SERVERS}
        failed = [e for each in running.values() if (e := each.exception()) is not None]
        for error in sorted(failed, key=lambda each: "'gone'" in str(each)):
            raise error
        return {role: each.result() for role, each in running.items()}


@pytest.mark.parametrize(
    "batches", [(slice(None),), (slice(2), slice(2, 2), slice(2, None))], ids=["one", "two"]
)
def test_the_sum_is_that_of_valid_and_counted_clients(batches: Sequence[slice]) -> None:
    counted = NAMES[1:]
    checks = play(submissions(), counted, batches)
    shares = [checks[role].share_sum for role in SERVERS]
    right = sum(update(client) for client in counted if client != BAD)
    assert signed_of(arithmetic().add(*shares)).tolist() == np.asarray(right).tolist()
    assert [checks[role].rejections for role in SERVERS] == [{BAD: Rejection.NORM_EXCEEDED}] * 2
    assert all((share != of_signed(np.asarray(right))).any() for share in shares)


def anew(held: Verified) -> Verified:
    header = replace(held.part.header, signature=Signature(b"another", (b"certificate",)))
    return Verified(replace(held.part, header=header))


def test_no_submission_is_answered_twice() -> None:
    held = submissions()
    with pytest.raises(AssertionError, match="answered twice"):
        play(held, batches=(slice(2), slice(1, 3)))
    # Signed anew it is the same header.
    again = {role: [anew(parts[0])] for role, parts in held.items()}
    with pytest.raises(AssertionError, match="answered twice"):
        play(
            {role: held[role][:1] + again[role] for role in SERVERS},
            batches=(slice(1), slice(1, 2)),
        )
    twice = {role: parts[:1] * 2 for role, parts in held.items()}
    with pytest.raises(AssertionError, match="answered twice"):
        play(twice)


def test_a_body_that_cannot_be_read_again_costs_its_client_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = submissions()
    (lost,) = [each.part.header.context.client for each in held[Role.SERVER_B][:1]]
    right = proof_submission.answer_of

    def answer(part: SeedPart | BodyPart, *rest: object) -> object:
        if part is held[Role.SERVER_B][0].part:
            raise BodyUnreadable("its file is gone")
        return right(part, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("precad.aggregator.validate.check_by_proof.answer_of", answer)
    checks = play(held)
    for role in SERVERS:
        assert checks[role].rejections == {
            lost: Rejection.TRUNCATED,
            BAD: Rejection.NORM_EXCEEDED,
        }


def changed(at: int, by: int = 1) -> Callable[[bytes], bytes]:
    def change(payload: bytes) -> bytes:
        found = bytearray(payload)
        found[at] ^= by
        return bytes(found)

    return change


LIES: dict[str, tuple[str, Callable[[bytes], bytes], Role, str]] = {
    "a coin that A didn't commit to": (
        "proof-coin",
        lambda b: b[:1] + changed(5)(b)[1:],
        Role.SERVER_A,
        "another coin",
    ),
    "a short coin of B": ("proof-coin", lambda b: b[:31], Role.SERVER_B, "hasn't 32 bytes"),
    "short words": ("proof/", lambda b: b[:-8], Role.SERVER_B, "words have"),
    "words beyond the field": (
        "proof/",
        lambda b: b[:1] + P.to_bytes(8, "little") + b[9:],
        Role.SERVER_A,
        "aren't of the field",
    ),
    "no verdict": ("proof/", lambda b: b"x" + b[1:], Role.SERVER_A, "no verdict"),
}


@pytest.mark.parametrize(("step", "lie", "liar", "text"), LIES.values(), ids=LIES)
def test_a_peer_that_breaks_the_protocol_is_named(
    step: str, lie: Callable[[bytes], bytes], liar: Role, text: str
) -> None:
    both = servers()
    both[liar].link.tamper = lambda name, b: lie(b) if name.startswith(step) else b
    with pytest.raises(PeerViolation, match=text):
        play(submissions(), both=both)


def test_servers_with_other_batches_draw_no_coin() -> None:
    held = submissions()
    held[Role.SERVER_B] = held[Role.SERVER_B][:-1]
    with pytest.raises(PeerViolation, match="holds other submissions"):
        play(held)


@pytest.mark.parametrize("liar", SERVERS)
def test_a_lie_in_a_word_costs_its_client_alone_and_both_see_it(liar: Role) -> None:
    both = servers()
    size = 1 + 8 * (SHAPE.columns + 2)

    def lie(name: str, payload: bytes) -> bytes:
        return changed(size + 8)(payload) if name.startswith("proof/") else payload

    both[liar].link.tamper = lie
    held = submissions()
    honest = Role.SERVER_B if liar is Role.SERVER_A else Role.SERVER_A
    hit = held[honest][1].part.header.context.client
    rejections = play(held, both=both)[honest].rejections
    assert rejections == {BAD: Rejection.NORM_EXCEEDED, hit: Rejection.NORM_EXCEEDED}


def test_a_header_that_was_changed_on_one_side_draws_another_coin() -> None:
    held = submissions()
    part = held[Role.SERVER_A][0].part
    moved = replace(part.header, proof_digest=Digest(b"x" * 32))
    held[Role.SERVER_A][0] = Verified(replace(part, header=moved))
    with pytest.raises(PeerViolation, match="holds other submissions"):
        play(held)
