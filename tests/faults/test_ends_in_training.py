"""What ends in the middle of a training: a server's certificate, and owners who count."""

import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.faults import simulated_server
from tests.faults.conftest import small_task
from tests.faults.invariants import check
from tests.faults.turns import Life
from tests.faults.world import World
from tests.rig import keys

from precad.common import clock
from precad.common.identifiers import Role
from precad.common.identity.credentials import Identity
from precad.common.identity.party_certificate import Principal

ROUNDS = 15
LASTS_S, RENEWED_S = 100.0, 60.0


@pytest.mark.parametrize(
    ("role", "renewed"),
    [(Role.SERVER_A, True), (Role.SERVER_B, True), (Role.SERVER_A, False)],
)
def test_a_certificate_of_100_s_that_is_renewed_costs_no_round_and_else_it_pauses(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    folder: Path,
    role: Role,
    *,
    renewed: bool,
) -> None:
    began = datetime.now(UTC)
    server = Principal.service(role)
    own_folder = folder / "keys"
    keys.write_folder(own_folder, server, began + timedelta(seconds=LASTS_S))
    own = Identity.load(own_folder)
    deadlines = {"deadlines.work": 9.0, "deadlines.collect": 30.0}
    world = World(small_task(ROUNDS, "proof", deadlines), folder, 5)
    world.turns.limit_s = 900.0
    monkeypatch.setattr(
        clock, "wall", lambda: began + timedelta(seconds=world.turns.now)
    )
    monkeypatch.setattr(
        simulated_server,
        "identity",
        lambda who: own if who == server else keys.identity(who),
    )

    def renew() -> None:
        world.turns.sleep(RENEWED_S if renewed else 2 * LASTS_S)
        keys.write_folder(own_folder, server, began + timedelta(days=1))

    world.turns.spawn("renewal", Life("renewal"), renew)
    with caplog.at_level(logging.INFO):
        world.run()
    check(world)
    assert world.turns.now > LASTS_S + 20
    versions = Counter(version for _, version, *_ in world.rounds(role).values())
    assert sorted(versions) == list(range(ROUNDS))
    assert f"the certificate of {server} was renewed" in caplog.text
    words = f"precad keys renew DIRECTORY {role.value}"
    if renewed:
        # No attempt was lost, nobody was asked, and nobody met an expired certificate.
        assert set(versions.values()) == {1}
        assert "expired" not in caplog.text
    else:
        assert f"{server}, is expired" in caplog.text
        assert words in caplog.text
    assert world.seen.words == []


@pytest.mark.parametrize("faults", [0, 6])
def test_three_rounds_in_a_row_below_the_least_pause_both_servers_for_a_word(
    folder: Path, faults: int
) -> None:
    """Of three owners half are drawn, and the task wishes all three."""
    rounds = 14
    least = 3
    changes = {"training.least_counted": least, "privacy.client_rate": 0.5}
    task = small_task(rounds, "proof", changes)
    world = World(task, folder, 11, faults=faults, chance=0.01)
    world.turns.limit_s = 600.0
    world.run()
    check(world)
    charged = world.charges(Role.SERVER_A)
    counted = dict.fromkeys(range(rounds), 0)
    for attempt, (_, version, *_) in world.rounds(Role.SERVER_A).items():
        counted[version] = max(counted[version], len(charged.get(attempt, ())))
    paused: list[int] = []
    for version in range(3, rounds):
        before = [counted[version - back] for back in (1, 2, 3)]
        # A word holds for the version that it is about and the two after it.
        if max(before) < least and not (paused and paused[-1] > version - 3):
            paused.append(version)
    assert len(paused) >= 2
    words = [word.split(": ") for word in world.seen.words]
    assert {what for _, what in words} == {f"few {version}" for version in paused}
    assert {who for who, _ in words} == {"server-a", "server-b"}


def test_a_task_that_wishes_no_least_number_never_pauses_and_warns_of_lost_rounds(
    caplog: pytest.LogCaptureFixture, folder: Path
) -> None:
    task = small_task(8, "proof", {"privacy.client_rate": 0.05})
    world = World(task, folder, 3)
    with caplog.at_level(logging.INFO):
        world.run()
    check(world)
    assert world.seen.words == []
    lines = [each for each in caplog.records if " submissions count" in each.msg]
    assert lines
    for line in lines:
        nobody = ": 0 of " in line.getMessage()
        assert line.levelno == (logging.WARNING if nobody else logging.INFO)
    assert {line.levelno for line in lines} >= {logging.WARNING}
