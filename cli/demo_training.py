"""A demo's training: what is decided before, its rounds, guarantees, plot and other files."""

import math
import os
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from torch.nn.functional import cross_entropy

from precad.accounting.adversaries import RECORD_LEVEL, Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import EXACT, guarantees
from precad.certify import prediction
from precad.certify.finished_runs import CertificateInputs, Unit
from precad.certify.group_guarantees import ExactGroups
from precad.certify.inefficacy import attack_bounds
from precad.certify.intervals import ConfidenceBudget
from precad.cli.command_options import DemoRequest
from precad.cli.local_deployment import Data
from precad.client.gradients.evaluation import Applied
from precad.client.gradients.local_update import padded_work_s
from precad.client.gradients.noisy_votes import DRAWS, VoteSampling, sample_votes
from precad.client.gradients.torch_models import build, load_vector
from precad.common.errors import Misconfiguration
from precad.common.identifiers import ClientId
from precad.common.model import ModelVector
from precad.common.task import Task
from precad.common.terminal import upper
from precad.common.wire.calls import RoundReport, ServerStatus
from precad.simulation.bad_client import KINDS
from precad.simulation.datasets import DataSet, demo_task, load, shards
from precad.simulation.result import draw_training

Found: TypeAlias = dict[str, Any]
"""Plain values, for JSON."""
SHARDS_PER_CLIENT = 4
COLLECT_S = 60.0
REJOIN_S = 1.0
LEAST_WAIT_S = 0.05
ROOM = 2.0
"""Of the wait above the work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything that is decided before a process starts."""

    dataset: DataSet = field(repr=False)
    model: str
    task: Task
    data: dict[ClientId, Data] = field(repr=False)
    attack: str | None
    bad: dict[ClientId, str]

    @property
    def honest(self) -> list[str]:
        """Clients that follow the protocol, by name."""
        return [client.name for client in self.data if client not in self.bad]


def make_scenario(request: DemoRequest) -> Scenario:
    """Decide everything, or refuse. Raises Misconfiguration naming the option."""
    clients = request.clients
    bad_count = _attackers(request)
    data = load(request.dataset, request.data)
    values = demo_task(
        data,
        request.model,
        clients,
        request.rounds,
        request.client_rate,
    )
    values["validation"] = request.validation
    if request.objective is not None:
        values["objective"] = {"name": request.objective}
    deadlines = values["deadlines"] = {"collect": COLLECT_S, "rejoin": REJOIN_S}
    parts = shards(
        data.train_y,
        clients=clients,
        shards_per_client=SHARDS_PER_CLIENT,
        seed=request.seed,
    )
    most = max(parts, key=len)
    largest = data.train_x[most], data.train_y[most]
    deadlines["work"] = _wait_s(Task.parse(values), largest, clients)
    names = [
        ClientId(f"owner-{number:0{len(str(clients))}d}")
        for number in range(1, clients + 1)
    ]
    records = {
        n: (data.train_x[p], data.train_y[p]) for n, p in zip(names, parts, strict=True)
    }
    # The last ones: which clients are bad makes no difference to the protocol.
    bad = dict.fromkeys(names[clients - bad_count :], request.attack or "")
    return Scenario(
        dataset=data,
        model=request.model,
        task=Task.parse(values),
        data=records,
        attack=request.attack,
        bad=bad,
    )


def _wait_s(task: Task, data: Data, clients: int) -> float:
    """A ``deadlines.work`` that all owners keep on this machine, which they share."""
    rate = task.privacy.record_rate
    work_s = padded_work_s(
        build(task.model),
        cross_entropy,
        data,
        count=len(data[1]),
        rate=rate,
        task=task,
    )
    together_s = work_s * max(1.0, clients / (os.cpu_count() or 1))
    return min(COLLECT_S / 2, max(LEAST_WAIT_S, math.ceil(20 * ROOM * together_s) / 20))


def _attackers(request: DemoRequest) -> int:
    if request.attack is None:
        if request.attackers:
            remedy = f"say what they do: --attack {'|'.join(KINDS)}"
            raise Misconfiguration("--attackers", request.attackers, remedy)
        return 0
    if request.attack not in KINDS:
        raise Misconfiguration(
            "--attack", request.attack, f"use one of {', '.join(KINDS)}"
        )
    count = 1 if request.attackers is None else request.attackers
    if not 1 <= count < request.clients:
        remedy = f"must be at least 1 and fewer than the {request.clients} clients"
        raise Misconfiguration("--attackers", count, remedy)
    return count


RADII = (0.0, 0.125, 0.25, 0.5, 0.75)
CONFIDENCE = 0.999
COPIES = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRow:
    """One finished round, as shown and plotted."""

    number: int
    """From 1."""
    accuracy: float | None
    """On held-out data; None when the demo was too slow to fetch that round's model."""
    cohort: int
    accepted: int
    rejected: dict[str, int]
    epsilon_server: float
    epsilon_clients: float
    seconds: float = 0.0
    """From the round's opening to its model, as server A counts them."""

    def to_row(self, reasons: Iterable[str]) -> Found:
        """One flat row, with a column for each of ``reasons``."""
        return {
            "round": self.number,
            "accuracy": self.accuracy,
            "cohort": self.cohort,
            "accepted": self.accepted,
            **{reason: self.rejected.get(reason, 0) for reason in sorted(reasons)},
            "epsilon_server": self.epsilon_server,
            "epsilon_clients": self.epsilon_clients,
            "seconds": round(self.seconds, 3),
        }


@dataclass(slots=True)
class Outcome:
    """The whole run so far."""

    scenario: Scenario
    rows: list[RoundRow] = field(default_factory=list)

    @property
    def rejected(self) -> Counter[str]:
        """Submissions that didn't, by reason."""
        return sum((Counter(row.rejected) for row in self.rows), Counter[str]())

    def add(self, report: RoundReport, accuracy: float | None) -> RoundRow:
        """Take in one round's report."""
        task = self.scenario.task
        rounds = report.version + 1
        run = Run.of(task, rounds=rounds, participations=report.most_participations)
        found = guarantees(run, task.privacy.delta, RECORD_LEVEL, EXACT)
        server, clients = (each.epsilon for each in found)
        row = RoundRow(
            number=rounds,
            accuracy=accuracy,
            cohort=report.cohort,
            accepted=report.accepted,
            rejected=dict(report.rejected),
            epsilon_server=server,
            epsilon_clients=clients,
            seconds=report.seconds,
        )
        self.rows.append(row)
        return row


class HeldOutAnswers:
    """Predictions of a model on the held-out data."""

    def __init__(self, scenario: Scenario) -> None:
        self._model = Applied(
            build(scenario.task.model), scenario.task.model.parameters
        )
        self._inputs = torch.from_numpy(scenario.dataset.test_x)
        self._targets = scenario.dataset.test_y

    def probabilities(self, theta: ModelVector) -> NDArray[np.float64]:
        """``[points, classes] float64``."""
        outputs = self._model.outputs(theta, self._inputs).astype(np.float64)
        return np.asarray(softmax(outputs, axis=1))

    def accuracy(self, theta: ModelVector) -> float:
        """Share of held-out records that the model gets right."""
        return float((self.probabilities(theta).argmax(axis=1) == self._targets).mean())


def summary(
    outcome: Outcome,
    statuses: tuple[ServerStatus, ServerStatus],
    *,
    accuracy: float,
    seconds: float,
) -> Found:
    """The summary as one JSON object, from what the servers' ledgers hold."""
    (status_a, status_b), scenario, task = (
        statuses,
        outcome.scenario,
        outcome.scenario.task,
    )
    # For the client that took part most often.
    most = max(status_a.participations.values(), default=0)
    run = Run.of(task, rounds=status_a.version, participations=most)
    statements = guarantees(run, task.privacy.delta, tuple(Adversary))
    epsilon = {(s.accountant, s.adversary): s.epsilon for s in statements}
    exact = {who: epsilon[AccountantName.EXACT, who] for who in Adversary}
    level = exact[Adversary.CLIENT_LEVEL]
    # At the cap, of T participations, where the task's check allows the statement.
    capped = run.at_cap(status_a.version)
    at_cap = {}
    if capped.covers_a_malicious_server(Adversary.ONE_SERVER):
        (statement,) = guarantees(
            capped, task.privacy.delta, (Adversary.ONE_SERVER,), EXACT
        )
        at_cap["epsilon_exact_malicious_server"] = statement.epsilon
    honest = status_a.rejected_by_client.keys() & scenario.honest
    return {
        "dataset": scenario.dataset.name,
        "model": scenario.model,
        "dim": task.dimension,
        "clients": len(scenario.data),
        "attackers": len(scenario.bad),
        "attack": scenario.attack,
        "validation": task.validation,
        "version": status_a.version,
        "accuracy": accuracy,
        "epsilon_exact_server": exact[Adversary.ONE_SERVER],
        "epsilon_exact_clients": exact[Adversary.CLIENTS_ONLY],
        "epsilon_exact_client_level": level if math.isfinite(level) else None,
        **at_cap,
        "epsilon_clt_server": epsilon[AccountantName.GDP_CLT, Adversary.ONE_SERVER],
        "delta": task.privacy.delta,
        "participations": most,
        "accepted": sum(row.accepted for row in outcome.rows),
        "rejected": dict(outcome.rejected),
        "honest_rejected": sum(status_a.rejected_by_client[name] for name in honest),
        "model_digest_a": status_a.model_digest.hex(),
        "model_digest_b": status_b.model_digest.hex(),
        "seconds": round(seconds, 2),
        "history": [row.to_row(outcome.rejected) for row in outcome.rows],
        "bytes": {**status_a.bytes_by_link, **status_b.bytes_by_link},
        "guarantees": [statement.to_json() for statement in statements],
        "certificate_inputs": (
            CertificateInputs(
                task_digest=str(task.digest),
                effective_record_clip=task.effective_record_clip,
                rounds=status_a.version,
                clients=len(scenario.data),
                malicious_submission_soundness_bits=task.projections,
                proof_points=None if task.proof is None else task.proof.points,
                attempts=status_a.version * task.training.attempts,
                redrawn_coins=max(status_a.redrawn_coins, status_b.redrawn_coins),
                validation=task.validation,
                **task.privacy.model_dump(exclude={"epsilon_limit"}),
            ).model_dump()
        ),
    }


def load_plot() -> None:
    """Load what ``plot`` needs: a second."""
    import matplotlib.backends.backend_agg  # noqa: PLC0415
    import matplotlib.figure  # noqa: F401, PLC0415


def plot(outcome: Outcome, path: Path) -> None:
    """Write a PNG: accuracy above, exact ε of both adversaries and rejections below."""
    scenario = outcome.scenario
    reasons = sorted(outcome.rejected)
    bad = (
        f", {len(scenario.bad)} of them bad ({scenario.attack})" if scenario.bad else ""
    )
    owners = f"{len(scenario.data)} data owners"
    draw_training(
        path,
        [row.to_row(reasons) for row in outcome.rows],
        reasons,
        title=f"{scenario.dataset.name}, {scenario.model}: {owners}{bad}",
        epsilon_of=f"a record\n(δ = {scenario.task.privacy.delta:g})",
        updates="not counted",
    )


def robustness(
    scenario: Scenario,
    theta: ModelVector,
    result: Found,
    folder: Path,
) -> Found:
    """The report as one object, of a run with an objective and its last model, ``[d]``.

    Writes robustness.txt and certificate.png into ``folder``; ``result`` is the summary
    so far.
    """
    section = scenario.task.objective
    assert section is not None
    found: Found = {
        "objective": section.name,
        "epsilon_record": result["epsilon_exact_server"],
        "delta": result["delta"],
        "poisoning": _poisoning(result),
        "smoothing": _smoothing(scenario, theta, folder, section.noise),
    }
    found["words"] = _in_words(found)
    title = f"What {scenario.dataset.name}, {scenario.model} promises"
    (folder / "robustness.txt").write_text(
        f"{title}\n\n{found['words']}\n", encoding="utf-8"
    )
    return found


def _poisoning(result: Found) -> Found:
    """Bounds on the expected share of wrong answers by the number of bad records, for 1 − accuracy.

    One run has no expectation, so this run's own value is stated as what it is: an
    example.
    """
    inputs = CertificateInputs(**result["certificate_inputs"])
    guarantee = ExactGroups(inputs.mechanism(Unit.RECORD))
    wrong = 1.0 - result["accuracy"]
    found = [(k, attack_bounds(wrong, 1.0, guarantee, k)) for k in (1, 2, 5, 10)]
    rows = [
        {
            "records": k,
            "lower": float(b.lower),
            "upper": float(b.upper),
        }
        for k, b in found
    ]
    return {"if_expected_error_is": wrong, "bounds": rows}


def _smoothing(
    scenario: Scenario,
    theta: ModelVector,
    folder: Path,
    sigma: float,
) -> Found:
    module = build(scenario.task.model)
    data = scenario.dataset
    load_vector(module, theta)
    how = VoteSampling(
        sigma=sigma,
        selection=100,
        copies=COPIES,
        draw=secrets.randbelow(DRAWS),
    )
    votes = sample_votes(module, torch.from_numpy(data.test_x), how)
    budget = ConfidenceBudget(confidence=CONFIDENCE, classes=data.classes)
    found = prediction.certify_smoothing(votes.votes, sigma, budget, votes.selection)
    right = found.certified & (found.labels == data.test_y)
    prediction.plot_smoothing(
        folder / "certificate.png",
        found,
        right,
        known=True,
        noise=sigma,
    )
    shares = prediction.certified_accuracy(found.radius, right, RADII).tolist()
    return {
        "sigma": sigma,
        "copies": COPIES,
        "confidence": CONFIDENCE,
        "points": len(data.test_y),
        "abstained": int((~found.certified).sum()),
        "average_certified_radius": prediction.average_certified_radius(
            found.radius, right
        ),
        "certified_accuracy": dict(zip(map(str, RADII), shares, strict=True)),
    }


def _in_words(found: Found) -> str:
    poisoning = found["poisoning"]
    smoothing = found["smoothing"]
    rows = poisoning["bounds"]
    bounds = "; ".join(
        f"{r['records']} bad: {r['lower']:.1%} to {r['upper']:.1%}" for r in rows
    )
    certified = smoothing["certified_accuracy"].items()
    shares = ", ".join(f"{share:.1%} at {radius}" for radius, share in certified)
    return (
        f"Trained with {found['objective']}.\n\n- Privacy of a record: ε ="
        f" {upper(found['epsilon_record'], 3)} at δ = {found['delta']:g} against one"
        " curious server; the objective costs none of it.\n- Bad records: where the"
        f" expected error is {poisoning['if_expected_error_is']:.1%}, as in this run,"
        f" records that are added or deleted leave it within: {bounds}.\n- Changed"
        f" inputs: smoothed with σ = {smoothing['sigma']:g} ({smoothing['copies']:,}"
        f" copies, confidence {smoothing['confidence']:g} for each input), right and"
        f" certified at an ℓ2 radius: {shares}; average certified radius"
        f" {smoothing['average_certified_radius']:.3f}; {smoothing['abstained']} of"
        f" {smoothing['points']} inputs abstain."
    )
