"""The owner's own account: what this client has spent, whatever the servers say."""

import os
from pathlib import Path

from precad.common.account.participations import most_participations, record_epsilon
from precad.common.durable import append_line
from precad.common.errors import BudgetExceeded, Misconfiguration
from precad.common.identifiers import Digest
from precad.common.task import Task


class OwnAccount:
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
        Misconfiguration: the limit doesn't allow a single round, or the file can't be read.
    """

    def __init__(
        self, task: Task, record_rate: float, epsilon_limit: float | None, path: Path | None
    ) -> None:
        self._task = task
        self._record_rate = record_rate
        self._path = path
        self._charged = self._read(task.digest)
        self.allowed: int | None = None
        """Submissions within the owner's limit; None without one."""
        if epsilon_limit is not None:
            self.allowed = most_participations(
                record_rate=record_rate,
                noise_multiplier=task.privacy.noise_multiplier,
                delta=task.privacy.delta,
                epsilon_limit=epsilon_limit,
                # Rounds that broke off are counted too: there may be more than T.
                ceiling=2 * task.training.rounds,
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
    def participations(self) -> int:
        """How many rounds this owner has sent a submission for."""
        return len(self._charged)

    @property
    def exhausted(self) -> bool:
        """Whether another submission would pass the limit."""
        return self.allowed is not None and self.participations >= self.allowed

    def charged(self, attempt: int) -> bool:
        """Whether this attempt's submission is counted, and may have left."""
        return attempt in self._charged

    def charge(self, attempt: int) -> None:
        """Count this attempt's submission, durably; a retry of it costs nothing.

        Raises:
            BudgetExceeded: the owner's limit is reached.
        """
        if self.charged(attempt):
            return
        if self.exhausted:
            raise BudgetExceeded(
                f"attempt {attempt} would be participation {self.participations + 1}; "
                f"the owner's limit allows {self.allowed}"
            )
        if self._path is not None:
            append_line(self._path, f"{self._task.digest} {attempt}")
        self._charged.add(attempt)

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

    def _read(self, task: Digest) -> set[int]:
        """The rounds that were charged. A line that a crash cut short is removed.

        Nothing was sent for it, and the next line would be written onto its end and be lost.
        """
        if self._path is None or not self._path.exists():
            return set()
        data = self._path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.truncate(self._path, len(whole))
        try:
            fields = [line.split(" ") for line in whole.decode("ascii").splitlines()]
            return {int(attempt) for digest, attempt in fields if digest == str(task)}
        except ValueError:
            raise Misconfiguration(
                "state", str(self._path), "can't be read; restore this owner's account"
            ) from None
