"""Models and losses that people bring: of steps, numbers, tokens or pictures."""

import re
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from tests.rig.tasks import task_of
from torch import nn
from torch.func import functional_call
from torch.nn import functional
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint

from precad.client.gradients.objectives import Loss
from precad.client.gradients.record_gradients import RecordGradients
from precad.client.gradients.rehearsal import rehearse
from precad.client.records.torch_records import as_records
from precad.common.errors import Misconfiguration
from precad.common.model import initial_vector
from precad.common.task import Task

Net: TypeAlias = Any  # An ``Own``, whose parts are its attributes
Array = NDArray[np.generic]
N, CLASSES = 6, 3
GENERATOR = np.random.default_rng(20)
S = GENERATOR.normal(size=(N, 5, 6)).astype(np.float32)
X = GENERATOR.normal(size=(N, 6)).astype(np.float32)
T = GENERATOR.integers(0, 11, (N, 7))
P = GENERATOR.normal(size=(N, 2, 8, 8)).astype(np.float32)
Y = GENERATOR.integers(0, CLASSES, N)


_seq = nn.Sequential


class Own(nn.Module):
    """``forward`` as it is given, over the parts by name; with a head for the end."""

    def __init__(
        self,
        forward: Callable[..., object],
        head: int = 6,
        **parts: nn.Module | torch.Tensor,
    ) -> None:
        super().__init__()
        self._forward = forward
        for name, part in parts.items():
            if isinstance(part, torch.Tensor) and not isinstance(part, nn.Parameter):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)
        self.head = nn.Linear(head, CLASSES)

    def reset_parameters(self) -> None:
        """Nobody chose a part's numbers, so they may be replaced by the seed's."""

    def forward(self, x: torch.Tensor) -> object:
        return self._forward(self, x)


def _last(cell: nn.Module, width: int = 7) -> nn.Module:
    return Own(lambda m, x: m.head(m.cell(x)[0][:, -1]), width, cell=cell)


def _stepwise(cell: nn.Module) -> nn.Module:
    def forward(m: Net, x: torch.Tensor) -> object:
        state = None
        for step in range(x.shape[1]):
            state = m.cell(x[:, step], state)
        return m.head(state[0] if isinstance(state, tuple) else state)

    return Own(forward, 7, cell=cell)


def _causal(m: Net, tokens: torch.Tensor) -> object:
    x = m.table(tokens) + m.places[: tokens.shape[1]]
    query, key, value = m.ask(m.first(x)).chunk(3, dim=-1)
    x = x + functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    x = x + m.inner(m.second(x))
    return m.head((x @ m.table.weight.T)[:, -1])


def _excite(m: Net, x: torch.Tensor) -> object:
    seen = m.conv(x)
    weight = m.gate(seen.mean((2, 3))).sigmoid()
    return m.head((seen * weight[..., None, None]).mean((2, 3)))


def _flow(m: Net, x: torch.Tensor) -> object:
    for _ in range(4):
        x = x + torch.tanh(m.slope(x)) / 4
    return m.head(x)


def _conv(groups: int = 1) -> nn.Module:
    return _seq(
        *(
            nn.Conv2d(2, 4, 3, groups=groups),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ),
        *(nn.Flatten(), nn.Linear(36, CLASSES)),
    )


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv2d(2, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
        )
        self.last = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down = torch.relu(self.first(x))
        low = torch.relu(self.second(functional.max_pool2d(down, 2)))
        both = torch.cat([down, functional.interpolate(low, scale_factor=2)], dim=1)
        found: torch.Tensor = self.last(both)
        return found


TRAINED: dict[str, tuple[Callable[[], nn.Module], Array]] = {
    "logistic regression": (lambda: nn.Linear(6, CLASSES), X),
    "two layers of tanh": (
        lambda: _seq(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)), X),
    "residual with LayerNorm and PReLU": (
        lambda: Own(lambda m, x: m.head(x + m.act(m.norm(m.line(x)))),
                    line=nn.Linear(6, 6), norm=nn.LayerNorm(6), act=nn.PReLU()), X),
    "bilinear": (
        lambda: Own(lambda m, x: m.head(m.pair(x, x)), pair=nn.Bilinear(6, 6, 6)), X),
    "mixture of experts": (
        lambda: Own(lambda m, x: m.head((
            m.gate(x).softmax(dim=1).unsqueeze(2)
            * torch.stack([m.one(x), m.other(x)], dim=1)).sum(dim=1)),
                    one=nn.Linear(6, 6), other=nn.Linear(6, 6),
                    gate=nn.Linear(6, 2)), X),
    "steps of a differential equation": (lambda: Own(_flow, slope=nn.Linear(6, 6)), X),
    "tied autoencoder": (
        lambda: Own(lambda m, x: m.head(
            functional.linear(m.down(x).tanh(), m.down.weight.T)),
                    down=nn.Linear(6, 4)), X),
    "weight norm of parametrizations": (
        lambda: parametrizations.weight_norm(nn.Linear(6, CLASSES)), X),
    "orthogonal of parametrizations": (
        lambda: parametrizations.orthogonal(nn.Linear(6, CLASSES)), X),
    "fixed Fourier features in a buffer": (
        lambda: Own(lambda m, x: m.head(torch.sin(x @ m.waves)), 8,
                    waves=torch.ones(6, 8) / 3), X),
    "multi-task by torch.cat": (
        lambda: Own(lambda m, x: torch.cat([m.head(x), m.other(x)], 1),
                    other=nn.Linear(6, 2)), X),
    "LSTM": (lambda: _last(nn.LSTM(6, 7, batch_first=True)), S),
    "LSTM with projection": (
        lambda: _last(nn.LSTM(6, 7, proj_size=4, batch_first=True), 4), S),
    "GRU, two layers, both ways": (
        lambda: _last(nn.GRU(6, 7, 2, batch_first=True, bidirectional=True), 14), S),
    "RNN": (lambda: _last(nn.RNN(6, 7, batch_first=True)), S),
    "LSTMCell": (lambda: _stepwise(nn.LSTMCell(6, 7)), S),
    "GRUCell": (lambda: _stepwise(nn.GRUCell(6, 7)), S),
    "attention": (
        lambda: Own(lambda m, x: m.head(
            m.mix(x, x, x, need_weights=False)[0].mean(dim=1)),
                    mix=nn.MultiheadAttention(6, 2, batch_first=True)), S),
    "transformer's encoder": (
        lambda: Own(lambda m, x: m.head(m.layer(x)[:, 0]),
                    layer=nn.TransformerEncoderLayer(
                        6, 2, 12, 0.0, batch_first=True)), S),
    "mean of a set": (
        lambda: Own(lambda m, x: m.head(m.each(x).relu().mean(dim=1)),
                    each=nn.Linear(6, 6)), S),
    "graph with a fixed adjacency": (
        lambda: Own(lambda m, x: m.head((m.edges @ m.each(x)).relu().sum(dim=1)),
                    each=nn.Linear(6, 6), edges=torch.eye(5) / 2), S),
    "dilated convolutions in time": (
        lambda: _seq(nn.Conv1d(5, 4, 2, dilation=2), nn.ReLU(), nn.Flatten(),
                     nn.Linear(16, CLASSES)), S),
    "GPT with tied embeddings": (
        lambda: Own(_causal, 11, table=nn.Embedding(11, 6),
                    places=nn.Parameter(torch.zeros(9, 6)), first=nn.LayerNorm(6),
                    second=nn.LayerNorm(6), ask=nn.Linear(6, 18),
                    inner=_seq(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))), T),
    "embedding": (
        lambda: _seq(nn.Embedding(11, 4), nn.Flatten(), nn.Linear(28, CLASSES)), T),
    "embedding bag": (lambda: nn.EmbeddingBag(11, CLASSES), T),
    "embedding and GRU": (
        lambda: Own(lambda m, x: m.head(m.cell(m.table(x))[1][0]), 7,
                    table=nn.Embedding(11, 4), cell=nn.GRU(4, 7, batch_first=True)), T),
    "convolution with GroupNorm": (_conv, P),
    "grouped convolution": (lambda: _conv(2), P),
    "InstanceNorm without statistics": (
        lambda: _seq(nn.Conv2d(2, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.ReLU(),
                     nn.Flatten(), nn.Linear(108, CLASSES)), P),
    "squeeze and excitation": (
        lambda: Own(_excite, 4, conv=nn.Conv2d(2, 4, 3), gate=nn.Linear(4, 4)), P),
    "segmentation, a small U-Net": (UNet, P),
    "transposed convolution": (
        lambda: _seq(nn.ConvTranspose2d(2, 3, 2, 2), nn.AdaptiveAvgPool2d(2),
                     nn.Flatten(), nn.Linear(12, CLASSES)), P),
}  # fmt: skip


def _in_place(m: Net, x: torch.Tensor) -> torch.Tensor:
    sums = torch.zeros(len(x), CLASSES)
    sums += m.head(x)
    return sums


class _Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return 2 * x

    @staticmethod
    def backward(ctx: object, *slopes: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return 2 * slopes[0]


_twice: Callable[[torch.Tensor], torch.Tensor] = _Twice.apply


def _packed(m: Net, x: torch.Tensor) -> object:
    lengths = (x.abs().sum(dim=2) > 0).sum(dim=1).cpu()
    steps = nn.utils.rnn.pack_padded_sequence(
        x, lengths, batch_first=True, enforce_sorted=False
    )
    return m.head(m.cell(steps)[1][0][0])


def _compiled_inside() -> nn.Module:
    model = _seq(nn.Linear(6, CLASSES))
    model[0].compile()
    return model


def _old(norm: Callable[[nn.Module], object]) -> nn.Module:
    with warnings.catch_warnings(action="ignore"):
        return cast("nn.Module", norm(nn.Linear(6, CLASSES)))


def _head(forward: Callable[..., object]) -> Callable[[], nn.Module]:
    return partial(Own, forward)


_pruned: Callable[[nn.Module, str, int], object] = prune.l1_unstructured
REFUSED: dict[str, tuple[Callable[[], nn.Module], Array]] = {
    ".item()": (_head(lambda m, x: m.head(x) * x.mean().item()), X),
    "if on data": (_head(lambda m, x: m.head(x) if x.sum() > 0 else -m.head(x)), X),
    "NumPy in forward": (
        _head(lambda m, x: m.head(x) + float(x.detach().numpy().mean())), X),
    "a mask as index": (_head(lambda m, x: m.head(x) + x[x > 0].sum()), X),
    "in-place sums": (_head(_in_place), X),
    "tuple": (_head(lambda m, x: (m.head(x), x)), X),
    "dictionary": (_head(lambda m, x: {"logits": m.head(x)}), X),
    "torch.utils.checkpoint": (
        _head(lambda m, x: checkpoint(m.head, x, use_reentrant=False)), X),
    "the old torch.utils.checkpoint": (
        _head(lambda m, x: checkpoint(m.head, x, use_reentrant=True)),
        X,
    ),
    "autograd.Function of the old form": (_head(lambda m, x: _twice(m.head(x))), X),
    "packed sequences": (
        lambda: Own(_packed, 7, cell=nn.LSTM(6, 7, batch_first=True)), S),
    "LSTM without batch_first": (lambda: _last(nn.LSTM(6, 7)), S),
    "LSTM with dropout": (
        lambda: _last(nn.LSTM(6, 7, 2, dropout=0.1, batch_first=True)), S),
    "dropout": (lambda: _seq(nn.Linear(6, CLASSES), nn.Dropout()), X),
    "dropout of torch.nn.functional": (
        _head(lambda m, x: functional.dropout(m.head(x))), X),
    "batch norm": (lambda: _seq(nn.Linear(6, CLASSES), nn.BatchNorm1d(CLASSES)), X),
    "InstanceNorm with statistics": (
        lambda: _seq(nn.InstanceNorm2d(2, track_running_stats=True), nn.Flatten(),
                     nn.Linear(128, CLASSES)), P),
    "TorchScript": (lambda: _old(torch.jit.script), X),
    "torch.compile": (
        lambda: cast("nn.Module", torch.compile(nn.Linear(6, CLASSES))), X),
    "torch.compile of a layer": (_compiled_inside, X),
    "the old weight_norm": (lambda: _old(weight_norm), X),
    "the old spectral_norm": (lambda: _old(spectral_norm), X),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(6, CLASSES)), X),
    "pruning": (
        lambda: _old(lambda line: _pruned(line, "weight", 2)), X),
    "lazy layers": (lambda: _seq(nn.LazyLinear(CLASSES)), X),
    "sparse embedding": (
        lambda: _seq(nn.Embedding(11, 4, sparse=True), nn.Flatten(),
                     nn.Linear(28, CLASSES)), T),
    "embedding with max_norm": (
        lambda: _seq(nn.Embedding(11, 4, max_norm=1.0), nn.Flatten(),
                     nn.Linear(28, CLASSES)), T),
    "DataParallel": (lambda: nn.DataParallel(nn.Linear(6, CLASSES)), X),
    "frozen layers": (
        lambda: _seq(nn.Linear(6, 6).requires_grad_(requires_grad=False),
                     nn.Linear(6, CLASSES)), X),
}  # fmt: skip


def _focal(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    chosen = functional.log_softmax(outputs, dim=1).gather(1, targets.unsqueeze(1))
    return -((1 - chosen.exp()) ** 2 * chosen).sum()


def _contrastive(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    unit = functional.normalize(outputs, dim=1)
    same = (targets[:, None] == targets[None, :]).float()
    return -(same * functional.log_softmax(unit @ unit.T, dim=1)).sum(dim=1).mean()


BITS = (X[:, :CLASSES] > 0).astype(np.float32)
SHARES = np.abs(X[:, :CLASSES]) / np.abs(X[:, :CLASSES]).sum(axis=1, keepdims=True)
NUMBERS, COUNTS = X[:, 0], np.abs(X[:, 0]).round()
WEIGHTS = torch.tensor([0.1, 1.0, 5.0])
LOSSES: dict[str, tuple[Loss, int, Array]] = {
    "cross_entropy": (functional.cross_entropy, CLASSES, Y),
    "CrossEntropyLoss, label_smoothing": (
        nn.CrossEntropyLoss(label_smoothing=0.1), CLASSES, Y),
    "CrossEntropyLoss, weights, reduction='sum'": (
        nn.CrossEntropyLoss(weight=WEIGHTS, reduction="sum"), CLASSES, Y),
    "CrossEntropyLoss of shares": (nn.CrossEntropyLoss(), CLASSES, SHARES),
    "MultiMarginLoss": (nn.MultiMarginLoss(), CLASSES, Y),
    "focal loss": (_focal, CLASSES, Y),
    "MSELoss": (nn.MSELoss(), 1, NUMBERS),
    "L1Loss": (nn.L1Loss(), 1, NUMBERS),
    "HuberLoss": (nn.HuberLoss(), 1, NUMBERS),
    "quantiles": (
        lambda out, y: torch.maximum(
            0.9 * (y - out[:, 0]), 0.1 * (out[:, 0] - y)).sum(),
        1, NUMBERS),
    "PoissonNLLLoss": (nn.PoissonNLLLoss(), 1, COUNTS[:, None]),
    "Gaussian likelihood": (
        lambda out, y: (
            out[:, 1] + (y - out[:, 0]) ** 2 * torch.exp(-out[:, 1])).sum() / 2,
        2, NUMBERS),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(), CLASSES, BITS),
    "MultiLabelSoftMarginLoss": (nn.MultiLabelSoftMarginLoss(), CLASSES, BITS),
    "dice": (
        lambda out, y: 1 - 2 * (out.sigmoid() * y).sum() / (
            out.sigmoid().sum() + y.sum() + 1),
        CLASSES, BITS),
    "two tasks": (
        lambda out, y: functional.cross_entropy(out[:, :2], y[:, 0].long())
        + functional.mse_loss(out[:, 2], y[:, 1]), 3,
        np.stack([BITS[:, 0], NUMBERS], axis=1)),
}  # fmt: skip
_distribution: Any = torch.distributions.Normal
REFUSED_LOSSES: dict[str, tuple[Loss, int, Array]] = {
    "class weights in a mean": (nn.CrossEntropyLoss(weight=WEIGHTS), CLASSES, Y),
    "contrastive": (_contrastive, CLASSES, Y),
    "gaussian_nll_loss of torch, which looks at values": (
        lambda out, y: functional.gaussian_nll_loss(out[:, 0], y, out[:, 1].exp()),
        2, NUMBERS),
    ".item()": (
        lambda out, y: functional.cross_entropy(out, y) * out.mean().item(), CLASSES,
        Y),
    "BCELoss": (
        lambda out, y: functional.binary_cross_entropy(out.sigmoid(), y), CLASSES,
        BITS),
    "a distribution that validates": (
        lambda out, y: -_distribution(out[:, 0], 1.0).log_prob(y), 2, NUMBERS),
    "a matrix's inverse": (
        lambda out, y: torch.linalg.inv(out.reshape(-1, 2, 2)).sum() * y, 4, NUMBERS),
}  # fmt: skip


def alone(
    model: nn.Module,
    loss: Loss,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    theta: np.ndarray,
) -> np.ndarray:
    """Gradients ``[n, d]`` by autograd, a record at a time; the last axis as θ's."""
    named, start = {}, 0
    for name, tensor in model.named_parameters():
        values = torch.from_numpy(theta[start : start + tensor.numel()]).float()
        named[name] = values.reshape(tensor.shape).requires_grad_()
        start += tensor.numel()
    rows = []
    for record in range(len(inputs)):
        one = slice(record, record + 1)
        outputs = functional_call(model, named, (inputs[one],))
        target = targets[one]
        if target.numel() == getattr(outputs, "numel", int)():
            target = (
                target.reshape(outputs.shape) if target.is_floating_point() else target
            )
        slopes = torch.autograd.grad(loss(outputs, target).sum(), list(named.values()))
        rows.append(torch.cat([slope.ravel() for slope in slopes]).double().numpy())
    return np.stack(rows)


PAGE = Path(__file__).parents[2] / "docs" / "own-model.md"


def outcome(
    model: nn.Module, loss: Loss, x: Array, y: Array, task: Task | None = None
) -> str:
    """Trains, if each record's gradient is autograd's, or the refusal."""
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
    stacked = (
        gradients.shared(named, inputs=records.inputs, targets=records.targets)
        .double()
        .numpy()
    )
    worst = max(np.abs(each - expected).max() for each in (found, stacked))
    assert np.abs(expected).max() > 1e-3
    return (
        "trains"
        if worst <= 1e-5 * max(1.0, np.abs(expected).max())
        else f"off by {worst}"
    )


def row_on_the_page(name: str) -> str:
    """What the page says of it; names with one outcome share a line."""
    for names, said in re.findall(
        r"^\| (.+?) \| (.*) \|$", PAGE.read_text(), re.MULTILINE
    ):
        if name in names.split("; "):
            return str(said)
    return ""
