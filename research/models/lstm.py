"""Two-layer LSTM for sentences (Xie et al. Sec.

6.1), of plain layers: torch.func maps over it.
"""

import torch
from torch import nn

from precad.simulation.datasets import DataSet
from research.datasets.sentences import BUCKETS
from research.models import MODELS

HIDDEN = 256
SMALL_HIDDEN = 32
EMBEDDING = 16
_VECTORS = 3
"""Axes of records whose words are vectors already."""


class Lstm(nn.Module):
    """One layer: ``[n, words, features]`` to ``[n, words, hidden]``."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(features, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden, bias=False)
        self._hidden = hidden

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """All hidden states; the first is zero."""
        given = self.from_input(x)
        state = given.new_zeros(len(x), self._hidden)
        memory, states = state, []
        for step in given.unbind(dim=1):
            gates = step + self.from_state(state)
            enter, forget, candidate, leave = gates.chunk(4, dim=-1)
            memory = torch.sigmoid(forget) * memory + torch.sigmoid(enter) * torch.tanh(
                candidate
            )
            state = torch.sigmoid(leave) * torch.tanh(memory)
            states.append(state)
        return torch.stack(states, dim=1)


class Sentences(nn.Module):
    """Two layers, and what the last word leaves classifies.

    Args:
        vectors: length of a word's vector.
        words: how many different words there are, whose vectors are trained along; 0
            where records hold vectors.
        hidden: units of a layer.
        classes: number of labels.
    """

    def __init__(self, vectors: int, words: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, vectors) if words else None
        self.first = Lstm(vectors, hidden)
        self.second = Lstm(hidden, hidden)
        self.last = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[n, classes]`` from ``[n, words]`` numbers or ``[n, words, vectors]``."""
        if self.embedding is not None:
            x = self.embedding(x.long())
        out: torch.Tensor = self.last(self.second(self.first(x))[:, -1])
        return out


@MODELS.register("lstm")
def lstm(data: DataSet) -> nn.Module:
    """256 units on fixed vectors of words."""
    if data.train_x.ndim != _VECTORS:
        return small_lstm(data)
    return Sentences(data.train_x.shape[2], 0, HIDDEN, data.classes)


@MODELS.register("small-lstm")
def small_lstm(data: DataSet) -> nn.Module:
    """32 units on 16 numbers a word that are trained along, for a data set of words' numbers."""
    return Sentences(EMBEDDING, BUCKETS, SMALL_HIDDEN, data.classes)
