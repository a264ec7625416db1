"""How many comparisons decide on submissions, and what the dealer is asked for before."""

from precad.common.task import Task
from precad.norm_check.dealt_triples import DealRequest


def comparisons_per_client(task: Task) -> int:
    """2k + 1: both sides of k ranges, and the norm."""
    return 2 * task.projections + 1


def deal_request(task: Task, attempt: int, batch: int, clients: int, nonces: bytes) -> DealRequest:
    """What to ask the dealer for before ``clients`` submissions are decided in one batch."""
    return DealRequest(
        task=task.digest,
        attempt=attempt,
        batch=batch,
        clients=clients,
        comparisons=clients * comparisons_per_client(task),
        nonces=nonces,
    )
