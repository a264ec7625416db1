"""One bad record, or any model that a server serves: the owner goes on as if nothing were wrong."""

import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.rig.tasks import task_of
from torch import nn
from torch.nn.functional import cross_entropy

from precad.client.data_owner import DataOwner
from precad.client.gradients.local_update import local_update
from precad.client.gradients.objectives import Loss
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.participant import RoundView
from precad.common.identifiers import Digest
from precad.common.ring import squared_norm
from precad.common.roster import most_records

N = 20
MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


TASK = task_of(MODEL, "uniform", client_clip=30.0, record_rate=0.5)
THETA = np.random.default_rng(1).normal(0, 0.5, TASK.dimension)


def data() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(2)
    return generator.normal(size=(N, 4)).astype(np.float32), generator.integers(0, 3, N)


def update(
    records: object,
    indices: Any = None,
    theta: NDArray[np.float64] = THETA,
    model: nn.Module = MODEL,
    loss: Loss = cross_entropy,
    **options: Any,
) -> tuple[NDArray[np.int64], list[int]]:
    """The update, and who counted as zero."""
    failed: list[int] = []
    chosen = np.arange(N) if indices is None else np.array(indices, np.int64)
    task = TASK if model is MODEL else task_of(model, "uniform")
    x = local_update(model, loss, records, chosen, theta, task, on_failure=failed.append, **options)
    return x, failed


def without(record: int) -> list[int]:
    return [i for i in range(N) if i != record]


@pytest.mark.parametrize("label", [3, 10**9, -1, 2**63 - 1, -(2**63), -100])
@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss()])
def test_a_label_that_is_no_class_counts_as_zero_and_costs_its_neighbours_nothing(
    label: int, loss: Loss
) -> None:
    x, y = data()
    expected, _ = update((x, y), without(7), chunk=6, loss=loss)
    y[7] = label
    found, failed = update((x, y), chunk=6, loss=loss)
    # Torch's losses ignore -100: a gradient of zero without our doing.
    assert failed == ([] if label == -100 else [7])
    assert (found == expected).all()


@pytest.mark.parametrize("token", [50, 51, 10**6, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("chunk", [1, 6, 64])
def test_a_token_that_is_no_row_counts_as_zero_and_trains_no_neighbours_table(
    token: int, chunk: int
) -> None:
    """Without a check, torch's batched embedding reads and trains the next record's copy."""
    model = nn.Sequential(nn.Embedding(50, 2), nn.Flatten(), nn.Linear(8, 3))
    theta = np.random.default_rng(4).normal(size=sum(p.numel() for p in model.parameters()))
    tokens = np.random.default_rng(5).integers(0, 50, (N, 4))
    expected, _ = update((tokens, data()[1]), without(7), theta, model, chunk=chunk)
    tokens[7, 1] = token
    found, failed = update((tokens, data()[1]), None, theta, model, chunk=chunk)
    assert failed == [7]
    assert (found == expected).all()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from([np.nan, np.inf, -np.inf, 1e300, -1e300, 3e38, 1e-40, 5e-324, 0.0, 1.0]),
        min_size=1,
        max_size=TASK.dimension,
    ),
    st.integers(0, 2**32),
)
def test_no_model_that_a_server_serves_makes_an_owner_fall_silent(
    values: list[float], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    theta = THETA.copy()
    theta[generator.integers(0, TASK.dimension, len(values))] = values
    x, y = data()
    x[3], x[4, 0], y[5] = 3.4e38, 1e-42, 77
    found, failed = update((x, y), theta=theta, chunk=8)
    assert squared_norm(found) <= TASK.bound**2
    # Nor does any record move the sum by more than R.
    other, _ = update((x, y), without(3), theta=theta, chunk=8)
    assert squared_norm(found - other) <= (2**20) ** 2
    assert 5 in failed


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_a_model_without_a_single_number_gives_the_zero_vector(value: float) -> None:
    found, failed = update(data(), theta=np.full(TASK.dimension, value))
    assert not found.any()
    assert failed == list(range(N))


class Whitening(nn.Module):
    """Raises for a matrix without inverse, as no check of values foresees."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inverse = torch.linalg.inv(x.reshape(-1, 2, 2))
        outputs: torch.Tensor = self.linear(inverse.reshape(-1, 4))
        return outputs


@pytest.mark.parametrize("chunk", [1, 6, 64])
def test_a_record_at_which_the_model_raises_costs_its_neighbours_nothing(chunk: int) -> None:
    x, y = data()
    theta = np.linspace(-1, 1, 15)
    expected, _ = update((x, y), without(9), theta, Whitening(), chunk=chunk)
    x[9] = 1.0
    found, failed = update((x, y), None, theta, Whitening(), chunk=chunk)
    assert failed == [9]
    assert (found == expected).all()


@pytest.mark.parametrize(
    "error", [MemoryError(), torch.OutOfMemoryError("x"), RuntimeError("DefaultCPUAllocator: no")]
)
def test_an_owner_without_memory_is_absent_and_sends_no_zeros(error: Exception) -> None:
    def loss(*_: torch.Tensor) -> torch.Tensor:
        raise error

    with pytest.raises(type(error)):
        update(data(), loss=loss)


# --- the work ----------------------------------------------------------------------------------


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Sizes of all kernel calls: records, and slots."""
    calls: list[tuple[int, int]] = []
    real = RecordGradients.kernel

    def counted(
        self: RecordGradients, named: Any, inputs: Any, targets: Any, noise: Any = None
    ) -> Any:
        rows = real(self, named, inputs, targets, noise)
        calls.append((len(inputs), len(rows)))
        return rows

    monkeypatch.setattr(RecordGradients, "kernel", counted)
    return calls


@pytest.mark.parametrize("size", [0, 1, 3, 8, 15, 16])
def test_the_work_of_an_attempt_is_that_of_m_records(
    size: int, kernels: list[tuple[int, int]]
) -> None:
    x, y = data()
    padded, _ = update((x, y), range(size), chunk=6, most=16)
    assert [slots for _, slots in kernels] == [6, 6, 6]
    assert sum(records for records, _ in kernels) == size
    plain, _ = update((x, y), range(size), chunk=6)
    assert (padded == plain).all()
    assert size == 0 or padded.any()


def test_a_larger_sample_is_replaced_by_the_empty_one(kernels: list[tuple[int, int]]) -> None:
    found, failed = update(data(), range(17), chunk=6, most=16)
    assert not found.any()
    assert kernels == [(0, 6)] * 3
    assert failed == []


def test_bad_records_take_as_many_kernels_as_good_ones(kernels: list[tuple[int, int]]) -> None:
    x, y = data()
    update((x, y), range(12), chunk=6, most=16)
    good = kernels.copy()
    kernels.clear()
    x[2], x[3], y[4] = 3e38, 1e-42, 99
    update((x, y), range(12), chunk=6, most=16, theta=np.full(TASK.dimension, np.nan))
    assert kernels == good


def test_denormals_are_zero_in_all_of_torchs_threads_and_the_callers_mode_stays() -> None:
    """Slow numbers would show in the time; and another mode in another thread, in the bits."""
    tiny = torch.full((2**16,), 1e-20)
    assert (tiny * tiny)[0] != 0  # starts this thread's own workers, which don't flush
    seen: list[bool] = []

    class Product(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            # Python's own sum, so that no comparison flushes; large, so that all threads work.
            seen.append(float((tiny * tiny).double().sum()) == 0.0)
            return super().forward(x)

    x, y = data()
    update((x, y), model=Product(4, 3), theta=np.zeros(15))
    assert seen[-1]
    assert (tiny * tiny)[0] != 0


# --- the owner ---------------------------------------------------------------------------------


@pytest.fixture
def owner() -> Callable[..., DataOwner]:
    def make(x: object, y: object, state: Path | None = None) -> DataOwner:
        identity: Any = object()  # no server is called
        return DataOwner(
            "ward-1", task=task_of(MODEL, "uniform", record_rate=1.0), data=(x, y), model=MODEL,
            server_a="a:1", server_b="b:1", identity=identity, record_rate=1.0, state=state,
        )  # fmt: skip

    return make


def view(theta: NDArray[np.float64] = THETA) -> RoundView:
    return RoundView(3, theta, Digest(bytes(32)))


def test_an_owners_work_is_padded(
    owner: Callable[..., DataOwner], kernels: list[tuple[int, int]]
) -> None:
    one = owner(*data())
    one._record_rate, one._most = 0.5, most_records(N, 0.5)
    for _ in range(20):
        one.update(view())
    assert {slots for _, slots in kernels} == {N}
    assert len(kernels) == 20
    assert len({records for records, _ in kernels}) > 1


def test_work_for_show_is_as_much_and_touches_no_record(
    owner: Callable[..., DataOwner], kernels: list[tuple[int, int]]
) -> None:
    one = owner(*data())
    one.update(view())
    shown = one.update(replace(view(), covering=True))
    assert not shown.any()
    assert kernels == [(N, N), (0, N)]


def test_failures_stand_in_the_owners_private_log_alone(
    owner: Callable[..., DataOwner], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    x, y = data()
    y[7] = 99
    caplog.set_level("DEBUG")
    one = owner(x, y, tmp_path / "own")
    assert one.update(view()).any()
    one.update(replace(view(np.full(TASK.dimension, np.nan)), left_s=3600.0))
    one.update(replace(view(), left_s=-1.0))
    log = tmp_path / "own" / "failed-records.log"
    *counts, late = log.read_text().splitlines()
    assert counts == [
        "attempt 3: 1 records without a gradient [7]",
        f"attempt 3: {N} records without a gradient {list(range(N))}",
        "attempt 3: 1 records without a gradient [7]",
    ]
    assert re.match(r"attempt 3: the work was done 1(\.\d+)? s after the public time", late)
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert [each for each in caplog.records if each.name.startswith("precad")] == []
