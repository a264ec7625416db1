"""Submissions that prove themselves: what is bound to what, and what one server can't learn."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.rig.norm_check import (
    OPENINGS,
    SEGMENTS,
    A,
    B,
    Pair,
    answer_of,
    context,
    other,
    segments,
    shared,
    signed_again,
    update,
    written_of,
)
from tests.rig.submissions import words_of

from precad.common.errors import RejectedSubmission, Rejection
from precad.common.identifiers import ClientId, Digest, Role, Secret
from precad.common.prime_field import arithmetic, of_signed
from precad.common.proof_shape import P, ProofShape
from precad.common.ring import RingVector, commit
from precad.common.roster import Enrolment, Roster
from precad.common.share.proof_submission import (
    SERVERS,
    ProofBodyHash,
    ProofHeader,
    ProofSubmission,
)
from precad.norm_check.norm_proof import Query, accepts, bit_challenges

SHAPE = ProofShape(300, 1 << 14)
NAMES = [ClientId(f"ward-{i}") for i in range(9)]


def query_of(part: ProofSubmission, coin: int = 1) -> Query:
    key = Secret(coin.to_bytes(32, "big"))
    return Query.drawn(SHAPE, key, part.header.whole_digest)


def accepted(pair: Pair, coin: int = 1) -> bool:
    query = query_of(pair[0], coin)
    return accepts(*(answer_of(part, SHAPE, query) for part in pair))


def prefix_of(body: ProofSubmission) -> Secret:
    assert body.body is not None
    return body.body.prefix


def hash_of(body: ProofSubmission, cut: int = 1 << 20) -> ProofBodyHash:
    """What the body's holder makes of it as it comes, in pieces of so many bytes."""
    found, words = body.body_hash(prefix_of(body), SHAPE), words_of(body)
    for start in range(0, len(words), cut):
        found.update(words[start : start + cut])
    return found


@pytest.mark.parametrize("holder", SERVERS)
@pytest.mark.parametrize(
    "x",
    [np.zeros(SHAPE.dimension, dtype=np.int64), update(SHAPE), -update(SHAPE, seed=2)],
    ids=["zero", "at the bound", "another"],
)
def test_honest_submissions_open_and_pass(x: RingVector, holder: Role) -> None:
    seed, body = shared(SHAPE, x, holder)
    assert (seed.role, body.role) == (holder, other(holder))
    assert seed.opens
    assert body.opens
    assert [each.awaits_body for each in (seed, body)] == [False, True]
    for cut in (1, 7, 8, 4093, 1 << 20):
        assert hash_of(body, cut).right
    assert accepted((seed, body))
    assert seed.seed is not None
    own = seed.header.stream(seed.seed, "x").words(SHAPE.dimension)
    opened = arithmetic().add(own, segments(SHAPE, body)["update"])
    assert opened.tolist() == of_signed(x).tolist()


@pytest.mark.parametrize("norm", [1.01, 2.0, 16.0, 1e9])
def test_what_is_too_long_is_sent_like_any_other_and_refused(norm: float) -> None:
    """As many bytes, also where a row fails: nothing shows before the servers say so."""
    pair = shared(SHAPE, update(SHAPE, SHAPE.bound * norm))
    assert hash_of(pair[1]).right
    assert len(words_of(pair[1])) == 8 * SHAPE.body_words == len(words_of(shared(SHAPE)[1]))
    assert not accepted(pair)


@pytest.mark.parametrize("beyond", [SHAPE.half_width, -SHAPE.half_width - 1])
def test_an_update_one_of_whose_rows_fails_is_sent_with_bits_all_the_same(beyond: int) -> None:
    """Each of 100 rows has this one coordinate once in four times with the sign that fails."""
    x = np.zeros(SHAPE.dimension, dtype=np.int64)
    x[0] = beyond
    pair = shared(SHAPE, x)
    assert pair[0].seed is not None
    written = written_of(SHAPE, pair)
    assert set(written.tolist()) == {0, 1}
    assert len(words_of(pair[1])) == 8 * SHAPE.body_words
    assert not accepted(pair)


def test_two_submissions_of_one_update_have_nothing_in_common() -> None:
    one, another = shared(SHAPE), shared(SHAPE)
    assert one[0].seed != another[0].seed
    assert one[0].salt != another[0].salt
    assert prefix_of(one[1]) != prefix_of(another[1])
    mine, its = (segments(SHAPE, pair[1]) for pair in (one, another))
    for name in SEGMENTS:
        assert not (mine[name] == its[name]).any()


# --- what is bound to what ---------------------------------------------------------------------

Change = Callable[[ProofHeader], ProofHeader]
OTHER = Digest(b"o" * 32)
CHANGES: dict[str, Change] = {
    "task": lambda h: replace(h, context=replace(h.context, task=OTHER)),
    "version": lambda h: replace(h, context=replace(h.context, version=9)),
    "attempt": lambda h: replace(h, context=replace(h.context, attempt=9)),
    "client": lambda h: replace(h, context=replace(h.context, client=NAMES[1])),
    "model": lambda h: replace(h, context=replace(h.context, model=OTHER)),
    "nonce": lambda h: replace(h, context=replace(h.context, nonce=b"n" * 32)),
    "A's opening": lambda h: replace(h, openings=(OTHER, h.openings[1])),
    "B's opening": lambda h: replace(h, openings=(h.openings[0], OTHER)),
    "openings swapped": lambda h: replace(h, openings=h.openings[::-1]),
    "commitment": lambda h: replace(h, commitment=OTHER),
    "update": lambda h: replace(h, update_digest=OTHER),
    "bits": lambda h: replace(h, bits_digest=OTHER),
    "proof": lambda h: replace(h, proof_digest=OTHER),
}
# What each key may depend on: rows on nothing that comes after the bits, μ on nothing after the
# proof, the point on everything that was signed.
MOVES_ROWS = set(CHANGES) - {"bits", "proof"}
MOVES_BITS = set(CHANGES) - {"proof"}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_is_signed_moves_the_rows_the_challenges_and_the_point(name: str) -> None:
    seed, _ = shared(SHAPE)
    header = seed.header
    moved = CHANGES[name](header)
    assert (moved.rows_key != header.rows_key) is (name in MOVES_ROWS)
    assert (moved.bits_key != header.bits_key) is (name in MOVES_BITS)
    mine, its = (bit_challenges(SHAPE, each.bits_key) for each in (header, moved))
    assert (mine != its).any() == (name in MOVES_BITS)
    assert moved.signed != header.signed
    assert moved.whole_digest != header.whole_digest
    one, another = query_of(seed), query_of(replace(seed, header=moved))
    assert one.t != another.t
    assert not (one.rho == another.rho).any()


def test_the_point_is_moved_by_the_signature_and_by_the_coin_alone_too() -> None:
    seed, _ = shared(SHAPE)
    anew = replace(seed.header, signature=replace(seed.header.signature, value=b"another"))
    points = [query_of(seed), query_of(replace(seed, header=anew)), query_of(seed, coin=2)]
    assert len({each.t for each in points}) == 3
    assert anew.signed == seed.header.signed
    again = query_of(seed)
    assert (again.t, again.rho.tolist()) == (points[0].t, points[0].rho.tolist())


@pytest.mark.parametrize(
    "name",
    ["nonce", "attempt", "client", "model", "task", "commitment", "A's opening", "B's opening"],
)
def test_a_seed_means_other_words_in_another_submission(name: str) -> None:
    seed, body = shared(SHAPE)
    moved = CHANGES[name](seed.header)
    assert not replace(seed, header=moved).opens
    assert not hash_of(replace(body, header=moved)).right or name == "commitment"
    assert not accepted((replace(seed, header=moved), replace(body, header=moved)))


def test_a_commitment_is_to_one_servers_seed_alone() -> None:
    seed, body = shared(SHAPE, holder=A)
    assert seed.seed is not None
    assert seed.salt is not None
    # The same header and seed, brought to the other server.
    assert not replace(seed, header=replace(seed.header, seed_holder=B), role=B).opens
    # Nor does a seed come along with a body.
    assert not replace(body, seed=seed.seed, salt=seed.salt).opens
    to_b = commit(B, seed.header.ctx, seed.salt, seed.seed)
    assert not replace(seed, header=replace(seed.header, commitment=to_b)).opens


def test_the_holders_parts_swapped_are_no_submission() -> None:
    """A header for one holder, and what was made for the other one."""
    for holder in SERVERS:
        seed, body = shared(SHAPE, holder=holder)
        foreign = shared(SHAPE, holder=other(holder))
        assert not replace(foreign[0], header=seed.header).opens
        assert not hash_of(replace(foreign[1], header=body.header)).right


@pytest.mark.parametrize("length", [0, 31, 33])
def test_salts_and_seeds_of_another_length_open_nothing(length: int) -> None:
    seed, _ = shared(SHAPE)
    odd = Secret(bytes(length))
    assert not replace(seed, seed=odd).opens
    assert not replace(seed, salt=odd).opens
    assert not replace(seed, seed=None).opens
    assert not replace(seed, salt=None).opens


def test_only_servers_hold_seeds() -> None:
    with pytest.raises(ValueError, match="holds no seed"):
        shared(SHAPE, holder=Role.DEALER)


def test_no_part_shows_its_secrets() -> None:
    seed, body = shared(SHAPE)
    shown = repr(seed) + repr(body) + repr(body.body) + repr(query_of(seed))
    assert seed.seed is not None
    assert seed.salt is not None
    words = [str(int(each)) for each in segments(SHAPE, body)["update"][:8]]
    for secret in (seed.seed, seed.salt, prefix_of(body)):
        words += [secret.reveal().hex(), repr(secret.reveal())[2:-1]]
    assert not [each for each in words if each in shown]


# --- a body as it comes ------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEGMENTS)
@pytest.mark.parametrize("word", [P, P + 5, 2**64 - 1])
def test_words_from_p_on_are_refused_though_they_were_signed(name: str, word: int) -> None:
    """At both ends of every segment, and however the pieces are cut."""
    pair = shared(SHAPE)
    honest = segments(SHAPE, pair[1])
    for at in (0, -1):
        parts = {**honest, name: honest[name].copy()}
        parts[name][at] = word
        _, body = signed_again(pair, parts)
        for cut in (7, 1024, 1 << 20):
            with pytest.raises(RejectedSubmission, match=f"word of the {name} is p = 2") as error:
                hash_of(body, cut)
            assert error.value.reason is Rejection.MALFORMED
    # The largest element of the field is one.
    parts = {**honest, name: honest[name].copy()}
    parts[name][0] = P - 1
    assert hash_of(signed_again(pair, parts)[1]).right


def test_a_body_that_ends_early_is_not_right() -> None:
    _, body = shared(SHAPE)
    words = words_of(body)
    for length in (0, 8 * SHAPE.dimension, len(words) - 8, len(words) - 1):
        found = body.body_hash(prefix_of(body), SHAPE)
        found.update(words[:length])
        assert not found.right


def test_seeds_alternate_along_an_order_that_no_client_chooses() -> None:
    roster, again = (
        Roster({name: Enrolment(name, 100, 0.1) for name in names})
        for names in (NAMES, reversed(NAMES))
    )
    task = Digest(b"t" * 32)
    holders = roster.seed_holders(task)
    assert holders == again.seed_holders(task)
    counts = [list(holders.values()).count(role) for role in SERVERS]
    assert abs(counts[0] - counts[1]) <= 1
    assert holders != roster.seed_holders(Digest(b"u" * 32))


def test_openings_stand_in_the_header_in_the_servers_order() -> None:
    seed, _ = shared(SHAPE, of=context(attempt=4))
    assert seed.header.openings == OPENINGS
    assert seed.context.attempt == 4
