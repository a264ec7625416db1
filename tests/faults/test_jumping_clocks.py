"""A clock that is wrong for a while, at each part: nobody ends, no round is lost, nobody is asked.

In simulated time, on the servers' and the owner's real code. Certificates are looked at by the
clock of whoever looks: at the other side of a connection, under a signature, and at one's own.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.faults.conftest import quick_folder, small_task
from tests.faults.invariants import check
from tests.faults.world import World
from tests.rig.keys import identity

from precad.aggregator.training.session import Event, RoundDone
from precad.aggregator.training.training_loop import Peers
from precad.common import clock
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role
from precad.common.identity.party_certificate import Principal
from precad.server_b import process as follow

ROUNDS = 6
PARTIES = ("server-a", "server-b", "dealer", "ward-0")
OFF = {
    "an hour behind": timedelta(hours=-1),
    "an hour ahead": timedelta(hours=1),
    "two years behind": timedelta(days=-730),
    "two years ahead": timedelta(days=730),
}


def play(
    folder: Path, monkeypatch: pytest.MonkeyPatch, party: str, off: timedelta, lasts_s: float
) -> World:
    """A training in which this party's clock jumps after the second round, and back."""
    task = small_task(ROUNDS, "crypten")
    # Longer than the jump: else servers stop, and are started again.
    task = task.model_copy(
        update={"deadlines": task.deadlines.model_copy(update={"outage": 2000.0})}
    )
    world = World(task, folder, 7, faults=0, chance=0.0)
    world.turns.limit(3000.0)
    done: list[float] = []
    looked: Counter[str] = Counter()

    def published(event: Event) -> None:
        if isinstance(event, RoundDone):
            done.append(world.turns.now)

    def clock_is_off(who: str) -> timedelta:
        since = done[2] if len(done) > 2 else None
        wrong = since is not None and since <= world.turns.now < since + lasts_s and who == party
        looked[who] += wrong
        return off if wrong else timedelta(0)

    monkeypatch.setattr(world, "published", published)
    monkeypatch.setattr(
        clock, "wall", lambda: datetime.now(UTC) + clock_is_off(world.turns.life.party)
    )
    world.clock_is_off = clock_is_off
    world.run()
    assert looked[party], "nobody looked at the clock while it was wrong"
    return world


@pytest.mark.parametrize(
    ("party", "off", "lasts_s"),
    [
        *[(party, "two years ahead", 6.0) for party in PARTIES],
        ("server-a", "an hour behind", 300.0),
        ("server-b", "two years behind", 300.0),
    ],
)
def test_a_training_ends_with_every_round(
    monkeypatch: pytest.MonkeyPatch, party: str, off: str, lasts_s: float
) -> None:
    """All jumps of each part: tests/soak/test_long_schedules.py."""
    ends_with_every_round(monkeypatch, party, off, lasts_s)


def ends_with_every_round(
    monkeypatch: pytest.MonkeyPatch, party: str, off: str, lasts_s: float
) -> None:
    with quick_folder() as folder:
        world = play(folder, monkeypatch, party, OFF[off], lasts_s)
        monkeypatch.undo()
        check(world)
        # No operator was asked, no owner ended before the end.
        assert world.seen.words == []
        assert {each.ended for each in world.seen.results.values()} == {"finished"}
        versions = Counter(version for _, version, *_ in world.rounds(Role.SERVER_A).values())
        assert sorted(versions) == list(range(ROUNDS))
        # An attempt that was open when the clock jumped may be lost; none begins by a wrong clock.
        assert max(versions.values()) <= 2, versions


def test_a_server_says_that_its_clock_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    own = identity(Principal.service(Role.SERVER_B))
    own.check_time()
    for off in ("two years behind", "two years ahead"):
        monkeypatch.setattr(clock, "wall", lambda off=off: datetime.now(UTC) + OFF[off])
        with pytest.raises(PeerUnavailable, match=r"by this machine's clock .* set the clock"):
            own.check_time()


def test_a_finished_server_does_not_ask_the_clock_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """B answers an A that comes back, for as long as it lives; its clock may be wrong then."""
    with quick_folder() as folder:
        world = World(small_task(2, "proof"), folder, 3, faults=0, chance=0.0)
        world.run()
        server, asked = world.servers[Role.SERVER_B], Counter[str]()

        def train(*_: object) -> None:
            asked["train"] += 1
            raise PeerUnavailable("its own certificate is expired")

        class Ended(Exception):
            """After so many waits."""

        def sleep(_seconds: float) -> None:
            asked["waits"] += 1
            if asked["waits"] == 3:
                raise Ended

        targets: list[Callable[[], None]] = []
        monkeypatch.setattr(follow, "train", train)
        waits = SimpleNamespace(
            sleep=sleep, start_thread=lambda _, target: targets.append(target), now=lambda: 0.0
        )
        follow.follow(dataclasses.replace(server.session, clock=waits), Peers(None, None))  # type: ignore[arg-type]
        with pytest.raises(Ended):
            targets[0]()
        assert asked == {"train": 3, "waits": 3}
