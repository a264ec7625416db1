"""A stop isn't an end, and one that can't be helped has words: of servers, dealers and
programs."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, Any

import grpc
import pytest
from examples.demo.local_processes import LocalDeployment
from tests.integration.deployment.conftest import SERVERS, Deploy, set_in
from tests.rig import leftovers, stops, tasks, warm
from tests.rig.light_client import LightClient, joined, play_round, submit_zeros
from tests.rig.task_files import task_to_toml
from tests.rig.waiting import DEADLINE_S, until
from tests.rig.wrong_clock import WrongClock

from precad.cli import forked
from precad.cli.local_deployment import free_addresses
from precad.cli.start import TRY_AGAIN
from precad.common.identifiers import Role
from precad.common.identity import credentials, mutual_tls
from precad.common.task import Task
from precad.common.wire import calls, messages
from precad.protos import precad_pb2 as pb
from precad.protos.precad_pb2_grpc import DealingStub


def test_owners_outlast_every_stop_and_a_dealer_that_may_ends_with_them(
    deploy: Deploy,
) -> None:
    changes = {"training.rounds": 12, "enrolment.clients": 3, **tasks.logistic(127)}
    deployment = deploy(changes, linger_s=2)
    date = datetime.now(UTC) + timedelta(days=300)
    for name in SERVERS:
        set_in(deployment, name, enrol_quorum=2, enrol_until=date.isoformat())
    set_in(deployment, "dealer", ends_with_training=True)
    deployment.start_servers()
    owners = tuple(client.name for client in deployment.clients)

    # Enrolment closes with its quorum, long before its date.
    deployment.start_client(deployment.clients[0])
    operator, said = deployment.operator(Role.SERVER_A), list[calls.ServerStatus]()

    def enrolling() -> bool:
        said.append(operator.status(wait=True, timeout_s=DEADLINE_S))
        return (said[-1].phase, said[-1].enrolled) == ("enrolling", 1)

    until(enrolling, "an owner", poll_s=0.1)
    assert (said[-1].least_owners, said[-1].most_owners) == (1, 2)
    assert said[-1].enrolment_left_s > 299 * 86_400
    # A server can't end the dealer alone, nor by saying it twice.
    identity = credentials.Identity.load(deployment.folder / "keys" / "server-a")
    with mutual_tls.open_channel(
        deployment.addresses["dealer"], identity, Role.DEALER
    ) as channel:
        leave, digest = DealingStub(channel).Leave, deployment.task.digest.value
        for _ in range(2):
            leave(
                pb.LeaveRequest(task_digest=digest, role="server-a"),
                wait_for_ready=True,
            )
        with pytest.raises(grpc.RpcError) as refused:
            leave(pb.LeaveRequest(task_digest=bytes(32), role="server-a"))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    deployment.start_client(deployment.clients[1])
    assert next(operator.reports()).accepted == 2

    # No file of A's may grow any more, as on a full disk: it waits for room, and goes on
    # by itself once there is some.
    server_a = deployment.processes["server-a"]
    _, hard = resource.prlimit(server_a.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server_a.pid, resource.RLIMIT_FSIZE, (1, hard))
    until(
        lambda: "trying again" in operator.status(timeout_s=DEADLINE_S).error,
        poll_s=0.1,
    )
    resource.prlimit(server_a.pid, resource.RLIMIT_FSIZE, (hard, hard))
    stood = operator.status(timeout_s=DEADLINE_S).version
    until(
        lambda: operator.status(timeout_s=DEADLINE_S).version > stood,
        lambda: deployment.log_tail("server-a", 20),
        poll_s=0.1,
    )
    assert server_a.poll() is None

    deployment.processes["server-b"].kill()
    assert deployment.wait(("server-b",), DEADLINE_S) == {"server-b": -signal.SIGKILL}
    start_again(deployment, "server-b")

    # What a person asked for is no failure: no unit is marked as failed, nobody is
    # called.
    errors = [deployment.log(name).count(" ERROR ") for name in SERVERS]
    for name in SERVERS:
        deployment.processes[name].terminate()
    assert deployment.wait(SERVERS, DEADLINE_S) == dict.fromkeys(SERVERS, 0)
    logs, told = (
        [deployment.log(name) for name in SERVERS],
        "told to stop; started again",
    )
    assert [(log.count(" ERROR "), told in log) for log in logs] == [
        (n, True) for n in errors
    ]
    start_again(deployment, *SERVERS)

    everybody = (*owners, *SERVERS, "dealer")
    assert set(deployment.wait(everybody, DEADLINE_S).values()) == {0}
    assert "server-b left" in deployment.log("dealer")
    # Both know at a next start that no owner comes for the model any more.
    assert all(
        (deployment.folder / f"state/{name}/model.fetched").exists() for name in SERVERS
    )
    # Why is for operators alone.
    words = ("finished", "disk", str(deployment.folder))
    for name in owners:
        assert [each in deployment.log(name) for each in words] == [True, False, False]


PLAYS_DEALER = """
import sys
from precad.common.identity import mutual_tls
mutual_tls.WIRE_VERSION = {version}
from precad.cli.start import main
sys.argv[1:1] = ["serve", "dealer"]
main()
"""


@pytest.mark.parametrize(
    ("version", "upgrade"),
    [(mutual_tls.WIRE_VERSION - 1, "the dealer"), (mutual_tls.WIRE_VERSION + 1, "")],
)
def test_a_dealer_of_another_wire_version_is_refused_before_any_owner_enrols(
    deploy: Deploy, version: int, upgrade: str
) -> None:
    """Both servers say who must upgrade, and stop; they don't wait for owners first."""

    def start(arguments: list[str], **options: Any) -> Any:
        popen = subprocess.Popen if "-c" in arguments else warm.forked
        return popen(arguments, **options)

    plays = ("-c", PLAYS_DEALER.format(version=version))
    deployment = deploy(instead={"dealer": plays}, popen=start)
    deployment.start_servers()
    assert deployment.wait(SERVERS, DEADLINE_S) == dict.fromkeys(SERVERS, 1)
    for name in SERVERS:
        server = Role(name).title
        says = (
            f"training stopped: the dealer at {deployment.addresses['dealer']}: {server}"
            f" speaks wire version {mutual_tls.WIRE_VERSION}, the dealer {version}:"
            f" upgrade precad at {upgrade or server}\n"
        )
        assert deployment.log(name).count(says) == 1


def start_again(deployment: LocalDeployment, *names: str) -> None:
    """Both owners are still there; once these servers are, a further version is
    made."""
    deployment.operator(Role.SERVER_A).close()
    deployment._connections.clear()
    for client in deployment.clients:
        assert deployment.processes[client.name].poll() is None, deployment.log(
            client.name
        )
    done = deployment.log("server-b").count(" submissions count")
    for name in names:
        deployment.start_server(name)
    until(
        lambda: deployment.log("server-b").count(" submissions count") > done,
        lambda: (
            deployment.log_tail("server-a", 20) + deployment.log_tail("server-b", 20)
        ),
        poll_s=0.1,
    )


PROGRAM = """
import sys, time
from pathlib import Path
from tests.conftest import small_task
from examples.demo.local_processes import LocalDeployment

with LocalDeployment(Path(sys.argv[1]), small_task(), {}) as deployment:
    deployment.start_server("dealer")
    print(deployment.processes["dealer"].pid, flush=True)
    try:
        time.sleep(600)
    except SystemExit:
        time.sleep(float(sys.argv[2]))
        raise
"""


def test_ctrl_c_ends_all_owners_of_a_command_and_no_round_goes_by_until_they_are_back(
    deploy: Deploy, tmp_path: Path
) -> None:
    """gRPC waited for ever for calls that were interrupted, and servers played all the
    rounds that were left to nobody, in seconds."""
    waits = {"deadlines.work": 0.0, "deadlines.rejoin": 120.0}
    changes = {"training.rounds": 30, **waits, **tasks.logistic(127)}
    deployment = deploy(changes, linger_s=60)
    deployment.start_servers()
    configs = [
        word
        for client in deployment.clients
        for word in ("--config", str(deployment.folder / f"{client.name}.toml"))
    ]
    command = [sys.executable, "-m", "precad", "join", *configs]
    log = tmp_path / "log"

    @contextmanager
    def joining() -> Iterator["subprocess.Popen[bytes]"]:
        with (
            log.open("wb") as output,
            subprocess.Popen(
                command, stdout=output, stderr=output, start_new_session=True
            ) as owners,
        ):
            try:
                yield owners
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(owners.pid, signal.SIGKILL)

    with joining() as owners:
        until(lambda: "version 2, " in deployment.log("server-a"), log.read_text)
        parts = leftovers.descendants(owners.pid)
        # As a terminal sends it.
        os.killpg(owners.pid, signal.SIGINT)
        assert owners.wait(DEADLINE_S) == 128 + signal.SIGINT
        assert log.read_text().count("the same command takes") == 1
        until(lambda: not any(map(stops.runs, parts)), "the end of all owners")
    with joining() as owners:
        assert owners.wait(DEADLINE_S) == 0, log.read_text()
    # A round's line may have been lost with the process.
    missed = re.findall(r"missing in (\d+) of 30 rounds", log.read_text())
    assert {int(each) for each in missed} <= {1, 2, 3}
    assert "version 29, " in deployment.log("server-a")
    assert "0 of 2 submissions" not in deployment.log("server-a")


@pytest.mark.parametrize("goes_on_s", [0, 600])
def test_a_program_that_is_told_to_end_ends_its_parts(
    tmp_path: Path, goes_on_s: float
) -> None:
    """Also where it catches the exception that comes of it, and where a part stands
    still."""
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), str(goes_on_s)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as program:
        assert program.stdout is not None
        part = int(program.stdout.readline())
        try:
            if goes_on_s:
                os.kill(part, signal.SIGSTOP)
            program.terminate()
            assert program.wait(DEADLINE_S) == 128 + signal.SIGTERM
            until(lambda: not stops.runs(part), "the dealer's end")
        finally:
            program.kill()
            if stops.runs(part):
                os.kill(part, signal.SIGKILL)


def test_a_training_is_ended_part_by_part_while_norms_are_checked(
    tmp_path: Path,
) -> None:
    recorded = json.loads(stops.RESULTS.read_text("utf-8"))["validating"]["seconds"]
    assert list(stops.play("validating", tmp_path, warm.forked)) == list(recorded)


def why(deployment: LocalDeployment, *parties: str) -> list[str]:
    """Both servers end; the one line with which each of these said why it stopped."""
    assert deployment.wait(SERVERS, DEADLINE_S) == {"server-a": 1, "server-b": 1}
    found = []
    for party in parties:
        log = deployment.log(party)
        lines = [
            line for line in log.splitlines() if "ERROR training stopped: " in line
        ]
        assert (len(lines), "Traceback" in log) == (1, False), log
        found += lines
    return found


def test_a_server_alone_stops_and_names_the_other(deploy: Deploy) -> None:
    short = {"deadlines.peer": 1.0, "deadlines.outage": 1.0}
    deployment, nobody = deploy(short), free_addresses(1)[0]
    set_in(deployment, "server-a", server_b=nobody)
    for name in SERVERS:
        deployment.start_server(name)
    of_a, of_b = why(deployment, *SERVERS)
    refuses = f"server B at {nobody} refuses connections: nothing listens on that port"
    own = "check that it runs and that its server_b address is this server's"
    for words in (refuses, "check that it runs, and its address"):
        assert words in of_a
    for words in ("server A didn't connect within 1 s", own):
        assert words in of_b


@pytest.mark.parametrize("dies", [False, True], ids=["never there", "dies"])
def test_both_servers_stop_and_name_the_missing_dealer(
    deploy: Deploy, *, dies: bool
) -> None:
    # Room for A's start on a busy machine: it isn't what is missing.
    deployment = deploy(
        {"deadlines.peer": 10.0 if dies else 1.0, "deadlines.outage": 10.0}
    )
    for name in deployment.servers if dies else reversed(SERVERS):
        deployment.start_server(name)
    with joined(deployment) as clients:
        if dies:
            attempt = play_round(*clients)
            clients[0].opened(after=attempt)
            deployment.processes["dealer"].kill()
            submit_zeros(clients, attempt)
        # Why is for operators alone.
        assert {client.ended() for client in clients} == {messages.TrainingPaused()}
    # Whoever stops first names it; the other may find that one gone.
    missing, errors = (
        f"dealer at {deployment.addresses['dealer']}",
        why(deployment, *SERVERS),
    )
    named = [error for error in errors if missing in error]
    assert named, errors
    # A call in flight may have been broken off as the dealer died.
    says = ("check that it runs", "broke the call off")
    assert all(any(words in error for words in says) for error in named), named


@pytest.mark.parametrize(
    ("party", "words"),
    [("server-b", "task digest differs"), ("dealer", "the dealer at")],
)
def test_another_task_stops_both_with_both_digests(
    deploy: Deploy, party: str, words: str
) -> None:
    # A mismatch is no outage: nobody waits for it to pass.
    deployment = deploy(
        {"deadlines.peer": 2 * DEADLINE_S, "deadlines.outage": 3 * DEADLINE_S}
    )
    other = Task.parse(deployment.task.model_dump() | {"name": "another"})
    (deployment.folder / "other.toml").write_text(task_to_toml(other))
    set_in(deployment, party, task="other.toml")
    deployment.start_servers()
    # Servers look for each other and the dealer before they wait for owners.
    errors = why(deployment, *SERVERS)
    remedy = "give both parties the same task file"
    said = (words, remedy, str(deployment.task.digest), str(other.digest))
    assert [each for each in said if not all(each in error for error in errors)] == []
    # The dealer goes on, for whoever comes with its task.
    assert deployment.processes["dealer"].poll() is None


TWO_YEARS, RIGHT = timedelta(days=730), timedelta(0)  # A jump, and back


def play(clients: list[LightClient], after: int) -> int:
    """A round in which all count: its attempt.

    One that a broken link ended is played again.
    """

    def settled() -> bool:
        """Whether it is over for all of them, or another one is open."""
        return all(after in c._over or c.opened().attempt > after for c in clients)

    for _ in range(20):
        after = submit_zeros(clients, after)
        until(settled, "its end")
        # One that began before they were back counts nobody, and is over at once.
        if all(
            after in client._over and client.over(after).counted for client in clients
        ):
            return after
    raise AssertionError("no round in which all count")


SAYS = {
    "server-a": ("server-a", "by this machine's clock"),
    # Over the connection that is there, or where that was gone before, over none.
    "server-b": (
        "server-a",
        (
            "refuses for now: expired: the certificate of server-a|refuse this server's"
            " certificate"
        ),
    ),
    "dealer": ("server-b", "refuses for now: expired: the certificate of server-b"),
}  # Whose log says it, and in which words: a pattern


@pytest.mark.parametrize("name", SAYS)
def test_a_part_whose_clock_jumps_ends_nobody(
    deploy: Deploy, tmp_path: Path, name: str
) -> None:
    clock = WrongClock(tmp_path / "clock")

    def started(
        arguments: list[str], *, stdout: IO[bytes], stderr: int, env: dict[str, str]
    ) -> forked.Process:
        has_it = arguments[-3] == name.removeprefix("server-")
        popen: Callable[..., forked.Process] = clock.popen if has_it else warm.forked
        return popen(arguments, stdout=stdout, stderr=stderr, env=env)

    # Where all watches end, nobody is there, and rounds wait for them.
    waits = {"deadlines.rejoin": 5.0, "deadlines.collect": 10.0}
    deployment = deploy(waits, popen=started)
    deployment.start_servers()
    log, words = SAYS[name]
    with joined(deployment) as clients:
        last = play(clients, -1)
        clock.set(TWO_YEARS)
        if name == "dealer":
            # Asked when there is something to validate.
            last = submit_zeros(clients, last)
        until(
            lambda: re.search(words, deployment.log(log)),
            lambda: deployment.log_tail(log, 40),
        )
        deployment.check_alive()
        clock.set(RIGHT)
        if name != "server-a":
            play(clients, last)
    if name == "server-a":
        # Their watches ended with its certificates; an owner's process opens another by
        # itself.
        with joined(deployment) as clients:
            play(clients, last)
    deployment.check_alive()
    assert "training stopped" not in deployment.log("server-a") + deployment.log(
        "server-b"
    )


def test_who_starts_by_a_wrong_clock_may_start_again(
    deploy: Deploy, tmp_path: Path
) -> None:
    """An empty clock: 1970.

    Another status than a wrong setting's, which no unit restarts.
    """
    clock = WrongClock(tmp_path / "clock")
    clock.set(-timedelta(days=365 * 50))
    deployment = deploy(popen=clock.popen)
    deployment.start_server("dealer")
    assert deployment.wait(("dealer",), DEADLINE_S) == {"dealer": TRY_AGAIN}
    log = deployment.log("dealer")
    assert [
        words for words in ("not yet valid", "set the clock") if words not in log
    ] == []
