"""Run a planned demo: start every part, show it round by round, sum it up in plain words."""

import csv
import shutil
import signal
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any, TextIO

import numpy as np
from rich.console import Group

from precad.cli import demo_training, forked
from precad.cli.demo_training import Outcome, RoundRow, Scenario
from precad.cli.local_deployment import LocalDeployment
from precad.cli.main import json_of
from precad.common.clock import Retries, RetryPolicy
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import Role
from precad.common.model import load_model
from precad.common.terminal import AlignedTable, Bar, plain, say, upper
from precad.common.wire.calls import ServerStatus

PLAIN_EVERY = 10
PLAIN_S = 5.0
"""Between lines about one wait, where nothing can be redrawn."""
MEANINGLESS = 100.0
"""An ε above it is shown as such: e^ε is no bound on anything."""


class Display(Bar):
    """Progress of a run.

    On a terminal it redraws; elsewhere it prints a line now and then.
    """

    def __init__(self, out: TextIO, scenario: Scenario) -> None:
        self._rounds = scenario.task.training.rounds
        self._recent: deque[RoundRow] = deque(maxlen=8)
        self._doing = ""
        self._since = self._said = time.monotonic()
        super().__init__("round", self._rounds, out, beneath=self._shown)

    def say(self, text: str) -> None:
        """A line that stays, above what is redrawn."""
        say(self.console, text)

    def doing(self, text: str) -> None:
        """What happens now, with the seconds since it began; elsewhere a line now and then."""
        now = time.monotonic()
        if text.split(":", maxsplit=1)[0] != self._doing.split(":")[0]:
            self._since = now
            self._said = now - PLAIN_S
        if self.disable and text != self._doing and now - self._said >= PLAIN_S:
            self._said = now
            self.say(text)
        self._doing = text

    def rounds_begin(self) -> None:
        """What the parts took to start is no measure of the time that is left."""
        self.doing("all have enrolled: the first round")
        self.count_from_now()

    def round(self, row: RoundRow) -> None:
        """Show a finished round."""
        self._recent.append(row)
        self._since = time.monotonic()
        self._doing = (
            f"round {min(row.number + 1, self._rounds)}: owners train, servers add up"
        )
        self.at(row.number)
        if self.disable and (row.number % PLAIN_EVERY == 0 or row.number == 1):
            accepted = f"accepted {row.accepted} of {row.cohort}"
            counts = ", ".join([accepted, *_reasons(row.rejected)])
            self.say(
                f"round {row.number:>3}/{self._rounds}: accuracy"
                f" {_percent(row.accuracy)}, {counts}, ε {upper(row.epsilon_server, 3)}"
                f" (a server looks) {upper(row.epsilon_clients, 3)} (only clients look)"
            )

    def _shown(self) -> Group:
        doing = plain(f"{self._doing} ({time.monotonic() - self._since:.0f} s)", "dim")
        if not self._recent:
            return Group(doing)
        table = AlignedTable(
            ">round",
            ">accuracy",
            ">accepted",
            "rejected",
            ">ε server",
            ">ε clients",
        )
        for row in list(self._recent):
            accepted = f"{row.accepted}/{row.cohort}"
            reasons = ", ".join(_reasons(row.rejected))
            epsilon = f"{row.epsilon_server:.3f}", f"{row.epsilon_clients:.3f}"
            table.add(
                str(row.number),
                _percent(row.accuracy),
                accepted,
                reasons or "–",
                *epsilon,
            )
        return Group(doing, table.drawn)


def run(
    scenario: Scenario,
    folder: Path,
    display: Display,
    owners_s: float = 60.0,
) -> tuple[Outcome, dict[str, Any]]:
    """Train in ``folder`` and return the rounds and the summary.

    Once the training is over its owners have ``owners_s`` to end. Raises
    PeerUnavailable, with the end of its log, where a part doesn't start, and
    PeerViolation where training stops.
    """
    started = time.monotonic()
    outcome = Outcome(scenario)
    task = scenario.task
    with display, ExitStack() as running:
        display.doing("making keys, and writing each party's settings and records")
        made = LocalDeployment(
            folder,
            task,
            scenario.data,
            bad=scenario.bad,
            popen=forked.start,
        )
        deployment = running.enter_context(made)
        dealer = "the dealer, " if task.has_dealer else ""
        display.doing(f"{dealer}server B and server A start")
        deployment.start_servers()
        deployment.start_clients()
        evaluation = demo_training.HeldOutAnswers(scenario)
        server_a = deployment.operator(Role.SERVER_A)
        _wait_for_enrolment(deployment, display)
        display.rounds_begin()
        # While the parts wait for each other, rather than at the end.
        Thread(
            target=demo_training.load_plot,
            name="plot",
            daemon=True,
        ).start()
        for report in server_a.reports():
            accuracy = None
            # The training may be rounds ahead by now: then this round's point is left
            # out.
            with suppress(PrecadError):
                accuracy = evaluation.accuracy(server_a.model(task, report.version + 1))
            display.round(outcome.add(report, accuracy))
        display.doing("the training is over: its owners fetch the model and end")
        # On a busy machine a first connection may break off: both stay until they are
        # told to end.
        server_b = deployment.operator(Role.SERVER_B)
        statuses = server_a.status(wait=True), server_b.status(wait=True)
        for status in statuses:
            if status.error:
                raise PeerViolation(f"{status.role} stopped: {status.error}")
        _wait_for_owners(deployment, scenario, display, owners_s)
        # They end while this process sums up.
        deployment.tell_to_stop()
        return outcome, _sum_up(
            outcome,
            folder,
            display,
            started,
            statuses,
        )


def _sum_up(
    outcome: Outcome,
    folder: Path,
    display: Display,
    started: float,
    statuses: tuple[ServerStatus, ServerStatus],
) -> dict[str, Any]:
    scenario = outcome.scenario
    evaluation = demo_training.HeldOutAnswers(outcome.scenario)
    model = folder / "state" / "server-a" / "model.safetensors"
    theta = load_model(model, scenario.task).theta
    said = evaluation.probabilities(theta)
    labels = scenario.dataset.test_y
    np.save(folder / "predictions.npy", said.argmax(axis=1))
    # 1 − probability of the right class: a bounded loss.
    np.save(folder / "losses.npy", 1.0 - said[np.arange(len(labels)), labels])
    seconds = time.monotonic() - started
    result = demo_training.summary(
        outcome, statuses, accuracy=evaluation.accuracy(theta), seconds=seconds
    )
    if scenario.task.objective is not None:
        display.doing("certifying the model against changed inputs")
        result["robustness"] = demo_training.robustness(scenario, theta, result, folder)
    shutil.copyfile(model, folder / "model.safetensors")
    rows = result["history"]
    with (folder / "history.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, list(rows[0]) if rows else ["round"], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(rows)
    (folder / "summary.json").write_text(
        json_of(result, indent=2) + "\n", encoding="utf-8"
    )
    demo_training.plot(outcome, folder / "training.png")
    return result


def _wait_for_owners(
    deployment: LocalDeployment,
    scenario: Scenario,
    display: Display,
    owners_s: float,
) -> None:
    """Until the owners have ended; who takes long is stopped.

    The training is over by then.
    """
    try:
        deployment.wait(scenario.honest, owners_s)
    except PeerUnavailable:
        for client in deployment.clients:
            # Each writes to its log what it is doing.
            deployment.processes[client.name].send_signal(signal.SIGUSR1)
        display.say(
            f"some of them haven't ended within {owners_s:g} s and are stopped: this"
            " machine is busy. What was trained doesn't depend on it; their logs say"
            " what they were doing"
        )


def _wait_for_enrolment(deployment: LocalDeployment, display: Display) -> None:
    """Until owners have enrolled, or server A waits for them no more.

    Raises PeerUnavailable.
    """
    retries = Retries(
        total_s=deployment.task.deadlines.enrol,
        policy=RetryPolicy(0.1, 1.0),
        counted_from_now=True,
    )
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


def announce(out: TextIO, scenario: Scenario) -> None:
    """What is about to run."""
    privacy = scenario.task.privacy
    data = scenario.dataset
    servers = "two servers and a dealer" if scenario.task.has_dealer else "two servers"
    say(
        out,
        ("precad demo", "bold"),
        f": {len(scenario.data)} data owners and {servers}, each its own process,"
        " train ",
        (scenario.model, "bold"),
        " on ",
        (data.name, "bold"),
        f" ({len(data.train_y):,} records; {scenario.task.dimension:,} parameters).\n"
        f"R = {privacy.record_clip:g}, C = {privacy.client_clip:g}, σ = "
        f"{privacy.noise_multiplier:g} a server, p = {privacy.record_rate:g}, "
        f"q = {privacy.client_rate:g}, η = {scenario.task.training.learning_rate:g}, "
        f"T = {scenario.task.training.rounds}, δ = {privacy.delta:g}",
    )
    if scenario.bad:
        names = ", ".join(client.name for client in scenario.bad)
        say(
            out,
            f"{len(scenario.bad)} of them bad: {scenario.attack} ({names})",
            style="yellow",
        )


def conclude(
    out: TextIO,
    outcome: Outcome,
    result: dict[str, Any],
    files: list[str],
) -> None:
    """The run in plain words."""
    equal = result["model_digest_a"] == result["model_digest_b"]
    rejected = ", ".join(_reasons(result["rejected"]))
    say(
        out,
        ("\ndone\n", "bold"),
        "The model gets ",
        (f"{result['accuracy']:.1%}", "bold"),
        f" of {len(outcome.scenario.dataset.test_y)} held-out records right after"
        f" {result['version']} rounds and {result['seconds']:.0f} s. No server ever saw"
        " an update.\nBoth servers hold the same model: ",
        ("yes", "") if equal else ("NO", "red"),
        f" ({result['model_digest_a'][:16]}…).\n"
        f"{result['accepted']} submissions counted; "
        f"{f'rejected or absent: {rejected}' if rejected else 'none was rejected'}. "
        f"Honest ones rejected: {result['honest_rejected']}.\n\n"
        f"Guaranteed, as (ε, δ = {result['delta']:g})-differential privacy (zero-out):",
    )
    _bounds(result).show(out)
    if "robustness" in result:
        say(out, f"\n{result['robustness']['words']}\n")
    say(
        out,
        f"The paper's central-limit formula says {result['epsilon_clt_server']:.2f} for"
        " the first line: an approximation, not a guarantee.\nThe accuracy is measured"
        " on public data; it carries no privacy guarantee of its own.\n\nFiles:"
        f" {', '.join(files)}",
    )


def _bounds(result: dict[str, Any]) -> AlignedTable:
    bounds = AlignedTable("who looks", ">ε exact", "what is protected")
    server = result["epsilon_exact_server"]
    clients = result["epsilon_exact_clients"]
    bounds.add(
        "one curious server and any other clients", upper(server, 3), "any one record"
    )
    malicious = result.get("epsilon_exact_malicious_server")
    if malicious is not None:
        cap = f"any one record, at the cap of {result['version']} rounds"
        bounds.add(
            "one malicious server and any other clients", upper(malicious, 3), cap
        )
    bounds.add("other clients only", upper(clients, 3), "any one record")
    level = result["epsilon_exact_client_level"]
    shown = "none"
    whole = "a whole data owner (too large to bound what a bad one can do)"
    if level is not None and level > MEANINGLESS:
        shown = f"over {MEANINGLESS:g}"
    elif level is not None:
        shown = upper(level, 3)
        whole = "a whole data owner (bounds what a bad one can do)"
    bounds.add("anyone who sees the models; servers honest", shown, whole)
    return bounds


def _reasons(rejected: Mapping[str, int]) -> list[str]:
    return [f"{n} {reason}" for reason, n in rejected.items()]


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"
