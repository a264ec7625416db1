"""Real processes whose clock jumps two years for a while: they wait, say so, and go on."""

import re
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.integration.deployment.conftest import Deploy
from tests.rig.light_client import LightClient, joined, submit_zeros
from tests.rig.waiting import until
from tests.rig.warm import forked
from tests.rig.wrong_clock import WrongClock

from precad.cli.start import WRONG_TIME

TWO_YEARS, RIGHT = timedelta(days=730), timedelta(0)
TRIES = 20


@pytest.fixture
def clock(tmp_path: Path) -> WrongClock:
    return WrongClock(tmp_path / "clock")


def play(clients: list[LightClient], after: int) -> int:
    """A round in which all count: its attempt. One that a broken link ended is played again."""
    for _ in range(TRIES):
        after = submit_zeros(clients, after)
        until(partial(settled, clients, after), "its end")
        # One that began before they were back counts nobody, and is over at once.
        if all(after in client._over and client.over(after).counted for client in clients):
            return after
    raise AssertionError("no round in which all count")


def settled(clients: list[LightClient], attempt: int) -> bool:
    """Whether it is over for all of them, or another one is open."""
    return all(attempt in c._over or c.opened().attempt > attempt for c in clients)


SAYS = {
    "server-a": ("server-a", "by this machine's clock"),
    # Over the connection that is there, or where that was gone before, over none.
    "server-b": (
        "server-a",
        "refuses for now: expired: the certificate of server-a|refuse this server's certificate",
    ),
    "dealer": ("server-b", "refuses for now: expired: the certificate of server-b"),
}
"""Whose log says it, and in which words: a pattern."""


@pytest.mark.parametrize("name", SAYS)
def test_a_part_whose_clock_jumps_ends_nobody(deploy: Deploy, clock: WrongClock, name: str) -> None:
    def started(arguments: list[str], **options: Any) -> Any:
        has_it = arguments[-3] == name.removeprefix("server-")
        return (clock.popen if has_it else forked)(arguments, **options)

    deployment = deploy({"deadlines.rejoin": 5.0}, popen=started)
    deployment.start_servers()
    log, words = SAYS[name]
    with joined(deployment) as clients:
        last = play(clients, -1)
        clock.set(TWO_YEARS)
        if name == "dealer":
            # Asked when there is something to validate.
            last = submit_zeros(clients, last)
        until(lambda: re.search(words, deployment.log(log)), lambda: deployment.log_tail(log, 40))
        deployment.check_alive()
        clock.set(RIGHT)
        if name != "server-a":
            play(clients, last)
    if name == "server-a":
        # Their watches ended with its certificates; an owner's process opens another by itself.
        with joined(deployment) as clients:
            play(clients, last)
    deployment.check_alive()
    assert "training stopped" not in deployment.log("server-a") + deployment.log("server-b")


def test_a_part_that_starts_by_a_wrong_clock_may_be_started_again(
    deploy: Deploy, clock: WrongClock
) -> None:
    """An empty clock: 1970. Another status than a wrong setting's, which no unit restarts."""
    clock.set(-timedelta(days=365 * 50))
    deployment = deploy(popen=clock.popen)
    deployment.start_server("dealer")
    assert deployment.processes["dealer"].wait(timeout=240) == WRONG_TIME
    log = deployment.log("dealer")
    assert [words for words in ("not yet valid", "set the clock") if words not in log] == []
