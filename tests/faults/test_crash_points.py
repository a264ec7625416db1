"""Every party dies at every step of a training, and every write to a server's disk fails.

The steps aren't a list that somebody keeps: a training without faults is played first,
and each step that a party comes to in it is one at which it dies in another.
"""

import pytest
from tests.faults.conftest import Play
from tests.faults.simulated_server import STORE_STEPS
from tests.faults.world import Fault, World

from precad.common.identifiers import Role

A, B = Role.SERVER_A.value, Role.SERVER_B.value
WARD = "ward-0"
CHUNKS = 6
WRITES = {
    f"store.{name}.{step}" for name, of in STORE_STEPS.items() for step in of.split()
}
DURABLE = ("store.", "model_store.", "account.", "pending.")
"""After these something stands on a disk that didn't before; after any other step a
death is as one before the next step."""
AT_THE_BEGINNING = {
    *(
        "call server-a",
        "call server-b",
        "store.enrolment.claim",
        "store.enrolment.freeze",
        "dial",
    )
}
AT_THE_END = {"publish TrainingDone", "notice finished"}
LINK_STEPS = "position remembered roster roster-seal set-secret dealer nonce history"
OF_A_LINK = {
    "watch",
    "dealer.join",
    "store.attempts.abandon_open",
    "store.attempts.hear",
} | {f"{way} {step}" for way in ("send", "receive") for step in LINK_STEPS.split()}
"""They come when the link begins: before the second time it has to break."""


def steps_of(world: World, party: str) -> list[str]:
    """Each step that the party came to, once; one of the comparisons' for all of them."""
    names = [
        line.partition(": ")[2]
        for line in world.seen.trace
        if line.startswith(f"{party}: ")
    ]
    found = dict.fromkeys(name for name in names if name != "starts")
    return [name for name in found if "all-reduce" not in name or name.endswith("/7")]


def lines(world: World, party: str) -> list[str]:
    found = []
    for step in steps_of(world, party):
        if step in AT_THE_BEGINNING | AT_THE_END:
            continue
        # The other server dies first, so that there is a new link.
        other = (
            f"{B if party == A else A} crash before: inbox.open, "
            if step in OF_A_LINK
            else ""
        )
        kinds = [Fault.CRASH_BEFORE]
        if step.startswith(DURABLE):
            kinds.append(Fault.CRASH_AFTER)
        if step in WRITES:
            kinds.append(Fault.DISK)
        found += [f"{other}{party} {kind.value}: {step}" for kind in kinds]
    return found


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("party", [A, B])
def test_a_server_that_dies_at_any_step_costs_nothing_that_was_promised(
    play: Play, calm: World, party: str, chunk: int
) -> None:
    orders = lines(calm, party)[chunk::CHUNKS]
    assert orders
    play(chunk, orders=orders)


def test_an_owner_that_dies_at_any_step_never_samples_again(
    play: Play, calm: World
) -> None:
    play(1, orders=lines(calm, WARD))


@pytest.mark.parametrize("party", [A, B, WARD])
def test_a_party_that_dies_while_clients_enrol_or_at_the_end(
    play: Play, calm: World, party: str
) -> None:
    steps = (AT_THE_BEGINNING | AT_THE_END) & set(steps_of(calm, party))
    assert steps
    for step in sorted(steps):
        for kind in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            play(2, rounds=1, orders=[f"{party} {kind.value}: {step}"])


def test_every_step_that_is_named_here_is_somebodys(calm: World) -> None:
    somebodys = {step for party in (A, B, WARD) for step in steps_of(calm, party)}
    assert somebodys >= AT_THE_BEGINNING | AT_THE_END
    assert somebodys >= OF_A_LINK
    assert lines(calm, WARD)


RECOVERIES = (
    # Prepared here, nothing there: both sign that it is void.
    "{b} crash before: store.attempts.prepare, {a} crash before: receive void",
    "{b} crash before: store.attempts.prepare, {a} crash before: store.attempts.void",
    "{b} crash before: store.attempts.prepare, {a} crash after: store.attempts.void",
    "{b} crash before: store.attempts.prepare, {b} crash before: store.attempts.void",
    "{b} crash before: store.attempts.prepare, {b} crash after: store.attempts.void",
    "{b} crash before: store.attempts.prepare, {b} crash after: send void",
    "{a} crash before: store.attempts.prepare, {a} crash before: store.attempts.void",
    "{a} crash before: store.attempts.prepare, {b} crash before: store.attempts.void",
    (
        "{a} crash before: store.attempts.prepare, {a} crash after:"
        " store.attempts.void, {b} crash after: store.attempts.void"
    ),
    # Done there, not here: the model, on one's own signature.
    "{b} crash before: model_store.put, {a} crash before: send transfer",
    "{b} crash before: model_store.put, {b} crash after: receive transfer",
    "{b} crash before: model_store.put, {a} crash after: send model-bytes",
    (
        "{b} crash before: model_store.put, {b} crash after:"
        " store.versions.keep_model_seal"
    ),
    "{b} crash before: model_store.put, {b} crash after: model_store.put",
    "{a} crash before: model_store.put, {a} crash before: model_store.put",
    "{a} crash before: model_store.put, {b} crash after: send transfer",
    # Prepared on both: on with the release where it stopped.
    "{a} crash after: store.attempts.countersign, {a} crash after: send noisy-share",
    "{b} crash after: receive head, {b} crash before: send noisy-share",
    "{b} crash after: store.attempts.sent, {a} crash before: store.attempts.sent",
    (
        "{a} crash after: send countersignature, {b} crash before:"
        " store.attempts.countersign"
    ),
    # All at once.
    (
        "{b} crash after: store.attempts.prepare, {a} crash after:"
        " store.attempts.prepare, {a} dealer restarts: dealer.join"
    ),
    "ward-0 crash after: submit server-b, ward-1 crash after: submit server-a",
    "ward-0 crash after: account.charge, {a} crash before: inbox.close",
)  # Deaths in the middle of mending what an earlier death broke


@pytest.mark.parametrize("first", range(0, len(RECOVERIES), 6))
def test_a_death_in_the_middle_of_recovery_is_recovered_from(
    play: Play, first: int
) -> None:
    # More versions than lines: which server is quicker is chance.
    play(
        3,
        rounds=20,
        orders=[line.format(a=A, b=B) for line in RECOVERIES[first : first + 6]],
    )


@pytest.mark.parametrize("fault", [Fault.CUT, Fault.SILENCE, Fault.DEALER, Fault.JUMP])
def test_a_link_that_breaks_or_falls_silent_at_any_message(
    play: Play, calm: World, fault: Fault
) -> None:
    """Each at every third message of either server, another third for each kind of fault."""
    third = list(Fault).index(fault) % 3
    orders = [
        f"{party} {fault.value}: {step}"
        for party in (A, B)
        for step in steps_of(calm, party)
        if step.startswith("send ") and step not in OF_A_LINK
    ][third::3]
    play(4, orders=orders)
