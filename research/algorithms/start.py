"""The model that a problem starts from; the same for every algorithm with the same seed."""

from torch import nn

from precad.client.gradients.torch_models import model_section
from precad.common.task_schema import ModelSection
from research.algorithms.problem import Problem
from research.models import MODELS


def model_and_section(problem: Problem) -> tuple[nn.Module, ModelSection]:
    """The module, and its description with initial weights expanded from the seed."""
    module = MODELS[problem.model](problem.data)
    initial = "zeros" if problem.model == "logistic" else "uniform"
    section = model_section(
        module, architecture=problem.model, initial=initial, initial_seed=problem.seed
    )
    return module, ModelSection.model_validate(section)
