"""Algorithm 2 in integers: what bounds one record, and what bounds one client."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.conftest import task_values
from torch import nn
from torch.nn.functional import cross_entropy

from precad.client.gradients.local_update import local_update
from precad.client.gradients.torch_models import model_section
from precad.common.errors import Misconfiguration
from precad.common.ring import squared_norm
from precad.common.task import Task

MODEL = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
RECORDS = 40


def task_of(record_clip: float = 1.0, client_clip: float = 20.0, bits: int = 20) -> Task:
    values = task_values()
    values |= {"model": model_section(MODEL, "custom"), "fractional_bits": bits}
    values["privacy"] |= {"record_clip": record_clip, "client_clip": client_clip}
    return Task.parse(values)


def data(scale: float = 1.0) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    generator = np.random.default_rng(11)
    x = generator.normal(0, scale, (RECORDS, 5)).astype(np.float32)
    return x, generator.integers(0, 3, RECORDS)


THETA = np.random.default_rng(12).normal(0, 0.5, sum(p.numel() for p in MODEL.parameters()))


def update(task: Task, indices: Any, chunk: int | None = None, scale: float = 3.0) -> Any:
    return local_update(
        MODEL, cross_entropy, data(scale), np.array(indices, np.int64), THETA, task, chunk
    )


def test_it_is_minus_the_sum_of_clipped_gradients() -> None:
    task = task_of(client_clip=32.0)
    expected = np.zeros(task.dimension)
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)).double()
    torch.nn.utils.vector_to_parameters(torch.from_numpy(THETA), model.parameters())
    x, y = data(3.0)
    for record in range(20):
        model.zero_grad()
        inputs = torch.from_numpy(x[record : record + 1]).double()
        cross_entropy(model(inputs), torch.tensor([y[record]])).backward()  # type: ignore[no-untyped-call]
        g = torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None]).numpy()
        expected -= g * min(1.0, 1.0 / np.linalg.norm(g))
    found = update(task, range(20)) / 2.0**task.fractional_bits
    np.testing.assert_allclose(found, expected, atol=1e-4)


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, RECORDS - 1), min_size=1, max_size=RECORDS, unique=True),
    st.integers(1, RECORDS + 5),
)
def test_the_vector_does_not_depend_on_the_chunk_size(indices: list[int], chunk: int) -> None:
    task = task_of()
    assert (update(task, indices, chunk) == update(task, indices, 1)).all()


@settings(max_examples=15)
@given(
    st.lists(st.integers(0, RECORDS - 1), min_size=1, max_size=24, unique=True),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from([0.5, 3.0, 50.0]),
    st.data(),
)
def test_one_record_moves_the_sum_by_at_most_its_clip(
    indices: list[int], record_clip: float, scale: float, draw: st.DataObject
) -> None:
    # No client clip acts at 24 records of norm 1.7 and C = 60.
    task = task_of(record_clip, client_clip=60.0, bits=19)
    removed = draw.draw(st.sampled_from(indices))
    neighbour = [index for index in indices if index != removed]
    difference = update(task, indices, scale=scale) - update(task, neighbour, scale=scale)
    limit = record_clip * 2.0**19
    assert squared_norm(difference) <= limit * limit


def test_no_records_give_the_zero_vector_and_indices_outside_the_data_are_refused() -> None:
    assert not update(task_of(), []).any()
    for indices in ([0, RECORDS], [-1]):
        with pytest.raises(Misconfiguration, match="indices"):
            update(task_of(), indices)


@pytest.mark.parametrize("client_clip", [1.0, 2.37, 5.5])
def test_a_clipped_update_is_at_most_beta_long_and_nearly_that(client_clip: float) -> None:
    task = task_of(1.0, client_clip)
    same_label = np.flatnonzero(data()[1] == 0)
    x = update(task, np.tile(same_label, 4))
    assert squared_norm(x) <= task.bound**2
    assert math.sqrt(squared_norm(x)) > 0.9999 * task.bound
