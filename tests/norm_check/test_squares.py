"""The dealer squares what both servers agree on, once, and keeps nothing of it."""

import logging
import re
import weakref
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
from tests.rig.clock import LonelyClock
from tests.rig.halves import SERVERS, Halves, halves
from tests.rig.waiting import until

from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError, TaskMismatch
from precad.common.identifiers import Digest, Role, Secret
from precad.common.ring import signed
from precad.dealer.dealer_role import DealerRole, LocalDealing
from precad.norm_check.dealing import Answer, DealerConversation, SquareRequest

TASK = Digest.of(b"task")
D = 300
ZERO = Secret(bytes(32))
A, B = SERVERS


class Table:
    """A dealer, and both servers' conversations with it."""

    def __init__(
        self, attempt: int = 0, dealer: DealerRole | None = None, dimension: int = D
    ) -> None:
        self.dealer = dealer or DealerRole(TASK, dimension)
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

    def shares(self, both: Halves) -> list[int]:
        return [self.at[role].share(both.context) for role in SERVERS]

    def row_key(self, both: Halves) -> Secret:
        """The same at both."""
        key, other = (self.at[role].row_key(both.context) for role in SERVERS)
        assert key == other
        return key

    def fails(self, role: Role, both: Halves) -> PrecadError:
        """The error of both waits."""
        with pytest.raises((PeerUnavailable, PeerViolation)) as of_key:
            self.at[role].row_key(both.context)
        with pytest.raises(type(of_key.value), match=re.escape(str(of_key.value))):
            self.at[role].share(both.context)
        return of_key.value

    def close(self) -> None:
        self._stack.close()


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
    both, twice = halves(TASK, "x", D), halves(TASK, "y", D)
    table.ask(both, A)
    assert "dealt nothing" in str(table.fails(A, both))
    # The wait ended, the request stands: the other server was only late.
    table.ask(both, B)
    table.row_key(both)
    # One server that asks twice is not two.
    table.ask(twice, A, A)
    assert isinstance(error := table.fails(A, twice), PeerUnavailable)
    assert "dealt nothing" not in str(error)


def test_every_context_and_every_dealing_draws_afresh() -> None:
    """Also for the same seeds: nothing dealt follows from what a client or a server chose."""
    keys, shares = set(), set()
    for _ in range(4):
        table = Table()
        for name in ("x", "y"):
            both = halves(TASK, name, D, seed=ZERO, salt=ZERO)
            table.ask(both)
            keys.add(table.row_key(both).reveal())
            shares |= set(table.shares(both))
    assert (len(keys), len(shares)) == (8, 16)


def opened_by_none(half: SquareRequest, other: SquareRequest) -> dict[str, SquareRequest]:
    """A server's half that no longer opens what the client signed, by its fault."""
    swapped: Any = {"commitment_a": half.commitment_b, "commitment_b": half.commitment_a}
    return {
        "salt": replace(half, salt=Secret.random()),
        "seed": replace(half, seed=Secret.random()),
        "short seed": replace(half, seed=Secret(half.seed.reveal()[:31])),
        "long salt": replace(half, salt=Secret(half.salt.reveal() + b"\0")),
        "the other's seed": replace(half, seed=other.seed, salt=other.salt),
        "roles exchanged": replace(half, **swapped),
        "another context's": replace(half, context=Digest.of(b"y").value),
    }


def spoiled(fault: str, both: Halves) -> Halves:
    """In A's half, or in both: a client that gave each server the other's seed."""
    half, other = both.of[A], both.of[B]
    if fault == "both seeds":
        changed, other = (
            replace(half, seed=other.seed, salt=other.salt),
            replace(other, seed=half.seed, salt=half.salt),
        )
    else:
        changed = opened_by_none(half, other)[fault]
    return Halves({A: changed, B: replace(other, context=changed.context)}, both.mask)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
@pytest.mark.parametrize("fault", [*opened_by_none(*halves(TASK, "", D).of.values()), "both seeds"])
def test_a_half_that_does_not_open_its_commitment_gets_nothing_dealt(
    table: Table, fault: str, order: tuple[Role, Role]
) -> None:
    honest, both = halves(TASK, "honest", D), spoiled(fault, halves(TASK, "x", D))
    table.ask(honest, A)
    table.ask(both, *order)
    error = table.fails(A, both)
    assert isinstance(error, PeerViolation)
    assert both.context.hex() in str(error)
    # The other one doesn't wait in vain, and is dealt nothing either.
    table.fails(B, both)
    # Other contexts go on.
    table.ask(honest, B)
    table.row_key(honest)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
@pytest.mark.parametrize("liar", SERVERS)
def test_servers_that_name_different_commitments_both_hear_of_it(
    table: Table, liar: Role, order: tuple[Role, Role]
) -> None:
    one, other, again = (halves(TASK, name, D) for name in "xxy")
    # Each half opens; what the server says of the other one's differs.
    honest, field = (A, "commitment_a") if liar is B else (B, "commitment_b")
    said: dict[str, Any] = {field: getattr(other.of[honest], field)}
    lie = Halves({honest: one.of[honest], liar: replace(one.of[liar], **said)}, one.mask)
    table.ask(lie, *order)
    for role in SERVERS:
        error = table.fails(role, one)
        assert isinstance(error, PeerViolation)
        assert "different commitments" in str(error)
    table.ask(again)
    assert signed(sum(table.shares(again))) == again.square


def test_a_context_is_dealt_once(table: Table) -> None:
    both = halves(TASK, "x", D)
    table.ask(both)
    row_key = table.row_key(both)
    # A server that comes again in the same attempt, as after a cut.
    again = Table(dealer=table.dealer)
    again.ask(both)
    for role in SERVERS:
        error = again.fails(role, both)
        assert isinstance(error, PeerUnavailable)
        assert "take a new attempt" in str(error)
    assert table.row_key(both) == row_key


def test_an_older_attempt_is_refused_and_a_newer_one_ends_it() -> None:
    dealer = DealerRole(TASK, D)
    old, new = Table(4, dealer), Table(5, dealer)
    waiting, late = (halves(TASK, name, D, attempt=4) for name in ("waiting", "late"))
    both = halves(TASK, "x", D, attempt=5)
    old.ask(waiting, A)
    new.ask(both)
    assert dealer.newest_attempt == 5
    assert "newer attempt" in str(old.fails(A, waiting))
    old.ask(late)
    for role in SERVERS:
        assert "attempt 4 is dealt for once" in str(old.fails(role, late))
    # The newer one goes on.
    new.row_key(both)


def test_another_task_and_another_role_are_refused() -> None:
    dealer, heard = DealerRole(TASK, D), list[Answer]()

    def ask(role: Role, task: Digest) -> None:
        half = halves(task, "x", D, attempt=9).of[A]
        dealer.ask(role, half, lambda _, answer: heard.append(answer))

    with pytest.raises(TaskMismatch):
        ask(A, Digest.of(b"other"))
    for role in (Role.CLIENT, Role.DEALER, Role.OPERATOR):
        with pytest.raises(PeerViolation, match="only servers"):
            ask(role, TASK)
    assert (dealer.newest_attempt, heard) == (-1, [])


def test_what_a_dealer_may_not_answer_is_its_violation() -> None:
    answers = DealerConversation(0, lambda _: None, 60.0, LonelyClock())
    both, key = halves(TASK, "x", D), Secret.random()

    def violates(answer: Answer, says: str) -> None:
        with pytest.raises(PeerViolation, match=says):
            answers.put(both.context, answer)

    violates(1, "isn't asked")
    answers.ask(both.of[A])
    for length in (0, 16, 31, 33):
        violates(Secret(bytes(length)), f"row key of {length} bytes")
    refusals = PeerUnavailable("no"), PeerUnavailable("no")
    pairs: list[tuple[Answer, Answer]] = [(key, Secret.random()), (5, 5), refusals]
    for first, second in pairs:
        answers.put(both.context, first)
        violates(second, "twice")
    assert (answers.row_key(both.context), answers.share(both.context)) == (key, 5)


class Traced(Secret):
    """A secret that can be watched going away."""

    __slots__ = ("__weakref__",)


@pytest.mark.parametrize("end", ["dealt", "refused", "conversation over", "newer attempt"])
def test_seeds_are_forgotten_when(end: str, table: Table, caplog: pytest.LogCaptureFixture) -> None:
    """And show in no error, log or repr until then."""
    caplog.set_level(logging.DEBUG)
    both, wrong = halves(TASK, "x", D), Secret.random()
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
        Table(1, table.dealer).ask(halves(TASK, "y", D, attempt=1), A)
    until(lambda: [ref() for ref in refs] == [None, None], "the seeds' end")
    secrets = [wrong, *(each for of in both.of.values() for each in (of.seed, of.salt))]
    if end == "dealt":
        secrets.append(table.row_key(both))
    else:
        texts.append(str(table.fails(A, both)))
    shown = "".join([*texts, caplog.text, repr(table.at[A])])
    for secret in secrets:
        assert secret.reveal().hex() not in shown
        assert repr(secret.reveal())[2:-1] not in shown
    assert "32 bytes" in shown
