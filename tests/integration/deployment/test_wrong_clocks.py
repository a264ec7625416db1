"""Real processes whose clock jumps two years for a while: they wait, say so, and go on."""

import re
import sys
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

from precad.cli.local_deployment import LocalDeployment
from precad.cli.start import WRONG_TIME

TWO_YEARS, RIGHT = timedelta(days=730), timedelta(0)
TRIES = 20


@pytest.fixture
def clock(tmp_path: Path) -> WrongClock:
    return WrongClock(tmp_path / "clock")


@pytest.fixture
def deployment(
    deploy: Deploy, clock: WrongClock, request: pytest.FixtureRequest
) -> LocalDeployment:
    """Of its parts the one that the test names has that clock."""

    def started(arguments: list[str], **options: Any) -> Any:
        part = {"a": "server-a", "b": "server-b"}.get(arguments[-3], arguments[-3])
        return (clock.popen if part == request.param else forked)(arguments, **options)

    made = deploy({"deadlines.rejoin": 5.0}, popen=started)
    made.start_servers()
    return made


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


@pytest.mark.parametrize("deployment", SAYS, indirect=True)
def test_a_part_whose_clock_jumps_ends_nobody(
    deployment: LocalDeployment, clock: WrongClock, request: pytest.FixtureRequest
) -> None:
    name = request.node.callspec.params["deployment"]
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


@pytest.mark.parametrize("deployment", ["nobody"], indirect=True)
def test_a_part_that_starts_by_a_wrong_clock_may_be_started_again(
    deployment: LocalDeployment, clock: WrongClock
) -> None:
    """An empty clock: 1970. Another status than a wrong setting's, which no unit restarts."""
    clock.set(-timedelta(days=365 * 50))
    settings = str(deployment.folder / "dealer.toml")
    command = [sys.executable, "-m", "precad", "serve", "dealer", "--config", settings]
    log = deployment.folder / "logs" / "wrong.log"
    with log.open("wb") as output:
        assert clock.popen(command, stderr=output).wait(timeout=240) == WRONG_TIME
    said = log.read_text()
    assert "not yet valid" in said
    assert "set the clock" in said
