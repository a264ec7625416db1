"""Somebody cuts the servers' link whenever its victim isn't drawn: that draws nobody anew."""

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.faults.conftest import small_task
from tests.faults.invariants import checked
from tests.faults.simulated_links import SERVERS
from tests.faults.simulated_owner import RECORDS
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

    def __init__(self, task: Task, folder: Path, seed: int) -> None:
        super().__init__(task, folder, seed)
        self.cuts, self.cohorts = Counter[int](), defaultdict[int, list[frozenset[ClientId]]](list)

    def published(self, event: Event) -> None:
        if not isinstance(event, RoundOpened) or self.turns.life.party != Role.SERVER_A.value:
            return
        version = event.opened.version
        self.cohorts[version].append(event.opened.counted)
        if VICTIM not in event.opened.counted and self.cuts[version] < CUTS_A_VERSION:
            self.cuts[version] += 1
            for cable in self.cables:
                cable.cut()


TASK = small_task(
    VERSIONS,
    changes={"privacy.client_rate": RATE, "deadlines.enrol": 5000.0, "deadlines.outage": 3000.0},
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Adversary:
    return checked(Adversary(TASK, tmp_path_factory.mktemp("world"), seed=11))


def test_cutting_the_link_until_the_victim_is_drawn_draws_nobody_anew(world: Adversary) -> None:
    assert world.cuts.total() >= 40
    for version, cohorts in world.cohorts.items():
        assert len(set(cohorts)) == 1, f"version {version} had several cohorts"
    drawn = sum(VICTIM in cohorts[0] for cohorts in world.cohorts.values())
    # Binomial(30, 1/4). Were the coin thrown for each of the four attempts, 1 − 0.75^4 = 68 % of
    # the versions would have the victim.
    spread = math.sqrt(VERSIONS * RATE * (1 - RATE))
    assert abs(drawn - VERSIONS * RATE) < 5 * spread
    assert drawn < VERSIONS * (1 - 0.75**4) - 2 * spread
    # And it is the one that both coin keys decide: nothing else had a say.
    rate = TASK.privacy.record_rate
    roster = Roster({client: Enrolment(client, RECORDS, rate) for client in world.clients})
    for version, cohorts in world.cohorts.items():
        a, b = (world.coin_key(role).opening(TASK.digest, version) for role in SERVERS)
        assert cohorts[0] == set(cohort_of(joint_coin(a, b), roster, RATE, version))


def test_honest_owners_are_charged_once_a_version_whatever_is_cut(world: Adversary) -> None:
    ledger = Counter(name for names in world.charges(Role.SERVER_A).values() for name in names)
    for client, result in world.seen.results.items():
        lines = (world.folder / client.name / "participations.log").read_text().splitlines()
        versions = {version for version, cohorts in world.cohorts.items() if client in cohorts[0]}
        assert len(lines) == len(versions)
        assert ledger[client.name] == result.counted
