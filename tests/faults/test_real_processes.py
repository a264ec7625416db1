"""Once on real processes, what simulated time can't show: kill -9, a cut cable, and metrics.

Both servers' and the dealer's metrics say how a training goes; they name no owner.
"""

import math
import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.faults.processes import CLIENTS, FaultyDeployment, Order, check, kill_all
from tests.rig.connections import Proxy

from precad.accounting.adversaries import Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from precad.common.identifiers import Role
from precad.common.task import Task

LINES = (
    # Charged and prepared, and nothing sent.
    "server-a after Attempts.prepare",
    # The noisy share has left; the other server has the model, this one hasn't.
    "server-b before ModelStore.put",
    # Charged by its own account, and nothing shared.
    "ward-0 after OwnAccount.charge",
    # All at once, the dealer among them.
    (
        "server-a after Attempts.countersign, server-b after Attempts.prepare, "
        "dealer before DealerRole.ask"
    ),
)


def test_killed_and_cut_off_the_training_goes_on(tmp_path: Path) -> None:
    with ExitStack() as stack:
        parts = FaultyDeployment(tmp_path)
        stack.callback(kill_all, parts)
        proxy = stack.enter_context(Proxy(parts.addresses["server-b"]))
        parts.reroute("server-a", "server-b", proxy.address)
        parts.start_all()
        for line in LINES:
            parts.strike(Order.parse(order) for order in line.split(", "))
        deaths = sum(len(line.split(", ")) for line in LINES)
        assert len(parts.restarts) == deaths
        # Packets stop arriving in the middle of a round, and nobody is told.
        parts.hold(Order("server-a", "pause-after", "PeerLink.send/held"))
        before = parts.done()
        proxy.cut()
        parts.let_go("server-a")
        for server in map(parts.operator, (Role.SERVER_A, Role.SERVER_B)):
            # `error` says that the round was given up, until both are heard from again.
            parts.wait_for(lambda: "trying again" in server.status().error)  # noqa: B023
        assert parts.done() <= before + 1
        proxy.heal()
        parts.strike(())
        assert len(parts.restarts) == deaths
        kill_all(parts)
        check(parts)


Values = dict[tuple[str, str], float]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyDeployment]:
    """For all tests here: what one leaves behind, the next one may find."""
    made = FaultyDeployment(tmp_path_factory.mktemp("metrics"))
    for name in ("dealer", "server-a", "server-b"):
        path = made.folder / f"{name}.toml"
        path.write_text(path.read_text(encoding="utf-8") + 'metrics = "127.0.0.1:0"\n')
    made.start_all()
    made.strike(())
    yield made
    kill_all(made)


def asked(deployment: FaultyDeployment, name: str) -> tuple[str, Values]:
    port = re.findall(r"metrics on port (\d+)", deployment.log(name))[-1]
    with urllib.request.urlopen(
        f"http://127.0.0.1:{port}/metrics", timeout=60
    ) as reply:
        text: str = reply.read().decode()
    families = text_string_to_metric_families(text)
    samples = [sample for family in families for sample in family.samples]
    return text, {(s.name, next(iter(s.labels.values()), "")): s.value for s in samples}


def spent(task: Task, rounds: int) -> dict[str, float]:
    run = Run.of(task, rounds=rounds, participations=rounds)
    stated = guarantees(run, task.privacy.delta, accountants=(AccountantName.EXACT,))
    return {each.adversary.value: each.epsilon for each in stated}


@pytest.mark.parametrize("name", ["server-a", "server-b"])
def test_a_scrape_counts_what_the_ledger_and_the_log_have_and_names_no_owner(
    deployment: FaultyDeployment, name: str
) -> None:
    text, seen = asked(deployment, name)
    assert "ward" not in text
    wanted = {
        ("precad_info", name): 1,
        ("precad_phase", "training"): 1,
        ("precad_owners_enrolled", ""): 2,
        ("precad_rejected_total", "norm-exceeded"): 0,
        ("precad_peers_lost", ""): 0,
    }
    assert wanted.items() <= seen.items()
    done, task = seen["precad_rounds_done", ""], deployment.task
    assert 2 <= done <= seen["precad_participations_total", ""] <= 2 * (done + 1)
    assert seen["precad_attempts", "done"] >= 2
    steps = ("collect", "validate", "release")
    assert min(seen["precad_step_seconds_total", step] for step in steps) > 0
    assert any(
        n for (metric, _), n in seen.items() if metric == "precad_link_bytes_total"
    )
    least, most = spent(task, int(done) - 1), spent(task, task.training.rounds)
    for who, so_far in spent(task, int(done) + 2).items():
        now, left = seen["precad_epsilon", who], seen["precad_epsilon_left", who]
        assert least[who] < now <= so_far
        assert now + left == pytest.approx(most[who])
    # An owner's body on B's disk alone, and never more than everybody's at once.
    assert 1 <= seen["precad_submissions_waiting_most", ""] <= CLIENTS
    bodies = seen["precad_spool_bytes_most", ""] / (8 * task.dimension)
    assert bodies == (CLIENTS if name == "server-b" else 0)


def test_the_dealer_counts_what_each_server_asks_and_neither_owners_nor_secrets(
    deployment: FaultyDeployment,
) -> None:
    (text, seen), rounds = asked(deployment, "dealer"), deployment.done()
    assert "ward" not in text
    # Digests, contexts and seeds are longer than any word here but the build's commit
    # and times.
    longer = r"^precad_(build_info|start_time_seconds|ends_timestamp_seconds).*"
    words = re.sub(longer, "", text, flags=re.MULTILINE)
    assert not re.search(r"[0-9a-f]{16}", words)
    between: dict[tuple[str, str], tuple[float, float]] = {
        ("precad_info", "dealer"): (1, 1),
        ("precad_newest_attempt", ""): (rounds - 1, math.inf),
        ("precad_cpu_seconds_total", ""): (1e-9, math.inf),
        ("precad_conversations", ""): (0, 2),
        ("precad_halves_waiting", ""): (0, CLIENTS),
        ("precad_dealing", ""): (0, CLIENTS),
    }
    for server in ("server-a", "server-b"):
        between |= {
            ("precad_joins_total", server): (1, math.inf),
            ("precad_halves_total", server): (1, math.inf),
            ("precad_link_bytes_total", f"{server} to dealer"): (1, math.inf),
            ("precad_link_bytes_total", f"dealer to {server}"): (1, math.inf),
            ("precad_violations_total", server): (0, 0),
            # Of answers that wait, a row key and a share of each.
            ("precad_answers_waiting", server): (0, 2 * CLIENTS),
        }
    assert [
        at for at, (low, high) in between.items() if not low <= seen[at] <= high
    ] == []
    # Further rounds, more of everything; a page is computed once a second at most.
    deployment.strike(())
    more = {
        "precad_halves_total": 2 * (deployment.done() - rounds - 1),
        "precad_link_bytes_total": 1,
    }
    least = {place: seen[place] + more[place[0]] for place in seen if place[0] in more}

    def counted() -> bool:
        _, later = asked(deployment, "dealer")
        return all(later[place] >= value for place, value in least.items())

    deployment.wait_for(counted)


def test_an_absent_server_shows_and_its_return_does(
    deployment: FaultyDeployment,
) -> None:
    deployment.processes["server-b"].kill()
    deployment.processes["server-b"].wait()

    def lost() -> float:
        return asked(deployment, "server-a")[1]["precad_peers_lost", ""]

    deployment.wait_for(lambda: lost() == 1)
    deployment.restart_the_dead()
    deployment.wait_for(lambda: lost() == 0)
    deployment.strike(())
    assert re.search(
        r"server-b and the dealer are back after \d+ s", deployment.log("server-a")
    )


@pytest.mark.parametrize("name", ["server-b", "dealer"])
def test_a_port_that_is_taken_is_waited_for(
    deployment: FaultyDeployment, name: str
) -> None:
    part = deployment.processes[name]
    part.kill()
    path = deployment.folder / f"{name}.toml"
    good = path.read_text(encoding="utf-8")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        path.write_text(good.replace("127.0.0.1:0", address), encoding="utf-8")
        part.wait()
        before = len(deployment.log(name))
        deployment.start(name)
        waits = f"metrics = '{address}': can't listen there"
        deployment.wait_for(lambda: waits in deployment.log(name)[before:])
        # After the line that names the build.
        (_, said) = deployment.log(name)[before:].splitlines()
    assert re.search(
        r"Address already in use.*taken, or not up yet; waiting for 60 s", said
    )
    # Once it is free the part serves, and the training goes on.
    deployment.wait_for(lambda: " on port " in deployment.log(name)[before:])
    path.write_text(good, encoding="utf-8")
    deployment.strike(())
