"""Run a planned demo: start every part, follow it round by round, sum it up."""

import shutil
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from precad.cli import demo_outcome, forked
from precad.cli.demo_display import Display
from precad.cli.demo_scenario import Scenario
from precad.cli.local_deployment import LocalDeployment
from precad.cli.options import json_of
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import Misconfiguration, PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import Role
from precad.common.model import load_model
from precad.common.wire.operator_connection import RoundReport, ServerStatus

SHUTDOWN_S = 60.0
_BEFORE_TRAINING = ("starting", "enrolling")
_LOOK_S = 0.2


def run(
    scenario: Scenario, folder: Path, display: Display, owners_s: float = SHUTDOWN_S
) -> tuple[demo_outcome.Outcome, dict[str, Any]]:
    """Train in ``folder`` and return the rounds and the summary.

    Once the training is over its owners have ``owners_s`` to end.

    Raises:
        PeerUnavailable: a part didn't start; with the end of its log.
        PeerViolation: training stopped.
    """
    started = time.monotonic()
    outcome = demo_outcome.Outcome(scenario)
    with display, ExitStack() as running:
        display.doing("making keys, and writing each party's settings and records")
        deployment = running.enter_context(
            LocalDeployment(
                folder, scenario.task, scenario.data, bad=scenario.bad, popen=forked.start
            )
        )
        dealer = "the dealer, " if scenario.task.has_dealer else ""
        display.doing(f"{dealer}server B and server A start")
        deployment.start_servers()
        deployment.start_clients()
        evaluation = demo_outcome.Evaluation(scenario)
        server_a = deployment.operator(Role.SERVER_A)
        _wait_until_serving(deployment)
        _wait_for_enrolment(deployment, display)
        display.rounds_begin()
        # While the parts wait for each other, rather than at the end.
        Thread(target=demo_outcome.load_plot, name="plot", daemon=True).start()
        for report in server_a.reports():
            accuracy = _accuracy(deployment, scenario, evaluation, report)
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
    outcome: demo_outcome.Outcome,
    folder: Path,
    display: Display,
    started: float,
    statuses: tuple[ServerStatus, ServerStatus],
) -> dict[str, Any]:
    """The summary, and all files that stay."""
    scenario, evaluation = outcome.scenario, demo_outcome.Evaluation(outcome.scenario)
    model = folder / "state" / "server-a" / "model.safetensors"
    theta = load_model(model, scenario.task).theta
    said, labels = evaluation.probabilities(theta), scenario.dataset.test_y
    np.save(folder / "predictions.npy", said.argmax(axis=1))
    # 1 − probability of the right class: a bounded loss.
    np.save(folder / "losses.npy", 1.0 - said[np.arange(len(labels)), labels])
    seconds = time.monotonic() - started
    result = demo_outcome.summary(outcome, *statuses, evaluation.accuracy(theta), seconds)
    if scenario.task.objective is not None:
        display.doing("certifying the model against changed inputs")
        result["robustness"] = demo_outcome.robustness(scenario, theta, result, folder)
    shutil.copyfile(model, folder / "model.safetensors")
    demo_outcome.write_history(folder / "history.csv", result["history"])
    (folder / "summary.json").write_text(json_of(result, indent=2) + "\n", encoding="utf-8")
    demo_outcome.plot(outcome, folder / "training.png")
    return result


def _wait_for_owners(
    deployment: LocalDeployment, scenario: Scenario, display: Display, owners_s: float
) -> None:
    """Until the owners have ended; who takes long is stopped. The training is over by then."""
    try:
        deployment.wait([client.name for client in scenario.honest], owners_s)
    except PeerUnavailable:
        for client in deployment.clients:
            # Each writes to its log what it is doing.
            deployment.processes[client.name].send_signal(signal.SIGUSR1)
        display.say(
            f"some of them haven't ended within {owners_s:g} s and are stopped: this machine is "
            "busy. What was trained doesn't depend on it; their logs say what they were doing"
        )


def refuse_full(folder: Path) -> None:
    """Where a run is to write. Raises Misconfiguration when it holds something."""
    if folder.exists() and any(folder.iterdir()):
        raise Misconfiguration(
            "--output", str(folder), "isn't empty; name another folder or remove this one"
        )


def _wait_until_serving(deployment: LocalDeployment) -> None:
    """Until server A answers; sooner if a server dies. Raises PeerUnavailable."""
    retries = Retries(deployment.task.deadlines.enrol, RetryPolicy(0.1, 1.0), counted_from_now=True)
    while True:
        deployment.check_alive()
        try:
            deployment.operator(Role.SERVER_A).status(timeout_s=2.0, wait=True)
        except PeerUnavailable as error:
            retries.wait(error)
        else:
            return


def _wait_for_enrolment(deployment: LocalDeployment, display: Display) -> None:
    """Until all owners have enrolled, or server A has stopped waiting for them."""
    owners = len(deployment.clients)
    while True:
        deployment.check_alive()
        status = deployment.operator(Role.SERVER_A).status()
        if status.phase not in _BEFORE_TRAINING:
            return
        display.doing(
            f"owners load torch, try their records and enrol: {status.enrolled} of {owners}"
        )
        time.sleep(_LOOK_S)


def _accuracy(
    deployment: LocalDeployment,
    scenario: Scenario,
    evaluation: demo_outcome.Evaluation,
    report: RoundReport,
) -> float | None:
    try:
        theta = deployment.operator(Role.SERVER_A).model(scenario.task, report.version + 1)
    except PrecadError:
        # The training is rounds ahead by now: this round's point is left out.
        return None
    return evaluation.accuracy(theta)
