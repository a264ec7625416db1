"""Models and losses; a record that a server can look for by a model of its choice."""

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from precad.client.gradients.objectives import Loss
from precad.client.records.torch_records import Records, as_records

N, FEATURES = 400, 9
RATE = 1.0


def plain(outputs: int = 2, *after: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, outputs), *after)


def around(*layers: nn.Module, width: int = FEATURES) -> nn.Module:
    """Layers between parameters that a server sets, and a class's outputs."""
    first = nn.Linear(FEATURES, FEATURES)
    return nn.Sequential(first, *layers, nn.Flatten(), nn.Linear(width, 2))


class Layer(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)


def square(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, 3, 3)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(3, 1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return cast("torch.Tensor", self.inner(*[square(x)] * 3, need_weights=False)[0])


def counted(x: torch.Tensor) -> torch.Tensor:
    return x * torch.bincount(x.clamp(0, 8).nan_to_num().long().flatten(), None, 9)


class Found(nn.Module):
    """A table of ten temperatures, read at 10 where p rounds to 1, and nowhere else."""

    def __init__(self, bounded: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.a = nn.Linear(FEATURES, 2)
        self.bounded = bounded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.a(x)
        p = torch.sigmoid(z[:, 0] - z[:, 1])
        return cast("torch.Tensor", z / TEN[self.bounded(p.detach() * 10)].unsqueeze(1))


def found() -> nn.Module:
    """As a process is given it by name."""
    return Found(lambda p: p.nan_to_num().long())


def clamped() -> nn.Module:
    """With the remedy."""
    return Found(lambda p: p.nan_to_num().long().clamp(0, 9))


class Table(nn.Module):
    """Rows of an own parameter, by whole numbers that come of the record and the model."""

    def __init__(self, index: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        # Drawn at import, else anew each time: of some no record's row is the last.
        with torch.random.fork_rng():
            torch.manual_seed(20)
            self.first = nn.Linear(FEATURES, FEATURES)
        self.rows = nn.Parameter(torch.ones(FEATURES, 2))
        self.index = index

    def reset_parameters(self) -> None:
        """Nobody chose these rows."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: torch.Tensor = self.first(x)
        rows: torch.Tensor = functional.embedding(self.index(seen), self.rows)
        return seen[:, :2] * rows


def normal(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Torch's distributions look at their parameters, in Python."""
    shape: Any = torch.distributions.Normal(outputs, 1.0)
    return cast("torch.Tensor", -shape.log_prob(targets))


def by_bce(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return functional.binary_cross_entropy(torch.sigmoid(outputs), targets)


FIVE = torch.arange(5.0)
TEN = torch.linspace(1, 2, 10)
FOUR = torch.linspace(-1, 1, 4)
NO_ROW = "a whole number that comes of the model's.*clamp the whole number itself"
LABELS, ONE, TWO = "labels", "one number", "two numbers"
LOSSES: dict[str, tuple[nn.Module, Loss, str, str]] = {
    # model, loss, targets, and what the refusal says; none where it is taken
    "cross entropy": (plain(), functional.cross_entropy, LABELS, ""),
    "nll": (plain(2, nn.LogSoftmax(1)), nn.NLLLoss(), LABELS, ""),
    "squares": (plain(1), functional.mse_loss, ONE, ""),
    "absolute": (plain(1), functional.l1_loss, ONE, ""),
    "huber": (plain(1), nn.HuberLoss(), ONE, ""),
    "poisson": (plain(1), functional.poisson_nll_loss, ONE, ""),
    "bce with logits": (plain(1), functional.binary_cross_entropy_with_logits, ONE, ""),
    "soft margin": (plain(2), nn.MultiLabelSoftMarginLoss(), TWO, ""),
    "divergence": (plain(2, nn.LogSoftmax(1)), nn.KLDivLoss(reduction="sum"), TWO, ""),
    "bce": (
        plain(1, nn.Sigmoid()),
        functional.binary_cross_entropy,
        ONE,
        "_with_logits",
    ),
    "nn.BCELoss": (
        plain(1, nn.Sigmoid()),
        nn.BCELoss(),
        ONE,
        "loss = 'BCELoss'.*_with_logits",
    ),
    "own by bce": (plain(1), by_bce, ONE, "loss = 'by_bce'.*_with_logits"),
    "a distribution": (plain(1), normal, ONE, "loss = 'normal'.*decides by values"),
}
LAYERS: dict[str, tuple[nn.Module, str]] = {
    "convolution": (around(nn.Unflatten(1, (1, 9)), nn.Conv1d(1, 2, 3), width=14), ""),
    "pooling": (around(nn.Unflatten(1, (1, 9)), nn.MaxPool1d(3), width=3), ""),
    "layer norm": (around(nn.LayerNorm(9), nn.GELU()), ""),
    "group norm": (around(nn.GroupNorm(3, 9), nn.PReLU()), ""),
    "attention": (around(Attention()), ""),
    "softmax": (around(nn.Softmax(1), nn.Softplus()), ""),
    "sorted": (around(Layer(lambda x: torch.sort(x).values)), ""),
    "bounded index": (
        around(
            Layer(lambda x: FIVE[(x.nan_to_num(0, 0, 0).clamp(0, 1) * 4).long()] * x)
        ),
        "",
    ),
    "inverse without a check": (
        around(Layer(lambda x: torch.linalg.inv_ex(square(x))[0])),
        "",
    ),
    "inverse": (
        around(Layer(lambda x: torch.linalg.inv(square(x)))),
        "model layer 1.*inv_ex",
    ),
    "never singular": (
        around(
            Layer(lambda x: torch.linalg.inv(square(x).tanh() * 0.1 + torch.eye(3)))
        ),
        "model layer 1.*inv_ex",
    ),
    "eigenvalues": (
        around(Layer(lambda x: torch.linalg.eigvalsh(square(x))), width=3),
        "model layer 1.*as many steps as the values need",
    ),
    "counted": (
        around(Layer(counted)),
        "model layer 1.*as many results as the values say",
    ),
    "constant": (around(Layer(lambda x: x * torch.ones(1).item())), ""),
    "index": (
        around(Layer(lambda x: FIVE[(x * 0.1).long()] * x)),
        "model layer 1.*IndexError",
    ),
    "one temperature too few": (Found(lambda p: p.nan_to_num().long()), NO_ROW),
    "clamped before NaN": (Found(lambda p: p.clamp(0, 9).long()), NO_ROW),
    "rounded afterwards": (
        Found(lambda p: p.nan_to_num().clamp(0, 9.5).round().long()),
        NO_ROW,
    ),
    "that wraps around": (
        Found(lambda p: (p.nan_to_num().clamp(0, 1).long() - 1).to(torch.uint8).long()),
        NO_ROW,
    ),
    "changed afterwards": (
        Found(lambda p: p.long().clamp(0, 9).add_(1)),
        NO_ROW,
    ),
    "clamped temperature": (Found(lambda p: p.long().clamp(0, 9)), ""),
    "clamped by tensors": (
        Found(lambda p: p.long().maximum(torch.tensor(0)).minimum(torch.tensor(9))),
        "",
    ),
    "one place too far": (Table(lambda seen: seen.argmax(1) + 1), NO_ROW),
    "a place": (Table(lambda seen: seen.argmax(1)), ""),
    "places of a sort": (Table(lambda seen: seen.sort(1)[1][:, 3]), ""),
    "the best three": (Table(lambda seen: seen.topk(3, 1)[1][:, 2]), ""),
    "buckets": (Found(lambda p: 13 - torch.bucketize(p, FOUR)), NO_ROW),
    "clamped buckets": (
        Found(lambda p: torch.bucketize(p, FOUR).clamp_max(3).clamp_min(0)),
        "",
    ),
    "divided by a count": (
        Table(lambda seen: 8 // (seen > 0).sum(1)),
        "raises where a whole number is divided by 0",
    ),
    "gathered": (
        around(Layer(lambda x: x.gather(1, (x > 1e3).long() + 8))),
        "model layer 1.*" + NO_ROW,
    ),
    "gathered from both": (around(Layer(lambda x: x.gather(1, (x > 0).long()))), ""),
    "an exponential of a matrix": (
        around(Layer(lambda x: torch.linalg.matrix_exp(square(x)))),
        "matrix_exp.*isn't known to take the same steps.*any_operations",
    ),
    "a median": (
        around(Layer(lambda x: x - x.median(1, keepdim=True)[0])),
        "isn't known to take the same steps",
    ),
}
PAIRS = LOSSES | {
    name: (model, functional.cross_entropy, LABELS, said)
    for name, (model, said) in LAYERS.items()
}


def records_for(targets: str) -> Records:
    """All plain, but the last one's inputs, a hundred times as large as the others'."""
    generator = np.random.default_rng(1)
    x = generator.uniform(0.1, 1.0, size=(N, FEATURES)).astype(np.float32)
    x[-1] *= 100
    y: dict[str, NDArray[np.generic]] = {
        LABELS: generator.integers(0, 2, N),
        ONE: generator.integers(0, 2, (N, 1)).astype(np.float32),
        TWO: generator.dirichlet([1, 1], N).astype(np.float32),
    }
    return as_records((x, y[targets]))


def with_property(dimension: int) -> NDArray[np.float64]:
    """A finite θ at which only the last record's activations overflow."""
    return np.where(np.arange(dimension) % 2, 3e37, -3e37)
