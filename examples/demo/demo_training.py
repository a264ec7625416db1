"""A demo's training: what is decided before, its rounds, summary, plot and report."""

import math
import os
import secrets
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from research.datasets import load
from scipy.special import softmax
from torch.nn.functional import cross_entropy

from examples.demo.bad_client import KINDS
from examples.demo.demo_options import DemoRequest
from examples.demo.demo_task import demo_task
from examples.demo.local_processes import Data
from examples.demo.training_watch import RoundReport
from precad.accounting.adversaries import RECORD_LEVEL, Adversary, Run
from precad.accounting.events import AccountantName
from precad.accounting.guarantees import EXACT, guarantees
from precad.certify import prediction
from precad.certify.finished_runs import CertificateInputs, Unit
from precad.certify.group_guarantees import ExactGroups
from precad.certify.inefficacy import attack_bounds
from precad.certify.intervals import ConfidenceBudget
from precad.client.gradients.evaluation import Applied
from precad.client.gradients.local_update import WORK_ROOM, padded_work_s
from precad.client.gradients.noisy_votes import DRAWS, VoteSampling, sample_votes
from precad.client.gradients.torch_models import build, load_vector
from precad.common.errors import Misconfiguration
from precad.common.frozen import frozen_kw_only_dataclass
from precad.common.identifiers import ClientId
from precad.common.model import ModelVector
from precad.common.roster import Enrolment
from precad.common.task import Task
from precad.common.terminal import upper
from precad.common.wire.calls import ServerStatus
from precad.simulation.datasets import DataSet, shards
from precad.simulation.result import draw_training

JsonObject = dict[str, Any]
"""Plain values by name, for JSON."""
SHARDS_PER_CLIENT = 4
"""Shards of records, sorted by label, that each owner gets; see ``datasets.shards``."""
COLLECT_S = 60.0
"""``deadlines.collect`` of the demo's task, in seconds."""
REJOIN_S = 1.0
"""``deadlines.rejoin`` of the demo's task, in seconds."""
LEAST_WAIT_S = 0.2
"""The smallest ``deadlines.work`` of the demo's task, in seconds."""


@frozen_kw_only_dataclass
class Scenario:
    """Everything that is decided before a process starts."""

    dataset: DataSet = field(repr=False)
    model: str
    """The architecture's name, like ``logistic``."""
    task: Task
    data: dict[ClientId, Data] = field(repr=False)
    """Each owner's records and labels."""
    attack: str | None
    bad: dict[ClientId, str]
    """Owners that attack, each with how: one of ``bad_client.KINDS``."""

    @property
    def honest(self) -> list[str]:
        """Names of the owners that follow the protocol."""
        return [client.name for client in self.data if client not in self.bad]


def make_scenario(request: DemoRequest) -> Scenario:
    """Decide everything that a demo needs: data, task, each owner's part, who is bad.

    Raises Misconfiguration: an option is wrong or doesn't fit another; it is named.
    """
    clients = request.clients
    attackers = _attackers(request)
    dataset = load(request.dataset, request.data)
    values = demo_task(
        dataset,
        request.model,
        clients,
        request.rounds,
        request.client_rate,
    )
    values["validation"] = request.validation
    if request.objective is not None:
        values["objective"] = {"name": request.objective}
    deadlines = {"collect": COLLECT_S, "rejoin": REJOIN_S}
    values["deadlines"] = deadlines
    parts = shards(
        dataset.train_y,
        clients=clients,
        shards_per_client=SHARDS_PER_CLIENT,
        seed=request.seed,
    )
    data = {}
    digits = len(str(clients))
    for number, part in enumerate(parts, start=1):
        client = ClientId(f"owner-{number:0{digits}d}")
        data[client] = (dataset.train_x[part], dataset.train_y[part])
    largest = max(parts, key=len)
    most_records = (dataset.train_x[largest], dataset.train_y[largest])
    deadlines["work"] = _wait_s(Task.parse(values), most_records, clients)
    # The last ones: which clients are bad makes no difference to the protocol.
    bad = list(data)[clients - attackers :]
    return Scenario(
        dataset=dataset,
        model=request.model,
        task=Task.parse(values),
        data=data,
        attack=request.attack,
        bad=dict.fromkeys(bad, request.attack or ""),
    )


def _wait_s(task: Task, data: Data, clients: int) -> float:
    """Return a ``deadlines.work``, in seconds, that all owners keep on this machine.

    It is measured with ``data``, the most that an owner has. The owners share this
    machine's cores; the wait is rounded up to twentieths of a second.
    """
    work_s = padded_work_s(
        build(task.model),
        cross_entropy,
        data,
        count=len(data[1]),
        rate=task.mechanism.unit_rate,
        task=task,
    )
    together_s = work_s * max(1.0, clients / (os.cpu_count() or 1))
    wait_s = math.ceil(20 * WORK_ROOM * together_s) / 20
    return min(COLLECT_S / 2, max(LEAST_WAIT_S, wait_s))


def _attackers(request: DemoRequest) -> int:
    """Return how many owners attack.

    Raises Misconfiguration: the attack isn't known or isn't said, or none or all of the
    owners would attack.
    """
    if request.attack is None:
        if request.attackers:
            raise Misconfiguration(
                "--attackers",
                request.attackers,
                f"say what they do: --attack {'|'.join(KINDS)}",
            )
        return 0
    if request.attack not in KINDS:
        raise Misconfiguration(
            "--attack", request.attack, f"use one of {', '.join(KINDS)}"
        )
    count = 1 if request.attackers is None else request.attackers
    if not 1 <= count < request.clients:
        raise Misconfiguration(
            "--attackers",
            count,
            f"must be at least 1 and fewer than the {request.clients} clients",
        )
    return count


RADII = (0.0, 0.125, 0.25, 0.5, 0.75)
"""ℓ2 distances at which the report says how many inputs are certified."""
CONFIDENCE = 0.999
"""Of the certificate of each input."""
COPIES = 10_000
"""Noisy copies of each input that count."""


@frozen_kw_only_dataclass
class RoundRow:
    """One finished round, as shown and plotted."""

    number: int
    """Its number, from 1."""
    accuracy: float | None
    """On held-out data; None when the demo was too slow to fetch that round's model."""
    cohort: int
    accepted: int
    rejected: dict[str, int]
    """Submissions that didn't count, by reason."""
    epsilon_server: float
    """Exact ε of a record so far, against one curious server and any other clients."""
    epsilon_clients: float
    """The same against other clients alone."""
    seconds: float = 0.0
    """From the round's opening to its model, as server A counts them."""

    def to_row(self, reasons: Iterable[str]) -> JsonObject:
        """Return one flat row, with a column for each of ``reasons``."""
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
    """The rounds of a run so far."""

    scenario: Scenario
    rows: list[RoundRow] = field(default_factory=list)

    @property
    def rejected(self) -> Counter[str]:
        """How many submissions didn't count, by reason."""
        return sum((Counter(row.rejected) for row in self.rows), Counter[str]())

    def add(self, report: RoundReport, accuracy: float | None) -> RoundRow:
        """Take in one round's report, and return it with what was spent until then.

        ``accuracy`` is that of the round's model on held-out data, None if unknown.
        """
        task = self.scenario.task
        rounds = report.version + 1
        run = Run.of(task, rounds=rounds, participations=report.most_participations)
        server, clients = guarantees(run, task.privacy.delta, RECORD_LEVEL, EXACT)
        row = RoundRow(
            number=rounds,
            accuracy=accuracy,
            cohort=report.cohort,
            accepted=report.accepted,
            rejected=dict(report.rejected),
            epsilon_server=server.epsilon,
            epsilon_clients=clients.epsilon,
            seconds=report.seconds,
        )
        self.rows.append(row)
        return row


class HeldOutAnswers:
    """Answers of models to the held-out data."""

    def __init__(self, scenario: Scenario) -> None:
        self._model = Applied(build(scenario.task.model), scenario.task)
        self._inputs = torch.from_numpy(scenario.dataset.test_x)
        self._targets = scenario.dataset.test_y

    def probabilities(self, theta: ModelVector) -> NDArray[np.float64]:
        """Return each class's probability, ``[points, classes] float64``."""
        outputs = self._model.outputs(theta, self._inputs).astype(np.float64)
        return np.asarray(softmax(outputs, axis=1))

    def accuracy(self, theta: ModelVector) -> float:
        """Return the share of held-out records that the model gets right."""
        answers = self.probabilities(theta).argmax(axis=1)
        return float((answers == self._targets).mean())


def summary(
    outcome: Outcome,
    statuses: tuple[ServerStatus, ServerStatus],
    *,
    accuracy: float,
    seconds: float,
) -> JsonObject:
    """Return the summary of a run as one JSON object, from what the servers counted.

    ``statuses`` are server A's and server B's, ``accuracy`` that of the last model on
    held-out data, ``seconds`` what the run took.
    """
    status_a, status_b = statuses
    scenario = outcome.scenario
    task = scenario.task
    mechanism = task.mechanism
    version = status_a.version
    # For the client that took part most often.
    most = max(status_a.participations.values(), default=0)
    run = Run.of(task, rounds=version, participations=most)
    statements = guarantees(run, task.privacy.delta, tuple(Adversary))
    epsilon = {(s.accountant, s.adversary): s.epsilon for s in statements}
    client_level = epsilon[AccountantName.EXACT, Adversary.CLIENT_LEVEL]
    # At the cap, of all planned rounds: what is broken off at a round that its models
    # chose isn't held by those so far.
    capped = Run.of(task).at_cap(task.mechanism.releases)
    at_cap = {}
    if capped.covers_a_malicious_server(Adversary.ONE_SERVER):
        (statement,) = guarantees(
            capped, task.privacy.delta, (Adversary.ONE_SERVER,), EXACT
        )
        at_cap["epsilon_exact_malicious_server"] = statement.epsilon
    honest = status_a.rejected_by_client.keys() & scenario.honest
    claims = [
        Enrolment(client, len(labels), mechanism.unit_rate)
        for client, (_, labels) in scenario.data.items()
    ]
    certificate_inputs = CertificateInputs(
        task_digest=str(task.digest),
        effective_record_clip=mechanism.sensitivity,
        rounds=version,
        clients=len(scenario.data),
        protects=mechanism.unit,
        planned_units=mechanism.planned_units,
        owners_per_unit=mechanism.owners_per_unit,
        malicious_submission_soundness_bits=task.projections,
        proof_points=None if task.proof is None else task.proof.points,
        attempts=version * mechanism.attempts,
        redrawn_coins=max(status_a.redrawn_coins, status_b.redrawn_coins),
        validation=task.validation,
        owner_bounds=list(mechanism.owner_bounds(claims)),
        owner_records=[claim.records for claim in claims],
        record_clip=mechanism.unit_clip,
        client_clip=mechanism.owner_clip,
        record_rate=mechanism.unit_rate,
        client_rate=mechanism.owner_rate,
        noise_multiplier=mechanism.noise_multiplier,
        cover_uploads=mechanism.hides_coin,
        delta=task.privacy.delta,
    )
    return {
        "dataset": scenario.dataset.name,
        "model": scenario.model,
        "dim": task.dimension,
        "clients": len(scenario.data),
        "attackers": len(scenario.bad),
        "attack": scenario.attack,
        "validation": task.validation,
        "version": version,
        "accuracy": accuracy,
        "epsilon_exact_server": epsilon[AccountantName.EXACT, Adversary.ONE_SERVER],
        "epsilon_exact_clients": epsilon[AccountantName.EXACT, Adversary.CLIENTS_ONLY],
        "epsilon_exact_client_level": (
            client_level if math.isfinite(client_level) else None
        ),
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
        "certificate_inputs": certificate_inputs.model_dump(),
    }


def load_plot() -> None:
    """Import what ``plot`` needs, which takes a second."""
    import matplotlib.backends.backend_agg  # noqa: PLC0415
    import matplotlib.figure  # noqa: F401, PLC0415


def plot(outcome: Outcome, path: Path) -> None:
    """Write a PNG: accuracy above, exact ε of both adversaries and rejections below."""
    scenario = outcome.scenario
    reasons = sorted(outcome.rejected)
    owners = f"{len(scenario.data)} data owners"
    if scenario.bad:
        owners += f", {len(scenario.bad)} of them bad ({scenario.attack})"
    draw_training(
        path,
        [row.to_row(reasons) for row in outcome.rows],
        reasons,
        title=f"{scenario.dataset.name}, {scenario.model}: {owners}",
        epsilon_of=f"a record\n(δ = {scenario.task.privacy.delta:g})",
        updates="not counted",
    )


def robustness(
    scenario: Scenario,
    theta: ModelVector,
    summary_so_far: JsonObject,
    folder: Path,
) -> JsonObject:
    """Return what a run's model promises against bad records and changed inputs.

    ``theta`` is the last model, ``[d]``, of a task with an objective. The report is one
    JSON object, with the same in words; robustness.txt and certificate.png are written
    into ``folder``.
    """
    objective = scenario.task.objective
    assert objective is not None
    report: JsonObject = {
        "objective": objective.name,
        "epsilon_record": summary_so_far["epsilon_exact_server"],
        "delta": summary_so_far["delta"],
        "poisoning": _poisoning(summary_so_far),
        "smoothing": _smoothing(scenario, theta, folder, objective.noise),
    }
    report["words"] = _in_words(report)
    title = f"What {scenario.dataset.name}, {scenario.model} promises"
    (folder / "robustness.txt").write_text(
        f"{title}\n\n{report['words']}\n", encoding="utf-8"
    )
    return report


def _poisoning(summary_so_far: JsonObject) -> JsonObject:
    """Bound the expected share of wrong answers by the number of bad records.

    One run has no expectation. So this run's own share, 1 − accuracy, stands for it,
    and is stated as what it is: an example.
    """
    inputs = CertificateInputs(**summary_so_far["certificate_inputs"])
    guarantee = ExactGroups(inputs.mechanism(Unit.RECORD))
    wrong = 1.0 - summary_so_far["accuracy"]
    rows = []
    for records in (1, 2, 5, 10):
        bounds = attack_bounds(wrong, 1.0, guarantee, records)
        rows.append(
            {
                "records": records,
                "lower": float(bounds.lower),
                "upper": float(bounds.upper),
            }
        )
    return {"if_expected_error_is": wrong, "bounds": rows}


def _smoothing(
    scenario: Scenario,
    theta: ModelVector,
    folder: Path,
    sigma: float,
) -> JsonObject:
    """Certify the model's answers on held-out data against changed inputs.

    ``sigma`` is the standard deviation of the inputs' noise. The picture of the
    certificates is written into ``folder``.
    """
    dataset = scenario.dataset
    module = build(scenario.task.model)
    load_vector(module, theta)
    sampling = VoteSampling(
        sigma=sigma,
        selection=100,
        copies=COPIES,
        draw=secrets.randbelow(DRAWS),
    )
    votes = sample_votes(module, torch.from_numpy(dataset.test_x), sampling)
    budget = ConfidenceBudget(confidence=CONFIDENCE, classes=dataset.classes)
    certificates = prediction.certify_smoothing(
        votes.votes, sigma, budget, votes.selection
    )
    right = certificates.certified & (certificates.labels == dataset.test_y)
    prediction.plot_smoothing(
        folder / "certificate.png",
        certificates,
        right,
        known=True,
        noise=sigma,
    )
    radius = certificates.radius
    shares = prediction.certified_accuracy(radius, right, RADII).tolist()
    return {
        "sigma": sigma,
        "copies": COPIES,
        "confidence": CONFIDENCE,
        "points": len(dataset.test_y),
        "abstained": int((~certificates.certified).sum()),
        "average_certified_radius": prediction.average_certified_radius(radius, right),
        "certified_accuracy": {
            str(at): share for at, share in zip(RADII, shares, strict=True)
        },
    }


def _in_words(report: JsonObject) -> str:
    """Return the report of ``robustness`` in words, a line for each promise."""
    poisoning = report["poisoning"]
    smoothing = report["smoothing"]
    bounds = "; ".join(
        f"{row['records']} bad: {row['lower']:.1%} to {row['upper']:.1%}"
        for row in poisoning["bounds"]
    )
    shares = ", ".join(
        f"{share:.1%} at {radius}"
        for radius, share in smoothing["certified_accuracy"].items()
    )
    return (
        f"Trained with {report['objective']}.\n\n- Privacy of a record: ε ="
        f" {upper(report['epsilon_record'], 3)} at δ = {report['delta']:g} against one"
        " curious server; the objective costs none of it.\n- Bad records: where the"
        f" expected error is {poisoning['if_expected_error_is']:.1%}, as in this run,"
        f" records that are added or deleted leave it within: {bounds}.\n- Changed"
        f" inputs: smoothed with σ = {smoothing['sigma']:g} ({smoothing['copies']:,}"
        f" copies, confidence {smoothing['confidence']:g} for each input), right and"
        f" certified at an ℓ2 radius: {shares}; average certified radius"
        f" {smoothing['average_certified_radius']:.3f}; {smoothing['abstained']} of"
        f" {smoothing['points']} inputs abstain."
    )
