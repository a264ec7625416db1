"""What a trained model says of an owner's records, for questions on how well it does.

Each record is scored by itself, in a batch of one: what it adds to an answer depends on
no other record, whatever the model's operations do.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from precad.client.gradients import Applied, build, own_words
from precad.client.participation import TrainedModel
from precad.client.records import Columns, ColumnTable, as_inputs, inputs_of
from precad.client.trained_heads import model_for_inputs
from precad.common import Block, Floats, Misconfiguration

if TYPE_CHECKING:
    from torch import nn


def _asked(block: Block, trained: TrainedModel | None) -> TrainedModel:
    """Return the model, which must be the one that a block's query asks about.

    Raises Misconfiguration: there is none, it is another, or learnt another column.
    """
    query = block.query
    if trained is None or str(trained.digest) != query.model:
        raise Misconfiguration(
            "evaluated_model",
            None if trained is None else str(trained.digest),
            f"query {query.name} asks of model {query.model}: give its file, and as"
            " evaluated_task its task",
        )
    target = trained.task.target
    levels = block.levels.get(target.name, ())
    same = query.column == target.name and levels == target.levels
    if trained.task.data is None or not same:
        raise Misconfiguration(
            f"query {query.name}, column",
            f"{query.column} {list(levels)}",
            f"the model's own target is {target.name} {list(target.levels)}, read by its"
            " task's [data]: ask of that",
        )
    return trained


def scores_of(
    table: ColumnTable,
    evaluated: TrainedModel | None,
    *,
    asked_by: Sequence[Block],
    module: "nn.Module | None",
    own: Columns,
) -> Floats:
    """Return what a trained model says of each record.

    That is the probability of each level, ``[n, levels]``, or without levels a number
    in the target's own unit, ``[n, 1]``; NaN where an output isn't finite.

    Args:
        table: read as in the model's training; it needs no target.
        evaluated: the model, or answers with a head, whose task has a ``[data]``.
        asked_by: the blocks that ask about it, one at least.
        module: the model's torch module, where its task names no architecture.
        own: the table's own names, which may be of other columns too.

    Raises Misconfiguration: a block asks about another model, or the model can't take
    the records, or says neither.
    """
    asked_about, *_ = [_asked(block, evaluated) for block in asked_by]
    trained = model_for_inputs(asked_about)
    task = trained.task
    assert task.data is not None
    rows = as_inputs(inputs_of(table, task.data, own))
    applied = Applied(module or build(task.model), task)
    predicted = own_words(task, applied.outputs(trained.theta, rows, together=1))
    if predicted is None:
        raise Misconfiguration(
            "evaluated_model",
            task.loss,
            "the model gives neither a column for each level nor one number",
        )
    scores: Floats = predicted.reshape(len(rows), -1)
    scores[~np.isfinite(scores).all(axis=1)] = np.nan
    return scores
