"""One bad record, or any model that a server serves: the owner goes on as if nothing
were wrong.

Work is counted in kernel evaluations. What they take of time, on the way of `precad
join`, is benchmarks/hostile_models.py's.
"""

import re
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray
from tests.rig import hostile_pairs, refusals
from tests.rig.model_corpus import Own
from tests.rig.tasks import data_owner, task_of
from torch import nn
from torch.nn.functional import cross_entropy

from precad.client.data_owner import DataOwner
from precad.client.gradients import (
    objectives,
    record_gradients,
    rehearsal,
    torch_operations,
)
from precad.client.gradients.hostile_models import hostile_models
from precad.client.gradients.local_update import local_update
from precad.client.participation import RoundView
from precad.common import fixed_point, identifiers, roster

N = 20
MODEL = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
TASK = task_of(MODEL, "uniform", client_clip=30.0, record_rate=0.5)
THETA = np.random.default_rng(1).normal(0, 0.5, TASK.dimension)
TOKENS = np.random.default_rng(5).integers(0, 50, (N, 4))
X = np.random.default_rng(2).normal(size=(N, 4)).astype(np.float32)
Y = np.random.default_rng(3).integers(0, 3, N)


class Options(TypedDict, total=False):
    chunk: int
    most: int


class How(Options, total=False):
    theta: NDArray[np.float64]
    model: nn.Module
    loss: objectives.Loss


def update(
    x: ArrayLike = X,
    y: ArrayLike = Y,
    indices: Sequence[int] = range(N),
    theta: NDArray[np.float64] = THETA,
    model: nn.Module = MODEL,
    loss: objectives.Loss = cross_entropy,
    **options: Unpack[Options],
) -> tuple[NDArray[np.int64], list[int]]:
    failed: list[int] = []
    chosen = np.array(indices, np.int64)
    task = TASK if model is MODEL else task_of(model, "uniform")
    found = local_update(
        model,
        loss,
        (x, y),
        chosen,
        theta,
        task,
        on_failure=failed.append,
        **options,
    )
    return found, failed


def counts_as_zero(
    x: ArrayLike,
    y: ArrayLike,
    record: int,
    *,
    ignored: bool = False,
    **how: Unpack[How],
) -> None:
    """Alone, and costs its neighbours nothing; a loss that ignores it finds nothing
    wrong."""
    expected, _ = update(x, y, [i for i in range(N) if i != record], **how)
    found, failed = update(x, y, **how)
    assert failed == ([] if ignored else [record])
    assert (found == expected).all()


@pytest.mark.parametrize("label", [3, 10**9, -1, 2**63 - 1, -(2**63), -100])
@pytest.mark.parametrize("loss", [cross_entropy, nn.CrossEntropyLoss()])
def test_a_label_that_is_no_class_counts_as_zero_alone(
    label: int, loss: objectives.Loss
) -> None:
    # Torch's losses ignore -100: a gradient of zero without our doing.
    y = np.where(np.arange(N) == 7, label, Y)
    counts_as_zero(X, y, 7, ignored=label == -100, chunk=6, loss=loss)


@pytest.mark.parametrize("token", [50, 51, 10**6, -1, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("chunk", [1, 6, 64])
def test_a_token_that_is_no_row_counts_as_zero_and_trains_no_table(
    token: int, chunk: int
) -> None:
    """Without a check, torch's batched embedding reads and trains the next record's
    copy."""
    model = nn.Sequential(nn.Embedding(50, 2), nn.Flatten(), nn.Linear(8, 3))
    theta = np.random.default_rng(4).normal(
        size=sum(p.numel() for p in model.parameters())
    )
    tokens = TOKENS.copy()
    tokens[7, 1] = token
    counts_as_zero(tokens, Y, 7, theta=theta, model=model, chunk=chunk)


@pytest.mark.parametrize("chunk", [1, 6, 64])
def test_a_row_that_an_own_table_lacks_trains_no_table(chunk: int) -> None:
    """As with a layer's: a number that is off by one would train the next record's copy."""
    rows = nn.Parameter(torch.linspace(-1, 1, 100).reshape(50, 2))

    def looked_up(m: Any, tokens: torch.Tensor) -> Any:
        return m.head(nn.functional.embedding(tokens + 1, m.rows).flatten(1))

    model = Own(looked_up, 8, rows=rows)
    theta = np.random.default_rng(4).normal(
        size=sum(p.numel() for p in model.parameters())
    )
    tokens = np.minimum(TOKENS, 48)
    tokens[7, 1] = 49
    counts_as_zero(tokens, Y, 7, theta=theta, model=model, chunk=chunk)


def test_an_operation_that_is_not_listed_is_refused_with_its_line_of_the_way_back_too() -> (
    None
):
    class Doubled(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG004
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx: Any, *slopes: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            slope: torch.Tensor = torch.linalg.matrix_exp(ctx.saved_tensors[0])
            return slope

    double: Any = Doubled.apply

    def twice(x: torch.Tensor) -> Any:
        return double(hostile_pairs.square(x))  # the line

    model = hostile_pairs.around(hostile_pairs.Layer(twice))
    records = hostile_pairs.records_for(hostile_pairs.LABELS)
    given = model, cross_entropy, records
    task = task_of(model, "uniform")
    refusals.refused(
        r"linalg_matrix_exp, in test_poisonous_records.py line \d+, `.*# the line`",
        rehearsal.rehearse,
        *given,
        task,
        MOST,
    )
    training = task.training.model_copy(update={"any_operations": True})
    # However slow this machine is.
    deadlines = task.deadlines.model_copy(update={"work": 3600.0})
    sections = {"training": training, "deadlines": deadlines}
    rehearsal.rehearse(*given, task.model_copy(update=sections), MOST)


def test_the_page_lists_the_operations_that_are_taken() -> None:
    page = Path(hostile_models.__code__.co_filename).resolve().parents[2]
    text = (page / "docs" / "own-model.md").read_text(encoding="utf-8")
    listed = re.search(r"## Operations.*?```text\n(.*?)```", text, re.DOTALL)
    assert listed is not None
    assert set(listed[1].split()) == torch_operations.SAME_STEPS
    for name in torch_operations.SAME_STEPS:
        assert hasattr(torch.ops.aten, name), name


@pytest.mark.parametrize("chunk", [1, 6, 64])
def test_a_record_at_which_the_model_raises_costs_its_neighbours_nothing(
    chunk: int,
) -> None:
    """For a matrix without inverse, as no check of values foresees."""
    x = X.copy()
    x[9] = 1.0
    model = Own(
        lambda m, x: m.head(torch.linalg.inv(x.reshape(-1, 2, 2)).reshape(-1, 4)), 4
    )
    counts_as_zero(x, Y, 9, theta=np.linspace(-1, 1, 15), model=model, chunk=chunk)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [np.nan, np.inf, -np.inf, 1e300, -1e300, 3e38, 1e-40, 5e-324, 0.0, 1.0]
        ),
        min_size=1,
        max_size=TASK.dimension,
    ),
    st.integers(0, 2**32),
)
def test_no_model_that_is_served_makes_an_owner_fall_silent(
    values: list[float], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    theta, x, y = THETA.copy(), X.copy(), Y.copy()
    theta[generator.integers(0, TASK.dimension, len(values))] = values
    x[3], x[4, 0], y[5] = 3.4e38, 1e-42, 77
    found, failed = update(x, y, theta=theta, chunk=8)
    assert fixed_point.squared_norm(found) <= TASK.mechanism.bound**2
    # Nor does any record move the sum by more than R.
    other, _ = update(x, y, [i for i in range(N) if i != 3], theta=theta, chunk=8)
    assert fixed_point.squared_norm(found - other) <= (2**20) ** 2
    assert 5 in failed


def test_an_owner_without_memory_is_absent_and_sends_no_zeros() -> None:
    for error in (
        MemoryError,
        torch.OutOfMemoryError,
        RuntimeError("DefaultCPUAllocator: no"),
    ):
        with pytest.raises(error if isinstance(error, type) else type(error)):
            update(loss=Mock(side_effect=error))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    calls: list[tuple[int, int]] = []
    real = record_gradients.RecordGradients.kernel

    def counted(
        self: record_gradients.RecordGradients,
        weights: record_gradients.Named,
        *,
        inputs: torch.Tensor,
        **others: torch.Tensor,
    ) -> NDArray[np.float64]:
        rows = real(self, weights, inputs=inputs, **others)
        calls.append((len(inputs), len(rows)))
        return rows

    monkeypatch.setattr(record_gradients.RecordGradients, "kernel", counted)
    return calls


MOST = 100  # M


@pytest.mark.filterwarnings(
    "ignore:There is a performance drop"
)  # vmap's, of two of them
@pytest.mark.parametrize("name", hostile_pairs.PAIRS)
def test_one_record_takes_no_kernel_more_at_any_model(
    name: str, kernels: list[tuple[int, int]]
) -> None:
    model, loss, targets, refused = hostile_pairs.PAIRS[name]
    records, task = hostile_pairs.records_for(targets), task_of(model, "uniform")
    if refused:
        refusals.refused(refused, rehearsal.rehearse, model, loss, records, task, MOST)
        return
    rehearsal.rehearse(model, loss, records, task, MOST)
    last = np.arange(hostile_pairs.N - 5, hostile_pairs.N)
    the_record_s = "a property", hostile_pairs.with_property(task.dimension)
    for kind, theta in (*hostile_models(task.dimension), the_record_s):
        for indices in (last, last[:-1], last[:0]):
            kernels.clear()
            local_update(
                model, loss, records, indices, theta, task, chunk=MOST // 2, most=MOST
            )
            assert [slots for _, slots in kernels] == [MOST // 2] * 2, kind


@pytest.mark.parametrize("size", [0, 1, 3, 8, 15, 16])
def test_an_attempts_work_is_that_of_m_records(
    size: int, kernels: list[tuple[int, int]]
) -> None:
    padded, _ = update(indices=range(size), chunk=6, most=16)
    assert [slots for _, slots in kernels] == [6, 6, 6]
    assert sum(records for records, _ in kernels) == size
    plain, _ = update(indices=range(size), chunk=6)
    assert (padded == plain).all()
    assert size == 0 or padded.any()


def test_a_larger_sample_is_replaced_by_the_empty_one(
    kernels: list[tuple[int, int]],
) -> None:
    found, failed = update(indices=range(17), chunk=6, most=16)
    assert not found.any()
    assert (kernels, failed) == ([(0, 6)] * 3, [])


def test_bad_records_take_as_many_kernels_as_good_ones(
    kernels: list[tuple[int, int]],
) -> None:
    x, y = X.copy(), Y.copy()
    x[2], x[3], y[4] = 3e38, 1e-42, 99
    update(X, Y, range(12), chunk=6, most=16)
    update(x, y, range(12), chunk=6, most=16, theta=np.full(TASK.dimension, np.nan))
    assert kernels[:3] == kernels[3:]


def test_denormals_are_zero_in_all_of_torchs_threads_and_the_callers_mode_stays() -> (
    None
):
    """Slow numbers would show in the time; and another mode in another thread, in the
    bits."""
    tiny = torch.full((2**16,), 1e-20)
    assert (tiny * tiny)[0] != 0  # starts this thread's own workers, which don't flush
    seen: list[bool] = []

    def look(m: Own, x: torch.Tensor) -> torch.Tensor:
        # Python's own sum, so that no comparison flushes; large, so that all threads
        # work.
        seen.append(float((tiny * tiny).double().sum()) == 0.0)
        found: torch.Tensor = m.head(x)
        return found

    update(model=Own(look, 4), theta=np.zeros(15))
    assert seen[-1]
    assert (tiny * tiny)[0] != 0


VIEW = RoundView(attempt=3, theta=THETA, model=identifiers.Digest(bytes(32)))


def owner(y: ArrayLike = Y, state: Path | None = None) -> DataOwner:
    task = task_of(MODEL, "uniform", record_rate=1.0)
    return data_owner("ward-1", task, (X, y), model=MODEL, record_rate=1.0, state=state)


def test_an_owners_work_is_padded_and_for_show_touches_none(
    kernels: list[tuple[int, int]],
) -> None:
    one = owner()
    one.update(VIEW)
    assert not one.update(replace(VIEW, covering=True)).any()
    assert kernels == [(N, N), (0, N)]
    kernels.clear()
    one._record_rate, one._most_units = 0.5, roster.most_records(N, 0.5)
    for _ in range(20):
        one.update(VIEW)
    assert [slots for _, slots in kernels] == [N] * 20
    assert len({records for records, _ in kernels}) > 1


def test_failures_stand_in_a_private_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    one = owner(np.where(np.arange(N) == 7, 99, Y), tmp_path / "own")
    assert one.update(VIEW).any()
    nowhere = replace(VIEW, theta=np.full(TASK.dimension, np.nan), left_s=3600.0)
    assert not one.update(nowhere).any()
    one.update(replace(VIEW, left_s=-1.0))
    log = tmp_path / "own" / "failed-records.log"
    *counts, late = log.read_text().splitlines()
    assert counts == [
        "attempt 3: 1 records without a gradient [7]",
        f"attempt 3: {N} records without a gradient {list(range(N))}",
        "attempt 3: 1 records without a gradient [7]",
    ]
    assert re.match(
        r"attempt 3: the work was done 1(\.\d+)? s after the public time", late
    )
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    assert [each for each in caplog.records if each.name.startswith("precad")] == []
