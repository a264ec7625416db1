"""Thousands of seeded schedules in simulated time, and small pieces of the chaos run.

`tests/faults/test_random_schedules.py` and `test_crash_points.py` say what is played;
the first tier plays a few dozen others.
"""

from pathlib import Path

import pytest
from tests.faults.conftest import BOTH, Play, calm
from tests.faults.test_crash_points import (
    AT_THE_BEGINNING,
    OF_A_LINK,
    WARD,
    A,
    B,
    lines,
    steps_of,
)
from tests.faults.test_jumping_clocks import OFF, PARTIES
from tests.faults.test_jumping_clocks import (
    test_a_training_ends_with_every_round as ends_so,
)
from tests.faults.test_random_schedules import piece
from tests.faults.world import Fault, World
from tests.soak.chaos import besieged

PER_TEST = 50
NOT_OF_PROOFS = (
    "all-reduce",
    "alike",
    "dealer",
    "store.attempts.spend",
    "body",
    "decide",
)

__all__ = ["calm"]


@pytest.mark.parametrize("first", range(10_000, 12_000, PER_TEST))
def test_whatever_happens_the_invariants_hold(play: Play, first: int) -> None:
    restores = ((), BOTH[:1], BOTH[1:], BOTH)
    for seed in range(first, first + PER_TEST):
        validation = ("crypten", "proof")[seed % 5 == 0]
        play(seed, restores=restores[seed // 4 % 4], validation=validation)


@pytest.mark.parametrize("seed", range(100, 110))
@pytest.mark.parametrize("party", [A, B, WARD])
@pytest.mark.parametrize("validation", ["crypten", "proof"])
def test_a_party_that_dies_at_any_step_in_other_orders_of_turns(
    play: Play, calm: World, party: str, validation: str, seed: int
) -> None:
    orders = list(lines(calm, party))
    if validation == "proof":
        orders = [
            line for line in orders if not any(step in line for step in NOT_OF_PROOFS)
        ]
    for chunk in range(6):
        # Versions to spare: other seeds have other luck with which server is quicker.
        play(
            seed + 1000 * chunk,
            rounds=20,
            orders=orders[chunk::6],
            validation=validation,
        )


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "fault", [Fault.CUT, Fault.SILENCE, Fault.DEALER, Fault.DELAY, Fault.JUMP]
)
def test_every_fault_at_each_servers_step(
    play: Play, calm: World, fault: Fault, seed: int
) -> None:
    for party in (A, B):
        steps = [
            step
            for step in steps_of(calm, party)
            if step.startswith(("send", "store."))
        ]
        # What comes with a new link alone isn't in every version.
        once_alone = [step in OF_A_LINK | AT_THE_BEGINNING for step in steps]
        played = [f"{party} {fault.value}: {step}" for step in steps]
        for chunk in range(4):
            some = zip(played[chunk::4], once_alone[chunk::4], strict=True)
            play(seed, rounds=20, orders=[line for line, once in some if not once])


@pytest.mark.parametrize("off", OFF)
@pytest.mark.parametrize("party", PARTIES)
@pytest.mark.parametrize("lasts_s", [6.0, 300.0])
def test_every_jump_of_every_partys_clock(
    monkeypatch: pytest.MonkeyPatch, party: str, off: str, lasts_s: float
) -> None:
    ends_so(monkeypatch, party, off, lasts_s)


@pytest.mark.parametrize(("seed", "validation"), [(5, "crypten"), (6, "proof")])
def test_whatever_goes_wrong_the_training_ends(
    tmp_path: Path, seed: int, validation: str
) -> None:
    piece(seed, 20, tmp_path, faults=40, validation=validation)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_flood_at_the_doors_costs_nobody_a_round(tmp_path: Path, seed: int) -> None:
    found = besieged(seed, tmp_path, versions=4)
    assert found["codes"]["INVALID_ARGUMENT"] > 0
