"""Both servers ask a dealer for squares, each over its own stream."""

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from tests.conftest import small_task
from tests.integration.deployment.conftest import Deploy
from tests.rig.keys import identity
from tests.rig.loop import LoopThread, dealer
from tests.rig.norm_check import Halves, halves
from tests.rig.waiting import DEADLINE_S

from precad.aggregator.rpc.dealer_client import RemoteDealer
from precad.common import errors, ring
from precad.common.identifiers import SERVERS, Role, Secret
from precad.common.identity.credentials import Identity
from precad.common.identity.mutual_tls import open_channel, why_unreachable
from precad.common.identity.party_certificate import Principal
from precad.common.task import Task
from precad.norm_check.dealing import DealerConversation

A, B = SERVERS
MOST = 60  # Clients of the task, hence squares of an attempt
SHORT_S = 1.0  # For an answer that doesn't come


@dataclass(frozen=True, slots=True)
class Site:
    task: Task
    dealers: dict[Role, RemoteDealer]

    @contextmanager
    def squares(self) -> Iterator[dict[Role, DealerConversation]]:
        with self.dealers[A].squares(0) as at_a, self.dealers[B].squares(0) as at_b:
            yield {A: at_a, B: at_b}

    def halves(self, *names: object) -> list[Halves]:
        return [halves(self.task.digest, str(n), self.task.dimension) for n in names]


@contextmanager
def reached(task: Task, address: str, of: Mapping[Role, Identity]) -> Iterator[Site]:
    with ExitStack() as stack:
        found = Site(task, {})
        for role in SERVERS:
            channel = stack.enter_context(open_channel(address, of[role], Role.DEALER))
            why = partial(why_unreachable, address, of[role], Role.DEALER)
            found.dealers[role] = RemoteDealer(channel, address, task, role, why)
            found.dealers[role].join()
        yield found


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    """With a dealer on a loop of this process; of so many parameters as a test asks for."""
    changes = {"enrolment.clients": MOST, "deadlines.peer": DEADLINE_S}
    task = small_task(getattr(request, "param", 8), changes)
    of = {role: identity(Principal.service(role)) for role in (*SERVERS, Role.DEALER)}
    with (
        LoopThread() as loop,
        reached(task, dealer(loop, task, of[Role.DEALER]), of) as made,
    ):
        yield made


@pytest.mark.parametrize("site", [100_003], indirect=True)
def test_both_ask_for_fifty_squares_at_once(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with site.squares() as at:
        many = site.halves(*range(50))

        def play(role: Role) -> list[tuple[Secret, int]]:
            for both in many if role is A else many[::-1]:
                at[role].ask(both.of[role])
            return [
                (at[role].row_key(b.context), at[role].share(b.context)) for b in many
            ]

        with ThreadPoolExecutor(2) as servers:
            of_a, of_b = servers.map(play, SERVERS)
        for both, (key_a, r_a), (key_b, r_b) in zip(many, of_a, of_b, strict=True):
            assert (key_a, ring.signed(r_a + r_b)) == (key_b, both.square)
        assert len({key.reveal() for key, _ in of_a}) == len(many)
        for each in site.dealers.values():
            # A key, a share, and twice the context that they are for.
            assert 50 * (32 + 8 + 64) < each.bytes_received < 50 * 128
        for seed in (half.seed.reveal() for both in many for half in both.of.values()):
            assert seed.hex() not in caplog.text
            assert repr(seed)[2:-1] not in caplog.text


def test_a_stream_that_ends_takes_its_halves_along(site: Site) -> None:
    waiting, *answered = site.halves("waiting", "known", "later")
    for both in answered:
        # Once the later one is answered, the dealer has heard of the older streams'
        # end.
        with site.squares() as at:
            if both is answered[0]:
                at[A].ask(waiting.of[A])
            for role in SERVERS:
                at[role].ask(both.of[role])
            at[A].share(both.context)
    site.dealers[B]._timeout_s = SHORT_S
    with site.dealers[B].squares(0) as at_b:
        at_b.ask(waiting.of[B])
        with pytest.raises(
            errors.PeerUnavailable, match="check that the other server has asked"
        ):
            at_b.row_key(waiting.context)
    # Nothing was dealt for it: both may ask again.
    site.dealers[B]._timeout_s = DEADLINE_S
    with site.squares() as at:
        for role in SERVERS:
            at[role].ask(waiting.of[role])
        assert at[A].row_key(waiting.context) == at[B].row_key(waiting.context)


@pytest.mark.parametrize("death", ["kill", "terminate"])
def test_who_waits_is_woken_when_the_dealers_process_goes(
    deploy: Deploy, death: str
) -> None:
    deployment = deploy({"enrolment.clients": MOST, "deadlines.peer": 600.0})
    deployment.start_server("dealer")
    dealer, address = deployment.processes["dealer"], deployment.addresses["dealer"]
    of = {
        role: Identity.load(deployment.folder / "keys" / role.value) for role in SERVERS
    }
    with (
        reached(deployment.task, address, of) as site,
        site.squares() as at,
        ThreadPoolExecutor(2) as pool,
    ):
        # Its memory holds clients' seeds.
        limits = Path(f"/proc/{dealer.pid}/limits").read_text().splitlines()
        (line,) = (each for each in limits if "core file" in each)
        assert line.split()[4:6] == ["0", "0"]
        both, known = site.halves("x", "known")
        for role in SERVERS:
            at[role].ask(known.of[role])
        key = at[A].row_key(known.context)
        at[A].ask(both.of[A])
        waits = [
            pool.submit(wait, both.context) for wait in (at[A].row_key, at[A].share)
        ]
        getattr(dealer, death)()
        for wait in waits:
            with pytest.raises(errors.PeerUnavailable, match="the dealer"):
                wait.result()
        # What came before stays.
        assert at[A].row_key(known.context) == key
        # Later nobody is there: that is said, and not that the other server hasn't
        # asked.
        dealer.wait(DEADLINE_S)
        site.dealers[B]._timeout_s = SHORT_S

        def row_key() -> None:
            with site.dealers[B].squares(0) as later:
                later.ask(both.of[B])
                later.row_key(both.context)

        with pytest.raises(
            errors.PeerUnavailable, match="nothing listens on that port"
        ):
            row_key()


def test_no_more_squares_than_clients_are_dealt_and_none_for_a_dealer_before(
    site: Site,
) -> None:
    many = site.halves(*range(MOST + 1))
    for error, says in (
        (errors.PeerViolation, f"at most {MOST} clients"),
        (errors.PeerUnavailable, "the dealer has restarted since"),
    ):
        with site.squares() as at:
            for both in many:
                at[A].ask(both.of[A])
            with pytest.raises(error, match=says):
                at[A].row_key(many[-1].context)
        site.dealers[A].epoch = bytes(16)
