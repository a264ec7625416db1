"""Who is drawn: cut links draw nobody anew; with `cover_uploads` traffic does not show it."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.faults.conftest import small_task
from tests.faults.invariants import checked
from tests.faults.simulated_owner import RECORDS
from tests.faults.simulated_server import SERVERS
from tests.faults.world import World

from precad.aggregator.rounds.start_attempt import cohort_of, joint_coin
from precad.aggregator.training.session import Event, RoundOpened
from precad.common.identifiers import ClientId, Role
from precad.common.roster import Enrolment, Roster
from precad.common.task import Task

VICTIM = ClientId("ward-0")
VERSIONS, CUTS_A_VERSION, RATE = 30, 3, 0.25


class Adversary(World):
    """Sees who is drawn, as an eavesdropper does, and cuts where the victim isn't."""

    def __init__(self, task: Task, folder: Path) -> None:
        super().__init__(task, folder, seed=11)
        self.cuts, self.cohorts = (
            Counter[int](),
            defaultdict[int, list[frozenset[ClientId]]](list),
        )

    def published(self, event: Event) -> None:
        if (
            not isinstance(event, RoundOpened)
            or self.turns.life.party != Role.SERVER_A.value
        ):
            return
        version = event.opened.version
        self.cohorts[version].append(event.opened.counted)
        if VICTIM not in event.opened.counted and self.cuts[version] < CUTS_A_VERSION:
            self.cuts[version] += 1
            for cable in self.cables:
                cable.cut()


def test_cutting_the_link_until_the_victim_is_drawn_draws_and_charges_nobody_anew(
    folder: Path,
) -> None:
    deadlines = {"deadlines.enrol": 5000.0, "deadlines.outage": 3000.0}
    task = small_task(VERSIONS, changes={"privacy.client_rate": RATE} | deadlines)
    world = checked(Adversary(task, folder))
    assert world.cuts.total() >= 40
    # Both coin keys decide who is drawn, and nothing else has a say: the same in every
    # attempt.
    rate = task.privacy.record_rate
    roster = Roster(
        {client: Enrolment(client, RECORDS, rate) for client in world.clients}
    )
    for version, cohorts in world.cohorts.items():
        a, b = (world.coin_key(role).opening(task.digest, version) for role in SERVERS)
        assert set(cohorts) == {
            frozenset(cohort_of(joint_coin(a, b), roster, RATE, version))
        }
    # Binomial(30, 1/4). Were the coin thrown for each of the four attempts, 1 − 0.75^4
    # = 68 % of the versions would have the victim.
    drawn = sum(VICTIM in cohorts[0] for cohorts in world.cohorts.values())
    spread = math.sqrt(VERSIONS * RATE * (1 - RATE))
    assert abs(drawn - VERSIONS * RATE) < 5 * spread
    assert drawn < VERSIONS * (1 - 0.75**4) - 2 * spread
    # And honest owners are charged once a version, whatever is cut.
    ledger = Counter(
        name for names in world.charges(Role.SERVER_A).values() for name in names
    )
    for client, result in world.seen.results.items():
        lines = (folder / client.name / "participations.log").read_text().splitlines()
        assert len(lines) == sum(
            client in cohorts[0] for cohorts in world.cohorts.values()
        )
        assert ledger[client.name] == result.counted


COVERED = small_task(
    8, changes={"privacy.client_rate": 0.5, "privacy.cover_uploads": True}
)


def test_who_is_not_drawn_uploads_zeros_of_the_same_size_and_is_not_charged(
    folder: Path,
) -> None:
    world = checked(World(COVERED, folder, seed=5))
    attempts, charges = world.rounds(Role.SERVER_A), world.charges(Role.SERVER_A)
    assert {state for state, *_ in attempts.values()} == {"done"}
    chances = [(client, attempt) for client in world.clients for attempt in attempts]
    drawn = [chance for chance in chances if chance[0].name in charges[chance[1]]]
    assert drawn == [chance for chance in chances if world.seen.updates[chance].any()]
    assert 4 < len(drawn) < len(chances) - 4
    for client, result in world.seen.results.items():
        log = (folder / client.name / "participations.log").read_text().splitlines()
        assert len(log) == result.counted == sum(who == client for who, _ in drawn)
        assert result.submitted + result.covered == len(attempts)


@pytest.mark.parametrize("seed", range(300, 304))
def test_through_faults_too_only_the_drawn_are_summed_and_charged(
    folder: Path, seed: int
) -> None:
    world = checked(World(COVERED, folder, seed, faults=6, chance=0.01))
    charges = world.charges(Role.SERVER_A)
    for (client, attempt), update in world.seen.updates.items():
        if client.name in charges.get(attempt, ()):
            # Who lost what it had drawn uploads zeros: nobody can tell, and so it is
            # charged.
            assert update.any() or client in world.seen.lost, "zeros were charged"
