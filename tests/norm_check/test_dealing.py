"""The dealer's correction words and what the servers expand from them; and squares: of
what both servers agree on, once, and nothing of it is kept.
"""

import logging
import re
import weakref
from contextlib import ExitStack
from dataclasses import replace
from itertools import product
from typing import cast
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rig.clock import LonelyClock
from tests.rig.documents import Document
from tests.rig.local_dealing import LocalDealing
from tests.rig.norm_check import Halves, halves
from tests.rig.tasks import task_with
from tests.rig.waiting import until

from precad.common import errors
from precad.common.identifiers import ATTEMPTS, SERVERS, Digest, Role, Secret
from precad.common.ring import signed
from precad.dealer.dealer_role import DealerRole
from precad.norm_check import dealing

TASK = Digest.of(b"task")
D, SQUARED = 5, 300
A, B = SERVERS
NONCES = bytes(range(64))
REQUEST = dealing.DealRequest(
    task=TASK, attempt=2, batch=1, clients=3, comparisons=6, nonces=NONCES
)
KEYS = {Role.SERVER_A: Secret(bytes(32)), Role.SERVER_B: Secret(bytes([1]) * 32)}


def both(
    request: dealing.DealRequest, dealer: DealerRole
) -> list[dealing.DealtRandomness]:
    def at(role: Role) -> dealing.DealtRandomness:
        key, words = dealer.key_for(role), dealer.corrections(role, request)
        return dealing.DealtRandomness(role, key, request, words)

    return [at(role) for role in KEYS]


def test_a_batch_is_dealt_once_to_each_server() -> None:
    """A server that was put back from a copy would open two updates under one mask."""
    dealer = DealerRole(TASK, D)
    both(REQUEST, dealer)
    for role in KEYS:
        with pytest.raises(errors.PeerUnavailable, match="attempt 2 is dealt for once"):
            dealer.corrections(role, REQUEST)
    # Other batches of the attempt still are, alike to both servers.
    changes: list[Document] = [
        {"clients": 6},
        {"comparisons": 9},
        {"nonces": NONCES[::-1]},
    ]
    for batch, change in enumerate(changes, 2):
        other = replace(REQUEST, batch=batch)
        dealer.corrections(Role.SERVER_A, other)
        with pytest.raises(errors.PeerViolation, match="was asked for before"):
            dealer.corrections(Role.SERVER_B, replace(other, **change))
    both(replace(REQUEST, batch=5), dealer)
    # Nor for an older attempt ever again.
    both(replace(REQUEST, attempt=4), dealer)
    for attempt, role in product((0, 2, 3), KEYS):
        with pytest.raises(
            errors.PeerUnavailable, match=f"attempt {attempt} is dealt for once"
        ):
            dealer.corrections(role, replace(REQUEST, attempt=attempt, batch=7))
    # What was refused leaves the newest attempt as it was.
    assert dealer.newest_attempt == 4
    both(replace(REQUEST, attempt=4, batch=3), dealer)


def masks_of(request: dealing.DealRequest) -> set[int]:
    """Every word of both servers' parts at a dealer that forgot what it dealt."""
    found: set[int] = set()
    for randomness in both(request, DealerRole(request.task, D, KEYS)):
        for triple in randomness.binary_triples():
            found |= {*triple.a.ravel().tolist(), *triple.b.ravel().tolist()}
    return found


def test_nobody_but_the_tasks_servers_is_dealt_to_and_a_refusal_spends_nothing() -> (
    None
):
    dealer, heard = DealerRole(TASK, SQUARED), Mock()
    later, strange = replace(REQUEST, attempt=9), Digest.of(b"other")
    for role, task, error in (
        (A, strange, errors.TaskMismatch),
        *(
            (role, TASK, errors.PeerViolation)
            for role in (Role.CLIENT, Role.DEALER, Role.OPERATOR)
        ),
    ):
        with pytest.raises(error):
            dealer.corrections(role, replace(later, task=task))
        with pytest.raises(error):
            dealer.ask(role, halves(task, "x", SQUARED, attempt=9).of[A], heard)
        if role is not A:
            with pytest.raises(error, match="only servers"):
                dealer.key_for(role)
    assert (dealer.newest_attempt, heard.called) == (-1, False)
    both(REQUEST, dealer)
    # Nobody deals for a task without a dealer: it would wait for servers that never
    # come.
    with pytest.raises(
        errors.Misconfiguration, match='validation = "proof" has no dealer'
    ):
        DealerRole.of(task_with({"validation": "proof"}))


def test_correction_words_are_as_many_as_the_triples_and_used_once() -> None:
    for change in (-1, 1):
        words = np.zeros(REQUEST.correction_words + change, dtype=np.int64)
        with pytest.raises(errors.PeerViolation, match="correction words"):
            dealing.DealtRandomness(Role.SERVER_B, KEYS[Role.SERVER_B], REQUEST, words)
    randomness, _ = both(REQUEST, DealerRole(TASK, D))
    next(randomness.binary_triples())
    with pytest.raises(RuntimeError, match="used already"):
        next(randomness.binary_triples())


def test_different_batches_attempts_tasks_and_nonces_have_different_masks() -> None:
    changes: list[Document] = [
        *({}, {"batch": 2}, {"attempt": 3}, {"task": Digest.of(b"other")}),
        # Both servers were put back to before an attempt: the same number, masks of its
        # own.
        *(
            {"nonces": bytes(i == place for i in range(64))}
            for place in (0, 31, 32, 63)
        ),
    ]
    masks = [masks_of(replace(REQUEST, **change)) for change in changes]
    # No word twice, also not within one request.
    words = 2 * 2 * REQUEST.correction_words
    assert [len(each) for each in masks] == [words] * len(changes)
    assert (len(set.union(*masks)), masks_of(REQUEST)) == (
        len(changes) * words,
        masks[0],
    )


def test_parts_of_one_server_are_balanced_bits() -> None:
    request = replace(REQUEST, comparisons=300)
    for randomness in both(request, DealerRole(TASK, D, KEYS)):
        triples = randomness.binary_triples()
        words = [part.ravel() for each in triples for part in (each.a, each.b, each.c)]
        counts = np.bincount(np.concatenate(words).view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 5 * np.sqrt(2 * 255)


BAD = {"attempt": (-1,), "batch": (-1, True), "clients": (0, 2**40, 1.0)}
BAD |= {"comparisons": (0, 7, 2**40)}


@pytest.mark.parametrize(
    ("field", "wrong"), [(f, value) for f in BAD for value in BAD[f]]
)
def test_requests_out_of_range_are_refused(field: str, wrong: object) -> None:
    with pytest.raises(errors.Misconfiguration, match=field):
        replace(REQUEST, **cast("Document", {field: wrong}))


@settings(max_examples=25)
@given(
    keys=st.sets(st.binary(min_size=32, max_size=32), min_size=2, max_size=2),
    clients=st.integers(1, 4),
    width=st.integers(1, 90),
    attempt=st.integers(0, ATTEMPTS - 1),
    batch=st.integers(0, 2**31 - 1),
    nonces=st.binary(min_size=64, max_size=64),
)
def test_c_is_a_and_b_for_every_shape(
    keys: set[bytes], clients: int, width: int, attempt: int, batch: int, nonces: bytes
) -> None:
    request = dealing.DealRequest(
        task=TASK,
        attempt=attempt,
        batch=batch,
        clients=clients,
        comparisons=clients * width,
        nonces=nonces,
    )
    dealer = DealerRole(TASK, 1, dict(zip(KEYS, map(Secret, keys), strict=True)))
    (of_a, of_b), shapes = both(request, dealer), []
    for one, other in zip(of_a.binary_triples(), of_b.binary_triples(), strict=True):
        shapes.append(one.a.shape)
        assert one.b.shape == other.a.shape == one.a.shape
        expected = (one.a ^ other.a) & (one.b ^ other.b)
        assert np.array_equal(one.c ^ other.c, expected)
    assert tuple(shapes) == dealing.program(clients, clients * width)
    # After a comparison's seven exchanges a tree of conjunctions leaves one value a
    # client.
    levels, values = shapes[7:], width
    for trees, pairs in levels:
        assert (trees, pairs) == (clients, values // 2)
        values -= pairs
    assert (values, len(levels)) == (1, (width - 1).bit_length())


ZERO = Secret(bytes(32))
FAILS = (errors.PeerUnavailable, errors.PeerViolation)


class Table:
    def __init__(
        self,
        attempt: int = 0,
        dealer: DealerRole | None = None,
        dimension: int = SQUARED,
    ) -> None:
        self.dealer = dealer or DealerRole(TASK, dimension)
        self._stack = ExitStack()
        self.at: dict[Role, dealing.DealerConversation] = {
            role: self._stack.enter_context(
                LocalDealing(
                    dealer=self.dealer, role=role, clock=LonelyClock()
                ).squares(attempt)
            )
            for role in SERVERS
        }
        self.close = self._stack.close

    def ask(self, both: Halves, *roles: Role) -> None:
        for role in roles or SERVERS:
            self.at[role].ask(both.of[role])

    def shares(self, both: Halves) -> list[int]:
        return [self.at[role].share(both.context) for role in SERVERS]

    def row_key(self, both: Halves) -> Secret:
        key, other = (self.at[role].row_key(both.context) for role in SERVERS)
        assert key == other
        return key

    def fails(
        self,
        both: Halves,
        *roles: Role,
        kind: type[Exception] | tuple[type[Exception], ...] = FAILS,
        says: str | None = None,
    ) -> None:
        """Both waits of each of these do, of both servers unless they are named."""
        for at in (self.at[role] for role in roles or SERVERS):
            with pytest.raises(kind, match=says) as of_key:
                at.row_key(both.context)
            with pytest.raises(kind, match=re.escape(str(of_key.value))):
                at.share(both.context)


@pytest.fixture
def table() -> Table:
    return Table()


@pytest.mark.parametrize("dimension", [1, 2**16 - 1, 2**16, 2**17 + 3])
def test_the_shares_add_up_to_the_masks_square(dimension: int) -> None:
    table = Table(dimension=dimension)
    both = halves(TASK, "x", dimension)
    table.ask(both)
    shares = table.shares(both)
    assert all(-(2**63) <= share < 2**63 for share in shares)
    assert signed(sum(shares)) == both.square


def test_nothing_is_dealt_before_both_have_asked(table: Table) -> None:
    both, twice = halves(TASK, "x", SQUARED), halves(TASK, "y", SQUARED)
    table.ask(both, A)
    table.fails(both, A, kind=errors.PeerUnavailable, says="dealt nothing")
    # The wait ended, the request stands: the other server was only late.
    table.ask(both, B)
    table.row_key(both)
    # One server that asks twice is not two.
    table.ask(twice, A, A)
    table.fails(twice, A, kind=errors.PeerUnavailable, says="^(?!.*dealt nothing)")


def test_every_context_and_every_dealing_draws_afresh() -> None:
    """Also for the same seeds: nothing dealt follows from what a client or a server
    chose."""
    keys, shares = set(), set()
    for _ in range(4):
        table = Table()
        for name in ("x", "y"):
            both = halves(TASK, name, SQUARED, seed=ZERO, salt=ZERO)
            table.ask(both)
            keys.add(table.row_key(both).reveal())
            shares |= set(table.shares(both))
    assert (len(keys), len(shares)) == (8, 16)


def spoiled(
    half: dealing.SquareRequest, other: dealing.SquareRequest
) -> dict[str, dealing.SquareRequest]:
    """A server's half that no longer opens what the client signed, by its fault."""
    swapped: Document = {
        "commitment_a": half.commitment_b,
        "commitment_b": half.commitment_a,
    }
    return {
        "salt": replace(half, salt=Secret.random()),
        "seed": replace(half, seed=Secret.random()),
        "short seed": replace(half, seed=Secret(half.seed.reveal()[:31])),
        "long salt": replace(half, salt=Secret(half.salt.reveal() + b"\0")),
        "the other's seed": replace(half, seed=other.seed, salt=other.salt),
        "roles exchanged": replace(half, **swapped),
        "another context's": replace(half, context=Digest.of(b"y").value),
        # A client that gave each server the other's seed.
        "both seeds": replace(half, seed=other.seed, salt=other.salt),
    }


@pytest.mark.parametrize("order", [(A, B), (B, A)])
@pytest.mark.parametrize("fault", spoiled(*halves(TASK, "", SQUARED).of.values()))
def test_what_doesnt_open_is_not_dealt(
    table: Table, fault: str, order: tuple[Role, Role]
) -> None:
    honest, right = halves(TASK, "honest", SQUARED), halves(TASK, "x", SQUARED)
    half, other = right.of[A], right.of[B]
    changed = spoiled(half, other)[fault]
    if fault == "both seeds":
        other = replace(other, seed=half.seed, salt=half.salt)
    both = Halves({A: changed, B: replace(other, context=changed.context)}, right.mask)
    table.ask(honest, A)
    table.ask(both, *order)
    table.fails(both, A, kind=errors.PeerViolation, says=both.context.hex())
    # The other one doesn't wait in vain, and is dealt nothing either.
    table.fails(both, B)
    # Other contexts go on.
    table.ask(honest, B)
    table.row_key(honest)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
@pytest.mark.parametrize("liar", SERVERS)
def test_both_hear_of_a_difference(
    table: Table, liar: Role, order: tuple[Role, Role]
) -> None:
    one, other, again = (halves(TASK, name, SQUARED) for name in "xxy")
    # Each half opens; what the server says of the other one's differs.
    honest, field = (A, "commitment_a") if liar is B else (B, "commitment_b")
    said: Document = {field: getattr(other.of[honest], field)}
    lie = Halves(
        {honest: one.of[honest], liar: replace(one.of[liar], **said)}, one.mask
    )
    table.ask(lie, *order)
    table.fails(one, kind=errors.PeerViolation, says="different commitments")
    table.ask(again)
    assert signed(sum(table.shares(again))) == again.square


def test_a_context_is_dealt_once(table: Table) -> None:
    both = halves(TASK, "x", SQUARED)
    table.ask(both)
    row_key = table.row_key(both)
    # A server that comes again in the same attempt, as after a cut.
    again = Table(dealer=table.dealer)
    again.ask(both)
    again.fails(both, kind=errors.PeerUnavailable, says="take a new attempt")
    assert table.row_key(both) == row_key


def test_an_older_attempt_is_refused_and_a_newer_one_ends_it() -> None:
    dealer = DealerRole(TASK, SQUARED)
    old, new = Table(4, dealer), Table(5, dealer)
    waiting, late = (
        halves(TASK, name, SQUARED, attempt=4) for name in ("waiting", "late")
    )
    both = halves(TASK, "x", SQUARED, attempt=5)
    old.ask(waiting, A)
    new.ask(both)
    assert dealer.newest_attempt == 5
    old.fails(waiting, A, says="newer attempt")
    old.ask(late)
    old.fails(late, says="attempt 4 is dealt for once")
    # The newer one goes on.
    new.row_key(both)


def test_what_a_dealer_may_not_answer_is_its_violation() -> None:
    answers = dealing.DealerConversation(
        attempt=0, send=lambda _: None, timeout_s=60.0, clock=LonelyClock()
    )
    both, key = halves(TASK, "x", SQUARED), Secret.random()

    def violates(answer: dealing.Answer, says: str) -> None:
        with pytest.raises(errors.PeerViolation, match=says):
            answers.put(both.context, answer)

    violates(1, "isn't asked")
    answers.ask(both.of[A])
    for length in (0, 16, 31, 33):
        violates(Secret(bytes(length)), f"row key of {length} bytes")
    for first, second in (
        (key, Secret.random()),
        (5, 5),
        (errors.PeerUnavailable("no"),) * 2,
    ):
        answers.put(both.context, first)
        violates(second, "twice")
    assert (answers.row_key(both.context), answers.share(both.context)) == (key, 5)


class Traced(Secret):
    __slots__ = ("__weakref__",)


@pytest.mark.parametrize(
    "end", ["dealt", "refused", "conversation over", "newer attempt"]
)
def test_seeds_are_forgotten_when(
    end: str, table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    """And show in no error, log or repr until then."""
    caplog.set_level(logging.DEBUG)
    both, wrong = halves(TASK, "x", SQUARED), Secret.random()
    half = both.of[A]
    seed, salt = Traced(half.seed.reveal()), Traced(half.salt.reveal())
    refs: list[weakref.ref[Secret]] = [weakref.ref(seed), weakref.ref(salt)]
    table.at[A].ask(replace(half, seed=seed, salt=salt))
    del seed, salt
    assert all(ref() is not None for ref in refs), "the dealer holds a half that waits"
    texts = [repr(vars(table.dealer)), repr(half), repr(table.at[A])]
    if end == "dealt":
        table.ask(both, B)
    elif end == "refused":
        table.at[B].ask(replace(both.of[B], seed=wrong))
    elif end == "conversation over":
        table.close()
    else:
        Table(1, table.dealer).ask(halves(TASK, "y", SQUARED, attempt=1), A)
    until(lambda: [ref() for ref in refs] == [None, None], "the seeds' end")
    secrets = [wrong, *(each for of in both.of.values() for each in (of.seed, of.salt))]
    if end == "dealt":
        secrets.append(table.row_key(both))
    else:
        with pytest.raises(errors.PrecadError) as error:
            table.at[A].row_key(both.context)
        texts.append(str(error.value))
    shown = "".join([*texts, caplog.text, repr(table.at[A])])
    for secret in secrets:
        assert secret.reveal().hex() not in shown
        assert repr(secret.reveal())[2:-1] not in shown
    assert "32 bytes" in shown
