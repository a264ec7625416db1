"""Weights go into modules and files and back, and what a module brings besides its
shapes: weights that somebody chose, a file of them, buffers. What doesn't fit is
refused.
"""

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from tests.rig import commands, tasks
from tests.rig.commands import precad
from tests.rig.commands import refused as said_to
from tests.rig.model_corpus import TRAINED, Own
from tests.rig.refusals import refused
from tests.rig.task_files import task_to_toml
from tests.rig.tasks import task_of, task_with
from torch import nn
from torch.nn import functional, init

from precad.aggregator.store.summary import read_task
from precad.aggregator.training.model_store import ModelStore
from precad.client import TrainedModel, load_initial, load_vector, model_section
from precad.client.gradients import evaluation, rehearsal
from precad.client.gradients.own_weights import check_buffers, check_weights
from precad.client.gradients.torch_models import build, logistic, mlp
from precad.client.participation import Participation
from precad.client.records.torch_records import as_records
from precad.client.server_state import differences
from precad.common.errors import TaskMismatch
from precad.common.model import initial_vector, save_model, tensors
from precad.common.task import Task
from precad.common.task_schema import ModelSection
from precad.simulation import simulate

FEATURES, CLASSES = 3, 2
TASK = task_with(tasks.logistic(FEATURES, CLASSES))
THETA = np.linspace(-1, 1, TASK.dimension)
MODEL = tasks.model_at(TASK, THETA, 3)


def test_what_is_saved_is_what_is_loaded_and_goes_into_modules(tmp_path: Path) -> None:
    MODEL.save(tmp_path / "m.safetensors")
    again = TrainedModel.load(tmp_path / "m.safetensors", TASK)
    assert again == MODEL
    assert again.theta.tobytes() == THETA.tobytes()
    assert set(again.weights) == {"1.weight", "1.bias"}
    with pytest.raises(TaskMismatch):
        TrainedModel.load(tmp_path / "m.safetensors", task_with({"name": "other"}))
    refused("can't be written", MODEL.save, tmp_path / "nowhere" / "m.safetensors")
    refused("before a model was seen", Participation().save, tmp_path / "m.safetensors")
    # In a module buffers stay, and parameters of another name or shape are refused.
    module = logistic(FEATURES, CLASSES)
    module.register_buffer("scale", torch.full((FEATURES,), 7.0))
    loaded = MODEL.load_into(module)
    assert dict(loaded.named_buffers())["scale"].tolist() == [7.0] * FEATURES
    for other in (nn.Linear(FEATURES, CLASSES), logistic(FEATURES + 1, CLASSES)):
        refused("parameter 0", MODEL.load_into, other)


APPLIED = evaluation.Applied(build(TASK.model), TASK)


def test_a_model_is_the_same_on_records_in_chunks_and_alone() -> None:
    x = np.random.default_rng(1).normal(size=(150, FEATURES)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    gap, module = Mock(), MODEL.load_into(build(TASK.model))
    with torch.no_grad():
        outputs = module(torch.from_numpy(x))
        expected = float(functional.cross_entropy(outputs, torch.from_numpy(y)))
    found = APPLIED.evaluate(THETA, as_records((x, y)), gap)
    assert found.loss == pytest.approx(expected, rel=1e-5)
    assert found.accuracy == float((outputs.argmax(dim=1).numpy() == y).mean())
    assert gap.call_count == 6, "it can be held before each chunk"
    wide = torch.zeros(2, FEATURES + 1)
    refused(r"records 0 to 1.*can't take them", APPLIED.outputs, THETA, wide)
    records = as_records((np.zeros((2, FEATURES)), np.array([0, CLASSES])))
    refused("targets from record 0", APPLIED.evaluate, THETA, records)


def section(
    module: nn.Module, architecture: str, initial: str = "zeros"
) -> ModelSection:
    return ModelSection.model_validate(
        model_section(module, architecture=architecture, initial=initial)
    )


def test_a_built_in_model_is_rebuilt_and_what_is_none_is_refused() -> None:
    for module, name, size in (
        (logistic(64, 10), "logistic", 650),
        (mlp(30, 8, 2), "mlp", 266),
    ):
        described = section(module, name)
        again = build(described)
        assert section(again, name) == described
        assert sum(p.size for p in described.parameters) == size
        x = torch.zeros(3, described.parameters[0].shape[1])
        assert again(x).shape == module(x).shape
    deep = nn.Sequential(*(nn.Linear(3, 3) for _ in range(3)))
    other = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(6, 3))
    for module, name, said in (
        (logistic(2, 2), "resnet", "give the model yourself"),
        (deep, "mlp", "don't belong to mlp"),
        (other, "mlp", r"3.weight\[3, 5\]"),
    ):
        refused(said, build, section(module, name))
    # A vector becomes the model's parameters, in order.
    module = mlp(3, 2, 2)
    theta = np.arange(14, dtype=np.float64)
    load_vector(module, theta)
    flat = torch.cat([p.detach().ravel() for p in module.parameters()])
    assert flat.tolist() == theta.tolist()
    refused(r"must be \[14\]", load_vector, module, theta[:-1])
    # A network that starts uniform has unequal hidden units.
    start = initial_vector(section(module, "mlp", "uniform"))
    assert start[:3].tolist() != start[3:6].tolist()


def test_raw_outputs_are_the_models_and_bad_predictions_are_refused(
    tmp_path: Path,
) -> None:
    kept, given = tmp_path / "model.safetensors", tmp_path / "data.npz"
    MODEL.save(kept)
    np.savez(given, x=np.ones((4, FEATURES), np.float32), y=np.zeros(4, int))
    for name, task in (
        ("task", TASK),
        ("other", TASK.model_copy(update={"name": "other"})),
    ):
        (tmp_path / f"{name}.toml").write_text(task_to_toml(task), encoding="utf-8")
    predict = ("predict", given, "--task", tmp_path / "task.toml", "--model-file", kept)
    said = precad(*predict, "--raw", "--out", tmp_path / "raw.npy")
    assert said.exit_code == 0, said.output
    module = MODEL.load_into(build(TASK.model))
    with torch.no_grad():
        expected = module(torch.ones(4, FEATURES)).numpy()
    assert (np.load(tmp_path / "raw.npy") == expected).all()
    header, *rows = precad(*predict, "--raw").stdout.splitlines()
    assert (header, len(rows)) == ("record,output_0,output_1", 4)
    for option, value, status, words in (
        ("--out", "p.xlsx", 2, ".csv or .npy"),
        ("--out", "/nowhere/p.csv", 2, "no such folder"),
        ("--model", "nowhere:Net", 2, "can't be loaded"),
        ("--model-file", "absent.safetensors", 2, "can't be read"),
        ("--task", tmp_path / "other.toml", 1, "task digest differs"),
    ):
        result = precad(*commands.instead(predict, option, value))
        assert (result.exit_code, result.stdout, words in result.stderr) == (
            status,
            "",
            True,
        )


GENERATOR = np.random.default_rng(9)
X = GENERATOR.normal(size=(60, 6)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)


def fresh() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh(), nn.Linear(8, 2))


def trained(steps: int = 60) -> nn.Sequential:
    torch.manual_seed(1)
    module = fresh()
    optimizer = torch.optim.SGD(module.parameters(), 0.5)
    for _ in range(steps):
        optimizer.zero_grad()
        functional.cross_entropy(
            module(torch.from_numpy(X)), torch.from_numpy(Y)
        ).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return module


def task_from(module: nn.Module, path: Path) -> Task:
    save_file(module.state_dict(), path)
    return task_with(
        {"model": model_section(module, architecture="custom", initial_file=path)}
    )


def hand_over(module: nn.Module, task: Task) -> None:
    rehearsal.rehearse(
        module, functional.cross_entropy, as_records((X, Y)), task, most=20
    )


def look(module: nn.Module) -> None:
    check_weights(module, task_of(module, "uniform").model)


def test_chosen_weights_are_refused_with_both_ways_out() -> None:
    """They were replaced by the seed's without a word."""
    module = trained()
    task = task_of(module, "uniform")
    both = r"--continue FILE.*load_initial\(net, task\)"
    for check in (
        hand_over,
        lambda net, of: simulate(of, (X, Y), model=net, clients=2),
    ):
        refused(both, check, module, task)
    hand_over(load_initial(module, task), task)
    # Such are weights that no layer draws.
    changes: list[tuple[Callable[[Any], object], str]] = [
        (lambda net: net[0].weight.data.mul_(3.0), ""),
        (lambda net: net[0].weight.data.mul_(0.3), ""),
        (lambda net: init.zeros_(net[0].weight), ""),
        (lambda net: init.normal_(net[3].weight, std=1.0), ""),
        (lambda net: net[1].weight.data.mul_(0.9), ""),
        (lambda net: init.ones_(net[0].bias), r"parameter 0\.bias"),
        # A few weights that are all one number.
        (lambda net: init.constant_(net[3].bias, 7.0), r"parameter 3\.bias"),
    ]
    for change, said in changes:
        module = fresh()
        change(module)
        refused(f"{said}.*has weights of its own", look, module)


def test_weights_as_layers_draw_them_and_the_task_s_own_start_are_nobody_s_choice() -> (
    None
):
    for make, _ in TRAINED.values():
        for seed in range(5):
            torch.manual_seed(seed)
            look(make())
    module = fresh()
    init.zeros_(module[0].bias)  # type: ignore[arg-type]
    before = torch.get_rng_state()
    look(module)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("error", [TypeError, RuntimeError, NotImplementedError])
def test_a_layer_that_can_t_draw_again_passes(error: type[Exception]) -> None:
    class Own(nn.Linear):
        def reset_parameters(self) -> None:
            if hasattr(self, "made"):
                raise error
            self.made = True
            super().reset_parameters()

    module = nn.Sequential(Own(6, 2))
    before = torch.get_rng_state()
    hand_over(module, task_of(module, "zeros"))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_file_s_weights_are_where_everybody_starts(tmp_path: Path) -> None:
    module = trained()
    task = task_from(module, tmp_path / "w.safetensors")
    own = (
        torch.cat([tensor.detach().ravel() for tensor in module.parameters()])
        .double()
        .numpy()
    )
    stores = [
        ModelStore(task, tmp_path / name / "model.safetensors") for name in ("a", "b")
    ]
    assert stores[0].current.digest == stores[1].current.digest
    for start in (initial_vector(task.model), stores[0].theta()):
        assert (start == own).all()
    hand_over(module, task)
    hand_over(fresh(), task)
    refused("starts from the file's weights", hand_over, trained(200), task)
    # The digest is of the weights and not of their place.
    double = task_from(copy.deepcopy(module).double(), tmp_path / "two.safetensors")
    others = (
        task_from(trained(61), tmp_path / "three.safetensors"),
        task_of(module, "uniform"),
    )
    assert double.digest == task.digest
    assert task.digest not in {each.digest for each in others}


def saved(**changes: torch.Tensor | None) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        state = trained().state_dict() | changes
        save_file(
            {name: tensor for name, tensor in state.items() if tensor is not None}, path
        )

    return write


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            saved(**{"3.bias": torch.zeros(2)}),
            "has other weights than the task.*from whoever made the task",
        ),
        (
            # A pickle that makes a folder when it is loaded.
            lambda path: path.write_bytes(f"cposix\nmkdir\n(V{path}.ran\ntR.".encode()),
            "can't be read.*give a safetensors file",
        ),
        (
            saved(**{"0.bias": torch.full((8,), torch.nan)}),
            r"tensor 0\.bias.*must be finite",
        ),
        (saved(**{"3.bias": None}), r"tensor 3\.bias = 'absent'"),
        (Path.unlink, "isn't there: everybody has it beside the task's file"),
    ],
    ids=["other weights", "pickled", "no number", "half of it", "gone"],
)
def test_another_file_than_the_tasks_is_refused(
    change: Callable[[Path], object], said: str, tmp_path: Path
) -> None:
    path = tmp_path / "w.safetensors"
    task = task_from(trained(), path)
    change(path)
    refused(said, hand_over, trained(), task)
    refused(said, ModelStore, task, tmp_path / "m")
    assert not Path(f"{path}.ran").exists()


class Adapted(nn.Module):
    """A layer with an adapter of own parameters, of which one begins at 0."""

    def __init__(self, scale: float = 0.1) -> None:
        super().__init__()
        self.base = nn.Linear(6, 2)
        self.down = nn.Parameter(scale * torch.randn(3, 6))
        self.up = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> Any:
        return self.base(x) + x @ self.down.T @ self.up.T


class Scaled(nn.Module):
    """A single own number, which the seed would start at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.factor = nn.Linear(6, 2), nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> Any:
        return self.factor * self.base(x)


class ZeroHead(nn.Module):
    """A layer of torch's whose weights were set by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = nn.Linear(6, 4), nn.Linear(4, 2)
        init.zeros_(self.out.weight)

    def forward(self, x: torch.Tensor) -> Any:
        return self.out(self.hidden(x).tanh())


@pytest.mark.parametrize(
    ("make", "named"),
    [(Adapted, "down"), (Scaled, "factor"), (ZeroHead, "out.weight")],
)
def test_own_parameters_that_the_seed_would_replace_are_refused_by_name(
    make: Callable[[], nn.Module],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An adapter's B started from random numbers, and nobody was told."""
    said = f"parameter {re.escape(named)} .*--start module"
    module = make()
    task = task_of(module, "uniform")
    for check in (
        hand_over,
        lambda net, of: simulate(of, (X, Y), model=net, clients=2),
    ):
        refused(said, check, module, task)
    hand_over(load_initial(module, task), task)
    # From the beginning, with that option for a remedy.
    monkeypatch.chdir(tmp_path)
    place = f"{__name__}:{make.__name__}"
    new = ["task", "new", "t.toml", "--model", place, "--features", "6"]
    new += ["--records", "3x600", "--epsilon", "3"]
    assert re.search(said, said_to(*new))
    assert precad(*new, "--start", "module").exit_code == 0
    started = Task.load(tmp_path / "t.toml")
    assert started.model.initial_file == str(tmp_path / "t.safetensors")
    weights = tensors(initial_vector(started.model), started.model.parameters)
    if make is Adapted:
        assert not weights["up"].any()
        assert 0.02 < np.abs(weights["down"]).mean() < 0.3
    # An owner's module, made anew, is taken: nothing of it is replaced by a seed's.
    hand_over(make(), started)


def test_weights_beside_a_task_are_written_with_it_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    records = ("--records", "3x600", "--epsilon", "3", "--start", "module")
    new = ("task", "new", "t.toml", "--model", f"{__name__}:Adapted", *records)
    built_in = ("--architecture", "logistic", "--features", "6", "--classes", "2")
    for words, said in (
        ((*new, "--features", "7"), "takes no record of shape"),
        ((*new, "--from", "other.safetensors"), "start = 'module': .*without --from"),
        (("task", "new", "t.toml", *built_in, *records), "goes with --model"),
        ((*new, "--delta", "0.5"), "privacy.delta = 0.5.* 0.01"),
        (("task", "new", "no/t.toml", *new[3:]), "out = .*there is no such folder"),
    ):
        assert re.search(said, said_to(*words))
        assert list(tmp_path.iterdir()) == []
    (tmp_path / "t.safetensors").touch()
    assert "exists already" in said_to(*new)
    assert (tmp_path / "t.safetensors").read_bytes() == b""


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wards_with_weights.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def Net(scale=2.0):\n    net = nn.Sequential(nn.Linear(6, 2))\n"
        "    net.register_buffer('scale', torch.full((6,), scale))\n    return net\n\n"
        "def Other():\n    return Net(3.0)\n"
    )
    (tmp_path / "public").mkdir()
    return tmp_path


NET = "wards_with_weights:Net"
NEW = ("task", "new", "t.toml", "--model", NET, "--records", "3x600", "--epsilon", "3")
FROM = (*NEW, "--continue", "public/start.safetensors")
STATE = {
    "0.weight": torch.arange(12.0).reshape(2, 6),
    "0.bias": torch.tensor([0.5, -0.5]),
    "scale": torch.full((6,), 2.0),
}


def test_a_task_is_made_from_weights_and_may_be_moved(wards: Path) -> None:
    save_file(STATE, wards / "public" / "start.safetensors")
    assert precad(*FROM).exit_code == 0
    task = Task.load(wards / "t.toml")
    assert Path(str(task.model.initial_file)) == wards / "start.safetensors"
    assert initial_vector(task.model)[:13].tolist() == [*range(12), 0.5]
    assert [buffer.name for buffer in task.model.buffers] == ["scale"]
    assert str(task.digest) in precad("task", "check", "t.toml").stdout
    # Another folder, the same digest: nothing of a place is agreed on.
    (wards / "there").mkdir()
    (wards / "start.safetensors").rename(wards / "there" / "start.safetensors")
    assert "isn't there" in precad("task", "check", "t.toml").stderr
    (wards / "t.toml").rename(wards / "there" / "t.toml")
    moved = Task.load(wards / "there" / "t.toml")
    assert (moved.digest, initial_vector(moved.model)[12]) == (task.digest, 0.5)


def test_a_task_is_made_from_its_models_weights_and_applied_with_its_buffers(
    wards: Path,
) -> None:
    changes: list[tuple[str, torch.Tensor, str]] = [
        ("scale", torch.full((6,), 3.0), "tensor scale.*differs from the model's"),
        ("1.weight", torch.zeros(2, 2), r"tensor 1\.weight.*isn't in the model"),
        ("0.weight", torch.zeros(3, 6), r"tensor 0\.weight.*of shape \[2, 6\]"),
        ("0.weight", torch.zeros(2, 6).bfloat16(), "bfloat16.*float32 or float64"),
    ]
    for name, tensor, said in changes:
        save_file(STATE | {name: tensor}, wards / "public" / "start.safetensors")
        assert re.search(said, said_to(*FROM))
        assert not (wards / "start.safetensors").exists()
    assert precad(*NEW).exit_code == 0
    task = Task.load(wards / "t.toml")
    save_model(wards / "m.safetensors", task, 1, initial_vector(task.model))
    np.savez(wards / "new.npz", x=X)
    predict = (
        "predict",
        "new.npz",
        "--task",
        "t.toml",
        "--model-file",
        "m.safetensors",
        "--model",
    )
    assert precad(*predict, NET).exit_code == 0
    assert "buffer scale" in said_to(*predict, "wards_with_weights:Other")


RECIPE = """[data]
target = {{ name = 't', kind = 'categorical', levels = ['0', '1'] }}
columns = [{}]
"""
AGE = "{ name = 'age', centre = 60, scale = 20 }"


def test_next_month_starts_from_this_months_model(wards: Path) -> None:
    """At the usual step a model that has learnt lost a point by the noise."""
    for name, columns in (("this", AGE), ("other", AGE.replace("60", "50"))):
        (wards / f"{name}.recipe").write_text(RECIPE.format(columns))
    asked = ("--architecture", "logistic", "--records", "3x600", "--epsilon", "3")
    new = ("task", "new", "new.toml", *asked, "--recipe")
    assert (
        precad("task", "new", "old.toml", *asked, "--recipe", "this.recipe").exit_code
        == 0
    )
    task = Task.load(wards / "old.toml")
    theta = np.arange(task.dimension, dtype=np.float32)
    save_model(wards / "model.safetensors", task, 200, theta)
    start = ("--continue", "model.safetensors")
    assert "another recipe" in said_to(*new, "other.recipe", *start)
    without = ("task", "new", "new.toml", *asked, "--features", "1", "--classes", "2")
    assert "the recipe of task old" in said_to(*without, *start)
    assert not (wards / "new.toml").exists()
    made = precad(*new, "this.recipe", *start)
    assert made.exit_code == 0, made.stderr
    for words in ("owners' records (task old)", "both trainings", "a tenth"):
        assert words in made.stderr
    again = Task.load(wards / "new.toml")
    assert initial_vector(again.model).tolist() == theta.tolist()
    steps = [each.training.learning_rate for each in (task, again)]
    assert steps[1] == pytest.approx(steps[0] / 10, rel=0.05)
    # Weights that nobody's records made have the usual step, and no note.
    (wards / "new.toml").unlink()
    named = tensors(theta, task.mechanism.parameters)
    save_numpy(named, wards / "public" / "public.safetensors")
    public = precad(*new, "this.recipe", "--from", "public/public.safetensors")
    assert "owners' records" not in public.stderr
    assert Task.load(wards / "new.toml").training.learning_rate == steps[0]


def test_file_and_digest_belong_together() -> None:
    for values in (
        {"model.initial": "file"},
        {"model.initial": "file", "model.initial_file": "w"},
        {"model.initial_digest": "0" * 64, "model.initial_file": "w"},
        {"model.initial_file": "w"},
        {"model.initial_digest": "0" * 64},
    ):
        refused("--continue WEIGHTS writes all three", task_with, values)


@pytest.mark.parametrize("start", [("--start", "module"), ()])
def test_who_reads_a_ledger_or_a_peers_task_needs_no_weights(
    wards: Path, start: tuple[str, ...]
) -> None:
    """A report of such a training was refused, for the file that only its parties have."""
    weights = wards / "public" / "start.safetensors"
    save_file(STATE, weights)
    assert precad(*((start and NEW) or FROM), *start).exit_code == 0
    task = Task.load(wards / "t.toml")
    read = read_task(task.canonical)
    assert (read.digest, read.model.initial_file) == (task.digest, None)
    assert Task.parse(json.loads(task.canonical)).digest == task.digest
    other = task.model_copy(update={"name": "other"})
    assert differences(task, other.canonical) == "name is 't', not 'other'"
    # Who makes the first model, or writes a task, needs the file as before.
    refused("initial_file = None.*isn't there", initial_vector, read.model)
    values = json.loads(task.canonical)
    refused("initial_file.*beside the task's file", Task.parse_new, values)


def scaled(scale: float = 2.0, shift: float = 1.0) -> nn.Module:
    """By a buffer, and by a tensor that is only an attribute."""
    module = Own(
        lambda m, x: m.head((x - m.shift) / m.scale), scale=torch.full((6,), scale)
    )
    module.shift = torch.full((6,), shift)
    return module


def test_owners_with_other_buffers_are_refused_before_they_enrol() -> None:
    """They trained on, one digest for all, one at 93.9 and one at 90.9 %."""
    task = task_of(scaled())
    hand_over(scaled(), task)
    hand_over(scaled().double(), task)
    for other, name in ((scaled(2.5), "scale"), (scaled(shift=1.5), "shift")):
        refused(f"buffer {name}.*other numbers than the task's", hand_over, other, task)
        assert task_of(other).digest != task.digest
    plain = nn.Sequential(nn.Linear(6, 2))
    refused(
        r"buffer scale.*is missing: give the module", check_buffers, plain, task.model
    )
    values = task.model_dump(mode="json")
    values["model"]["buffers"] = []
    without = Task.parse(values)
    assert without.digest != task.digest
    refused(
        r"buffer scale.*isn't in the task.*model_section", hand_over, scaled(), without
    )
    # A task without buffers or a file has the digest that it always had.
    text = task_of(plain).canonical.decode()
    assert not any(
        word in text for word in ("buffers", "initial_file", "initial_digest")
    )


def test_a_continued_task_says_that_it_drops_its_models_class_weights(
    wards: Path,
) -> None:
    """They went without a word: the next month's model found nobody again."""
    (wards / "this.recipe").write_text(RECIPE.format(AGE))
    asked = ("--architecture", "logistic", "--records", "3x600", "--epsilon", "3")
    new = ("task", "new", "new.toml", *asked, "--recipe", "this.recipe")
    weighs = ("--balance", ".93,.07")
    model = "model.safetensors"
    for balance, lost in (((), False), (weighs, True)):
        assert precad("task", "new", "old.toml", *new[3:], *balance).exit_code == 0
        task = Task.load(wards / "old.toml")
        save_model(wards / model, task, 200, initial_vector(task.model))
        made = precad(*new, "--continue", model)
        assert ("weighed its classes by [0.07527, 1.0]" in made.stderr) is lost
        for path in ("old.toml", "new.toml"):
            (wards / path).unlink()
    # What it says to give keeps them, and says no more.
    (kept,) = re.findall(r"give --balance (\S+)$", made.stderr, re.MULTILINE)
    made = precad(*new, "--continue", model, "--balance", kept)
    assert "weighed" not in made.stderr
    assert Task.load(wards / "new.toml").training.class_weights == (0.07527, 1.0)


def test_another_tasks_model_is_named_as_such_and_not_by_a_tensor(wards: Path) -> None:
    for name, columns in (("this", AGE), ("wider", f"{AGE}, {{ name = 'days' }}")):
        (wards / f"{name}.recipe").write_text(RECIPE.format(columns))
    (wards / "plain").mkdir()
    asked = ("--records", "3x600", "--epsilon", "3")
    linear = ("--architecture", "logistic")
    recipe = ("--recipe", "this.recipe")
    plain = ("--features", "1", "--classes", "2")
    for folder, columns_of in ((wards, recipe), (wards / "plain", plain)):
        old = folder / "old.toml"
        assert precad("task", "new", old, *asked, *linear, *columns_of).exit_code == 0
        task = Task.load(old)
        save_model(folder / "model.safetensors", task, 200, initial_vector(task.model))
    new = ("task", "new", "new.toml", *asked, "--continue")
    model = "model.safetensors"
    for wrong, words in (
        # The recipe's fault comes before the tensor that differs by it.
        ((model, *linear, "--recipe", "wider.recipe"), "with another recipe"),
        ((model, "--architecture", "mlp", *recipe), "is the model of task old"),
        ((f"plain/{model}", *linear, "--features", "4", *plain[2:]), "of task old"),
    ):
        assert words in said_to(*new, *wrong), wrong
