"""What must hold after any schedule of faults, from what is durable and what was observed."""

from collections import Counter

import numpy as np
from tests.faults.world import SERVERS, World

from precad.client.own_account import OwnAccount
from precad.common.aggregator.round.journal import AttemptState
from precad.common.identifiers import ClientId, Digest, Role
from precad.common.ring import from_bytes

CHARGED = (AttemptState.DONE.value, AttemptState.FORFEITED.value)


def check(world: World) -> None:
    """All invariants; an AssertionError names the first that is broken."""
    training_reaches_its_end(world)
    one_model_at_every_version(world)
    one_release_of_a_round(world)
    sums_are_those_of_the_charged(world)
    ledgers_agree_and_cover_every_release(world)
    owners_count_no_less_than_the_servers(world)
    one_sample_for_a_version(world)
    one_sample_for_a_round_number(world)
    triples_are_spent_once(world)


def training_reaches_its_end(world: World) -> None:
    last = world.task.training.rounds
    for role in SERVERS:
        assert world.servers[role].session.shelf.current.version == last
        states = Counter(state for state, *_ in world.rounds(role).values())
        assert states[AttemptState.DONE.value] == last
        assert states[AttemptState.OPEN.value] == states[AttemptState.RELEASED.value] == 0
    final = world.servers[Role.SERVER_A].session.shelf.current.digest
    for result in world.seen.results.values():
        assert (result.ended, result.model) == ("finished", final)


def one_model_at_every_version(world: World) -> None:
    by_version: dict[int, set[Digest]] = {}
    for version, models in world.seen.models.items():
        by_version[version] = {digest for _, digest in models}
        assert len(by_version[version]) == 1, f"different models of version {version}"
    assert set(by_version) == set(range(world.task.training.rounds + 1))


def one_release_of_a_round(world: World) -> None:
    for role in SERVERS:
        rounds = world.rounds(role)
        # The world itself refuses a second release of a number and bytes that weren't released.
        for number, share in world.seen.shares[role].items():
            assert rounds[number][3] == share, "a released share changed"
        done = [version for state, version, *_ in rounds.values() if state == CHARGED[0]]
        assert sorted(done) == list(range(world.task.training.rounds))
        for state, _, _, kept in rounds.values():
            if state == AttemptState.FORFEITED.value:
                assert kept not in world.seen.left[role], "a forfeited round's share left"


def sums_are_those_of_the_charged(world: World) -> None:
    """Both shares of a round hold just the charged clients' updates, and each noise once."""
    a, b = (world.rounds(role) for role in SERVERS)
    charges = world.charges(Role.SERVER_A)
    noises = {
        role: {noise.tobytes(): noise for noise in world.seen.noise[role]} for role in SERVERS
    }
    for number, (state, _, valid_set, share) in a.items():
        if state != AttemptState.DONE.value:
            continue
        assert b[number][2] == valid_set
        assert share is not None
        other = b[number][3]
        assert other is not None
        total = from_bytes(share) + from_bytes(other)
        for name in charges.get(number, ()):
            total = total - world.seen.updates[ClientId(name), number]
        found = [
            (one, two)
            for one, of_a in noises[Role.SERVER_A].items()
            for two, of_b in noises[Role.SERVER_B].items()
            if np.array_equal(of_a + of_b, total)
        ]
        assert len(found) == 1, f"round {number} isn't its charged updates and one noise of each"
        # A noise that was used can't be used again.
        noises[Role.SERVER_A].pop(found[0][0])
        noises[Role.SERVER_B].pop(found[0][1])


def ledgers_agree_and_cover_every_release(world: World) -> None:
    a, b = (world.charges(role) for role in SERVERS)
    assert a == b, "the servers' ledgers differ"
    for role in SERVERS:
        for number in world.seen.shares[role]:
            assert world.rounds(role)[number][0] in CHARGED
            other = SERVERS[1 - SERVERS.index(role)]
            assert world.rounds(other)[number][0] in CHARGED, f"{other.value} lost round {number}"


def owners_count_no_less_than_the_servers(world: World) -> None:
    versions = {number: row[1] for number, row in world.rounds(Role.SERVER_A).items()}
    for client in world.clients:
        path = world.folder / client.name / "participations.log"
        own = OwnAccount(world.task, world.task.privacy.record_rate, None, path)
        for number, charged in world.charges(Role.SERVER_A).items():
            if client.name in charged:
                assert own.charged(versions[number]), f"{client} doesn't know of round {number}"
        sent = {number for sender, number in world.seen.pairs if sender == client}
        assert all(own.charged(versions[number]) for number in sent if number in versions)


def one_sample_for_a_version(world: World) -> None:
    versions = {number: row[1] for number, row in world.rounds(Role.SERVER_A).items()}
    first: dict[tuple[ClientId, int], bytes] = {}
    for (client, number), update in world.seen.updates.items():
        if number in versions:
            seen = first.setdefault((client, versions[number]), update.tobytes())
            assert seen == update.tobytes(), f"{client} shared two updates for one version"


def one_sample_for_a_round_number(world: World) -> None:
    for (client, number), pairs in world.seen.pairs.items():
        assert len(pairs) == 1, f"{client} sent two samples for round {number}"


def triples_are_spent_once(world: World) -> None:
    for role in SERVERS:
        assert all(times == 1 for times in world.seen.spent[role].values())
