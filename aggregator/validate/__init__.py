"""The check that a task names, in the caller's process: which matched submissions count."""

import itertools
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager

from precad.aggregator.validate.check_by_proof import ByProof, words_bytes
from precad.aggregator.validate.check_with_dealer import WithDealer
from precad.aggregator.validate.validation import (
    MAX_BATCH_CLIENTS,
    Server,
    Validator,
    comparisons_per_client,
)
from precad.common.identifiers import ClientId
from precad.common.process import let_go_of_loaded
from precad.common.ring import WORD_BYTES
from precad.common.task import Task

_WORDS_PER_COMPARISON = 64


@contextmanager
def in_process(
    server: Server,
    attempt: int,
    counted: Collection[ClientId],
    batches: Iterator[int] | None = None,
) -> Iterator[Validator]:
    """What validates one attempt's submissions in this process, and sums the ``counted`` ones.

    The others are validated all the same, so that nothing shows which of them the coin
    drew. Each batch of comparisons has a number that was never used before in this
    attempt.
    """
    if server.task.proof is not None:
        yield ByProof(server, attempt, counted)
        return
    with ExitStack() as conversations:
        yield WithDealer(
            _server=server,
            _attempt=attempt,
            _counted=counted,
            _batches=batches or itertools.count(),
            _conversations=conversations,
        )


def load_check(task: Task) -> None:
    """Load torch and CrypTen where the task's check needs them: no round has seconds for it."""
    if task.has_dealer:
        import torch  # noqa: F401, PLC0415

        # Before CrypTen and all else of a server come on top of it.
        let_go_of_loaded()
        import precad.aggregator.validate.crypten_comparisons  # noqa: F401, PLC0415


def longest_opening(task: Task) -> int:
    """Bytes of the longest message that validation of a batch exchanges."""
    if task.proof is not None:
        return MAX_BATCH_CLIENTS * words_bytes(task.proof)
    return (
        MAX_BATCH_CLIENTS
        * comparisons_per_client(task)
        * _WORDS_PER_COMPARISON
        * WORD_BYTES
    )
