"""The norm check by function secret sharing: honest updates, lies, and what its rules are for."""

import math
import secrets
from collections.abc import Sequence

import numpy as np
import pytest
from tests.integration.validation.conftest import SERVERS, play_both, task_of
from tests.rig.norm_check import (
    Signed,
    bits_of,
    client,
    dealer,
    play,
    points,
    projected,
)
from tests.rig.spent import MemorySpentTriples

from precad.aggregator.peer_link import PeerLink
from precad.aggregator.validate.absorb_bodies import Absorber
from precad.aggregator.validate.check_by_shares import decide
from precad.aggregator.validate.validation import deal_request
from precad.common.encode import clip_update, squared_norm
from precad.common.errors import PeerViolation
from precad.common.identifiers import Role
from precad.common.ring import RingVector, dot, signed
from precad.common.secret import Secret
from precad.common.task import TAU, Task
from precad.dealer.dealer_role import DealerRole
from precad.norm_check.dealt_triples import DealtRandomness
from precad.norm_check.norm_gates import evaluate_gates, pack, submission_bytes, verdicts

DIMENSION = 64
GATES = 41


@pytest.fixture
def task() -> Task:
    return task_of(DIMENSION, client_clip=30.1)


def honest(task: Task, rng: np.random.Generator) -> RingVector:
    """Dense or sparse, short or clipped to the bound."""
    scale = rng.choice([1.0, 1e2, 1e5, 1e7])
    total = np.trunc(scale * rng.standard_normal(DIMENSION)).astype(np.int64)
    total *= rng.random(DIMENSION) < rng.choice([0.05, 1.0])
    return clip_update(total, task.bound, task.fractional_bits)


def unit(value: int) -> RingVector:
    return np.array([value] + [0] * (DIMENSION - 1), dtype=np.int64)


def test_honest_updates_are_accepted_and_one_servers_bits_are_the_others_complement(
    task: Task, rng: np.random.Generator
) -> None:
    """So whatever they hold, the other server could have computed all that it hears."""
    submissions = [client(task, honest(task, rng)) for _ in range(500)]
    assert play(task, submissions).all()
    dealt = dealer(task, submissions)
    of_a, of_b = (bits_of(task, server, submissions, dealt) for server in (0, 1))
    assert np.array_equal(of_a ^ of_b, np.ones_like(of_a))
    assert abs(of_b.mean() - 0.5) < 0.02


def test_verdicts_are_those_of_the_integers_around_the_bound(
    task: Task, rng: np.random.Generator
) -> None:
    """Up to 64β the check is exact: unlike a range's, its bound is met to the unit."""
    vectors = []
    for _ in range(500):
        times = rng.choice([0.999999, 1.0, 1.000001, 2.0, 15.0])
        x = rng.standard_normal(DIMENSION) * (rng.random(DIMENSION) < rng.choice([0.05, 1.0]))
        x[0] += 1e-3
        x *= times * task.bound / np.linalg.norm(x)
        vectors.append(np.rint(x).astype(np.int64))
    expected = [squared_norm(x) <= task.bound**2 for x in vectors]
    assert 100 < sum(expected) < 400
    assert play(task, [client(task, x) for x in vectors]).tolist() == expected


LIES = (1, -1, 2**63, -(2**40), 2**62 + 1)


def test_a_lie_in_a_word_is_rejected(task: Task) -> None:
    good, long = unit(task.bound), unit(task.bound + 5)
    excess = squared_norm(long) - task.bound**2
    lying = [
        *((good, (lie, 0)) for lie in LIES),
        *((good, (0, lie)) for lie in LIES),
        # Their sum is right, each is wrong.
        *((good, (lie, -lie)) for lie in LIES),
        # They make too long an update look short.
        (long, (-excess, 0)),
        (long, (0, -excess)),
        (long, (-excess - 7, 7)),
    ]
    assert not play(task, [client(task, x, lies) for x, lies in lying]).any()


def test_without_the_servers_own_look_at_their_words_a_lie_would_pass(task: Task) -> None:
    """What the bit behind the gates' bits is for."""
    long = unit(task.bound + 5)
    liar = client(task, long, (task.bound**2 - squared_norm(long), 0))
    assert not liar.word_right(0)
    dealt = dealer(task, [liar])
    of_a, of_b = (bits_of(task, server, [liar], dealt) for server in (0, 1))
    unlooked = np.array([True])
    assert verdicts(pack(of_a, unlooked), pack(of_b, unlooked), GATES).all()


def found_norm(task: Task, x: RingVector, *, words_are_signed: bool) -> int:
    """What a malicious A finds of X·X by as many attempts as it likes, from what B sends it.

    It names another u_A each time; B takes that, or the one that the client signed.
    """
    low, high = 0, task.bound**2
    while low < high:
        middle = (low + high) // 2
        submission = client(task, x)
        shifted = signed(submission.words[0] + task.bound**2 - middle)
        seen = (
            submission
            if words_are_signed
            else Signed(submission.pair, (shifted, submission.words[1]))
        )
        dealt = dealer(task, [submission])
        # A has its own key, and evaluates it at whatever point B does.
        own, heard = (bits_of(task, server, [seen], dealt)[0, -1] for server in (0, 1))
        if own != heard:
            high = middle
        else:
            low = middle + 1
    return low


def test_words_that_servers_told_each_other_would_give_the_norm_away(
    task: Task, rng: np.random.Generator
) -> None:
    """R2: why the words stand in the signed header, and the norm's point is made of those."""
    x = honest(task, rng)
    assert 0 < squared_norm(x) < task.bound**2
    assert found_norm(task, x, words_are_signed=False) == squared_norm(x)
    assert found_norm(task, x, words_are_signed=True) == 0


def test_a_bad_submission_touches_no_other(task: Task) -> None:
    good, long, wide = unit(task.bound), unit(task.bound + 1), unit(2**32)
    submissions = [
        client(task, good),
        client(task, wide),
        client(task, good, (1, 0)),
        client(task, long),
        client(task, good),
    ]
    assert play(task, submissions).tolist() == [True, False, False, False, True]


def test_keys_of_some_submissions_decide_on_those(task: Task, rng: np.random.Generator) -> None:
    """Where a body is dropped after its gates were dealt, the others go on."""
    submissions = [client(task, honest(task, rng)) for _ in range(5)]
    dealt = dealer(task, submissions)
    c = points(task, submissions, dealt)
    left = np.array([0, 2, 3])
    gates = (left[:, None] * GATES + np.arange(GATES)).reshape(-1)
    for server in (0, 1):
        keys = dealt.keys_of(server, 5 * GATES)
        whole = evaluate_gates(keys, c, task.bound)
        assert np.array_equal(evaluate_gates(keys.part(gates), c[left], task.bound), whole[left])


@pytest.mark.parametrize("rows", [40, 46, 47, 48, 256])
def test_each_bit_counts_and_none_else_is_sent(rows: int, rng: np.random.Generator) -> None:
    gates = rows + 1
    bits = rng.integers(0, 2, (3, gates), dtype=np.uint8)
    right = np.ones(3, dtype=bool)
    own, other = pack(bits, right), pack(1 - bits, right)
    width = submission_bytes(gates)
    assert len(own) == 3 * width == 3 * math.ceil((gates + 1) / 8)
    assert verdicts(own, other, gates).tolist() == [True] * 3
    for place in range(8 * width):
        flipped = bytearray(other)
        flipped[width + place // 8] ^= 0x80 >> place % 8
        if place > gates:
            with pytest.raises(PeerViolation, match="behind their last"):
                verdicts(own, bytes(flipped), gates)
        else:
            assert verdicts(own, bytes(flipped), gates).tolist() == [True, False, True]
    wrong = np.array([True, False, True])
    for pair in ((own, pack(1 - bits, wrong)), (pack(bits, wrong), other)):
        assert verdicts(*pair, gates).tolist() == [True, False, True]
    both = pack(bits, wrong), pack(1 - bits, wrong)
    assert verdicts(*both, gates).tolist() == [True, False, True]


@pytest.mark.parametrize("length", [0, 5, 7, 12])
def test_bits_of_another_length_are_the_other_servers_fault(length: int) -> None:
    assert submission_bytes(GATES) == 6
    with pytest.raises(PeerViolation, match=f"{length} bytes came, 6 were expected"):
        verdicts(bytes(6), bytes(length), GATES)


def by_comparisons(
    task: Task, submissions: Sequence[Signed], row_keys: Sequence[Secret], batch: int
) -> list[bool]:
    """The other check's verdicts on the same bodies and rows: shares, and CrypTen's comparisons."""
    triples = DealerRole(task.digest, task.dimension)
    drawn = [secrets.randbits(64) for _ in submissions]

    def play(role: Role, link: PeerLink) -> list[bool]:
        words = []
        for each, row_key, r_a in zip(submissions, row_keys, drawn, strict=True):
            half = each.pair[SERVERS.index(role)]
            absorber = Absorber(role, task, half.mask(), row_key, None)
            absorber.absorb(each.b)
            words.append(absorber.words(signed(r_a if role is SERVERS[0] else each.square - r_a)))
        request = deal_request(task, 0, batch, len(words), bytes(64))
        verdicts = decide(
            words,
            task=task,
            role=role,
            link=link,
            randomness=DealtRandomness(
                role, triples.key_for(role), request, triples.corrections(role, request)
            ),
            spent=MemorySpentTriples(),
            label="same",
        )
        found: list[bool] = verdicts.tolist()
        return found

    at_a, at_b = play_both(play, task=task.digest)
    assert at_a == at_b
    return at_a


def updates_of_every_kind(task: Task, rng: np.random.Generator, times: int) -> list[RingVector]:
    """Random ones, honest ones, powers of two, and norms to the unit around the bound."""
    vectors = [honest(task, rng) for _ in range(400 * times)]
    vectors += list(rng.integers(-(2**63), 2**63, (200 * times, DIMENSION), dtype=np.int64))
    for _ in range(400 * times):
        x = np.zeros(DIMENSION, dtype=np.int64)
        places = rng.integers(0, DIMENSION, int(rng.integers(1, 5)))
        powers = np.int64(1) << rng.integers(0, 63, len(places))
        x[places] = rng.choice([-1, 1], len(places)) * powers
        vectors.append(x)
    for _ in range(500 * times):
        direction = rng.standard_normal(DIMENSION)
        length = np.linalg.norm(direction)
        direction *= rng.choice([0.9999999, 1.0, 1.0000001]) * task.bound
        vectors.append(np.rint(direction / length).astype(np.int64))
    return vectors


def same_verdicts(task: Task, vectors: Sequence[RingVector]) -> int:
    """Bit for bit, on the same bodies and the same rows. How many are accepted."""
    found, expected, plain = [], [], []
    for start in range(0, len(vectors), 250):
        some = vectors[start : start + 250]
        part = [client(task, x) for x in some]
        dealt = dealer(task, part)
        of_a, of_b = (
            pack(
                bits_of(task, server, part, dealt),
                np.array([each.word_right(server) for each in part]),
            )
            for server in (0, 1)
        )
        found += verdicts(of_a, of_b, GATES).tolist()
        expected += by_comparisons(task, part, dealt.row_keys, start)
        # And those of the integers, as the comparisons take them: sums that wrap, their signs.
        for x, row_key in zip(some, dealt.row_keys, strict=True):
            z, edge = projected(task, row_key, x), np.int64(TAU * task.bound)
            y = signed(dot(x, x) - task.bound**2 - 1)
            plain.append(bool((z + edge >= 0).all() and (edge - z >= 0).all() and y < 0))
    assert found == expected == plain
    return sum(found)


def test_updates_of_every_kind_get_the_same_verdicts_by_both_checks(
    task: Task, rng: np.random.Generator
) -> None:
    """Ten thousand of them under tests/soak."""
    assert 500 < same_verdicts(task, updates_of_every_kind(task, rng, 1)) < 1000
