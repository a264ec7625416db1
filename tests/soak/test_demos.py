"""`make demo` as a person runs it: whole trainings, every part its own process, over TLS."""

import json
import os
import signal
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from examples.demo import demo_run, demo_training
from examples.demo.demo_options import DemoRequest
from examples.demo.demo_run import run as run_demo
from tests.rig.demo import check_every_run, demo
from tests.rig.stops import runs
from tests.rig.waiting import until

from precad.common.model import load_model


def test_the_default_run_trains_well_within_its_privacy(tmp_path: Path) -> None:
    run = demo(tmp_path / "run")
    check_every_run(run, rounds=60, clients=10, attackers=0)
    said = run.summary
    assert said["accuracy"] >= 0.90
    names = ("dataset", "model", "dim", "accepted", "rejected")
    assert [said[name] for name in names] == ["digits", "logistic", 650, 600, {}]
    assert said["epsilon_exact_server"] == pytest.approx(3.83, abs=0.01)
    assert said["epsilon_clt_server"] == pytest.approx(3.51, abs=0.01)


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
    who = ("--clients", clients, "--attack", attack, "--attackers", attackers)
    options = ("--dataset", dataset, "--model", model, "--rounds", rounds, *who)
    run = demo(tmp_path / "run", *options)
    check_every_run(run, rounds=rounds, clients=clients, attackers=attackers)
    said = run.summary
    assert (said["dataset"], said["model"], said["attack"]) == (dataset, model, attack)
    # A dropout trains for three rounds before it vanishes; the others are bad from the
    # first on.
    bad = attackers * (2 if attack == "dropout" else rounds)
    assert (set(said["rejected"]), sum(said["rejected"].values())) == (reasons, bad)
    assert said["accepted"] == rounds * clients - bad
    assert f"{attackers} of them bad: {attack}" in run.stderr


def test_a_run_with_an_objective_ends_with_a_report_of_three_robustnesses(
    tmp_path: Path,
) -> None:
    rounds, clients = 3, 3
    options = ("--objective", "dp-gaussian", "--rounds", rounds, "--clients", clients)
    run = demo(tmp_path / "run", *options)
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
    for words in (
        "Privacy of a record: ε",
        "Bad records",
        "Changed inputs",
        "dp-gaussian",
    ):
        assert words in said
    assert (run.folder / "certificate.png").read_bytes().startswith(b"\x89PNG")


def test_with_proofs_the_same_is_rejected_and_a_bad_server_is_accounted_for(
    tmp_path: Path,
) -> None:
    rounds, clients = 3, 3
    sizes = ("--dataset", "breast-cancer", "--rounds", rounds, "--clients", clients)
    run = demo(
        tmp_path / "run", *sizes, "--attack", "wraparound", "--validation", "proof"
    )
    check_every_run(run, rounds=rounds, clients=clients, attackers=1)
    said = run.summary
    assert (said["validation"], said["rejected"]) == (
        "proof",
        {"norm-exceeded": rounds},
    )
    # Everybody is drawn in every round: the cap is what was counted.
    assert said["epsilon_exact_malicious_server"] == said["epsilon_exact_server"]
    assert "one malicious server" in run.stderr
    assert not any("dealer" in link for link in said["bytes"])
    assert not (run.folder / "logs" / "dealer.log").exists()


def owners_of(folder: Path) -> list[int]:
    found = []
    for each in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            log = each.readlink()
            if log.parent == folder / "logs" and log.name.startswith("owner-"):
                found.append(int(each.parts[2]))
    return found


def test_a_late_owner_costs_neither_the_summary_nor_the_plot_nor_the_model(
    tmp_path: Path,
) -> None:
    """On a busy machine one took over a minute to end, and the first version failed then."""
    rounds, folder, said = 4, tmp_path / "run", StringIO()
    request = DemoRequest(clients=5, rounds=rounds, attack="wraparound", attackers=2)
    scenario = demo_training.make_scenario(request)
    # With 8 s an owner's first submission came too late beside a process of higher
    # priority.
    deadlines = scenario.task.deadlines.model_copy(update={"collect": 60.0})
    task = scenario.task.model_copy(update={"deadlines": deadlines})
    halted: list[int] = []

    class Halting(demo_run.Display):
        def round(self, row: demo_training.RoundRow) -> None:
            super().round(row)
            if not halted and row.number >= rounds - 2:
                halted.append(owners_of(folder)[0])
                os.kill(halted[0], signal.SIGSTOP)

    display = Halting(said, scenario)
    outcome, result = run_demo(
        replace(scenario, task=task), folder, display, owners_s=3.0
    )
    assert "haven't ended within 3 s and are stopped" in said.getvalue()
    assert len(outcome.rows) == result["version"] == rounds
    # It was absent from the version that it stood still in, and nobody else was.
    assert (result["honest_rejected"], set(result["rejected"])) == (
        0,
        {"norm-exceeded", "absent"},
    )
    assert json.loads((folder / "summary.json").read_text()) == result
    assert (folder / "training.png").read_bytes().startswith(b"\x89PNG")
    model = load_model(folder / "model.safetensors", task)
    assert str(model.digest) == result["model_digest_a"] == result["model_digest_b"]
    # It was killed at the very end: the system takes a moment to end it.
    until(lambda: not runs(halted[0]) and not owners_of(folder), "the late owner's end")
