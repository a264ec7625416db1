"""Somebody cuts the servers' link whenever its victim isn't drawn: that draws nobody anew.

On the first version 6 of 6 rounds at q = 0.25 had the victim in them. Real servers, clients, coins,
ledgers; simulated network (`world.py`).
"""

import math
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from tests.faults.conftest import small_task
from tests.faults.invariants import check
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
        super().__init__(task, folder, seed, faults=0, chance=0.0)
        self.cuts: Counter[int] = Counter()
        self.cohorts: dict[int, list[frozenset[ClientId]]] = defaultdict(list)

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
    made = Adversary(TASK, tmp_path_factory.mktemp("world"), seed=11)
    made.run()
    check(made)
    return made


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
    claims = [Enrolment(client, RECORDS, TASK.privacy.record_rate) for client in world.clients]
    roster = Roster({claim.client: claim for claim in claims})
    for version, cohorts in world.cohorts.items():
        a, b = (
            world.servers[role].session.coin_key.opening(TASK.digest, version)
            for role in (Role.SERVER_A, Role.SERVER_B)
        )
        assert cohorts[0] == set(cohort_of(joint_coin(a, b), roster, RATE, version))


def test_honest_owners_are_charged_once_a_version_whatever_is_cut(world: Adversary) -> None:
    ledger = Counter(name for names in world.charges(Role.SERVER_A).values() for name in names)
    for client, result in world.seen.results.items():
        lines = (world.folder / client.name / "participations.log").read_text().splitlines()
        versions = {version for version, cohorts in world.cohorts.items() if client in cohorts[0]}
        assert len(lines) == len(versions)
        assert ledger[client.name] == result.counted
