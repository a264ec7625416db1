"""What must hold after any schedule of faults, from what is durable and what was observed."""

import re
from collections import Counter
from typing import TypeVar

import numpy as np
from tests.faults.simulated_server import SERVERS
from tests.faults.world import World

from precad.aggregator.cut_shares import CutShares
from precad.aggregator.rounds.start_attempt import OPENED_CAP
from precad.aggregator.store import audit_ledger
from precad.aggregator.store.schema import CHARGED, PENDING, AttemptState
from precad.client.own_account import OwnAccount
from precad.common.identifiers import ClientId, Role

W = TypeVar("W", bound=World)
TELLING = {
    "drawn",
    "cohort",
    "charged",
    "limit",
    "counted",
    "σ",
    "roster",
}  # No caller reads


def shares_of(world: World) -> CutShares:
    """How the world's noisy shares travel, by its frozen roster."""
    # Without its lock: nobody's turn is left to wait for it.
    enrolled = world.servers[Role.SERVER_A].session.register._enrolments
    return CutShares.of(world.task, enrolled.values())


def checked(world: W) -> W:
    try:
        world.run()
        check(world)
    except BaseException as error:
        error.add_note(f"seed {world.seed}: {world.seen.faults}")
        error.add_note("\n".join(world.seen.trace[-40:]))
        raise
    return world


def check(world: World) -> None:
    for holds in INVARIANTS:
        holds(world)


def check_honest(world: World) -> None:
    """What holds of the honest server and of owners, whatever the other server has done."""
    for holds in filter(
        lambda each: each not in IF_BOTH_SERVERS_ARE_HONEST, INVARIANTS
    ):
        holds(world)


def honest(world: World) -> list[Role]:
    return [role for role in SERVERS if role not in world.cheaters]


def versions_made(world: World) -> int:
    newest = world.servers[honest(world)[0]].session.model_store.current.version
    return newest if world.cheaters else world.task.training.rounds


def training_reaches_its_end(world: World) -> None:
    last = world.task.training.rounds
    for role in SERVERS:
        assert world.servers[role].session.model_store.current.version == last
        states = Counter(state for state, *_ in world.rounds(role).values())
        if not world.put_back_roles:
            assert states[AttemptState.DONE.value] == last
        assert not any(states[state.value] for state in (AttemptState.OPEN, *PENDING))
    final = world.servers[Role.SERVER_A].session.model_store.current.digest
    for result in world.seen.results.values():
        assert result.model is not None
        assert (result.ended, result.model.digest) == ("finished", final)


def no_forged_update_counts(world: World) -> None:
    for role in SERVERS:
        for names in world.charges(role).values():
            assert not {client.name for client in world.bad} & names, (
                "a forged update counted"
            )


def one_model_at_every_version(world: World) -> None:
    early = [] if world.cheaters else world.seen.early
    assert not early, f"owners heard of models {early} too early"
    for version, models in world.seen.models.items():
        # Where both servers lost a model that nobody was given, there is another one.
        one = len({digest for _, digest in models}) == 1
        assert one or len(world.put_back_roles) > 1, (
            f"different models of version {version}"
        )
    for version, given in world.seen.given.items():
        assert len(given) == 1, f"owners were given two models of version {version}"
    assert set(world.seen.models) == set(range(versions_made(world) + 1))


def one_release_of_a_version(world: World) -> None:
    """What left was persisted, never changed, and left once a version, or the ledgers count it."""
    for role in honest(world):
        attempts = world.rounds(role)
        left: Counter[int] = Counter()
        for number, share in world.seen.shares[role].items():
            if number not in attempts:
                # A database was put back, and with it an attempt was lost that nobody
                # had heard of.
                assert role in world.put_back_roles, f"attempt {number} is gone"
                assert share not in world.seen.left[role], (
                    f"attempt {number} is gone, it left"
                )
                continue
            state, version, _, kept = attempts[number]
            assert kept in (share, None), "a prepared share changed"
            if share in world.seen.left[role]:
                assert state != AttemptState.VOIDED.value, (
                    "a voided attempt's share left"
                )
                left[version] += 1
        assert set(left) <= set(range(world.task.training.rounds))
        for version, times in left.items():
            # A database was put back, and with it a share was lost that had left: both
            # operators let the version be released again, and the ledgers count it (m).
            again = f"attempts {version}" in {
                word.split(": ")[1] for word in world.seen.words
            }
            assert times == 1 or (world.put_back_roles and again), (
                f"released twice: {left}"
            )


def sums_are_those_of_the_charged(world: World) -> None:
    """Both shares of a round hold just the charged clients' updates, and each noise once."""
    a, b = (world.rounds(role) for role in SERVERS)
    charges = world.charges(Role.SERVER_A)
    noises = {
        role: {noise.tobytes(): noise for noise in world.seen.noise[role]}
        for role in SERVERS
    }
    # Who cheats may have left its own out; the other's is there all the same.
    none = np.zeros(world.task.dimension, dtype=np.int64)
    for role in world.cheaters:
        noises[role][none.tobytes()] = none
    over = set()
    for number in a.keys() & b.keys():
        states = {a[number][0], b[number][0]}
        if AttemptState.DONE.value not in states:
            continue
        assert a[number][1] == b[number][1]
        over.add(a[number][1])
        if a[number][2] is not None and b[number][2] is not None:
            assert a[number][2] == b[number][2]
        share, other = (world.seen.shares[role][number] for role in SERVERS)
        total = shares_of(world).joined(share, other)
        for name in charges.get(number, ()):
            total = total - world.seen.updates[ClientId(name), number]
        found = [
            (one, two)
            for one, of_a in noises[Role.SERVER_A].items()
            for two, of_b in noises[Role.SERVER_B].items()
            if np.array_equal(of_a + of_b, total)
        ]
        assert len(found) == 1, (
            f"round {number} isn't its charged updates and one noise of each"
        )
        # A noise that was used can't be used again.
        for role, used in zip(SERVERS, found[0], strict=True):
            if used != none.tobytes():
                del noises[role][used]
    # Where both databases were put back neither may know more of a version than its
    # charge.
    assert len(over) == versions_made(world) or len(world.put_back_roles) > 1


def ledgers_agree_and_cover_every_release(world: World) -> None:
    a, b = (world.charges(role) for role in SERVERS)
    assert a == b, "the servers' ledgers differ"
    for role in honest(world):
        rounds = world.rounds(role)
        for number, share in world.seen.shares[role].items():
            if share in world.seen.left[role]:
                assert AttemptState(rounds[number][0]) in CHARGED, (
                    f"{role.value} forgot attempt {number}"
                )
        assert (
            audit_ledger(f"sqlite:///{world.folder}/{role.value}/state.db").findings
            == ()
        )


def owners_count_no_less_than_the_servers(world: World) -> None:
    role = honest(world)[0]
    versions = {number: row[1] for number, row in world.rounds(role).items()}
    for client in set(world.clients) - world.bad:
        path = world.folder / client.name / "participations.log"
        own = OwnAccount(world.task, world.task.privacy.record_rate, None, path)
        for number, names in world.charges(role).items():
            # What nobody remembers charges whom it may have held, whether or not they
            # shared.
            forgotten = not any(number in world.seen.shares[each] for each in SERVERS)
            if client.name in names and not forgotten:
                assert own.charged(versions[number]), (
                    f"{client} doesn't know of round {number}"
                )
        # Zeros, which cover that a client isn't drawn, say nothing of its records.
        updates = world.seen.updates
        sent = {
            n
            for (name, n), update in updates.items()
            if name == client and update.any()
        }
        assert all(
            own.charged(versions[number]) for number in sent if number in versions
        )


def no_honest_owner_is_lost_without_a_fault(world: World) -> None:
    """Nor does an attempt start over without one, whatever bad clients send."""
    assert not world.seen.wasted, (
        f"attempts {world.seen.wasted} came to nothing without a fault"
    )
    for version, drawn, counted in world.seen.quiet:
        assert drawn <= counted, (
            f"version {version} lost {drawn - counted}, long after any fault"
        )


def callers_read_nothing_of_others(world: World) -> None:
    parties = [*world.clients, *world.strangers]
    for client, text in world.seen.crossed:
        others = {each.name for each in parties if each != client}
        words = set(re.findall(r"[a-z0-9-]+", text.lower()))
        assert not words & (others | TELLING), f"{client} read: {text}"


def one_sample_for_a_version(world: World) -> None:
    versions = {
        number: row[1] for number, row in world.rounds(honest(world)[0]).items()
    }
    first: dict[tuple[ClientId, int], bytes] = {}
    for (client, number), update in world.seen.updates.items():
        if client not in world.bad and number in versions and update.any():
            seen = first.setdefault((client, versions[number]), update.tobytes())
            assert seen == update.tobytes(), (
                f"{client} shared two updates for one version"
            )


def one_sample_for_a_round_number(world: World) -> None:
    for (client, number), pairs in world.seen.pairs.items():
        one = client in world.bad or len(pairs) == 1
        assert one, f"{client} sent two samples for round {number}"


def one_cohort_for_a_version(world: World) -> None:
    """However many attempts it takes: whoever can break attempts must not choose who is drawn."""
    for version, cohorts in world.seen.drawn.items():
        assert len(cohorts) == 1, f"version {version} was drawn {len(cohorts)} times"


def few_attempts_are_opened_without_the_operators(world: World) -> None:
    if world.task.validation != "crypten":
        return
    for role in SERVERS:
        for version, opened in world.seen.opened[role].items():
            words = sum(
                word.endswith(f" attempts {version}") for word in world.seen.words
            )
            # A word reaches three attempts.
            assert len(opened) <= OPENED_CAP + 3 * words, (
                f"{role.value} opened {len(opened)}"
            )


def triples_are_spent_once(world: World) -> None:
    for role in honest(world):
        assert all(times == 1 for times in world.seen.spent[role].values())


INVARIANTS = (
    *(training_reaches_its_end, one_model_at_every_version, no_forged_update_counts),
    *(one_release_of_a_version, sums_are_those_of_the_charged),
    *(ledgers_agree_and_cover_every_release, owners_count_no_less_than_the_servers),
    *(
        one_sample_for_a_version,
        one_sample_for_a_round_number,
        one_cohort_for_a_version,
    ),
    *(few_attempts_are_opened_without_the_operators, triples_are_spent_once),
    *(no_honest_owner_is_lost_without_a_fault, callers_read_nothing_of_others),
)
IF_BOTH_SERVERS_ARE_HONEST = {
    *(training_reaches_its_end, no_forged_update_counts, one_cohort_for_a_version),
    *(
        few_attempts_are_opened_without_the_operators,
        no_honest_owner_is_lost_without_a_fault,
    ),
}
