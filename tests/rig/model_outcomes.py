"""What comes of a model and a loss: each record's gradient is autograd's, or the refusal."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.rig.model_corpus import N, alone
from tests.rig.tasks import task_of
from torch import nn

from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.rehearsal import rehearse
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector
from precad.common.task import Task

PAGE = Path(__file__).parents[2] / "docs" / "own-model.md"


def outcome(model: nn.Module, loss: Any, x: Any, y: Any, task: Task | None = None) -> str:
    """What the table says: trains, if each record's gradient is autograd's, or the refusal."""
    torch.manual_seed(3)
    records = as_records((x, y))
    try:
        task = task or task_of(model, "uniform")
        rehearse(model, loss, records, task, N)
    except Misconfiguration as error:
        return re.sub(r", in \S+ line \d+, `.*?`(?=:)", "", str(error.remedy))
    gradients = RecordGradients(model, loss, task.model.parameters, 4, task.objective)
    moved = np.random.default_rng(5).normal(0, 0.1, task.dimension)
    theta = initial_vector(task.model) + moved
    found = np.concatenate(list(gradients.chunks(records, np.arange(N), theta)))[:N]
    expected = alone(model, loss, records.inputs, records.targets, theta)
    named = gradients.loaded(theta)
    stacked = gradients.shared(named, records.inputs, records.targets).double().numpy()
    worst = max(np.abs(each - expected).max() for each in (found, stacked))
    assert np.abs(expected).max() > 1e-3
    return "trains" if worst <= 1e-5 * max(1.0, np.abs(expected).max()) else f"off by {worst}"


def row_on_the_page(name: str) -> str:
    """What the page says of it; names with one outcome share a line."""
    for names, said in re.findall(r"^\| (.+?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE):
        if name in names.split("; "):
            return str(said)
    return ""
