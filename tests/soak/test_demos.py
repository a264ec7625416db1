"""`precad demo` as a person runs it: whole trainings, every part its own process, over TLS."""

from pathlib import Path

import pytest
from tests.rig.demo import check_every_run, demo


def test_the_default_run_trains_well_within_its_privacy(tmp_path: Path) -> None:
    run = demo(tmp_path / "run")
    check_every_run(run, rounds=60, clients=10, attackers=0)
    said = run.summary
    assert said["accuracy"] >= 0.90
    expected = {
        "dataset": "digits",
        "model": "logistic",
        "dim": 650,
        "accepted": 600,
        "rejected": {},
        "epsilon_exact_server": pytest.approx(3.83, abs=0.01),
        "epsilon_clt_server": pytest.approx(3.51, abs=0.01),
    }
    assert {name: said[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("dataset", "model", "attack", "reasons"),
    [
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
    assert (set(said["rejected"]), sum(said["rejected"].values())) == (reasons, bad)
    assert said["accepted"] == rounds * clients - bad
    assert f"{attackers} of them bad: {attack}" in run.stderr


def test_a_run_with_an_objective_ends_with_a_report_of_three_robustnesses(tmp_path: Path) -> None:
    rounds, clients = 3, 3
    run = demo(
        tmp_path / "run", *("--objective", "dp-gaussian", "--rounds", rounds, "--clients", clients)
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


def test_with_proofs_the_same_is_rejected_and_a_bad_server_is_accounted_for(tmp_path: Path) -> None:
    rounds, clients = 3, 3
    run = demo(
        tmp_path / "run",
        *("--dataset", "breast-cancer", "--rounds", rounds, "--clients", clients),
        *("--attack", "wraparound", "--validation", "proof"),
    )
    check_every_run(run, rounds=rounds, clients=clients, attackers=1)
    said = run.summary
    assert (said["validation"], said["rejected"]) == ("proof", {"norm-exceeded": rounds})
    # Everybody is drawn in every round: the cap is what was counted.
    assert said["epsilon_exact_malicious_server"] == said["epsilon_exact_server"]
    assert "one malicious server" in run.stderr
    assert not any("dealer" in link for link in said["bytes"])
    assert not (run.folder / "logs" / "dealer.log").exists()
