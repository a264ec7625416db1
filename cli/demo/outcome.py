"""What a demo run showed: numbers of each round, and the summary at the end."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from precad.cli.demo.scenario import Scenario
from precad.client.train.models import build, load_vector
from precad.common.account.accountant import AccountantName
from precad.common.account.guarantees import Adversary, PrivacyStatement, Run, guarantees
from precad.protos import precad_pb2 as pb


@dataclass(frozen=True, slots=True)
class RoundRow:
    """One finished round, as shown and plotted."""

    number: int
    accuracy: float | None
    """On held-out data; None when the demo was too slow to fetch that round's model."""
    cohort: int
    accepted: int
    rejected: dict[str, int]
    participations: int
    epsilon_server: float
    epsilon_clients: float
    seconds: float


@dataclass(slots=True)
class Outcome:
    """The whole run so far."""

    scenario: Scenario
    rows: list[RoundRow] = field(default_factory=list)

    @property
    def accepted(self) -> int:
        """Submissions that counted."""
        return sum(row.accepted for row in self.rows)

    @property
    def rejected(self) -> Counter[str]:
        """Submissions that didn't, by reason."""
        total: Counter[str] = Counter()
        for row in self.rows:
            total.update(row.rejected)
        return total

    def add(self, report: pb.RoundReport, accuracy: float | None) -> RoundRow:
        """Take in one round's report."""
        statements = self.statements(
            rounds=report.version + 1,
            participations=report.most_participations,
            accountants=(AccountantName.EXACT,),
            adversaries=(Adversary.ONE_SERVER, Adversary.CLIENTS_ONLY),
        )
        by_adversary = {statement.adversary: statement.epsilon for statement in statements}
        row = RoundRow(
            number=report.version,
            accuracy=accuracy,
            cohort=report.cohort,
            accepted=report.accepted,
            rejected=dict(report.rejected),
            participations=report.most_participations,
            epsilon_server=by_adversary[Adversary.ONE_SERVER],
            epsilon_clients=by_adversary[Adversary.CLIENTS_ONLY],
            seconds=report.seconds,
        )
        self.rows.append(row)
        return row

    def statements(
        self,
        *,
        rounds: int,
        participations: int,
        accountants: tuple[AccountantName, ...] = tuple(AccountantName),
        adversaries: tuple[Adversary, ...] = tuple(Adversary),
    ) -> tuple[PrivacyStatement, ...]:
        """The guarantees after ``rounds``, for the client that took part most often."""
        task = self.scenario.task
        run = Run.of(task, rounds=rounds, participations=participations)
        return guarantees(run, task.privacy.delta, adversaries, accountants)


class Evaluation:
    """Predictions of a model on the held-out data."""

    def __init__(self, scenario: Scenario) -> None:
        self._module = build(scenario.task.model)
        self._inputs = torch.as_tensor(scenario.dataset.test_x, dtype=torch.float32)
        self._targets = np.asarray(scenario.dataset.test_y)

    def probabilities(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """``[points, classes] float64``."""
        load_vector(self._module, theta)
        with torch.no_grad():
            return torch.softmax(self._module(self._inputs), dim=1).numpy().astype(np.float64)

    def accuracy(self, theta: NDArray[np.float64]) -> float:
        """Share of held-out records that the model gets right."""
        return float((self.probabilities(theta).argmax(axis=1) == self._targets).mean())

    def losses(self, theta: NDArray[np.float64]) -> NDArray[np.float64]:
        """1 − probability of the right class, ``[points] float64`` in [0, 1]: a bounded loss."""
        probabilities = self.probabilities(theta)
        return 1.0 - probabilities[np.arange(len(self._targets)), self._targets]


def summary(
    outcome: Outcome,
    status_a: pb.StatusReply,
    status_b: pb.StatusReply,
    accuracy: float,
    seconds: float,
) -> dict[str, Any]:
    """The summary as one JSON object, from what the servers' ledgers hold."""
    scenario, task = outcome.scenario, outcome.scenario.task
    most = max(status_a.participations.values(), default=0)
    statements = outcome.statements(rounds=status_a.version, participations=most)
    epsilon = {(s.accountant, s.adversary): s.epsilon for s in statements}
    honest = {client.name for client in scenario.honest}
    return {
        "dataset": scenario.dataset.name,
        "model": scenario.model,
        "dim": task.dimension,
        "clients": len(scenario.data),
        "attackers": len(scenario.bad),
        "attack": scenario.attack,
        "version": status_a.version,
        "accuracy": accuracy,
        "epsilon_exact_server": epsilon[AccountantName.EXACT, Adversary.ONE_SERVER],
        "epsilon_exact_clients": epsilon[AccountantName.EXACT, Adversary.CLIENTS_ONLY],
        "epsilon_exact_client_level": _finite(
            epsilon[AccountantName.EXACT, Adversary.CLIENT_LEVEL]
        ),
        "epsilon_clt_server": epsilon[AccountantName.GDP_CLT, Adversary.ONE_SERVER],
        "delta": task.privacy.delta,
        "participations": most,
        "accepted": outcome.accepted,
        "rejected": dict(outcome.rejected),
        "honest_rejected": sum(
            count for name, count in status_a.rejected_by_client.items() if name in honest
        ),
        "model_digest_a": status_a.model_digest.hex(),
        "model_digest_b": status_b.model_digest.hex(),
        "seconds": round(seconds, 2),
        "bytes": {**status_a.bytes_by_link, **status_b.bytes_by_link},
        "guarantees": [statement.to_json() for statement in statements],
        "certificate_inputs": {
            "task_digest": str(task.digest),
            "noise_multiplier": task.privacy.noise_multiplier,
            "record_clip": task.privacy.record_clip,
            "effective_record_clip": task.effective_record_clip,
            "client_clip": task.privacy.client_clip,
            "client_rate": task.privacy.client_rate,
            "record_rate": task.privacy.record_rate,
            "rounds": status_a.version,
            "delta": task.privacy.delta,
            "clients": len(scenario.data),
            "malicious_submission_soundness_bits": task.projections,
        },
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
