"""The dealer squares what both servers agree on, once, and keeps nothing of it."""

import logging
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.rig.clock import LonelyClock
from tests.rig.halves import SERVERS, Halves, halves
from tests.rig.waiting import until

from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError, TaskMismatch
from precad.common.identifiers import Digest, Role, Secret
from precad.common.ring import signed
from precad.dealer.dealer_role import DealerRole, LocalDealing
from precad.norm_check.dealing import Answer, DealerConversation

TASK = Digest.of(b"task")
D = 300
A, B = SERVERS


class Table:
    """A dealer, and both servers' conversations with it."""

    def __init__(self, attempt: int = 0, dealer: DealerRole | None = None) -> None:
        self.dealer = dealer or DealerRole(TASK, D)
        self._stack = ExitStack()
        self.at: dict[Role, DealerConversation] = {
            role: self._stack.enter_context(
                LocalDealing(self.dealer, role, clock=LonelyClock()).squares(attempt)
            )
            for role in SERVERS
        }

    def ask(self, both: Halves, *roles: Role) -> None:
        for role in roles or SERVERS:
            self.at[role].ask(both.of[role])

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def table() -> Iterator[Table]:
    table = Table()
    yield table
    table.close()


def fails(squares: DealerConversation, context: bytes) -> PrecadError:
    """The error of both waits."""
    with pytest.raises((PeerUnavailable, PeerViolation)) as of_key:
        squares.row_key(context)
    with pytest.raises(type(of_key.value)) as of_share:
        squares.share(context)
    assert str(of_key.value) == str(of_share.value)
    return of_key.value


# --- what is dealt ------------------------------------------------------------------------------


@pytest.mark.parametrize("dimension", [1, 2**16 - 1, 2**16, 2**17 + 3])
def test_the_shares_add_up_to_the_masks_square(dimension: int) -> None:
    table = Table(dealer=DealerRole(TASK, dimension))
    both = halves(TASK, "x", dimension)
    table.ask(both)
    shares = [table.at[role].share(both.context) for role in SERVERS]
    assert all(-(2**63) <= share < 2**63 for share in shares)
    assert signed(sum(shares)) == both.square
    table.close()


def test_nothing_is_dealt_before_both_have_asked(table: Table) -> None:
    both = halves(TASK, "x", D)
    table.ask(both, A)
    assert "dealt nothing" in str(fails(table.at[A], both.context))
    # The wait ended, the request stands: the other server was only late.
    table.ask(both, B)
    assert table.at[A].row_key(both.context) == table.at[B].row_key(both.context)


def test_every_context_and_every_dealing_draws_afresh() -> None:
    """Also for the same seeds: nothing dealt follows from what a client or a server chose."""
    keys, shares = set(), set()
    zero = Secret(bytes(32))
    for _ in range(4):
        table = Table()
        for name in ("x", "y"):
            both = halves(TASK, name, D, seed=zero, salt=zero)
            table.ask(both)
            keys.add(table.at[A].row_key(both.context).reveal())
            shares |= {table.at[role].share(both.context) for role in SERVERS}
        table.close()
    assert len(keys) == 8
    assert len(shares) == 16


def test_each_share_alone_is_uniform() -> None:
    """One mask squared 2,000 times: every byte of either share is balanced."""
    table = Table(dealer=DealerRole(TASK, 1))
    zero = Secret(bytes(32))
    shares: dict[Role, list[int]] = {role: [] for role in SERVERS}
    for number in range(2000):
        both = halves(TASK, str(number), 1, seed=zero, salt=zero)
        table.ask(both)
        for role in SERVERS:
            shares[role].append(table.at[role].share(both.context))
    for found in shares.values():
        counts = np.bincount(np.array(found).view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < 255 + 6 * np.sqrt(2 * 255)
    table.close()


# --- what isn't ---------------------------------------------------------------------------------


def spoiled(request: str, both: Halves) -> Halves:
    """A's half no longer opens what the client signed."""
    half = both.of[A]
    changed = {
        "salt": replace(half, salt=Secret.random()),
        "seed": replace(half, seed=Secret.random()),
        "short seed": replace(half, seed=Secret(half.seed.reveal()[:31])),
        "long salt": replace(half, salt=Secret(half.salt.reveal() + b"\0")),
        "B's seed": replace(half, seed=both.of[B].seed, salt=both.of[B].salt),
        "roles exchanged": replace(
            half, commitment_a=half.commitment_b, commitment_b=half.commitment_a
        ),
        "another context's": replace(half, context=Digest.of(b"y").value),
    }[request]
    return Halves({A: changed, B: replace(both.of[B], context=changed.context)}, both.mask)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
@pytest.mark.parametrize(
    "fault",
    ["salt", "seed", "short seed", "long salt", "B's seed", "roles exchanged", "another context's"],
)
def test_a_half_that_does_not_open_its_commitment_gets_nothing_dealt(
    table: Table, fault: str, order: tuple[Role, Role]
) -> None:
    honest, both = halves(TASK, "honest", D), spoiled(fault, halves(TASK, "x", D))
    table.ask(honest, A)
    table.ask(both, *order)
    error = fails(table.at[A], both.context)
    assert isinstance(error, PeerViolation)
    assert both.context.hex() in str(error)
    # The other one doesn't wait in vain, and is dealt nothing either.
    fails(table.at[B], both.context)
    # Other contexts go on.
    table.ask(honest, B)
    assert table.at[A].row_key(honest.context) == table.at[B].row_key(honest.context)


def test_commitments_with_the_roles_exchanged_open_for_nobody(table: Table) -> None:
    """Both servers alike: a client that gave each the other's seed."""
    both = halves(TASK, "x", D)
    of_a, of_b = both.of[A], both.of[B]
    at_a = replace(of_a, seed=of_b.seed, salt=of_b.salt)
    at_b = replace(of_b, seed=of_a.seed, salt=of_a.salt)
    table.ask(Halves({A: at_a, B: at_b}, both.mask))
    assert isinstance(fails(table.at[A], both.context), PeerViolation)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
@pytest.mark.parametrize("field", ["commitment_a", "commitment_b"])
def test_servers_that_name_different_commitments_both_hear_of_it(
    table: Table, field: str, order: tuple[Role, Role]
) -> None:
    one, other = halves(TASK, "x", D), halves(TASK, "x", D)
    # Each half opens; what the server says of the other one's differs.
    liar = B if field == "commitment_a" else A
    honest = A if liar is B else B
    said: dict[str, Any] = {field: getattr(other.of[honest], field)}
    changed = replace(one.of[liar], **said)
    table.ask(Halves({liar: changed, honest: one.of[honest]}, one.mask), *order)
    for role in SERVERS:
        error = fails(table.at[role], one.context)
        assert isinstance(error, PeerViolation)
        assert "different commitments" in str(error)
    again = halves(TASK, "y", D)
    table.ask(again)
    assert signed(sum(table.at[role].share(again.context) for role in SERVERS)) == again.square


def test_a_context_is_dealt_once(table: Table) -> None:
    both = halves(TASK, "x", D)
    table.ask(both)
    row_key = table.at[A].row_key(both.context)
    # A server that comes again in the same attempt, as after a cut.
    again = Table(dealer=table.dealer)
    again.ask(both)
    for role in SERVERS:
        error = fails(again.at[role], both.context)
        assert isinstance(error, PeerUnavailable)
        assert "take a new attempt" in str(error)
    assert table.at[B].row_key(both.context) == row_key
    again.close()


def test_one_server_asking_twice_is_not_two_servers(table: Table) -> None:
    both = halves(TASK, "x", D)
    table.ask(both, A, A)
    assert isinstance(fails(table.at[A], both.context), PeerUnavailable)
    assert "dealt nothing" not in str(fails(table.at[A], both.context))


def test_an_older_attempt_is_refused_and_a_newer_one_ends_it() -> None:
    dealer = DealerRole(TASK, D)
    old, new = Table(4, dealer), Table(5, dealer)
    waiting = halves(TASK, "waiting", D, attempt=4)
    old.ask(waiting, A)
    both = halves(TASK, "x", D, attempt=5)
    new.ask(both)
    assert dealer.newest_attempt == 5
    assert "newer attempt" in str(fails(old.at[A], waiting.context))
    late = halves(TASK, "late", D, attempt=4)
    old.ask(late)
    for role in SERVERS:
        assert "attempt 4 is dealt for once" in str(fails(old.at[role], late.context))
    # The newer one goes on.
    assert new.at[A].row_key(both.context) == new.at[B].row_key(both.context)
    old.close()
    new.close()


def test_another_task_and_another_role_are_refused() -> None:
    dealer = DealerRole(TASK, D)
    both = halves(Digest.of(b"other"), "x", D, attempt=9)
    heard: list[Answer] = []
    with pytest.raises(TaskMismatch):
        dealer.ask(A, both.of[A], lambda _, answer: heard.append(answer))
    mine = halves(TASK, "x", D, attempt=9)
    for role in (Role.CLIENT, Role.DEALER, Role.OPERATOR):
        with pytest.raises(PeerViolation, match="only servers"):
            dealer.ask(role, mine.of[A], lambda _, answer: heard.append(answer))
    assert dealer.newest_attempt == -1
    assert heard == []


def test_a_conversation_that_ends_in_the_middle_takes_its_halves_along() -> None:
    table = Table()
    open_, dealt = halves(TASK, "open", D), halves(TASK, "dealt", D)
    table.ask(dealt)
    table.ask(open_, A)
    table.close()
    # What came before can still be read; what didn't, isn't waited for.
    assert len(table.at[A].row_key(dealt.context)) == 32
    assert "ended its conversation" in str(fails(table.at[A], open_.context))
    # Nothing was dealt for the one, so it may be asked for again.
    again = Table(dealer=table.dealer)
    again.ask(open_, B)
    assert isinstance(fails(again.at[B], open_.context), PeerUnavailable)
    again.ask(open_, A)
    assert again.at[A].row_key(open_.context) == again.at[B].row_key(open_.context)
    again.close()


# --- what a server makes of a bad dealer --------------------------------------------------------


def unheard() -> DealerConversation:
    return DealerConversation(0, lambda _: None, 60.0, LonelyClock())


def test_answers_that_nobody_asked_for_or_twice_are_the_dealers_violation() -> None:
    answers, both = unheard(), halves(TASK, "x", D)
    with pytest.raises(PeerViolation, match="isn't asked"):
        answers.put(both.context, 1)
    answers.ask(both.of[A])
    key = Secret.random()
    refusals = PeerUnavailable("no"), PeerUnavailable("no")
    pairs: list[tuple[Answer, Answer]] = [(key, Secret.random()), (5, 5), refusals]
    for first, second in pairs:
        answers.put(both.context, first)
        with pytest.raises(PeerViolation, match="twice"):
            answers.put(both.context, second)
    assert (answers.row_key(both.context), answers.share(both.context)) == (key, 5)


@pytest.mark.parametrize("length", [0, 16, 31, 33])
def test_a_row_key_of_another_length_is_the_dealers_violation(length: int) -> None:
    answers, both = unheard(), halves(TASK, "x", D)
    answers.ask(both.of[A])
    with pytest.raises(PeerViolation, match=f"row key of {length} bytes"):
        answers.put(both.context, Secret(bytes(length)))


# --- what stays ---------------------------------------------------------------------------------


class Traced(Secret):
    """A secret that can be watched going away."""

    __slots__ = ("__weakref__",)


def traced(both: Halves, role: Role) -> tuple[list["weakref.ref[Secret]"], Halves]:
    half = both.of[role]
    seed, salt = Traced(half.seed.reveal()), Traced(half.salt.reveal())
    watched = Halves({**both.of, role: replace(half, seed=seed, salt=salt)}, both.mask)
    return [weakref.ref(seed), weakref.ref(salt)], watched


@pytest.mark.parametrize("end", ["dealt", "refused", "conversation over", "newer attempt"])
def test_seeds_are_forgotten_when(end: str) -> None:
    table = Table()
    both = halves(TASK, "x", D)
    refs, watched = traced(both, A)
    table.ask(watched, A)
    del watched
    assert all(ref() is not None for ref in refs), "the dealer holds a half that waits"
    if end == "dealt":
        table.ask(both, B)
    elif end == "refused":
        table.at[B].ask(replace(both.of[B], seed=Secret.random()))
    elif end == "conversation over":
        table.close()
    else:
        newer = Table(1, table.dealer)
        newer.ask(halves(TASK, "y", D, attempt=1), A)
    until(lambda: [ref() for ref in refs] == [None, None], "the seeds' end")


def test_no_seed_shows_in_errors_logs_or_reprs(
    table: Table, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    both, bad = halves(TASK, "x", D), halves(TASK, "y", D)
    table.ask(both, A)
    texts = [repr(vars(table.dealer)), repr(both.of[A])]
    table.ask(both, B)
    table.ask(spoiled("seed", bad))
    texts += [str(fails(table.at[A], bad.context)), caplog.text, repr(table.at[A])]
    shown = "".join(texts)
    for half in (*both.of.values(), *bad.of.values()):
        for secret in (half.seed, half.salt, table.at[A].row_key(both.context)):
            assert secret.reveal().hex() not in shown
            assert repr(secret.reveal())[2:-1] not in shown
    assert "32 bytes" in shown
