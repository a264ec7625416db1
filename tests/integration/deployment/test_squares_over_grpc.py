"""Both servers ask a dealer for squares, each over its own stream."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import TaskMaker
from tests.integration.deployment.conftest import Deploy
from tests.rig.halves import SERVERS, Halves, halves
from tests.rig.keys import identity
from tests.rig.loop import LoopThread
from tests.rig.parts import dealer
from tests.rig.waiting import DEADLINE_S

from precad.aggregator.rpc.dealer_client import RemoteDealer
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel
from precad.common.identity.party_certificate import Principal
from precad.common.ring import signed
from precad.common.task import Task
from precad.norm_check.dealing import DealerConversation

A, B = SERVERS
MOST = 60
"""Clients of the task, hence squares of an attempt."""
SHORT_S = 1.0
"""For an answer that doesn't come."""


@dataclass(frozen=True, slots=True)
class Site:
    task: Task
    dealers: dict[Role, RemoteDealer]

    @contextmanager
    def squares(self, attempt: int = 0) -> Iterator[dict[Role, DealerConversation]]:
        with ExitStack() as stack:
            yield {
                role: stack.enter_context(dealer.squares(attempt))
                for role, dealer in self.dealers.items()
            }

    def halves(self, name: str, attempt: int = 0) -> Halves:
        return halves(self.task.digest, name, self.task.dimension, attempt)


@contextmanager
def reached(task: Task, address: str, identity_of: Callable[[Role], Identity]) -> Iterator[Site]:
    with ExitStack() as stack:
        dealers = {}
        for role in SERVERS:
            channel = stack.enter_context(open_channel(address, identity_of(role), Role.DEALER))
            dealers[role] = RemoteDealer(channel, address, task, role)
            dealers[role].join()
        yield Site(task, dealers)


Dealing = Callable[..., AbstractContextManager[Site]]


@pytest.fixture
def dealing(make_task: TaskMaker) -> Dealing:
    """``dealing(width)``: a dealer on a loop of this process."""

    @contextmanager
    def made(width: int = 8) -> Iterator[Site]:
        task = make_task(width, {"enrolment.clients": MOST, "deadlines.peer": DEADLINE_S})
        with LoopThread() as loop:
            address = dealer(loop, task, own(Role.DEALER))
            with reached(task, address, own) as site:
                yield site

    return made


def own(role: Role) -> Identity:
    return identity(Principal.service(role))


def test_fifty_squares_asked_for_at_once_by_both_servers(
    dealing: Dealing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    width = 100_003
    with dealing(width) as site, site.squares() as at:
        many = [site.halves(str(number)) for number in range(50)]

        def play(role: Role) -> list[tuple[Secret, int]]:
            order = many if role is A else many[::-1]
            for both in order:
                at[role].ask(both.of[role])
            return [(at[role].row_key(b.context), at[role].share(b.context)) for b in many]

        with ThreadPoolExecutor(2) as servers:
            of_a, of_b = servers.map(play, SERVERS)
        for both, (key_a, r_a), (key_b, r_b) in zip(many, of_a, of_b, strict=True):
            assert (key_a, signed(r_a + r_b)) == (key_b, both.square)
        assert len({key.reveal() for key, _ in of_a}) == len(many)
        for dealer in site.dealers.values():
            # A key, a share, and twice the context that they are for.
            assert 50 * (32 + 8 + 64) < dealer.bytes_received < 50 * 128
        for both in many:
            for half in both.of.values():
                assert half.seed.reveal().hex() not in caplog.text
                assert repr(half.seed.reveal())[2:-1] not in caplog.text


def test_a_stream_that_ends_takes_its_halves_along(dealing: Dealing) -> None:
    with dealing() as site:
        waiting, known = site.halves("waiting"), site.halves("known")
        with site.squares() as at:
            at[A].ask(waiting.of[A])
            for role in SERVERS:
                at[role].ask(known.of[role])
            at[A].share(known.context)
        later = site.halves("later")
        with site.squares() as at:
            # Once these are answered, the dealer has heard of the older streams' end.
            for role in SERVERS:
                at[role].ask(later.of[role])
            at[A].share(later.context)
        site.dealers[B]._timeout_s = SHORT_S
        with site.dealers[B].squares(0) as at_b:
            at_b.ask(waiting.of[B])
            with pytest.raises(PeerUnavailable, match="check that the other server has asked"):
                at_b.row_key(waiting.context)
        # Nothing was dealt for it: both may ask again.
        site.dealers[B]._timeout_s = DEADLINE_S
        with site.squares() as at:
            for role in SERVERS:
                at[role].ask(waiting.of[role])
            assert at[A].row_key(waiting.context) == at[B].row_key(waiting.context)


@pytest.mark.parametrize("death", ["kill", "terminate"])
def test_who_waits_is_woken_when_the_dealers_process_goes_which_leaves_no_core_dump(
    deploy: Deploy, death: str
) -> None:
    deployment = deploy({"enrolment.clients": MOST, "deadlines.peer": 600.0})
    deployment.start_server("dealer")
    keys, dealer = deployment.folder / "keys", deployment.processes["dealer"]

    def of(role: Role) -> Identity:
        return Identity.load(keys / role.value)

    with (
        reached(deployment.task, deployment.addresses["dealer"], of) as site,
        site.squares() as at,
        ThreadPoolExecutor(2) as pool,
    ):
        # Its memory holds clients' seeds.
        limits = Path(f"/proc/{dealer.pid}/limits").read_text().splitlines()
        (line,) = (each for each in limits if "core file" in each)
        assert line.split()[4:6] == ["0", "0"]
        both, known = site.halves("x"), site.halves("known")
        for role in SERVERS:
            at[role].ask(known.of[role])
        key = at[A].row_key(known.context)
        at[A].ask(both.of[A])
        waits = [pool.submit(partial(wait, both.context)) for wait in (at[A].row_key, at[A].share)]
        getattr(dealer, death)()
        for wait in waits:
            with pytest.raises(PeerUnavailable, match="the dealer"):
                wait.result()
        # What came before stays.
        assert at[A].row_key(known.context) == key


def test_a_dealer_that_started_anew_deals_to_nobody_who_joined_the_old_one(
    dealing: Dealing,
) -> None:
    with dealing() as site:
        site.dealers[A].epoch = bytes(16)
        with site.squares() as at:
            both = site.halves("x")
            at[A].ask(both.of[A])
            with pytest.raises(PeerUnavailable, match="the dealer has restarted since"):
                at[A].row_key(both.context)


def test_no_more_squares_than_clients_are_dealt_on_one_stream(dealing: Dealing) -> None:
    with dealing() as site, site.squares() as at:
        many = [site.halves(str(number)) for number in range(MOST + 1)]
        for both in many:
            at[A].ask(both.of[A])
        with pytest.raises(PeerViolation, match=f"at most {MOST} clients"):
            at[A].row_key(many[-1].context)
