"""Two servers decide on proofs over their link: coins, words, verdicts, and the sum."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from tests.rig.keys import signer, verifier
from tests.rig.norm_check import (
    A,
    B,
    context,
    noted,
    other,
    play,
    servers,
    shape_of,
    update,
)
from tests.rig.rounds import roster_of
from tests.rig.submissions import flipped, upload
from tests.rig.tasks import task_with

from precad.aggregator.attempt_states import Opened
from precad.aggregator.collect.inbox import Inbox
from precad.aggregator.collect.upload import SpooledBody
from precad.aggregator.validate import longest_opening
from precad.aggregator.validate.check_by_proof import words_bytes
from precad.aggregator.validate.validation import MAX_BATCH_CLIENTS, Verdicts
from precad.common.errors import PeerUnavailable, PeerViolation, Rejection
from precad.common.identifiers import SERVERS, ClientId, Digest, Role
from precad.common.proof_shape import P, ProofShape
from precad.common.ring import RingVector
from precad.common.submission import Signature
from precad.common.task import Task
from precad.norm_check.prime_field import FIELD
from precad.norm_check.proof_submission import ForProof, ProofSubmission
from precad.norm_check.share_update import share_with_proof

TASK = task_with({"validation": "proof"}, 200)
SHAPE = shape_of(TASK)
NAMES = [ClientId(f"ward-{i}") for i in range(6)]
BAD = NAMES[3]
HOLDERS = roster_of(NAMES).seed_holders(TASK.digest)
Held = dict[Role, list[ProofSubmission]]
SIZE = words_bytes(SHAPE)  # Of one server's words on one submission


def update_of(client: ClientId, shape: ProofShape = SHAPE) -> RingVector:
    norm = shape.bound * (3.0 if client == BAD else 0.99)
    return update(shape, norm, NAMES.index(client))


def sum_of(*clients: ClientId) -> list[int]:
    total: list[int] = np.sum(
        [update_of(client) for client in clients], axis=0
    ).tolist()
    return total


def opened(verdicts: Mapping[Role, Verdicts]) -> list[int]:
    total = verdicts[A].share_sum.copy()
    FIELD.add(total, verdicts[B].share_sum)
    return [int(each) for each in FIELD.decode(total)]


def collected(task: Task, folder: Path, names: Sequence[ClientId] = NAMES) -> Held:
    """What each server holds, through its own door: seeds, and bodies in its spool."""
    holders = roster_of(NAMES).seed_holders(task.digest)
    inboxes = {
        role: Inbox(role, task, verifier(), folder / role.value) for role in SERVERS
    }
    for inbox in inboxes.values():
        inbox.open(
            Opened(
                attempt=3,
                version=3,
                cohort=tuple(names),
                model=Digest(b"m" * 32),
                counted=frozenset(),
                seed_holders=holders,
            )
        )
    for client in names:
        stated = [inboxes[role].proof_opening(3, client) for role in SERVERS]
        (a, holder), (b, _) = filter(None, stated)
        opened = ForProof((a, b), holder)
        shape, of = shape_of(task), context(task.digest, client)
        pair = share_with_proof(
            update_of(client, shape), shape, of, opened, signer(client)
        )
        for role, part in zip(SERVERS, pair, strict=True):
            upload(inboxes[role], part, (1, 63, 64, 65))
    return {
        role: [cast("ProofSubmission", each) for each in inboxes[role].close().values()]
        for role in SERVERS
    }


@pytest.fixture
def held(tmp_path: Path) -> Held:
    return collected(TASK, tmp_path)


client_of = attrgetter("context.client")


@pytest.mark.parametrize(
    "batches",
    [(slice(None),), (slice(2), slice(2, 2), slice(2, None))],
    ids=["one", "two"],
)
def test_the_sum_is_that_of_valid_and_counted_clients(
    held: Held, batches: Sequence[slice]
) -> None:
    """And every turn of every attempt draws a coin of its own."""
    counted, coins = NAMES[1:], list[bytes]()
    for _ in range(2):
        both = servers(TASK)
        sent = noted(*both.values())
        found = play(both, held, counted, batches)
        coins += [data for step, data in sent if step.startswith("proof-coin")]
    # Of each turn A's commitment and both openings.
    turns = sum(bool(NAMES[batch]) for batch in batches)
    assert len(coins) == len(set(coins)) == 2 * turns * 3
    right = sum_of(*(client for client in counted if client != BAD))
    assert (opened(found), longest_opening(TASK)) == (right, MAX_BATCH_CLIENTS * SIZE)
    for role in SERVERS:
        assert found[role].share_sum.view(np.int64).tolist() != right
        assert found[role].rejections == {BAD: Rejection.NORM_EXCEEDED}
        # Seeds and bodies alternate between the servers.
        bodies = {
            client_of(part) for part in held[role] if isinstance(part.body, SpooledBody)
        }
        assert bodies == {
            client for client, holder in HOLDERS.items() if holder is not role
        }
        assert len(bodies) == len(NAMES) // 2


def signed_anew(part: ProofSubmission) -> ProofSubmission:
    header = replace(part.header, signature=Signature(b"another", (b"certificate",)))
    return replace(part, header=header)


@pytest.mark.parametrize(
    "again", [lambda part: part, signed_anew], ids=["as it is", "signed anew"]
)
@pytest.mark.parametrize(
    "batches", [(slice(1), slice(1, 2)), (slice(2),)], ids=["two", "one"]
)
def test_no_header_is_answered_twice(
    held: Held,
    again: Callable[[ProofSubmission], ProofSubmission],
    batches: tuple[slice, ...],
) -> None:
    """Two answers of one header at different points give its update away."""
    both = servers(TASK)
    sent = noted(*both.values())
    twice = {role: [held[role][0], again(held[role][0])] for role in SERVERS}
    with pytest.raises(AssertionError, match="answered twice"):
        play(both, twice, NAMES, batches)
    # Of the second one not even a coin was drawn.
    steps = [step for step, _ in sent]
    answers = [step for step in steps if step.startswith("proof/")]
    assert answers == ["proof/0"] * 2 * (len(batches) - 1)
    assert all(step.endswith("/0") for step in steps if step != "gone")


def spoil(held: Held, client: ClientId) -> Role:
    """The end of that client's body's file is changed; returns whose it is."""
    of_both = (each for role in SERVERS for each in held[role])
    (part,) = (
        each for each in of_both if client_of(each) == client and each.awaits_body
    )
    assert isinstance(part.body, SpooledBody)
    part.body.path.write_bytes(flipped(part.body.path.read_bytes(), -20))
    return part.role


def test_a_body_that_can_not_be_read_costs_its_client_alone(
    held: Held, tmp_path: Path
) -> None:
    lost, kept = NAMES[:2]
    holder = spoil(held, lost)
    both = servers(TASK)
    sent = noted(both[holder])
    found = play(both, held, NAMES)
    rejections = {lost: Rejection.TRUNCATED, BAD: Rejection.NORM_EXCEEDED}
    assert [found[role].rejections for role in SERVERS] == [rejections] * 2
    assert opened(found) == sum_of(*(name for name in NAMES if name not in (lost, BAD)))
    # No word of it leaves.
    at = [client_of(part) for part in held[holder]].index(lost)
    (words,) = (data for step, data in sent if step.startswith("proof/"))
    assert words[at * SIZE : (at + 1) * SIZE] == b"d" + bytes(SIZE - 1)
    # The first chunk of 1 MiB of a large one is whole, and stands in the sum when the
    # second fails.
    task = task_with({"validation": "proof"}, 140_000)
    large = collected(task, tmp_path / "large", (lost, kept))
    spoil(large, lost)
    found = play(servers(task), large, NAMES)
    assert [found[role].rejections for role in SERVERS] == [
        {lost: Rejection.TRUNCATED}
    ] * 2
    assert opened(found) == update_of(kept, shape_of(task)).tolist()


def test_a_body_that_cannot_be_taken_out_of_the_sum_ends_the_attempt(
    held: Held,
) -> None:
    """It was read once, and its norm is too large: nobody knows the sum without it."""
    both = servers(TASK)

    def spoil_then(step: str, data: bytes) -> bytes:
        if step.startswith("proof/"):
            spoil(held, BAD)
        return data

    both[other(HOLDERS[BAD])].link.tamper = spoil_then
    with pytest.raises(PeerUnavailable, match=r"can't be read again.*starts over"):
        play(both, held, NAMES)


Lie = Callable[[bytes], bytes]


def beyond(at: int, word: int, data: bytes) -> bytes:
    return data[:at] + word.to_bytes(8, "little") + data[at + 8 :]


LIES: dict[str, tuple[str, int, Lie, Role, str]] = {
    "another commitment": ("proof-coin", 0, lambda b: bytes(len(b)), A, "another coin"),
    "a coin that A didn't commit to": (
        "proof-coin",
        1,
        lambda b: flipped(b, 5),
        A,
        "another coin",
    ),
    "a short coin of A": ("proof-coin", 1, lambda b: b[:31], A, "another coin"),
    "a short coin of B": ("proof-coin", 0, lambda b: b[:31], B, "hasn't 32 bytes"),
    "a long coin of B": ("proof-coin", 0, lambda b: b + b"\0", B, "hasn't 32 bytes"),
    "no verdict": ("proof/", 0, lambda b: b"x" + b[1:], A, "no verdict"),
    "short words": ("proof/", 0, lambda b: b[:-8], B, "words have"),
    "long words": ("proof/", 0, lambda b: b + bytes(8), A, "words have"),
    "nothing": ("proof/", 0, lambda _: b"", B, "words have"),
} | {
    f"a {name} of {word}": (
        "proof/",
        0,
        partial(beyond, at, word),
        liar,
        "aren't of the field",
    )
    for name, at, word, liar in (
        *(("first wire", 1, P, A), ("last wire", SIZE - 24, P + 5, B)),
        *(
            ("value of h", SIZE - 16, 2**64 - 1, A),
            ("sum of relations", SIZE - 8, P, B),
        ),
        ("second client's wire", SIZE + 1, P, A),
    )
}
"""In which message of which step, counted from 0, who lies, and what is said of it."""


@pytest.mark.parametrize(
    ("step", "number", "lie", "liar", "text"), LIES.values(), ids=LIES
)
def test_a_peer_that_breaks_the_protocol_is_named(
    held: Held, step: str, number: int, lie: Lie, liar: Role, text: str
) -> None:
    """And hears no word where the coin isn't both servers'."""
    both = servers(TASK)
    heard, said = noted(both[other(liar)]), 0

    def tamper(name: str, data: bytes) -> bytes:
        nonlocal said
        said += name.startswith(step)
        return lie(data) if name.startswith(step) and said == number + 1 else data

    both[liar].link.tamper = tamper
    with pytest.raises(PeerViolation, match=text):
        play(both, held, NAMES)
    if step == "proof-coin":
        assert not [name for name, _ in heard if name.startswith("proof/")]


def test_servers_with_other_batches_draw_no_coin_and_say_no_word(held: Held) -> None:
    """One less, another order, or a header that one of them has otherwise."""
    first, *rest = held[A]
    moved = replace(first, header=replace(first.header, proof_digest=Digest(b"x" * 32)))
    others = ([*rest, first], [moved, *rest], [signed_anew(first), *rest])
    for unlike in ([first, *rest[:-1]], *others):
        both = servers(TASK)
        sent = noted(*both.values())
        with pytest.raises(PeerViolation, match="holds other submissions"):
            play(both, {A: unlike, B: held[B]}, NAMES)
        # A, who opened first, has B's bytes; B, who found out, says nothing.
        assert [step for step, _ in sent].count("proof/0") <= 1


@pytest.mark.parametrize("liar", SERVERS)
@pytest.mark.parametrize(
    "at", [1, SIZE - 16, SIZE - 8, 0], ids=["wire", "h", "relations", "drop"]
)
def test_a_lie_costs_its_client_alone(held: Held, liar: Role, at: int) -> None:
    def lie(step: str, data: bytes) -> bytes:
        if not step.startswith("proof/"):
            return data
        return flipped(data, SIZE + at) if at else data[:SIZE] + b"d" + data[SIZE + 1 :]

    # What is dropped is nobody's, whoever says so.
    reason = Rejection.NORM_EXCEEDED if at else Rejection.TRUNCATED
    both = servers(TASK)
    both[liar].link.tamper = lie
    found = play(both, held, NAMES)
    bad = {BAD: Rejection.NORM_EXCEEDED}
    assert found[other(liar)].rejections == bad | {client_of(held[A][1]): reason}
    # The liar's own view is the honest one: what it is told doesn't depend on its lie.
    assert found[liar].rejections == bad
