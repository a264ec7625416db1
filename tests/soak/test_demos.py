"""`precad demo` as a person runs it: whole trainings, every part its own process, over TLS."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rig.demo import Demo, check_every_run, demo

import precad


def precad_says(*arguments: object) -> str:
    """What another command prints on stdout."""
    sources = str(Path(precad.__file__).parents[1])
    ended = subprocess.run(
        [sys.executable, "-m", "precad", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": sources},
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_the_default_run_trains_well_within_its_privacy(tmp_path: Path) -> None:
    run = demo(tmp_path / "run")
    check_every_run(run, rounds=60, clients=10, attackers=0)
    said = run.summary
    assert (said["dataset"], said["model"], said["dim"]) == ("digits", "logistic", 650)
    assert said["accuracy"] >= 0.90
    assert said["epsilon_exact_server"] <= 4.0
    assert math.isclose(said["epsilon_exact_server"], 3.83, abs_tol=0.01)
    assert math.isclose(said["epsilon_clt_server"], 3.51, abs_tol=0.01)
    assert (said["accepted"], said["rejected"]) == (600, {})
    # A's share of an update is a seed of 32 bytes, B's is 8·d; nothing else goes up.
    assert said["bytes"]["clients to server-a"] == 600 * 32
    # A seed for each server; B also gets the body and its salt.
    assert said["bytes"]["clients to server-b"] == 600 * (32 + 32 + 8 * 650)
    for words in ("accuracy", "ε", "held-out", "No server ever saw an update", "summary.json"):
        assert words in run.stderr
    check_what_other_commands_read(run)


def check_what_other_commands_read(run: Demo) -> None:
    """The folder of a finished run is what `certify` and `ledger` take."""
    runs = json.loads(precad_says("certify", "loss", "--runs", run.folder, "--json"))["runs"]
    assert runs["count"] == 1
    assert runs["task_digest"] == run.summary["certificate_inputs"]["task_digest"]
    cost = runs["joint_privacy_cost"][0]["epsilon"]
    assert math.isclose(cost, run.summary["epsilon_exact_server"], rel_tol=0.01)
    ledgers = [run.folder / "state" / role for role in ("server-a", "server-b")]
    for ledger in ledgers:
        shown = json.loads(precad_says("ledger", "show", ledger, "--json"))
        assert {client["participations"] for client in shown["clients"]} == {60}
        precad_says("ledger", "verify", ledger)


@pytest.mark.parametrize(
    ("dataset", "model", "attack", "reasons"),
    [
        ("digits", "logistic", "wraparound", {"norm-exceeded"}),
        ("breast-cancer", "mlp", "oversize", {"norm-exceeded"}),
        ("breast-cancer", "logistic", "garbage", {"norm-exceeded", "malformed"}),
        ("digits", "mlp", "dropout", {"absent"}),
    ],
)
def test_attackers_are_rejected_with_their_reason_and_training_goes_on(
    tmp_path: Path, dataset: str, model: str, attack: str, reasons: set[str]
) -> None:
    rounds, clients, attackers = 5, 4, 2
    run = demo(
        tmp_path / "run",
        *("--dataset", dataset, "--model", model, "--rounds", rounds, "--clients", clients),
        *("--attack", attack, "--attackers", attackers),
    )
    check_every_run(run, rounds=rounds, clients=clients, attackers=attackers)
    said = run.summary
    assert (said["dataset"], said["model"], said["attack"]) == (dataset, model, attack)
    # A dropout trains for three rounds before it vanishes; the others are bad from the first on.
    bad = attackers * (2 if attack == "dropout" else rounds)
    assert set(said["rejected"]) == reasons
    assert sum(said["rejected"].values()) == bad
    assert said["accepted"] == rounds * clients - bad
    assert f"{attackers} of them bad: {attack}" in run.stderr


def test_a_run_with_an_objective_ends_with_one_report_of_all_three_robustnesses(
    tmp_path: Path,
) -> None:
    rounds, clients = 3, 3
    run = demo(
        tmp_path / "run",
        *("--objective", "dp-gaussian", "--rounds", rounds, "--clients", clients),
    )
    check_every_run(run, rounds=rounds, clients=clients, attackers=0)
    found = run.summary["robustness"]
    assert found["objective"] == "dp-gaussian"
    assert found["epsilon_record"] == run.summary["epsilon_exact_server"]
    bounds = found["poisoning"]["bounds"]
    assert [each["records"] for each in bounds] == [1, 2, 5, 10]
    wrong = 1 - run.summary["accuracy"]
    for each in bounds:
        assert 0 <= each["lower"] <= wrong <= each["upper"] <= 1
    smoothing = found["smoothing"]
    shares = list(smoothing["certified_accuracy"].values())
    assert shares == sorted(shares, reverse=True)
    assert 0 < shares[0] <= 1
    assert (smoothing["copies"], smoothing["points"]) == (10_000, 359)
    said = (run.folder / "robustness.txt").read_text("utf-8")
    for words in ("Privacy of a record: ε", "Bad records", "Changed inputs", "dp-gaussian"):
        assert words in said
    assert (run.folder / "certificate.png").read_bytes().startswith(b"\x89PNG")
    precad_says("report", run.folder, "--out", run.folder / "report.html")
    page = (run.folder / "report.html").read_text("utf-8")
    assert f"mean radius is {smoothing['average_certified_radius']:.3f}" in page
    assert "Bad records" in page


def test_by_gates_the_same_is_rejected_and_a_malicious_server_is_accounted_for(
    tmp_path: Path,
) -> None:
    rounds, clients = 3, 3
    run = demo(
        tmp_path / "run",
        *("--dataset", "breast-cancer", "--rounds", rounds, "--clients", clients),
        *("--attack", "wraparound", "--validation", "fss"),
    )
    check_every_run(run, rounds=rounds, clients=clients, attackers=1)
    said = run.summary
    assert said["validation"] == "fss"
    assert said["rejected"] == {"norm-exceeded": rounds}
    # Everybody is drawn in every round: the cap is what was counted.
    assert said["epsilon_exact_malicious_server"] == said["epsilon_exact_server"]
    assert "one malicious server" in run.stderr
    # 39 KB of keys a submission, the row key and two names, to each server alike.
    for role in ("server-a", "server-b"):
        keys = said["bytes"][f"dealer to {role}"] / (rounds * clients)
        assert 39_056 < keys < 39_056 + 256
