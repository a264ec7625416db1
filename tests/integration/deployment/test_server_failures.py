"""A server or a dealer that isn't there, or runs another task: who waits for it stops within its
deadlines, with status 1 and words that say what, where and what to do; so do the clients."""

import re
from pathlib import Path

import pytest
from tests.integration.deployment.conftest import Deploy, Running
from tests.rig.light_client import joined, play_round, submit_zeros
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.warm import said

from precad.cli.local_deployment import LocalDeployment, free_addresses, task_to_toml
from precad.common.task import Task
from precad.common.wire.messages import TrainingPaused

SHORT = {"deadlines.peer": 1.0, "deadlines.outage": 1.0}
SERVERS = ("server-a", "server-b")


def change(deployment: LocalDeployment, party: str, key: str, value: str) -> None:
    path = deployment.folder / f"{party}.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key} =")]
    path.write_text("\n".join([*lines, f'{key} = "{value}"\n']))


def another_task_for(deployment: LocalDeployment, party: str) -> Task:
    other = Task.parse(deployment.task.model_dump() | {"name": "another"})
    (deployment.folder / "other.toml").write_text(task_to_toml(other))
    change(deployment, party, "task", "other.toml")
    return other


def why(deployment: LocalDeployment, party: str) -> str:
    """The one line with which a server said why it stopped."""
    lines = [x for x in deployment.log(party).splitlines() if "ERROR training stopped: " in x]
    assert len(lines) == 1, deployment.log(party)
    assert "Traceback" not in deployment.log(party)
    return lines[0]


def ended(deployment: LocalDeployment) -> dict[str, int]:
    return deployment.wait(SERVERS, DEADLINE_S)


def test_a_server_alone_stops_and_names_the_other(deploy: Deploy) -> None:
    deployment = deploy(SHORT)
    nobody = free_addresses(1)[0]
    change(deployment, "server-a", "server_b", nobody)
    for name in SERVERS:
        deployment.start_server(name)
    assert ended(deployment) == {"server-a": 1, "server-b": 1}
    error = why(deployment, "server-a")
    assert f"server B at {nobody} refuses connections: nothing listens on that port" in error
    assert "check that it runs, and its address" in error
    error = why(deployment, "server-b")
    assert "server A didn't connect within 1 s" in error
    assert "check that it runs and that its server_b address is this server's" in error


def test_without_a_dealer_both_servers_stop_and_name_it(deploy: Deploy) -> None:
    # Room for A's start on a busy machine: it isn't what is missing.
    deployment = deploy({**SHORT, "deadlines.outage": 10.0})
    deployment.start_server("server-b")
    until(lambda: "serves task" in deployment.log("server-b"), "server B's port")
    deployment.start_server("server-a")
    with joined(deployment) as clients:
        told = [client.ended() for client in clients]
    # Why is for operators alone.
    assert told == [TrainingPaused()] * len(told)
    assert ended(deployment) == {"server-a": 1, "server-b": 1}
    dealer = deployment.addresses["dealer"]
    # Whoever stops first names it; the other may find that one gone.
    errors = [why(deployment, name) for name in SERVERS]
    named = [error for error in errors if f"the dealer at {dealer} can't be reached" in error]
    assert named, errors
    assert all("check that it runs, its address" in error for error in named)


def test_a_dealer_that_dies_in_the_training_stops_it_with_words(deploy: Deploy) -> None:
    deployment = deploy({"deadlines.peer": 10.0, "deadlines.outage": 10.0})
    deployment.start_servers()
    with joined(deployment) as clients:
        attempt = play_round(*clients)
        clients[0].opened(after=attempt)
        deployment.processes["dealer"].kill()
        submit_zeros(clients, attempt)
        for client in clients:
            assert client.ended() == TrainingPaused()
    assert ended(deployment) == {"server-a": 1, "server-b": 1}
    error = why(deployment, "server-a")
    assert f"the dealer at {deployment.addresses['dealer']}" in error
    assert "check that it runs, its address" in error


@pytest.mark.parametrize(
    ("party", "words"), [("server-b", "task digest differs"), ("dealer", "the dealer at")]
)
def test_different_tasks_stop_the_servers_with_both_digests(
    deploy: Deploy, party: str, words: str
) -> None:
    # A mismatch is no outage: nobody waits for it to pass.
    deployment = deploy({"deadlines.peer": 2 * DEADLINE_S, "deadlines.outage": 3 * DEADLINE_S})
    other = another_task_for(deployment, party)
    deployment.start_servers()
    if party == "dealer":
        with joined(deployment):
            statuses = ended(deployment)
    else:
        statuses = ended(deployment)
    assert statuses == {"server-a": 1, "server-b": 1}
    for name in SERVERS:
        error = why(deployment, name)
        assert words in error
        assert str(deployment.task.digest) in error
        assert str(other.digest) in error
        assert "give both parties the same task file" in error
    # The dealer goes on, for whoever comes with its task.
    assert deployment.processes["dealer"].poll() is None


def test_join_says_why_it_ends_on_its_last_line(running: Running, tmp_path: Path) -> None:
    config = (running.deployment.folder / "ward-00.toml").read_text(encoding="utf-8")
    task = Task.parse(running.task.model_dump() | {"name": "another"})
    (tmp_path / "other.toml").write_text(task_to_toml(task))
    changed = running.deployment.folder / "changed.toml"
    other = f'task = "{tmp_path / "other.toml"}"'
    changed.write_text(re.sub(r"^task = .*$", other, config, flags=re.MULTILINE))
    status, printed = said(tmp_path, "join", "--config", changed)
    assert (status, "Traceback" in printed) == (1, False)
    last = printed.splitlines()[-1]
    assert last.startswith(f"precad: task digest differs: ours {task.digest}, theirs")
    assert str(running.task.digest) in last
