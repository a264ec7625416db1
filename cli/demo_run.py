"""Run a planned demo: start every part, follow it round by round, sum it up."""

import csv
import shutil
import signal
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from precad.cli import demo_training, forked
from precad.cli.demo import Display
from precad.cli.demo_training import Outcome, Scenario
from precad.cli.local_deployment import LocalDeployment
from precad.cli.main import json_of
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import Role
from precad.common.model import load_model
from precad.common.wire.calls import ServerStatus


def run(
    scenario: Scenario, folder: Path, display: Display, owners_s: float = 60.0
) -> tuple[Outcome, dict[str, Any]]:
    """Train in ``folder`` and return the rounds and the summary.

    Once the training is over its owners have ``owners_s`` to end. Raises PeerUnavailable, with the
    end of its log, where a part doesn't start, and PeerViolation where training stops.
    """
    started = time.monotonic()
    outcome, task = Outcome(scenario), scenario.task
    with display, ExitStack() as running:
        display.doing("making keys, and writing each party's settings and records")
        made = LocalDeployment(folder, task, scenario.data, bad=scenario.bad, popen=forked.start)
        deployment = running.enter_context(made)
        dealer = "the dealer, " if task.has_dealer else ""
        display.doing(f"{dealer}server B and server A start")
        deployment.start_servers()
        deployment.start_clients()
        evaluation = demo_training.Evaluation(scenario)
        server_a = deployment.operator(Role.SERVER_A)
        _wait_for_enrolment(deployment, display)
        display.rounds_begin()
        # While the parts wait for each other, rather than at the end.
        Thread(target=demo_training.load_plot, name="plot", daemon=True).start()
        for report in server_a.reports():
            accuracy = None
            # The training may be rounds ahead by now: then this round's point is left out.
            with suppress(PrecadError):
                accuracy = evaluation.accuracy(server_a.model(task, report.version + 1))
            display.round(outcome.add(report, accuracy))
        display.doing("the training is over: its owners fetch the model and end")
        statuses = server_a.status(), deployment.operator(Role.SERVER_B).status()
        for status in statuses:
            if status.error:
                raise PeerViolation(f"{status.role} stopped: {status.error}")
        _wait_for_owners(deployment, scenario, display, owners_s)
        # They end while this process sums up.
        deployment.tell_to_stop()
        return outcome, _sum_up(outcome, folder, display, started, statuses)


def _sum_up(
    outcome: Outcome,
    folder: Path,
    display: Display,
    started: float,
    statuses: tuple[ServerStatus, ServerStatus],
) -> dict[str, Any]:
    scenario, evaluation = outcome.scenario, demo_training.Evaluation(outcome.scenario)
    model = folder / "state" / "server-a" / "model.safetensors"
    theta = load_model(model, scenario.task).theta
    said, labels = evaluation.probabilities(theta), scenario.dataset.test_y
    np.save(folder / "predictions.npy", said.argmax(axis=1))
    # 1 − probability of the right class: a bounded loss.
    np.save(folder / "losses.npy", 1.0 - said[np.arange(len(labels)), labels])
    seconds = time.monotonic() - started
    result = demo_training.summary(outcome, statuses, evaluation.accuracy(theta), seconds)
    if scenario.task.objective is not None:
        display.doing("certifying the model against changed inputs")
        result["robustness"] = demo_training.robustness(scenario, theta, result, folder)
    shutil.copyfile(model, folder / "model.safetensors")
    rows = result["history"]
    with (folder / "history.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["round"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "summary.json").write_text(json_of(result, indent=2) + "\n", encoding="utf-8")
    demo_training.plot(outcome, folder / "training.png")
    return result


def _wait_for_owners(
    deployment: LocalDeployment, scenario: Scenario, display: Display, owners_s: float
) -> None:
    """Until the owners have ended; who takes long is stopped. The training is over by then."""
    try:
        deployment.wait(scenario.honest, owners_s)
    except PeerUnavailable:
        for client in deployment.clients:
            # Each writes to its log what it is doing.
            deployment.processes[client.name].send_signal(signal.SIGUSR1)
        display.say(
            f"some of them haven't ended within {owners_s:g} s and are stopped: this machine is "
            "busy. What was trained doesn't depend on it; their logs say what they were doing"
        )


def _wait_for_enrolment(deployment: LocalDeployment, display: Display) -> None:
    """Until owners have enrolled, or server A waits for them no more. Raises PeerUnavailable."""
    retries = Retries(deployment.task.deadlines.enrol, RetryPolicy(0.1, 1.0), counted_from_now=True)
    while True:
        deployment.check_alive()
        try:
            status = deployment.operator(Role.SERVER_A).status(timeout_s=2.0, wait=True)
        except PeerUnavailable as error:
            retries.wait(error)
            continue
        if status.phase not in ("starting", "enrolling"):
            return
        enrolled = f"{status.enrolled} of {len(deployment.clients)}"
        display.doing(f"owners load torch, try their records and enrol: {enrolled}")
        time.sleep(0.2)
