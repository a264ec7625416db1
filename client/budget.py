"""The owner's own account: what this client has spent, whatever the servers say."""

import os
from pathlib import Path

from precad.common.account import most_participations, record_epsilon
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.identifiers import Digest
from precad.common.task import Task


class OwnBudget:
    """Counts every submission that was sent, durably, and refuses beyond the owner's limit.

    A submission is counted before its first byte leaves: the count is never below the
    server's ledger.

    Args:
        task: gives σ, δ and T.
        record_rate: p_i.
        epsilon_limit: the owner's limit of exact record-level ε with one server corrupted;
            None for no limit of its own.
        path: file that survives restarts; None counts in memory.

    Raises:
        Misconfiguration: the limit doesn't allow a single round.
    """

    def __init__(
        self, task: Task, record_rate: float, epsilon_limit: float | None, path: Path | None
    ) -> None:
        self._task = task
        self._record_rate = record_rate
        self._path = path
        self.participations = self._read(task.digest)
        self.allowed = task.training.rounds
        if epsilon_limit is not None:
            self.allowed = most_participations(
                record_rate=record_rate,
                noise_multiplier=task.privacy.noise_multiplier,
                delta=task.privacy.delta,
                epsilon_limit=epsilon_limit,
                ceiling=task.training.rounds,
            )
            if self.allowed == 0:
                one = self._epsilon_of(1)
                raise Misconfiguration(
                    "epsilon_limit",
                    epsilon_limit,
                    f"a single round of this task costs ε = {one:.3f}; raise the limit above it "
                    "or don't take part",
                )

    @property
    def exhausted(self) -> bool:
        """Whether another submission would pass the limit."""
        return self.participations >= self.allowed

    def charge(self, round_number: int) -> None:
        """Count one submission, durably. Raises BudgetExceeded."""
        if self.exhausted:
            raise BudgetExceeded(
                f"round {round_number} would be participation {self.participations + 1}; "
                f"the owner's limit allows {self.allowed}"
            )
        if self._path is not None:
            with self._path.open("a", encoding="ascii") as file:
                file.write(f"{self._task.digest} {round_number}\n")
                file.flush()
                os.fsync(file.fileno())
        self.participations += 1

    def epsilon(self) -> float:
        """Exact record-level ε so far, one server corrupted, at the task's δ."""
        return self._epsilon_of(self.participations)

    def _epsilon_of(self, participations: int) -> float:
        return record_epsilon(
            record_rate=self._record_rate,
            noise_multiplier=self._task.privacy.noise_multiplier,
            participations=participations,
            delta=self._task.privacy.delta,
        )

    def _read(self, task: Digest) -> int:
        if self._path is None or not self._path.exists():
            return 0
        lines = self._path.read_text(encoding="ascii").splitlines()
        return sum(1 for line in lines if line.split(" ", 1)[0] == str(task))
