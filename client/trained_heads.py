"""A linear classifier from one released sum: ridge on an encoder's features, say.

Each level of the target is explained by itself, 1 or 0, and the largest score wins. The
penalty comes from the noise alone, never from records: what noise adds to the products
is a symmetric random matrix with eigenvalues up to about √(2·m) of its deviations
(Wigner 1958), and half of that, their standard deviation, keeps small eigenvalues, which
noise made, from being divided by.
"""

import math
from dataclasses import replace

import numpy as np

from precad.client.answers import cell_deviation
from precad.client.answers_of_rows import constant_of
from precad.client.participation import TrainedModel
from precad.common import Block, Floats, Misconfiguration, ModelVector, Task

_PENALTY = 0.5
"""λ, by the largest eigenvalue that noise alone would have."""


def model_for_inputs(model: TrainedModel) -> TrainedModel:
    """Return a model that takes records: itself, or the head that was asked for.

    The latter's task has the model of logistic regression, to be used and not trained;
    its digest is that of the answers.

    Raises Misconfiguration: it holds answers, and not one head.
    """
    task = model.task
    if not task.blocks:
        return model
    heads = [block for block in task.blocks if block.query.kind == "head"]
    if len(heads) != 1:
        raise Misconfiguration(
            "model file",
            task.name,
            "holds answers: precad ask answer shows them; of models, only a query of"
            " kind head gives one",
        )
    [block] = heads
    weights = _weights(task, block, model.theta)
    # To first order the softmax of so large scores is what least squares says.
    levels = len(weights)
    weights *= levels**2 / max(levels - 1, 1)
    bias = weights[:, 0] * constant_of(block)
    of_inputs = weights[:, 1:]
    values = task.model_dump(mode="json", exclude={"query"})
    # Of a question owners of any size are bounded by it; nothing is trained by it.
    values["privacy"]["client_clip"] = values["privacy"]["record_clip"]
    values["model"] = {
        "architecture": "logistic",
        "parameters": [
            {"name": "1.weight", "shape": list(of_inputs.shape)},
            {"name": "1.bias", "shape": list(bias.shape)},
        ],
    }
    theta = np.concatenate([of_inputs.ravel(), bias]).astype(np.float32)
    return replace(model, task=Task.parse(values), theta=theta)


def _weights(task: Task, block: Block, released: ModelVector) -> Floats:
    """Return each level's weights of a row's numbers, ``[levels, m]``.

    ``released`` is the decoded sum, ``[d] float64``.
    """
    size = len(block.row)
    first, second = np.triu_indices(size)
    end = block.start + len(block.cells) - 1
    own = released[block.start : end]
    cells = np.ldexp(own, task.fractional_bits) / block.unit
    rows, products = np.split(cells, [len(cells) - len(first)])
    gram = np.zeros((size, size))
    gram[first, second] = np.where(first == second, 1.0, math.sqrt(0.5)) * products
    values, vectors = np.linalg.eigh(gram, UPLO="U")
    penalty = _PENALTY * math.sqrt(2.0 * size) * cell_deviation(task, block)
    inverse = (vectors / (np.maximum(values, 0.0) + penalty)) @ vectors.T
    weights: Floats = rows.reshape(-1, size) @ inverse
    return weights
