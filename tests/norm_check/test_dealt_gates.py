"""What the dealer deals where norms are checked by gates: once, to each server its own, afresh."""

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.conftest import TaskMaker
from tests.rig.clock import LonelyClock
from tests.rig.halves import SERVERS, Halves, halves

from precad.aggregator.rpc.dealer_client import answer_from_wire
from precad.aggregator.validate.check_by_gates import dealt_keys
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest, Role
from precad.common.secret import Secret
from precad.common.share.mask import norm_offset, word_mask
from precad.dealer.dealer_role import DealerRole
from precad.dealer.dealing_service import Outbox, add_answer
from precad.dealer.gate_batches import TOGETHER
from precad.dealer.local_dealing import LocalDealing
from precad.norm_check.comparison_keys import keys_bytes, keys_from_bytes
from precad.norm_check.dealing import Answers, DealerConversation, DealtGates, GateKeys
from precad.norm_check.dealt_triples import DealRequest, SquareRequest
from precad.norm_check.norm_gates import evaluate_gates
from precad.norm_check.random_rows import Rows
from precad.protos import precad_pb2 as pb

TASK = Digest.of(b"task")
D, K = 300, 40
BOUND = 1 << 20
A, B = SERVERS


@pytest.fixture
def at() -> Iterator[dict[Role, DealerConversation]]:
    with ExitStack() as stack:
        yield conversations(stack, DealerRole(TASK, D, projections=K))


Conversations = dict[Role, DealerConversation]


def keys_of(at: Conversations, both: Halves) -> dict[Role, Any]:
    return {
        role: keys_from_bytes(
            at[role].gate_keys(both.context).keys.reveal(), party=party, gates=K + 1
        )
        for party, role in enumerate(SERVERS)
    }


def offsets_of(both: Halves, row_key: Secret) -> Any:
    """What the dealer makes of both halves, from its definition."""
    rows = Rows(row_key, D, K)
    rows.absorb(both.mask)
    names = both.of[A].names
    rho = [word_mask(both.of[role].seed, role, *names) for role in SERVERS]
    return np.append(rows.z(), np.int64(norm_offset(both.square, *rho)))


def test_the_keys_are_of_the_masks_projections_and_square(
    at: Conversations,
) -> None:
    both = halves(TASK, "x", D)
    for role in SERVERS:
        at[role].ask(both.of[role])
    t = offsets_of(both, at[A].row_key(both.context))
    assert at[A].row_key(both.context) == at[B].row_key(both.context)
    keys = keys_of(at, both)
    edge = 7 * BOUND
    # Points for which z, then y, come to stand on either side of their bounds.
    for z, y, inside in ((edge, -1, 1), (-edge, -(2**63), 1), (edge + 1, 0, 0), (-edge - 1, 7, 0)):
        wanted = np.append(np.full(K, z, dtype=np.int64), np.int64(y))
        points = (wanted - t)[None]
        bits = [evaluate_gates(keys[role], points, BOUND) for role in SERVERS]
        assert (bits[0] ^ bits[1] == inside).all()


def test_nothing_is_dealt_before_both_agree_and_then_once(
    at: Conversations,
) -> None:
    both = halves(TASK, "x", D)
    at[A].ask(both.of[A])
    for wait in (at[A].row_key, at[A].gate_keys):
        with pytest.raises(PeerUnavailable, match="dealt nothing"):
            wait(both.context)
    at[B].ask(both.of[B])
    dealt = [at[role].gate_keys(both.context).keys.reveal() for role in SERVERS]
    assert [len(each) for each in dealt] == [keys_bytes(K + 1)] * 2 == [39_056] * 2
    # The roots are each server's own, and all behind them is the same for both.
    roots = slice(24, 24 + 16 * (K + 1))
    assert dealt[0][roots] != dealt[1][roots]
    assert dealt[0][roots.stop :] == dealt[1][roots.stop :]
    at[A].ask(both.of[A])
    at[B].ask(both.of[B])
    for role in SERVERS:
        # They were given, and are kept nowhere.
        with pytest.raises(PeerUnavailable, match="dealt for once"):
            at[role].gate_keys(both.context)


TASK_OF_K: Any = SimpleNamespace(projections=K)


def conversations(stack: ExitStack, dealer: DealerRole) -> dict[Role, DealerConversation]:
    return {
        role: stack.enter_context(LocalDealing(dealer, role, clock=LonelyClock()).squares(0))
        for role in SERVERS
    }


def holds(at: Conversations, dealt: dict[Role, DealtGates], both: Halves, z: int) -> bool:
    """Whether the gates of a submission say that all its words, which are z, are right."""
    points = (z - offsets_of(both, at[A].row_key(both.context)))[None]
    bits = [
        evaluate_gates(dealt_keys(each, [each.number], role, TASK_OF_K), points, BOUND)
        for role, each in dealt.items()
    ]
    assert len({bool(each) for each in (bits[0] ^ bits[1]).reshape(-1)}) == 1
    return bool((bits[0] ^ bits[1]).all())


def test_keys_of_many_submissions_come_as_one_array_and_each_is_its_own() -> None:
    together = -(-TOGETHER // (K + 1))
    many = [halves(TASK, str(number), D) for number in range(together + 3)]
    with ExitStack() as stack:
        at = conversations(stack, DealerRole(TASK, D, projections=K))
        for role, order in ((A, many), (B, many[::-1])):
            for both in order:
                at[role].ask(both.of[role])
        dealt = [{role: at[role].gate_keys(both.context) for role in SERVERS} for both in many]
        sizes = Counter(each[A].of for each in dealt)
        assert sizes == {together: together, 3: 3}
        for number, (both, each) in enumerate(zip(many, dealt, strict=True)):
            assert each[A].number == each[B].number
            assert len(each[A].keys) == keys_bytes(each[A].of * (K + 1))
            # A word of −1 is within both kinds of bounds, one of 2^62 in neither.
            assert holds(at, each, both, -1 if number % 2 else 2**62) == bool(number % 2)


def test_workers_hear_of_their_own_submissions_alone() -> None:
    """Two pairs of conversations, whose submissions are dealt for in one call."""
    dealer = DealerRole(TASK, D, projections=K)
    with ExitStack() as stack:
        pairs = [conversations(stack, dealer) for _ in range(2)]
        many = [(pairs[number % 2], halves(TASK, str(number), D)) for number in range(5)]
        for at, both in many:
            for role in SERVERS:
                at[role].ask(both.of[role])
        for at, both in many:
            each = {role: at[role].gate_keys(both.context) for role in SERVERS}
            assert each[A].of == (3 if at is pairs[0] else 2)
            assert holds(at, each, both, -1)


def test_keys_for_what_was_not_asked_are_refused_with_all_that_came_along() -> None:
    both = halves(TASK, "x", D)
    answers = Answers(0, 0.0)
    answers.expect(both.of[A])
    for contexts in ([both.context, bytes(32)], [both.context, both.context], []):
        with pytest.raises(PeerViolation, match=r"isn't asked|twice|to 0 questions"):
            answers.put(contexts, GateKeys(b"keys"))
    with pytest.raises(PeerViolation, match="one answer to 2 questions"):
        answers.put([both.context] * 2, Secret.random())


def test_answers_wait_for_each_other_and_leave_in_one_message() -> None:
    async def play() -> list[list[int]]:
        outbox = Outbox()
        for number in range(3):
            outbox.put([bytes([number])], number)
        outbox.put([b"c", b"d"], GateKeys(b"keys"))
        await asyncio.to_thread(outbox.put, [b"e"], PeerViolation("no"))
        outbox.end()
        return [[len(each.contexts) for each in reply.answers] async for reply in outbox.replies()]

    # Keys, which are long, are the last in theirs.
    assert asyncio.run(play()) == [[1, 1, 1, 2], [1]]


def test_halves_that_differ_get_no_keys(at: Conversations) -> None:
    both = halves(TASK, "x", D)
    at[A].ask(dataclasses.replace(both.of[A], seed=Secret.random()))
    at[B].ask(both.of[B])
    for role in SERVERS:
        with pytest.raises((PeerViolation, PeerUnavailable)):
            at[role].gate_keys(both.context)


def test_the_same_seeds_are_dealt_for_afresh() -> None:
    """R5: no root, no row and no generator's key comes twice."""
    zero, seen = Secret(bytes(32)), set()
    for _ in range(3):
        with ExitStack() as stack:
            at = conversations(stack, DealerRole(TASK, D, projections=K))
            both = halves(TASK, "x", D, seed=zero, salt=zero)
            for role in SERVERS:
                at[role].ask(both.of[role])
            data = at[A].gate_keys(both.context).keys.reveal()
            seen |= {data[8:24], data[24:40], at[A].row_key(both.context).reveal()}
    assert len(seen) == 9


def test_the_dealer_is_asked_with_seeds_and_names_alone() -> None:
    """R6: no b, h, word, signature, client or nonce has a place in what a server tells it."""
    asked = {field.name for field in dataclasses.fields(SquareRequest)}
    names = {"task", "attempt", "context", "commitment_a", "commitment_b"}
    assert asked == names | {"seed", "salt"}
    on_the_wire = {field.name for field in pb.SquareRequest.DESCRIPTOR.fields}
    assert on_the_wire == {"task_digest", "attempt", "epoch", "halves", "all_asked"}
    of_a_half = {field.name for field in pb.SquareHalf.DESCRIPTOR.fields}
    assert of_a_half == (names - {"task", "attempt"}) | {"seed", "salt"}


def test_no_binary_triples_are_dealt(make_task: TaskMaker) -> None:
    task = make_task(8, {"validation": "fss"})
    request = DealRequest(task.digest, 0, 0, clients=1, comparisons=81, nonces=bytes(64))
    with pytest.raises(PeerViolation, match="needs no binary triples"):
        DealerRole.of(task).corrections(A, request)
    assert DealerRole.of(make_task(8)).key_for(A) != DealerRole.of(make_task(8)).key_for(A)


def test_keys_show_themselves_nowhere() -> None:
    data = bytes(range(64))
    assert str(data) not in repr(GateKeys(data))
    assert data.hex() not in repr(GateKeys(data))


def test_keys_cross_the_wire_and_only_where_they_are_expected() -> None:
    reply = pb.SquareReply()
    add_answer(reply, [b"c", b"d"], GateKeys(b"keys"))
    add_answer(reply, [b"c"], 5)
    keys, share = reply.answers
    answer = answer_from_wire(keys, gates=True)
    assert isinstance(answer, GateKeys)
    assert answer.reveal() == b"keys"
    assert keys.contexts == [b"c", b"d"]
    with pytest.raises(PeerViolation, match="deals gate_keys"):
        answer_from_wire(keys, gates=False)
    assert answer_from_wire(share, gates=False) == 5
    with pytest.raises(PeerViolation, match="deals share"):
        answer_from_wire(share, gates=True)
