"""Validate submissions by the check that a task names, in the caller's process."""

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
from precad.common import WORD_BYTES, ClientId, Task, let_go_of_loaded

_WORDS_PER_COMPARISON = 64
"""At most so many words does one message have for each comparison."""


@contextmanager
def in_process(
    server: Server,
    attempt: int,
    counted: Collection[ClientId],
    batches: Iterator[int] | None = None,
) -> Iterator[Validator]:
    """Validate one attempt's submissions in this process, and sum the ``counted`` ones.

    The others are validated all the same, so that nothing shows which of them the coin
    drew. ``batches`` are numbers of batches of comparisons, each never used before in
    this attempt; without it they count from 0.
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
    """Load torch and CrypTen where the task's check needs them.

    It takes seconds, which no round has.
    """
    if task.has_dealer:
        import torch  # noqa: F401, PLC0415

        # Now, before CrypTen and everything else of a server comes on top of it.
        let_go_of_loaded()
        import precad.aggregator.validate.crypten_comparisons  # noqa: F401, PLC0415


def longest_opening(task: Task) -> int:
    """Return the bytes of the longest message that validating a batch exchanges."""
    if task.proof is not None:
        return MAX_BATCH_CLIENTS * words_bytes(task.proof)
    return (
        MAX_BATCH_CLIENTS
        * comparisons_per_client(task)
        * _WORDS_PER_COMPARISON
        * WORD_BYTES
    )
