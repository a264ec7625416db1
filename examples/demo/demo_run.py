"""Run a planned demo: start every part, show its rounds, sum it up in plain words."""

import csv
import shutil
import signal
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TextIO

import numpy as np
from rich.console import Group

from examples.demo import demo_training
from examples.demo.demo_training import JsonObject, Outcome, RoundRow, Scenario
from examples.demo.local_processes import LocalDeployment, forked_part
from precad.common.clock import Retries, RetryPolicy, start_thread
from precad.common.errors import PeerUnavailable, PeerViolation, PrecadError
from precad.common.identifiers import Role
from precad.common.model import load_model
from precad.common.terminal import AlignedTable, Bar, json_of, plain, say, upper
from precad.common.wire.calls import ServerStatus

PLAIN_EVERY = 10
"""Where nothing can be redrawn, the first round and every tenth has a line."""
PLAIN_S = 5.0
"""Seconds between lines about one wait, where nothing can be redrawn."""
MEANINGLESS = 100.0
"""An ε above it is shown as such: e^ε is no bound on anything."""


class Display(Bar):
    """Show the progress of a run.

    On a terminal it redraws a bar, what is being done and a table of the last rounds;
    elsewhere it prints a line now and then.
    """

    def __init__(self, out: TextIO, scenario: Scenario) -> None:
        self._rounds = scenario.task.mechanism.releases
        self._last_rows: deque[RoundRow] = deque(maxlen=8)
        self._activity = ""
        self._activity_began = time.monotonic()
        self._last_line = self._activity_began
        super().__init__("round", self._rounds, out, beneath=self._beneath_bar)

    def say(self, text: str) -> None:
        """Print a line that stays, above what is redrawn."""
        say(text, out=self.console)

    def doing(self, text: str) -> None:
        """Show what is being done, with the seconds since it began.

        Texts that are alike before their colon are about one activity. Where nothing
        can be redrawn, this prints a line at its beginning and another now and then.
        """
        now = time.monotonic()
        if text.split(":", maxsplit=1)[0] != self._activity.split(":", maxsplit=1)[0]:
            self._activity_began = now
            self._last_line = now - PLAIN_S
        if self.disable and text != self._activity and now - self._last_line >= PLAIN_S:
            self._last_line = now
            self.say(text)
        self._activity = text

    def rounds_begin(self) -> None:
        """Begin to measure the time that is left.

        What the parts took to start says nothing of how long the rounds take.
        """
        self.doing("all have enrolled: the first round")
        self.reset(self.task_ids[0], note="")

    def round(self, row: RoundRow) -> None:
        """Show a finished round."""
        self._last_rows.append(row)
        self._activity_began = time.monotonic()
        next_round = min(row.number + 1, self._rounds)
        self._activity = f"round {next_round}: owners train, servers add up"
        self.at(row.number)
        if self.disable and (row.number % PLAIN_EVERY == 0 or row.number == 1):
            accepted = f"accepted {row.accepted} of {row.cohort}"
            counts = ", ".join([accepted, *_reasons(row.rejected)])
            self.say(
                f"round {row.number:>3}/{self._rounds}: accuracy"
                f" {_percent(row.accuracy)}, {counts}, ε"
                f" {upper(row.epsilon_server, 3)} (a server looks)"
                f" {upper(row.epsilon_clients, 3)} (only clients look)"
            )

    def _beneath_bar(self) -> Group:
        """Return what stands beneath the bar: the activity, and the last rounds."""
        seconds = time.monotonic() - self._activity_began
        activity = plain(f"{self._activity} ({seconds:.0f} s)", "dim")
        if not self._last_rows:
            return Group(activity)
        table = AlignedTable(
            ">round",
            ">accuracy",
            ">accepted",
            "rejected",
            ">ε server",
            ">ε clients",
        )
        # A copy: rich draws in a thread of its own.
        for row in list(self._last_rows):
            table.add(
                str(row.number),
                _percent(row.accuracy),
                f"{row.accepted}/{row.cohort}",
                ", ".join(_reasons(row.rejected)) or "–",
                f"{row.epsilon_server:.3f}",
                f"{row.epsilon_clients:.3f}",
            )
        return Group(activity, table.drawn)


def run(
    scenario: Scenario,
    folder: Path,
    display: Display,
    owners_s: float = 60.0,
) -> tuple[Outcome, JsonObject]:
    """Train in ``folder`` and return the rounds and the summary.

    Once the training is over its owners have ``owners_s`` seconds to end.

    Raises PeerUnavailable, with the end of its log, where a part doesn't start, and
    PeerViolation where training stops.
    """
    started = time.monotonic()
    outcome = Outcome(scenario)
    task = scenario.task
    with display:
        display.doing("making keys, and writing each party's settings and records")
        with LocalDeployment(
            folder,
            task,
            scenario.data,
            bad=scenario.bad,
            popen=forked_part,
        ) as deployment:
            dealer = "the dealer, " if task.has_dealer else ""
            display.doing(f"{dealer}server B and server A start")
            deployment.start_servers()
            deployment.start_clients()
            held_out = demo_training.HeldOutAnswers(scenario)
            server_a = deployment.operator(Role.SERVER_A)
            _wait_for_enrolment(deployment, display)
            display.rounds_begin()
            # While the parts wait for each other, rather than at the end.
            start_thread("plot", demo_training.load_plot)
            for report in server_a.reports():
                accuracy = None
                # The training may be rounds ahead by now: then the accuracy of this
                # round is left out.
                with suppress(PrecadError):
                    theta = server_a.model(task, report.version + 1)
                    accuracy = held_out.accuracy(theta)
                display.round(outcome.add(report, accuracy))
            display.doing("the training is over: its owners fetch the model and end")
            # On a busy machine a first connection may break off: both stay until they
            # are told to end.
            server_b = deployment.operator(Role.SERVER_B)
            status_a = server_a.status(wait=True)
            status_b = server_b.status(wait=True)
            for status in (status_a, status_b):
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
                (status_a, status_b),
            )


def _sum_up(
    outcome: Outcome,
    folder: Path,
    display: Display,
    started: float,
    statuses: tuple[ServerStatus, ServerStatus],
) -> JsonObject:
    """Return the summary of a finished run, and write its files into ``folder``.

    They are the model, its answers on the held-out data, the summary, the history of
    rounds, the plot and, where the task has an objective, what robustness it gives.
    ``started`` is when the run began, by the monotonic clock.
    """
    scenario = outcome.scenario
    held_out = demo_training.HeldOutAnswers(scenario)
    model = folder / "state" / "server-a" / "model.safetensors"
    theta = load_model(model, scenario.task).theta
    probabilities = held_out.probabilities(theta)
    labels = scenario.dataset.test_y
    np.save(folder / "predictions.npy", probabilities.argmax(axis=1))
    # 1 − probability of the right class: a bounded loss.
    losses = 1.0 - probabilities[np.arange(len(labels)), labels]
    np.save(folder / "losses.npy", losses)
    seconds = time.monotonic() - started
    summary = demo_training.summary(
        outcome, statuses, accuracy=held_out.accuracy(theta), seconds=seconds
    )
    if scenario.task.objective is not None:
        display.doing("certifying the model against changed inputs")
        summary["robustness"] = demo_training.robustness(
            scenario, theta, summary, folder
        )
    shutil.copyfile(model, folder / "model.safetensors")
    rows = summary["history"]
    columns = list(rows[0]) if rows else ["round"]
    with (folder / "history.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    text = json_of(summary, indent=2) + "\n"
    (folder / "summary.json").write_text(text, encoding="utf-8")
    demo_training.plot(outcome, folder / "training.png")
    return summary


def _wait_for_owners(
    deployment: LocalDeployment,
    scenario: Scenario,
    display: Display,
    owners_s: float,
) -> None:
    """Wait until the owners have ended, for ``owners_s`` seconds at most.

    Who takes longer is stopped later, with the deployment: the training is over.
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
    """Wait until the owners have enrolled, or server A waits for them no more.

    Raises PeerUnavailable: a server has died, or server A doesn't answer in time.
    """
    retries = Retries(
        total_s=deployment.task.deadlines.enrol,
        policy=RetryPolicy(first_s=0.1, longest_s=1.0),
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
    """Print what is about to run: who trains what, with which parameters."""
    task = scenario.task
    mechanism = task.mechanism
    dataset = scenario.dataset
    servers = "two servers and a dealer" if task.has_dealer else "two servers"
    say(
        ("precad demo", "bold"),
        f": {len(scenario.data)} data owners and {servers}, each its own process,"
        " train ",
        (scenario.model, "bold"),
        " on ",
        (dataset.name, "bold"),
        f" ({len(dataset.train_y):,} records; {task.dimension:,} parameters).\n"
        f"R = {mechanism.unit_clip:g}, C = {mechanism.owner_clip:g}, σ = "
        f"{mechanism.noise_multiplier:g} a server, p = {mechanism.unit_rate:g}, "
        f"q = {mechanism.owner_rate:g}, η = {task.training.learning_rate:g}, "
        f"T = {mechanism.releases}, δ = {task.privacy.delta:g}",
        out=out,
    )
    if scenario.bad:
        names = ", ".join(client.name for client in scenario.bad)
        say(
            f"{len(scenario.bad)} of them bad: {scenario.attack} ({names})",
            style="yellow",
            out=out,
        )


def conclude(
    out: TextIO,
    outcome: Outcome,
    summary: JsonObject,
    files: list[str],
) -> None:
    """Print in plain words what a run gave: model, guarantees, ``files``."""
    held_out = len(outcome.scenario.dataset.test_y)
    same_model = summary["model_digest_a"] == summary["model_digest_b"]
    not_counted = "none was rejected"
    if summary["rejected"]:
        reasons = ", ".join(_reasons(summary["rejected"]))
        not_counted = f"rejected or absent: {reasons}"
    say(
        ("\ndone\n", "bold"),
        "The model gets ",
        (f"{summary['accuracy']:.1%}", "bold"),
        f" of {held_out} held-out records right after {summary['version']} rounds and"
        f" {summary['seconds']:.0f} s. No server ever saw an update.\nBoth servers hold"
        " the same model: ",
        ("yes", "") if same_model else ("NO", "red"),
        f" ({summary['model_digest_a'][:16]}…).\n"
        f"{summary['accepted']} submissions counted; {not_counted}. "
        f"Honest ones rejected: {summary['honest_rejected']}.\n\n"
        f"Guaranteed, as (ε, δ = {summary['delta']:g})-differential privacy"
        " (zero-out):",
        out=out,
    )
    _guarantees(summary).show(out)
    if "robustness" in summary:
        say(f"\n{summary['robustness']['words']}\n", out=out)
    say(
        f"The paper's central-limit formula says {summary['epsilon_clt_server']:.2f}"
        " for the first line: an approximation, not a guarantee.\nThe accuracy is"
        " measured on public data; it carries no privacy guarantee of its"
        f" own.\n\nFiles: {', '.join(files)}",
        out=out,
    )


def _guarantees(summary: JsonObject) -> AlignedTable:
    """Return a table of the exact ε against each adversary."""
    table = AlignedTable("who looks", ">ε exact", "what is protected")
    table.add(
        "one curious server and any other clients",
        upper(summary["epsilon_exact_server"], 3),
        "any one record",
    )
    malicious = summary.get("epsilon_exact_malicious_server")
    if malicious is not None:
        table.add(
            "one malicious server and any other clients",
            upper(malicious, 3),
            f"any one record, at the cap of {summary['version']} rounds",
        )
    table.add(
        "other clients only",
        upper(summary["epsilon_exact_clients"], 3),
        "any one record",
    )
    epsilon = summary["epsilon_exact_client_level"]
    shown = "none"
    whole = "a whole data owner (too large to bound what a bad one can do)"
    if epsilon is not None and epsilon > MEANINGLESS:
        shown = f"over {MEANINGLESS:g}"
    elif epsilon is not None:
        shown = upper(epsilon, 3)
        whole = "a whole data owner (bounds what a bad one can do)"
    table.add("anyone who sees the models; servers honest", shown, whole)
    return table


def _reasons(rejected: Mapping[str, int]) -> list[str]:
    """Return how many submissions didn't count, reason by reason."""
    return [f"{count} {reason}" for reason, count in rejected.items()]


def _percent(share: float | None) -> str:
    """Return a share in %, or a dash where it isn't known."""
    return "–" if share is None else f"{share:.1%}"
