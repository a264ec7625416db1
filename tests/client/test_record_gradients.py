"""Poisson samples of records; gradients one by one: the same bits in any batch, and
autograd's, or a refusal.

Thirty models and fifteen losses as people bring them; docs/own-model.md has what came
out here.
"""

import math
import re
from collections.abc import Callable, Iterator, Sequence

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.rig import model_corpus as corpus
from tests.rig.model_corpus import CLASSES, TRAINED, outcome, row_on_the_page
from tests.rig.refusals import refused
from tests.rig.tasks import task_of
from torch import nn
from torch.nn.functional import cross_entropy

from precad.client.gradients.local_update import poisson_sample
from precad.client.gradients.record_gradients import (
    MOST_RECORDS,
    RecordGradients,
    chunk_records,
)
from precad.client.gradients.rehearsal import rehearse, try_model
from precad.client.records.torch_records import as_records
from precad.common import identifiers, ring, roster
from precad.simulation import simulate

pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop|.*oneDNN")

RECORDS = 23
GENERATOR = torch.Generator().manual_seed(5)
Y = torch.randint(0, 3, (RECORDS,), generator=GENERATOR)
X = torch.randn(RECORDS, 1, 6, 6, generator=GENERATOR)
STEPS = X.squeeze(1)
TOKENS = torch.randint(0, 11, (RECORDS, 7), generator=GENERATOR)


def linear() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 7), nn.Tanh(), nn.Linear(7, 3))


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 2), nn.Flatten(), nn.LayerNorm(20), nn.Linear(20, 3),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "linear": (linear, X),
    "convolution": (convolution, X),
    "embedding": (TRAINED["embedding"][0], TOKENS),
    **{
        name: (TRAINED[name][0], STEPS)
        for name in ("LSTM", "GRU, two layers, both ways")
    },
}


class Counting(corpus.Own):
    seen: torch.Tensor


def rows(
    model: nn.Module,
    x: torch.Tensor,
    indices: Sequence[int] | NDArray[np.int64],
    chunk: int | None = None,
) -> NDArray[np.float64]:
    gradients = RecordGradients(
        model, cross_entropy, task_of(model).model.parameters, chunk
    )
    theta = np.random.default_rng(3).normal(
        0, 0.3, sum(p.numel() for p in model.parameters())
    )
    chunks = list(
        gradients.chunks(as_records((x, Y[: len(x)])), np.array(indices), theta)
    )
    return np.concatenate(chunks)[: len(indices)]


@pytest.mark.parametrize("name", MODELS)
def test_a_gradient_has_the_same_bits_whatever_its_neighbours_and_place(
    name: str,
) -> None:
    make, x = MODELS[name]
    model = make()
    everything = rows(model, x, range(RECORDS), chunk=8)
    generator = np.random.default_rng(1)
    for _ in range(5):
        some = generator.permutation(RECORDS)[: generator.integers(1, RECORDS)]
        assert (rows(model, x, some, chunk=8) == everything[some]).all()


def test_dense_gradients_have_the_same_bits_in_chunks_that_fit_the_budget() -> None:
    alone = rows(linear(), X, range(RECORDS), chunk=1)
    for chunk in (2, 5, 16, RECORDS, None):
        assert (rows(linear(), X, range(RECORDS), chunk) == alone).all()
    sizes = [
        chunk_records(dimension) for dimension in (650, 2**13, 2**15, 10**6, 10**9)
    ]
    *some, large, one = sizes
    assert (some, one) == ([MOST_RECORDS, 128, 64], 1)
    assert 1 <= large < 10
    assert large * 10**6 * 64 <= 256 * 2**20


def test_other_models_than_the_tasks_are_refused_before_training() -> None:
    larger = nn.Sequential(*linear(), nn.Linear(3, 3))
    for model, said in (
        (larger[:2], "parameter 2.*absent.*3.weight"),
        (larger, "parameter 4.*the task has none"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(36, 3)),
            r"parameter 0.*1\.weight\[3, 36\].*7, 36",
        ),
    ):
        refused(
            said,
            RecordGradients,
            model,
            cross_entropy,
            task_of(linear()).model.parameters,
        )
    refused("no parameters", RecordGradients, nn.Flatten(), cross_entropy, ())

    def counting(m: Counting, x: torch.Tensor) -> torch.Tensor:
        """Keeps a running statistic without being a known layer: running it finds that
        out."""
        m.seen += 1
        found: torch.Tensor = m.head(x.flatten(1))
        return found

    own = corpus.Own(counting, 36, seen=torch.zeros(()))
    refused(r"buffer seen.*GroupNorm", rows, own, X, range(4))


@pytest.fixture(autouse=True)
def distributions_check() -> Iterator[None]:
    """torch.compile's own module turns it off for the whole process."""
    yield
    torch.distributions.Distribution.set_default_validate_args(value=True)


@pytest.mark.parametrize("name", TRAINED)
def test_a_model_s_gradients_are_autograd_s_one_by_one(name: str) -> None:
    make, x = TRAINED[name]
    torch.manual_seed(2)
    model = make()
    with torch.no_grad():
        outputs = model(torch.from_numpy(x))
    # Labels, a pixel each where there are pixels.
    y = (
        np.resize(corpus.Y, (corpus.N, *outputs.shape[2:]))
        if outputs.ndim > 2
        else corpus.Y
    )
    assert outcome(model, cross_entropy, x, y) == row_on_the_page(name) == "trains"
    assert try_model(model, task_of(model, "uniform"), x.shape[1:]) is not None


@pytest.mark.parametrize("name", corpus.REFUSED)
def test_what_cannot_train_is_named_before_there_are_records(name: str) -> None:
    make, x = corpus.REFUSED[name]
    torch.manual_seed(2)
    model = make()
    said = outcome(model, cross_entropy, x, corpus.Y)
    assert said == row_on_the_page(name)
    assert not re.search("mend this record|don't go together|record [0-9]", said)
    refused(".", lambda: try_model(model, task_of(model, "uniform"), x.shape[1:]))


@pytest.mark.parametrize("name", ["the old weight_norm", "torch.compile", "pruning"])
def test_a_simulation_names_what_cannot_be_copied(name: str) -> None:
    """It was the device that couldn't be used."""
    model = corpus.REFUSED[name][0]()
    given = task_of(model, "uniform"), (corpus.X, corpus.Y), model
    refused(re.escape(row_on_the_page(name)), simulate, *given, clients=2, rounds=1)


@pytest.mark.parametrize("name", [*corpus.LOSSES, *corpus.REFUSED_LOSSES])
def test_a_loss_s_gradients_are_autograd_s_one_by_one_or_it_is_named(name: str) -> None:
    trains = name in corpus.LOSSES
    loss, columns, y = (corpus.LOSSES if trains else corpus.REFUSED_LOSSES)[name]
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, columns))
    said, row = outcome(model, loss, corpus.X, y), name if trains else f"{name} (loss)"
    assert (said, "mend this record" in said) == (row_on_the_page(row), False)
    assert (said == "trains") is trains


def test_no_record_is_blamed_for_a_start_at_which_no_loss_is_finite() -> None:
    model = corpus.Own(
        lambda m, x: m.head(x) / m.by, by=nn.Parameter(torch.tensor(1.0))
    )
    records, task = as_records((corpus.X, corpus.Y)), task_of(model, "uniform")
    said = r"starts at 0.*start from a file of weights"
    refused(said, rehearse, model, cross_entropy, records, task)


def test_without_a_shape_such_as_the_first_layer_takes_is_tried() -> None:
    for name in ("logistic regression", "LSTM", "embedding", "transformer's encoder"):
        model = TRAINED[name][0]()
        if name == "embedding":
            model = nn.Sequential(
                nn.Embedding(11, 4), nn.Flatten(), nn.Linear(32, CLASSES)
            )
        assert try_model(model, task_of(model, "uniform")) is not None, name
    strange = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(3 * 7 * 9, 2))
    assert try_model(strange, task_of(strange, "uniform")) is None
    said = r"takes no record of shape \[2, 8, 8\]"
    refused(said, try_model, strange, task_of(strange, "uniform"), corpus.P.shape[1:])


def stream(context: int = 0) -> ring.Keystream:
    return ring.Keystream(identifiers.Secret(bytes(32)), "test-sample", context)


@pytest.mark.parametrize("rate", [0.01, 0.2, 0.5, 0.97])
def test_every_record_is_drawn_at_the_rate_and_independently(rate: float) -> None:
    count, draws = 400, 500
    hits = np.zeros((draws, count))
    for draw in range(draws):
        hits[draw, poisson_sample(count, rate, stream(draw))] = 1
    # Sample sizes are binomial: mean and variance within 5 standard errors.
    sizes = hits.sum(axis=1)
    variance = count * rate * (1 - rate)
    assert abs(sizes.mean() - count * rate) < 5 * math.sqrt(variance / draws)
    assert abs(sizes.var() / variance - 1) < 5 * math.sqrt(2.2 / draws)
    # No record is favoured: chi-square with `count` degrees of freedom, 5 standard
    # deviations.
    chi = (((hits.sum(axis=0) - draws * rate) ** 2) / (draws * rate * (1 - rate))).sum()
    assert abs(chi - count) < 5 * math.sqrt(
        2 * count + count / (draws * rate * (1 - rate))
    )


def test_a_record_is_drawn_exactly_below_the_threshold() -> None:
    assert poisson_sample(1000, 1.0, stream()).tolist() == list(range(1000))
    assert poisson_sample(1000, 5e-324, stream()).size == 0
    words = stream().words(1000).view(np.uint64)
    for position in (0, 123, 999):
        # Rates are float64: the nearest ones around this record's word.
        word = int(words[position])
        rate = math.nextafter(word / 2**64, 1.0)
        assert position in poisson_sample(1000, rate, stream())
        below = math.nextafter(word / 2**64, 0.0)
        assert position not in poisson_sample(1000, below, stream())
    for outside in (0.0, -0.1, 1.0000001, math.nan):
        refused("record_rate", poisson_sample, 10, outside, stream())
        refused("record_rate", roster.most_records, 10, outside)
    # Indices go on over blocks of words.
    count = (1 << 16) + 1000
    words = stream().words(count).view(np.uint64)
    expected = np.flatnonzero(words < np.uint64(2**62))
    drawn = poisson_sample(count, 0.25, stream())
    assert drawn.dtype == np.int64
    assert drawn.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("count", "rate"),
    [
        *((1, 0.5), (40, 0.5), (41, 0.5), (100, 0.01), (143, 0.2), (500, 0.97)),
        *((6000, 0.05), (10**6, 0.001), (10**5, 1e-7)),
    ],
)
def test_the_padded_size_is_the_least_below_2_to_the_minus_40(
    count: int, rate: float
) -> None:
    most = roster.most_records(count, rate)
    with mpmath.workdps(60):
        p = mpmath.mpf(rate)
        # Those beyond 400 more have no part in 60 digits.
        mass, *beyond = (
            mpmath.binomial(count, k) * p**k * (1 - p) ** (count - k)
            for k in range(most, min(count, most + 400) + 1)
        )
        tail = mpmath.fsum(beyond)
        assert tail < mpmath.mpf(2) ** -40
        assert most == 0 or tail + mass >= mpmath.mpf(2) ** -40
