"""Both servers' and the dealer's metrics during a training: what they say; they name no owner."""

import re
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.faults.process_invariants import kill_all
from tests.faults.processes import CLIENTS, ENDLESS, FaultyDeployment, Forks

from precad.accounting.adversaries import Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import guarantees
from precad.common.task import Task

PARTS = ("dealer", "server-a", "server-b")
Values = dict[tuple[str, str], float]
"""By name and label."""


@pytest.fixture(scope="module")
def deployment(
    tmp_path_factory: pytest.TempPathFactory, forks: Forks
) -> Iterator[FaultyDeployment]:
    """For all tests here: what one leaves behind, the next one may find."""
    made = FaultyDeployment(tmp_path_factory.mktemp("metrics"), forks, ENDLESS)
    for name in PARTS:
        path = made.folder / f"{name}.toml"
        path.write_text(path.read_text(encoding="utf-8") + 'metrics = "127.0.0.1:0"\n')
    made.start_all()
    made.strike(())
    yield made
    kill_all(made)


def asked(deployment: FaultyDeployment, name: str) -> str:
    """What a scrape of the newest process gets."""
    port = re.findall(r"metrics on port (\d+)", deployment.log(name))[-1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as reply:
        text: str = reply.read().decode()
    return text


def values(text: str) -> Values:
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def spent(task: Task, participations: int, rounds: int | None = None) -> dict[str, float]:
    """By adversary."""
    total = participations if rounds is None else rounds
    run = Run.of(task, rounds=total, participations=participations)
    stated = guarantees(run, task.privacy.delta, accountants=(AccountantName.EXACT,))
    return {each.adversary.value: each.epsilon for each in stated}


def test_a_scrape_counts_what_the_ledger_and_the_log_have_and_names_no_owner(
    deployment: FaultyDeployment,
) -> None:
    for name in ("server-a", "server-b"):
        text = asked(deployment, name)
        assert "ward" not in text
        seen = values(text)
        assert seen["precad_info", name] == 1
        assert seen["precad_phase", "training"] == 1
        assert seen["precad_owners_enrolled", ""] == 2
        done = seen["precad_rounds_done", ""]
        assert done >= 2
        assert done <= seen["precad_participations_total", ""] <= 2 * (done + 1)
        assert seen["precad_attempts", "done"] >= 2
        assert seen["precad_rejected_total", "norm-exceeded"] == 0
        assert seen["precad_peers_lost", ""] == 0
        for step in ("collect", "validate", "release"):
            assert seen["precad_step_seconds_total", step] > 0
        assert any(n for (metric, _), n in seen.items() if metric == "precad_link_bytes_total")
        task, most = deployment.task, spent(deployment.task, deployment.task.training.rounds)
        least = spent(task, int(done) - 1)
        for who, so_far in spent(task, int(done) + 2).items():
            now, left = seen["precad_epsilon", who], seen["precad_epsilon_left", who]
            assert least[who] < now <= so_far
            assert now + left == pytest.approx(most[who])
        # An owner's body on B's disk alone, and never more than everybody's at once.
        assert 1 <= seen["precad_submissions_waiting_most", ""] <= CLIENTS
        body = 8 * task.dimension
        bodies = seen["precad_spool_bytes_most", ""] / body
        assert bodies == (CLIENTS if name == "server-b" else 0)


def test_the_dealer_counts_what_each_server_asks_and_neither_owners_nor_secrets(
    deployment: FaultyDeployment,
) -> None:
    text = asked(deployment, "dealer")
    seen, rounds = values(text), deployment.done()
    assert "ward" not in text
    # Digests, contexts and seeds are longer than any word here.
    assert not re.search(r"[0-9a-f]{16}", text)
    assert seen["precad_info", "dealer"] == 1
    for server in ("server-a", "server-b"):
        assert seen["precad_joins_total", server] >= 1
        assert seen["precad_halves_total", server] >= 2 * (rounds - 1)
        assert seen["precad_link_bytes_total", f"{server} to dealer"] > 0
        assert seen["precad_link_bytes_total", f"dealer to {server}"] > 0
        assert seen["precad_violations_total", server] == 0
    assert seen["precad_newest_attempt", ""] >= rounds - 1
    assert 0 <= seen["precad_conversations", ""] <= 2
    assert 0 <= seen["precad_halves_waiting", ""] <= CLIENTS
    assert 0 <= seen["precad_dealing", ""] <= CLIENTS
    for server in ("server-a", "server-b"):
        # A row key and a share of each.
        assert 0 <= seen["precad_answers_waiting", server] <= 2 * CLIENTS
    assert seen["precad_cpu_seconds_total", ""] > 0
    # Further rounds, more of everything; a page is computed once a second at most.
    metrics = ("precad_halves_total", "precad_link_bytes_total")
    before = {place: value for place, value in seen.items() if place[0] in metrics}

    def more() -> bool:
        later = values(asked(deployment, "dealer"))
        return all(later[place] > value for place, value in before.items())

    deployment.wait_for(more)


def test_an_absent_server_shows_and_its_return_does(deployment: FaultyDeployment) -> None:
    deployment.processes["server-b"].kill()
    deployment.processes["server-b"].wait()

    def lost() -> float:
        return values(asked(deployment, "server-a"))["precad_peers_lost", ""]

    deployment.wait_for(lambda: lost() == 1)
    deployment.restart_the_dead()
    deployment.wait_for(lambda: lost() == 0)
    deployment.strike(())
    assert re.search(r"server-b and the dealer are back after \d+ s", deployment.log("server-a"))


def test_a_port_that_is_taken_is_said_before_the_training(deployment: FaultyDeployment) -> None:
    port = re.findall(r"metrics on port (\d+)", deployment.log("server-a"))[-1]
    deployment.processes["server-b"].kill()
    path = deployment.folder / "server-b.toml"
    text = path.read_text(encoding="utf-8").replace("127.0.0.1:0", f"127.0.0.1:{port}")
    path.write_text(text)
    deployment.processes["server-b"].wait(30)
    deployment.start("server-b")
    deployment.wait_for(lambda: deployment.processes["server-b"].poll() is not None)
    assert deployment.processes["server-b"].poll() == 2
    assert "metrics = " in deployment.log("server-b")
    assert "name a free port" in deployment.log("server-b")
