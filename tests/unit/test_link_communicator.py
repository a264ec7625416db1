"""CrypTen's communicator over the link: results, and what a party out of step gets."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
from torch.distributed import ReduceOp

from precad.common.aggregator.mpc.communicator import LinkCommunicator
from precad.common.errors import PeerUnavailable, PeerViolation
from precad.common.identifiers import Digest
from precad.common.link import PeerLink, memory_pair

T = TypeVar("T")
TASK = Digest.of(b"test")
X = torch.tensor([[1, -2], [2**63 - 1, 5]])
Y = torch.tensor([[3, 7], [1, -5]])


def pair(
    step_b: str = "t", patience_s: float = 30.0
) -> tuple[LinkCommunicator, LinkCommunicator, PeerLink]:
    """Both communicators, and B's link to misbehave on."""
    a, b = (
        PeerLink(end, TASK, max_message_bytes=1 << 20, timeout_s=patience_s)
        for end in memory_pair()
    )
    return LinkCommunicator(0, a, "t"), LinkCommunicator(1, b, step_b), b


def run(first: Callable[[], T], second: Callable[[], T]) -> tuple[T, T]:
    with ThreadPoolExecutor(max_workers=2) as threads:
        futures = threads.submit(first), threads.submit(second)
        return futures[0].result(), futures[1].result()


@pytest.mark.parametrize(
    ("op", "expected"), [(ReduceOp.SUM, X + Y), (ReduceOp.BXOR, X ^ Y)], ids=["sum", "xor"]
)
def test_reductions_wrap_in_the_ring_and_keep_shapes(op: object, expected: torch.Tensor) -> None:
    a, b, link = pair()
    at_a, at_b = run(lambda: a.all_reduce(X, op=op), lambda: b.all_reduce(Y, op=op))
    assert torch.equal(at_a, expected)  # type: ignore[arg-type]
    assert torch.equal(at_b, expected)  # type: ignore[arg-type]
    batch = run(
        lambda: a.all_reduce([X, X[0]], op=op, batched=True),
        lambda: b.all_reduce([Y, Y[0]], op=op, batched=True),
    )
    for result in batch:
        assert torch.equal(result[0], expected)
        assert torch.equal(result[1], expected[0])
    # One message a batch; 8 bytes a ring element, nothing around them.
    assert link._sent == 2
    assert link.bytes_sent == 8 * (4 + 4 + 2)
    assert X.tolist() == [[1, -2], [2**63 - 1, 5]]


def test_ranks_are_two() -> None:
    a, b, link = pair()
    assert (a.get_rank(), b.get_rank(), a.get_world_size()) == (0, 1, 2)
    with pytest.raises(ValueError, match="two parties"):
        LinkCommunicator(2, link, "t")


def test_another_operation_is_a_violation() -> None:
    a, b, _ = pair()
    with pytest.raises(PeerViolation, match="out of step"):
        run(lambda: a.all_reduce(X), lambda: b.all_reduce(X, op=ReduceOp.BXOR))


def test_another_step_is_a_violation() -> None:
    a, b, _ = pair(step_b="u")
    with pytest.raises(PeerViolation, match="out of step"):
        run(lambda: a.all_reduce(X), lambda: b.all_reduce(X))


def test_a_repeated_message_is_a_violation() -> None:
    a, _, link = pair()
    link.send("t/all-reduce-sum/0", bytes(32))
    a.all_reduce(X)
    link.send("t/all-reduce-sum/0", bytes(32))
    with pytest.raises(PeerViolation, match="out of step"):
        a.all_reduce(X)


@pytest.mark.parametrize("length", [0, 1, 31, 33, 40, 24])
def test_another_length_is_a_violation(length: int) -> None:
    a, _, link = pair()
    link.send("t/all-reduce-sum/0", bytes(length))
    with pytest.raises(PeerViolation, match=f"got {length} bytes, expected 32"):
        a.all_reduce(X)


def test_a_silent_party_is_unavailable() -> None:
    a, _, _ = pair(patience_s=0.1)
    with pytest.raises(PeerUnavailable):
        a.all_reduce(X)


def test_only_ring_elements_sums_and_xors_cross() -> None:
    a, _, _ = pair()
    with pytest.raises(TypeError, match="ring elements"):
        a.all_reduce(X.double())
    with pytest.raises(ValueError, match="sum and bitwise xor"):
        a.all_reduce(X, op=ReduceOp.MAX)
    with pytest.raises(TypeError, match="batch"):
        a.all_reduce([X])
    with pytest.raises(TypeError, match="batch"):
        a.all_reduce(X, batched=True)


@pytest.mark.parametrize("method", ["send_obj", "recv_obj", "broadcast_obj", "gather", "scatter"])
def test_nothing_that_pickles_exists(method: str) -> None:
    assert not hasattr(LinkCommunicator, method)
