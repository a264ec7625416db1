"""What a task promises beforehand against a server that departs from the protocol."""

from typing import TYPE_CHECKING

from precad.accounting.accountant import AccountantName
from precad.accounting.guarantees import Adversary, PrivacyStatement, Run, guarantees
from precad.accounting.participations import most_participations

if TYPE_CHECKING:
    from precad.common.task import Task


def against_a_cheating_server(task: "Task", delta: float) -> PrivacyStatement | None:
    """The exact guarantee of a record at the cap; None where norms aren't checked by gates.

    The cap is the most participations that the task's limit lets count, or T: a server that cheats
    decides when an owner takes part (docs/cheating-server.md).

    Args:
        task: may be planned.
        delta: δ, in (0, 1).
    """
    run, privacy = Run.of(task), task.privacy
    if not run.malicious_server:
        return None
    cap = run.rounds
    if privacy.epsilon_limit is not None:
        cap = most_participations(
            record_rate=privacy.record_rate,
            noise_multiplier=privacy.noise_multiplier,
            delta=privacy.delta,
            epsilon_limit=privacy.epsilon_limit,
            ceiling=run.rounds,
        )
    (found,) = guarantees(run.at_cap(cap), delta, (Adversary.ONE_SERVER,), (AccountantName.EXACT,))
    return found
