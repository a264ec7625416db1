"""A wrong clock for a while: nobody ends, no round is lost, no operator is asked."""

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from tests.faults.conftest import quick_folder, small_task
from tests.faults.invariants import check
from tests.faults.world import World

from precad.aggregator.training.session import Event, RoundDone
from precad.aggregator.training.training_loop import Peers
from precad.common import clock
from precad.common.clock import Clock
from precad.common.errors import PeerUnavailable
from precad.common.identifiers import Role
from precad.server_b import process as follow

ROUNDS = 6
PARTIES = ("server-a", "server-b", "dealer", "ward-0")
OFF = {
    "an hour behind": timedelta(hours=-1),
    "an hour ahead": timedelta(hours=1),
    "two years behind": timedelta(days=-730),
    "two years ahead": timedelta(days=730),
}


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
    done: list[float] = []
    looked = Counter[str]()

    def published(event: Event) -> None:
        if isinstance(event, RoundDone):
            done.append(world.turns.now)

    def clock_is_off(who: str) -> timedelta:
        since = done[2] if len(done) > 2 else math.inf
        wrong = who == party and since <= world.turns.now < since + lasts_s
        looked[who] += wrong
        return OFF[off] if wrong else timedelta(0)

    def wall() -> datetime:
        return datetime.now(UTC) + clock_is_off(world.turns.life.party)

    with quick_folder() as folder:
        # An outage may last longer than the jump: else servers stop, and are started
        # again.
        world = World(
            small_task(ROUNDS, changes={"deadlines.outage": 2000.0}), folder, 7
        )
        world.turns.limit_s = 3000.0
        world.clock_is_off = clock_is_off
        monkeypatch.setattr(world, "published", published)
        monkeypatch.setattr(clock, "wall", wall)
        world.run()
        monkeypatch.undo()
        assert looked[party], "nobody looked at the clock while it was wrong"
        check(world)
        # No operator was asked, no owner ended before the end.
        assert world.seen.words == []
        assert {each.ended for each in world.seen.results.values()} == {"finished"}
        versions = Counter(
            version for _, version, *_ in world.rounds(Role.SERVER_A).values()
        )
        assert sorted(versions) == list(range(ROUNDS))
        # An attempt that was open when the clock jumped may be lost; none begins by a
        # wrong clock.
        assert max(versions.values()) <= 2, versions


def test_a_finished_server_does_not_ask_the_clock_without_end(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    """B answers an A that comes back, while it lives; its clock may be wrong then."""
    world = World(small_task(2, "proof"), folder, 3)
    world.run()

    train = Mock(side_effect=PeerUnavailable("its own certificate is expired"))
    sleep, start = Mock(side_effect=[None, None, EOFError]), Mock()
    monkeypatch.setattr(follow, "train", train)
    clock = SimpleNamespace(sleep=sleep, start_thread=start, now=lambda: 0.0)
    waits = cast("Clock", clock)
    session, nobody = (
        world.servers[Role.SERVER_B].session,
        Peers(*[cast("Any", None)] * 2),
    )
    follow.follow(replace(session, clock=waits), nobody)
    with pytest.raises(EOFError):
        start.call_args.args[1]()
    assert (train.call_count, sleep.call_count) == (3, 3)
