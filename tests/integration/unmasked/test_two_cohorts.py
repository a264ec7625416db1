"""A curious owner and a curious dealer, with every candidate for who else was drawn.

On the first version a cohort of 20 was recovered from an unsalted digest in 1.6 s. Here everything
that an owner is sent or keeps, all that the dealer is asked, and the ledgers' heads that operators
note elsewhere are held against every candidate: no list, digest, statement or file is made of one.
The two servers know whom they count; that is no secret between them (docs/protocol.md).
"""

import dataclasses
import hashlib
import hmac
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from tests.conftest import small_task
from tests.faults.world import World

from precad.aggregator.rpc.dealer_client import request_to_wire, square_request_to_wire
from precad.aggregator.server_messages import Fact
from precad.aggregator.store import TrainingSummary, read_training
from precad.aggregator.store.ledger import history_after, history_start
from precad.common.identifiers import ClientId, Role
from precad.common.ring import encode_context
from precad.norm_check.dealing import DealRequest, SquareRequest

CLIENTS, ROUNDS = 6, 4
ROLES = (Role.SERVER_A, Role.SERVER_B)


CHANGES = {"privacy.client_rate": 0.5, "training.rounds": ROUNDS, "enrolment.clients": CLIENTS}
CHANGES |= {"deadlines.enrol": 500.0, "deadlines.collect": 10.0, "deadlines.peer": 5.0}
TASK = small_task(4, CHANGES)


def cohorts(world: World) -> Iterator[tuple[ClientId, ...]]:
    sizes = range(len(world.clients) + 1)
    return itertools.chain(*(itertools.combinations(world.clients, size) for size in sizes))


def made_of(cohort: tuple[ClientId, ...], salts: Iterable[bytes]) -> set[bytes]:
    """What a careless protocol would make of a list of clients, with any salt that is known."""
    names = [client.name for client in cohort]
    encoded = [client.encoded() for client in cohort]
    forms = [
        json.dumps(names).encode(),
        json.dumps(names, separators=(",", ":")).encode(),
        ",".join(names).encode(),
        b"".join(encoded),
        encode_context("valid-set", TASK.digest.value, *encoded),
        encode_context("cohort", *encoded),
    ]
    found = set()
    for version, form, salt in itertools.product(range(ROUNDS), forms, salts):
        tagged = salt + version.to_bytes(8, "little") + form
        found |= {hashlib.sha256(each).digest() for each in (salt + form, tagged, form + salt)}
        found.add(hmac.digest(salt, form, "sha256"))
    before = history_start(TASK.digest)
    for attempt in range(ROUNDS):
        fact = Fact(version=attempt, attempt=attempt, voided=False, clients=tuple(names))
        found.add(history_after(before, [fact]).value)
    return found


def recognised(candidates: set[bytes], view: bytes) -> set[bytes]:
    return {each for each in candidates if each in view or each.hex().encode() in view}


def view_of(world: World, owner: ClientId) -> bytes:
    """All files of an owner, and both ledgers' heads as operators note them."""
    files = [path.read_bytes() for path in sorted((world.folder / owner.name).iterdir())]
    return b"\0".join([*files, *(each.head.value for each in ledgers(world))])


def ledgers(world: World) -> list[TrainingSummary]:
    return [read_training(f"sqlite:///{world.folder / r.value / 'state.db'}") for r in ROLES]


def salts_in(view: bytes) -> list[bytes]:
    """Whatever an owner could take for a salt: nothing, and what it was told."""
    return [b"", bytes(32), TASK.digest.value, view[:32], hashlib.sha256(view).digest()]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(TASK, tmp_path_factory.mktemp("world"), seed=21)
    dealer: Any = made.dealer
    dealer.ask, dealer.corrections = Mock(wraps=dealer.ask), Mock(wraps=dealer.corrections)
    made.run()
    return made


def asked(world: World) -> list[Any]:
    """All that both servers ask the dealer in the training, batches and squares."""
    dealer: Any = world.dealer
    return [c.args[1] for each in (dealer.corrections, dealer.ask) for c in each.call_args_list]


def test_an_owner_recognises_no_candidate_for_who_else_was_drawn(world: World) -> None:
    for owner in world.clients:
        view = view_of(world, owner)
        assert [each for each in world.clients if each.name.encode() in view] in ([], [owner])
        for cohort in cohorts(world):
            assert not recognised(made_of(cohort, salts_in(view)), view), cohort


def digest_of_three(world: World) -> tuple[tuple[ClientId, ...], bytes]:
    """A cohort, and what a careless scheme would show of it."""
    truth = tuple(sorted(world.clients[1:4]))
    form = encode_context("cohort", *(client.encoded() for client in truth))
    return truth, hashlib.sha256(form).digest()


def test_the_same_search_breaks_a_careless_digest(world: World) -> None:
    """The control: one unsalted digest of a cohort more, and the cohort is found."""
    truth, careless = digest_of_three(world)
    view = view_of(world, world.clients[0]) + careless
    assert [c for c in cohorts(world) if recognised(made_of(c, [b""]), view)] == [truth]


def test_two_servers_heads_over_the_same_charges_never_agree(world: World) -> None:
    """Salted: equal heads, or a head that comes again, would tell that the same were charged."""
    a, b = ledgers(world)
    assert (a.entries, b.entries, a.head == b.head) == (ROUNDS, ROUNDS, False)


def told(requests: list[Any]) -> bytes:
    messages = (
        square_request_to_wire(each, b"epoch")
        if isinstance(each, SquareRequest)
        else request_to_wire(each, role.value, b"epoch")
        for each, role in itertools.product(requests, ROLES)
    )
    return b"\0".join(message.SerializeToString() for message in messages)


def pieces_of(data: bytes) -> set[bytes]:
    return {data[i : i + 32] for i in range(len(data) - 31)}


def test_the_dealer_is_told_numbers_and_masks_and_never_who(world: World) -> None:
    requests = asked(world)
    assert {type(each) for each in requests} == {DealRequest, SquareRequest}
    for kind, names in {
        DealRequest: "task attempt batch clients comparisons nonces",
        SquareRequest: "task attempt context commitment_a commitment_b seed salt",
    }.items():
        assert {each.name for each in dataclasses.fields(kind)} == set(names.split())
    data = told(requests)
    squares = [each for each in requests if isinstance(each, SquareRequest)]
    # The search looks through whole requests.
    for each in squares:
        assert {each.context, each.seed.reveal(), each.salt.reveal()} <= pieces_of(data)
    assert not [each for each in world.clients if each.name.encode() in data]
    # Nor does anything of a client's come again: attempts can't be linked by it.
    assert set(Counter(each.context for each in squares).values()) == {len(ROLES)}
    for name in ("seed", "salt"):
        values = [getattr(each, name).reveal() for each in squares]
        assert len(set(values)) == len(values)


def test_the_dealer_recognises_no_cohort(world: World) -> None:
    requests = asked(world)
    data, (truth, careless) = told(requests), digest_of_three(world)
    contexts = [each.context for each in requests if isinstance(each, SquareRequest)]
    seen, found = pieces_of(data), []
    for cohort in cohorts(world):
        candidates = made_of(cohort, [*salts_in(data), *contexts][:9])
        assert not candidates & seen, cohort
        # The control: one digest of a cohort more.
        found += [cohort] if careless in candidates else []
    assert found == [truth]
